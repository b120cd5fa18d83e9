package mvcc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestRoomAfterGivingUp: when all that is queued was given up, whoever waits for room gets it.
func TestRoomAfterGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 1<<20, contract.Limits{GroupMutations: 10, GroupBytes: 1 << 20})
		first, second := &write{done: make(chan struct{})}, &write{done: make(chan struct{})}
		if err := q.put(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		queued := false
		go func() {
			if err := q.put(t.Context(), second); err != nil {
				t.Error(err)
			}
			queued = true
		}()
		synctest.Wait()
		if queued {
			t.Fatal("the queue takes more than it may")
		}
		if !q.drop(first) {
			t.Fatal("what is queued can be given up")
		}
		synctest.Wait()
		if !queued {
			t.Fatal("the second writer waits for ever")
		}
		if group := q.take(0); len(group) != 1 || group[0] != second {
			t.Fatalf("the group is %v", group)
		}
	})
}

// TestQueueKeepsApart: a mutation that expects any state is the only one of its key in a group, and
// nothing that waits for the next group is overtaken there.
func TestQueueKeepsApart(t *testing.T) {
	q := newQueue(100, 1<<20, contract.Limits{GroupMutations: 4, GroupBytes: 1 << 20})
	add := func(key contract.Key, expect contract.Revision, value string) *write {
		w := &write{m: contract.Mutation{Key: key, Expect: expect, Value: []byte(value)},
			done: make(chan struct{})}
		if err := q.put(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		return w
	}
	add("a", 1, "1")
	add("a", contract.Any, "2")
	add("b", contract.Any, "3")
	dropped := add("a", contract.Any, "dropped")
	add("a", contract.Any, "4")
	add("b", 1, "5")
	add("c", 1, "6")
	add("c", 1, "7")
	add("d", 1, "8")
	q.drop(dropped)
	for _, want := range []string{"1 3 6 7", "2 5 8", "4"} {
		var got []string
		for _, w := range q.take(0) {
			got = append(got, string(w.m.Value))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("the group is %v, want %s", got, want)
		}
	}
	if q.count != 0 || q.bytes != 0 || q.alone != 0 || len(q.writes) != 0 {
		t.Errorf("the queue counts %d writes, %d of any state, %d bytes, and has %d", q.count, q.alone,
			q.bytes, len(q.writes))
	}
}

// TestQueueKeepsConditions: a mutation with a condition is a group of its own, and has its turn
// when it is the first.
func TestQueueKeepsConditions(t *testing.T) {
	q := newQueue(100, 1<<20, contract.Limits{GroupMutations: 4, GroupBytes: 1 << 20})
	for i, condition := range []*contract.Condition{nil, {}, nil, {}, {}, nil, nil} {
		key := contract.Key(fmt.Sprint(i))
		err := q.put(t.Context(), &write{m: contract.Mutation{Key: key, If: condition}, bytes: 1})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"0 2 5 6", "1", "3", "4"} {
		var got []string
		for _, w := range q.take(0) {
			got = append(got, string(w.m.Key))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("the group is %v, want %s", got, want)
		}
	}
	if q.count != 0 || q.bytes != 0 || len(q.writes) != 0 {
		t.Errorf("the queue counts %d writes and %d bytes, and has %d", q.count, q.bytes,
			len(q.writes))
	}
}

// TestQueueWaitsForWriters: after a large group, the next one waits for nearly as many writes, or
// until the patience is over. After a small one nothing is waited for.
func TestQueueWaitsForWriters(t *testing.T) {
	const patience = time.Second
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(100, 1<<20, contract.Limits{GroupMutations: 16, GroupBytes: 1000})
		put := func(n, bytes int) {
			t.Helper()
			for range n {
				if err := q.put(t.Context(), &write{bytes: bytes}); err != nil {
					t.Fatal(err)
				}
			}
		}
		// take puts writes one by one, a millisecond apart, while the queue waits for them.
		take := func(n, bytes, want int, wantWait time.Duration) {
			t.Helper()
			began := time.Now()
			var puts sync.WaitGroup
			puts.Go(func() {
				for range n {
					put(1, bytes)
					contract.Wait(t.Context(), time.Millisecond)
				}
			})
			group := q.take(patience)
			waited := time.Since(began)
			puts.Wait()
			if len(group) != want || waited != wantWait {
				t.Errorf("of %d writes of %d bytes, %d were taken after %s; want %d after %s", n,
					bytes, len(group), waited, want, wantWait)
			}
			for q.count > 0 {
				group = append(group, q.take(0)...)
			}
			q.taken = len(group)
		}
		put(8, 1)
		take(0, 1, 8, 0)
		take(8, 1, 7, 6*time.Millisecond)
		take(3, 1, 3, patience)
		take(1, 1, 1, patience)
		take(2, 1, 1, 0)
		take(1, 1, 1, 0)
		put(8, 1)
		take(0, 1, 8, 0)
		take(8, 500, 2, time.Millisecond) // as many bytes as a group may have
		q.close()
		if group := q.take(patience); group != nil {
			t.Errorf("a closed queue has %v", group)
		}
	})
}

// TestQueueClosedWhileItWaits: what is queued is taken at once when the queue is closed.
func TestQueueClosedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(100, 1<<20, contract.Limits{GroupMutations: 16, GroupBytes: 1000})
		q.taken = 8
		if err := q.put(t.Context(), &write{}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Millisecond, q.close)
		began := time.Now()
		if group := q.take(time.Hour); len(group) != 1 || time.Since(began) != time.Millisecond {
			t.Errorf("%d writes were taken after %s", len(group), time.Since(began))
		}
	})
}

// TestRingCountsDeletedValues: a deletion has no value of its own, but it holds the one that it
// removed.
func TestRingCountsDeletedValues(t *testing.T) {
	h := newHub(RingLimits{Events: 1000, Bytes: 100_000}, NewMetrics(), newRowCache(0))
	before := contract.Position{}
	for i := range 100 {
		r := &contract.Row{Key: "/k", Revision: contract.Revision(i + 1), Prev: 1, Deleted: true, HasPrev: true,
			PrevValue: make([]byte, 10_000)}
		after := contract.Position{Revision: r.Revision}
		if !h.append(before, []*Event{eventOf(r)}, after) {
			t.Fatal("not taken")
		}
		before = after
	}
	if len(h.ring) > 10 {
		t.Errorf("the ring holds %d events of 10,000 bytes; its limit is 100,000 bytes",
			len(h.ring))
	}
	bytes := 0
	for _, e := range h.ring {
		bytes += e.bytes
	}
	if bytes != h.ringBytes {
		t.Errorf("the ring counts %d bytes, and holds %d", h.ringBytes, bytes)
	}
}

// TestSweepPause: the sweep hurries if it would not end in time, and not because a fence has
// jumped.
func TestSweepPause(t *testing.T) {
	const rows, took, left = 500, 10 * time.Millisecond, time.Minute
	for _, c := range []struct {
		debt  contract.Revision
		left  time.Duration
		pause time.Duration
		late  bool
	}{
		{1, left, 3 * took, false},
		{rows * 1_000, left, 3 * took, false},
		{rows * 2_999, left, left/3_000 - took, false}, // 20 ms for each
		{rows * 3_999, left, took / 2, false},
		{rows * 4_999, left, took / 2, true},
		{rows, 0, took / 2, true},
		{rows, -left, took / 2, true},
		{fenceDebt, left, 3 * took, false},
		{1 << 60, -left, 3 * took, false},
	} {
		pause, late := sweepPause(c.debt, rows, took, c.left)
		if pause != c.pause || late != c.late {
			t.Errorf("with a debt of %d and %v left it rests for %v, late: %v; want %v, %v", c.debt,
				c.left, pause, late, c.pause, c.late)
		}
	}
	if pause, late := sweepPause(rows, rows, longBatch, 0); pause != longBatch/2 || late {
		t.Errorf("after a long batch it rests for %v, late: %v", pause, late)
	}
}

// TestPieceSize: reads of the log are bounded in bytes, by what the rows of the last one were like.
func TestPieceSize(t *testing.T) {
	var p pieceSize
	if n := p.rows(1000); n != firstPiece {
		t.Errorf("the first piece has %d rows", n)
	}
	p.saw([]contract.Row{{Value: make([]byte, 100)}})
	if n := p.rows(1000); n != 1000 {
		t.Errorf("a piece of small rows has %d", n)
	}
	p.saw([]contract.Row{{Value: make([]byte, 1<<20)}})
	if n := p.rows(1000); n != 8 {
		t.Errorf("a piece of rows of 1 MiB has %d", n)
	}
}

// waitAttached waits until a watcher follows the ring.
func waitAttached(ctx context.Context, w *Watcher) error {
	return Poll(ctx, func() bool {
		w.s.hub.mu.Lock()
		defer w.s.hub.mu.Unlock()
		return w.attached
	})
}

// sizing is a backend whose size is asked for.
type sizing struct {
	contract.Backend
	asked   atomic.Int64
	release chan struct{}
}

func (b *sizing) Size(context.Context) (contract.Size, error) {
	b.asked.Add(1)
	<-b.release
	return contract.Size{Total: 7}, nil
}

// TestSizesAreShared: however many ask for the size at a time, one connection is enough.
func TestSizesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sizing{release: make(chan struct{})}
		s := &Engine{b: b, ctx: t.Context(), cfg: Config{}.withDefaults()}
		s.sizes = coalescer[struct{}, contract.Size]{query: s.querySize, size: 1}
		var asking sync.WaitGroup
		for range 50 {
			asking.Go(func() {
				if size, err := s.Size(t.Context()); err != nil || size.Total != 7 {
					t.Errorf("the size is %+v, %v", size, err)
				}
			})
		}
		synctest.Wait()
		if n := b.asked.Load(); n != 1 {
			t.Errorf("%d queries are under way", n)
		}
		close(b.release)
		asking.Wait()
		if n := b.asked.Load(); n > 2 {
			t.Errorf("%d queries have answered", n)
		}
		s.sizes.close()
		if _, err := s.Size(t.Context()); !errors.Is(err, contract.ErrClosed) {
			t.Errorf("when the store is closed: %v", err)
		}
	})
}

// TestSharing holds the queries that run: reads that come meanwhile wait together for the next
// ones, whose size is bounded, and none gets the answer of a query that had started before it
// asked.
func TestSharing(t *testing.T) {
	const size = 3
	var version atomic.Int64
	begun, release := make(chan []contract.Key, 10), make(chan struct{})
	type answer = map[contract.Key]*KeyValue
	s := &coalescer[contract.Key, *KeyValue]{size: size, query: func(keys []contract.Key) (answer, contract.Revision,
		error) {
		head := contract.Revision(version.Load())
		begun <- keys
		<-release
		found := map[contract.Key]*KeyValue{}
		for _, k := range keys {
			found[k] = &KeyValue{Key: k, Revision: head}
		}
		return found, head, nil
	}}
	var readers sync.WaitGroup
	ask := func(key contract.Key, want contract.Revision) {
		readers.Go(func() {
			q, err := s.ask(t.Context(), key)
			if err != nil || q.head < want || q.found[key] == nil || q.found[key].Key != key {
				t.Errorf("%q: %v", key, err)
			}
		})
	}
	ask("first", 0)
	if keys := <-begun; len(keys) != 1 {
		t.Errorf("a read that need not wait is a query of %q", keys)
	}
	version.Add(1)
	for i := range 4 * size { // each key twice
		ask(contract.Key(fmt.Sprint(i/2)), 1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ask(ctx, "given up"); !errors.Is(err, context.Canceled) {
		t.Errorf("a read that was given up: %v", err)
	}
	if err := Poll(t.Context(), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		waiting := 0
		for _, q := range s.waiting {
			waiting += len(q.keys)
		}
		return waiting >= 2*size+1
	}); err != nil {
		t.Fatal(err)
	}
	close(release)
	readers.Wait()
	s.close()
	close(begun)
	for keys := range begun {
		if len(keys) > size {
			t.Errorf("a query of %q", keys)
		}
	}
	if _, err := s.ask(t.Context(), "late"); !errors.Is(err, contract.ErrClosed) {
		t.Errorf("a read after the end: %v", err)
	}
}

// TestSharingWaitsForReaders: after a query of many, the next one waits for nearly as many readers,
// or until it is full, but no longer than the last one took. After a query of few it does not wait.
func TestSharingWaitsForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 100 * time.Microsecond
		queries := make(chan int, 100) // with how many keys
		s := &coalescer[contract.Key, *KeyValue]{size: 10, query: func(keys []contract.Key) (map[contract.Key]*KeyValue,
			contract.Revision, error) {
			queries <- len(keys)
			contract.Wait(t.Context(), took)
			return nil, 1, nil
		}}
		// ask has readers come with a pause between them, after a query of served readers. It tells
		// how long they took to be answered, and the sizes of the queries.
		ask := func(served, n int, pause, want time.Duration, sizes ...int) {
			t.Helper()
			s.mu.Lock()
			s.answered, s.took = served, took
			s.mu.Unlock()
			began := time.Now()
			var readers sync.WaitGroup
			for i := range n {
				readers.Go(func() {
					if _, err := s.ask(t.Context(), contract.Key(fmt.Sprint(i))); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
				contract.Wait(t.Context(), pause)
			}
			readers.Wait()
			var were []int
			for len(queries) > 0 {
				were = append(were, <-queries)
			}
			if lasted := time.Since(began); lasted != want || !slices.Equal(were, sizes) {
				t.Errorf("%d readers after %d: queries of %v after %s, want %v after %s", n, served,
					were, lasted, sizes, want)
			}
		}
		ask(8, 8, took/10, 6*took/10+3*took, 7, 1) // the eighth one comes late, and waits for others
		ask(8, 3, took/10, 2*took, 3)              // no more come
		ask(2, 1, 0, took, 1)
		ask(1, 2, took/10, 2*took, 1, 1)
		ask(90, 11, 0, 3*took, 10, 1)
		s.close()
	})
}

// TestReadsInPlace: while a read is done by its caller, others wait together for its end, or until
// it is slow.
func TestReadsInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sizes []int // those of the queries
		s := &coalescer[contract.Key, *KeyValue]{size: 10, query: func(keys []contract.Key) (map[contract.Key]*KeyValue,
			contract.Revision, error) {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(keys))
			return nil, 1, nil
		}}
		var readers sync.WaitGroup
		ask := func(keys ...contract.Key) {
			for _, key := range keys {
				readers.Go(func() {
					if _, err := s.ask(t.Context(), key); err != nil {
						t.Errorf("%q: %v", key, err)
					}
				})
			}
			synctest.Wait()
		}
		asked := func(when string, want ...int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(sizes, want) {
				t.Errorf("%s, there were queries of %v keys, want %v", when, sizes, want)
			}
		}
		leave := s.enter()
		if leave == nil || s.enter() != nil {
			t.Fatal("there is one place")
		}
		ask("a", "b", "c")
		asked("before the end of the read")
		leave()
		asked("after it", 3)
		leave = s.enter()
		ask("a", "b")
		asked("beside another read", 3)
		contract.Wait(t.Context(), slowQuery)
		asked("when that is slow", 3, 2)
		other := s.enter()
		if other == nil {
			t.Fatal("a slow read keeps its place")
		}
		leave()
		ask("a")
		asked("beside a third read", 3, 2)
		other()
		asked("in the end", 3, 2, 1)
		readers.Wait()
		s.close()
		if s.running || s.enter() != nil {
			t.Error("the place is taken after the end")
		}
	})
}

// TestTailOverlapsOtherHistory: what a reader found may begin before what was delivered meanwhile.
// If another row is in the place of that, the rows after it belong to another history, and are not
// delivered.
func TestTailOverlapsOtherHistory(t *testing.T) {
	h := newHub(RingLimits{Events: 10, Bytes: 1 << 20}, NewMetrics(), newRowCache(0))
	from := contract.Position{Epoch: 1, Revision: 5, Token: contract.Token{5}}
	h.reset(contract.State{Head: from})
	own := contract.Position{Epoch: 1, Revision: 6, Token: contract.Token{6}}
	if !h.append(from, []*Event{{Key: "/own", Revision: 6}}, own) {
		t.Fatal("the own group is not delivered")
	}
	row := func(r contract.Revision, token byte) contract.Row {
		return contract.Row{Key: "/k", Revision: r, Create: r, Token: contract.Token{token}}
	}
	if _, ok := h.appendTail(from, []contract.Row{row(6, 60), row(7, 70)}); ok || h.position() != own {
		t.Errorf("rows of another history are delivered: %+v", h.position())
	}
	if _, ok := h.appendTail(from, []contract.Row{row(6, 6), row(7, 7)}); !ok || h.position().Revision != 7 {
		t.Errorf("rows of this history are not delivered: %+v", h.position())
	}
}

// TestSharingPassesWhatHangs: a query that hangs stops the others for a moment only, one whose
// callers have given up is not begun, and whoever waits when the store is closed is answered.
func TestSharingPassesWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var begun atomic.Int64
		s := &coalescer[contract.Key, *KeyValue]{size: 1}
		s.query = func(keys []contract.Key) (map[contract.Key]*KeyValue, contract.Revision, error) {
			begun.Add(1)
			if keys[0] == "hangs" {
				<-hang
			}
			return map[contract.Key]*KeyValue{keys[0]: {Key: keys[0]}}, 1, nil
		}
		var readers sync.WaitGroup
		ask := func(ctx context.Context, key contract.Key, want error) {
			readers.Go(func() {
				if q, err := s.ask(ctx, key); !errors.Is(err, want) ||
					err == nil && q.found[key] == nil {
					t.Errorf("%q: %v", key, err)
				}
			})
			synctest.Wait()
		}
		ask(t.Context(), "hangs", nil)
		ctx, cancel := context.WithCancel(t.Context())
		ask(ctx, "given up", context.Canceled)
		ask(t.Context(), "waits", nil)
		cancel()
		synctest.Wait()
		if n := begun.Load(); n != 1 {
			t.Errorf("%d queries run at a time", n)
		}
		<-time.After(slowQuery)
		synctest.Wait()
		if n := begun.Load(); n != 2 {
			t.Errorf("%d queries have begun beside the one that hangs", n-1)
		}
		ask(t.Context(), "hangs", nil) // the second one that hangs
		ask(t.Context(), "last", nil)
		closed := make(chan struct{})
		go func() { s.close(); close(closed) }()
		synctest.Wait()
		close(hang)
		readers.Wait()
		<-closed
		if s.running || len(s.waiting) != 0 {
			t.Errorf("running: %v, %d wait", s.running, len(s.waiting))
		}
	})
}

// TestKeyRanges compares the ranges with a set of all keys.
func TestKeyRanges(t *testing.T) {
	const keys = 20
	key := func(i int) contract.Key { return contract.Key(rune('a' + i)) }
	rng := rand.New(rand.NewPCG(1, 2))
	var ranges keyRanges
	var set [keys]bool
	for range 5_000 {
		from, to := rng.IntN(keys+1), rng.IntN(keys+1)
		add := rng.IntN(2) == 0
		if add {
			ranges.add(keyRange{key(from), key(to)})
		} else {
			ranges.remove(keyRange{key(from), key(to)})
		}
		for i := from; i < to; i++ {
			set[i] = add
		}
		for i, r := range ranges {
			if r.start >= r.end || i > 0 && ranges[i-1].end >= r.start {
				t.Fatalf("%v are not in order, or touch", ranges)
			}
		}
		for from := range keys {
			all := true
			for to := from + 1; to <= keys; to++ {
				all = all && set[to-1]
				if r := (keyRange{key(from), key(to)}); ranges.contain(r) != all {
					t.Fatalf("%v contain %v: %t, not %t", ranges, r, !all, all)
				}
			}
		}
	}
}

// TestInterleave: parts come before the last row of their transaction. A transaction that lacks one
// is left out, and then its revision is missing.
func TestInterleave(t *testing.T) {
	rows := []contract.Row{{Key: "seen", Revision: 1, Token: contract.NewTransactionToken(9)},
		{Key: "a", Revision: 2}, {Key: "b", Revision: 3, Token: contract.NewTransactionToken(2)},
		{Revision: 4, Token: contract.NewTransactionToken(7)}, // a marker has none
		{Key: "c", Revision: 5, Token: contract.NewTransactionToken(1)}}
	part := func(row, n int) contract.Row {
		return contract.Row{Key: "part", Revision: rows[row].Revision, Part: n, Token: rows[row].Token}
	}
	another := part(2, 2)
	another.Token = contract.NewTransactionToken(2)
	for _, test := range []struct {
		parts []contract.Row
		want  string
		gap   contract.Revision
	}{
		{[]contract.Row{part(0, 1), part(2, 1), part(2, 2), part(4, 1)}, "1 2 3.1 3.2 3 4 5.1 5", 0},
		{[]contract.Row{part(2, 2), part(4, 1)}, "1 2 4 5.1 5", 3},
		{[]contract.Row{part(2, 1), part(4, 1)}, "1 2 4 5.1 5", 3},
		{[]contract.Row{part(2, 1), another, part(4, 1)}, "1 2 4 5.1 5", 3},
		{[]contract.Row{part(2, 1), part(2, 2)}, "1 2 3.1 3.2 3 4", 5},
		{nil, "1 2 4", 3},
	} {
		whole := interleave(rows, test.parts, 1)
		var got []string
		for _, r := range whole {
			if r.Part != 0 {
				got = append(got, fmt.Sprintf("%d.%d", r.Revision, r.Part))
			} else {
				got = append(got, fmt.Sprint(r.Revision))
			}
		}
		tail := &contract.Tail{State: contract.State{Head: contract.Position{Revision: 5}}}
		if gap := missing(1, tail, whole[1:]); strings.Join(got, " ") != test.want || gap != test.gap {
			t.Errorf("the rows are %v, and %d is missing, want %s, %d", got, gap, test.want, test.gap)
		}
	}
}

// TestPace: ten announcements may follow each other at once, and the next ones wait for 10 ms, even
// after many that were hastened.
func TestPace(t *testing.T) {
	const ms = time.Millisecond
	start := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		at    []time.Duration // when announcements begin
		now   time.Duration
		pause time.Duration
	}{
		"the first":               {[]time.Duration{0}, 0, -80 * ms},
		"nine at once":            {make([]time.Duration, 9), 0, 0},
		"ten at once":             {make([]time.Duration, 10), 0, 10 * ms},
		"ten, and it took a time": {make([]time.Duration, 10), 7 * ms, 3 * ms},
		"two hundred at once":     {make([]time.Duration, 200), 0, 10 * ms},
		"one after an idle time":  {append(make([]time.Duration, 200), time.Minute), time.Minute, -80 * ms},
		"a hundred a second":      {[]time.Duration{0, 10 * ms, 20 * ms, 30 * ms}, 30 * ms, -80 * ms},
	} {
		var p pace
		for _, at := range tc.at {
			p.begins(start.Add(at))
		}
		if got := p.pause(start.Add(tc.now)); got != tc.pause {
			t.Errorf("%s: the next one waits for %v, want %v", name, got, tc.pause)
		}
	}
}
