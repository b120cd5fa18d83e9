package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// keyColumn is how SQL names the column, and token how it writes a token of one byte.
func keyColumn(kind dbtest.Kind) string {
	if kind == dbtest.Postgres {
		return "key"
	}
	return "`key`"
}

// storeColumn returns the beginning of a list of a table's columns, and of their values, which
// names the default store where there may be others in the table.
func storeColumn(kind dbtest.Kind) (column, id string) {
	if kind == dbtest.SQLite {
		return "", ""
	}
	return "store, ", "1, "
}

func token(kind dbtest.Kind, n int) string {
	if kind == dbtest.Postgres {
		return fmt.Sprintf("decode('%032x', 'hex')", n)
	}
	return fmt.Sprintf("x'%032x'", n)
}

// drill makes of the dump what a drill leaves: the copy was fenced, any number of times, and
// written. Its log goes on after the revision from with rows up to the revision head, as if a fence
// had put its marker at compacted.
func drill(t *testing.T, db dbtest.DB, epoch contract.Epoch, compacted, from, head contract.Revision) {
	t.Helper()
	statements := []string{fmt.Sprintf("UPDATE dump_rowkeeper_store SET epoch = %d, compacted = %d",
		epoch, compacted)}
	key := keyColumn(db.Kind)
	store, id := storeColumn(db.Kind)
	for r := from + 1; r <= head; r++ {
		statements = append(statements, fmt.Sprintf("INSERT INTO dump_rowkeeper_log ("+store+
			"revision, "+key+", prev_revision, create_revision, version, lease, token, time, "+
			"deleted, value) "+
			"SELECT "+id+"%[1]d, "+key+", 0, %[1]d, 1, 0, %[2]s, time, deleted, value "+
			"FROM dump_rowkeeper_log WHERE revision = %[3]d", r, token(db.Kind, int(r)), from))
	}
	exec(t, raw(t, db), statements...)
}

// become waits until the store has moved on to another history, and returns its head.
func become(t *testing.T, s *mvcc.Engine, seen contract.Revision) contract.Revision {
	t.Helper()
	head, err := s.Head(t.Context())
	for err != nil && contract.ClassOf(err) == contract.Unavailable && t.Context().Err() == nil {
		head, err = s.Head(t.Context())
	}
	if err != nil {
		t.Fatalf("after %d was seen: %v", seen, err)
	}
	return head
}

// ended checks that a watch ends because the history is gone.
func ended(t *testing.T, w *mvcc.Watcher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if b, err := w.Next(ctx); !errors.Is(err, contract.ErrCompacted) {
		t.Errorf("a watch goes on: %+v, %v", b, err)
	}
	w.Close()
}

// lost checks that nobody is answered at the revisions up to seen.
func lost(t *testing.T, s *mvcc.Engine, from, seen contract.Revision) {
	t.Helper()
	for r := from; r <= seen; r++ {
		if _, err := s.Range(t.Context(),
			mvcc.RangeOptions{Start: "/", End: "0", At: r}); !errors.Is(err, contract.ErrCompacted) {
			t.Errorf("a list at %d, up to %d was seen: %v", r, seen, err)
		}
		if w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: r}); err == nil {
			ended(t, w)
		} else if !errors.Is(err, contract.ErrCompacted) {
			t.Errorf("a watch after %d: %v", r, err)
		}
	}
}

// TestAnotherEpochReturns puts a copy that was fenced elsewhere in the place of the database while
// a store runs. No revision that was seen is used again.
func TestAnotherEpochReturns(t *testing.T) {
	const seen = 30
	for _, tc := range []struct {
		name string
		// fenced is how often the database was fenced before, epoch what the copy's is relative to
		// its own.
		fenced int
		epoch  contract.Epoch
		// compacted and head of the copy are relative to the first revision; it is a copy of the
		// first ten.
		compacted, head contract.Revision
	}{
		{name: "fenced twice, with a lower head", epoch: 2, compacted: 5, head: 12},
		{name: "fenced twice, with a higher head", epoch: 2, compacted: 5, head: 50},
		{name: "fenced once, with compacted just beyond", epoch: 1, compacted: seen + 1, head: 50},
		{name: "less often fenced, with a higher head", fenced: 2, epoch: -1, compacted: 5,
			head: 50},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
				s := open(t, db, mvcc.Config{Logger: testLogger(t)})
				epoch := contract.Epoch(1)
				for range tc.fenced {
					if _, err := s.Fence(t.Context()); err != nil {
						t.Fatal(err)
					}
					epoch++
				}
				start := s.Delivered()
				write := func(n int) {
					for i := range n {
						put(t, s, contract.Key(fmt.Sprintf("/%d/%d", s.Delivered(), i)), 0, "x")
					}
				}
				write(10)
				dump(t, raw(t, db))
				drill(t, db, epoch+tc.epoch, start+tc.compacted, start+10, start+tc.head)
				write(seen - 10)
				watch, err := s.Watch(t.Context(),
					mvcc.WatchOptions{Prefix: "/", After: start + seen})
				if err != nil {
					t.Fatal(err)
				}
				restore(t, raw(t, db))
				if head := become(t, s, start+seen); head < start+seen+contract.JumpBefore(1) {
					t.Errorf("the head is %d after %d was seen", head, start+seen)
				}
				lost(t, s, start+8, start+seen+1)
				ended(t, watch)
				write(1)
			})
		})
	}
}

// TestFencedCopyReturns: a copy whose fence is far beyond what was seen needs no other fence.
func TestFencedCopyReturns(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		s := open(t, db, mvcc.Config{Logger: testLogger(t)})
		first := put(t, s, "/a", 0, "x")
		dump(t, raw(t, db))
		seen := put(t, s, "/b", 0, "x")
		head := seen + contract.JumpBefore(1)/2
		exec(t, raw(t, db), fmt.Sprintf("UPDATE dump_rowkeeper_store SET epoch = 7, compacted = %d",
			head), fmt.Sprintf("UPDATE dump_rowkeeper_log SET revision = %d WHERE revision = %d",
			head, first),
			fmt.Sprintf("UPDATE dump_rowkeeper_live SET revision = %d", head))
		restore(t, raw(t, db))
		if got := become(t, s, seen); got != head {
			t.Errorf("the head is %d after %d was seen, and %d in the copy", got, seen, head)
		}
		lost(t, s, first, seen)
		if r := put(t, s, "/c", 0, "x"); r != head+1 {
			t.Errorf("the first revision is %d", r)
		}
	})
}

// TestFencesRace lets stores notice at the same time that a copy was put in the place of their
// database.
func TestFencesRace(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		stores := make([]*mvcc.Engine, 3)
		for i := range stores {
			stores[i] = open(t, db, mvcc.Config{Logger: testLogger(t)})
		}
		d := raw(t, db)
		put(t, stores[0], "/a", 0, "x")
		dump(t, d)
		drill(t, db, 3, 1, stores[0].Delivered(), 20)
		var seen contract.Revision
		for i := range 10 {
			seen = put(t, stores[0], contract.Key(fmt.Sprintf("/b/%d", i)), 0, "x")
		}
		for _, s := range stores {
			if err := s.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		restore(t, d)
		heads := make([]contract.Revision, len(stores))
		var wg sync.WaitGroup
		for i, s := range stores {
			wg.Go(func() { heads[i] = become(t, s, seen) })
		}
		wg.Wait()
		for i, s := range stores {
			if heads[i] != heads[0] || heads[i] < seen+contract.JumpBefore(1) {
				t.Errorf("the heads are %d after %d was seen", heads, seen)
			}
			lost(t, s, seen, seen)
		}
		var epoch int
		if err := d.QueryRow("SELECT epoch FROM rowkeeper_store").Scan(&epoch); err != nil ||
			epoch != 4 {
			t.Errorf("the epoch is %d, %v, after one fence of 3", epoch, err)
		}
	})
}

// held is a backend that holds the tailer's reads of the log back, and the answers of lists.
type held struct {
	contract.Backend
	// mu is held for reading while the log is read, so that none is read any more when it is held
	// back.
	mu         sync.RWMutex
	tail, page chan struct{}
	// paged is told that an answer is held back, and tailed that a read of the log is.
	paged, tailed chan struct{}
	// groups counts the groups.
	groups atomic.Int64
}

func (h *held) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	h.groups.Add(1)
	return h.Backend.Commit(ctx, g)
}

func openHeld(t *testing.T, db dbtest.DB, cfg mvcc.Config) (*mvcc.Engine, *held) {
	t.Helper()
	h := &held{Backend: openBackend(t, db), paged: make(chan struct{}, 1),
		tailed: make(chan struct{}, 1)}
	cfg.Logger = testLogger(t)
	s, err := mvcc.Open(t.Context(), h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.hold(nil, nil)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, h
}

func (h *held) hold(tail, page chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tail, h.page = tail, page
}

func await(ctx context.Context, c chan struct{}) error {
	if c != nil {
		select {
		case <-c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (h *held) Tail(ctx context.Context, from contract.Revision, limit int,
	prev contract.Prev) (*contract.Tail, error) {
	h.mu.RLock()
	if c := h.tail; c != nil && limit > 1 { // who looks for one position asks for one row
		h.mu.RUnlock()
		select {
		case h.tailed <- struct{}{}:
		default:
		}
		if err := await(ctx, c); err != nil {
			return nil, err
		}
		h.mu.RLock()
	}
	defer h.mu.RUnlock()
	return h.Backend.Tail(ctx, from, limit, prev)
}

func (h *held) Page(ctx context.Context, q contract.PageQuery) (*contract.Page, error) {
	h.mu.Lock()
	c := h.page
	h.page = nil // one answer only
	h.mu.Unlock()
	p, err := h.Backend.Page(ctx, q)
	if c != nil && err == nil {
		h.paged <- struct{}{}
		err = await(ctx, c)
	}
	return p, err
}

// loseFrom takes the rows from the revision on away, and writes others in their place as another
// process does that had not seen them, one group each.
func loseFrom(t *testing.T, db dbtest.DB, r, upto contract.Revision) {
	t.Helper()
	cut(t, db, r)
	b := openBackend(t, db)
	defer b.Close()
	st, err := b.State(t.Context())
	if err != nil || st.Head.Revision != r-1 {
		t.Fatalf("the state is %+v, %v", st, err)
	}
	for i := r; i <= upto; i++ {
		res, err := b.Commit(t.Context(), &contract.Group{Token: contract.Token{byte(i), 1}, Seen: st.Head,
			Mutations: []*contract.Mutation{{Key: contract.Key(fmt.Sprintf("/other/%d", i)),
				Value: []byte("x")}}})
		if err != nil {
			t.Fatal(err)
		}
		st = res.State
	}
}

// list returns the revision of a list.
func list(t *testing.T, s *mvcc.Engine) contract.Revision {
	t.Helper()
	res, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/", End: "0", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	return res.Revision
}

// TestSeenIsLostBeforeItIsDelivered: lists have told revisions that the log is not read up to yet,
// and the database loses some of them before it is.
func TestSeenIsLostBeforeItIsDelivered(t *testing.T) {
	for _, tc := range []struct {
		name string
		// told are the revisions of lists, after the delivered one; lost the first one that is
		// lost.
		told []contract.Revision
		lost contract.Revision
	}{
		{"1 was told and is lost", []contract.Revision{1}, 1},
		{"1 and 3 were told, and 3 is lost", []contract.Revision{1, 3}, 3},
		{"1 and 3 were told, and both are lost", []contract.Revision{1, 3}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
				s, h := openHeld(t, db, mvcc.Config{})
				writer := open(t, db, mvcc.Config{})
				start := put(t, writer, "/start", 0, "x")
				if err := s.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				gate := make(chan struct{})
				h.hold(gate, nil)
				for _, told := range tc.told {
					for writer.Delivered() < start+told {
						put(t, writer, contract.Key(fmt.Sprintf("/lost/%d", writer.Delivered())), 0,
							"x")
					}
					if r := list(t, s); r != start+told {
						t.Fatalf("the list is at %d, want %d", r, start+told)
					}
				}
				// It has to be the other store that notices.
				if err := writer.Close(); err != nil {
					t.Fatal(err)
				}
				newest := tc.told[len(tc.told)-1]
				loseFrom(t, db, start+tc.lost, start+newest+1)
				if r := list(t, s); r != start+newest+1 {
					t.Fatalf("the list is at %d, want %d", r, start+newest+1)
				}
				watch, err := s.Watch(t.Context(),
					mvcc.WatchOptions{Prefix: "/", After: start + tc.lost})
				if err != nil {
					t.Fatal(err)
				}
				close(gate)
				ended(t, watch)
				if head := become(t, s, start+newest); head < start+newest+contract.JumpBefore(1) {
					t.Errorf("the head is %d", head)
				}
				lost(t, s, start, start+newest+1)
			})
		})
	}
}

// TestSeenBeforeCompaction: compaction overtakes a process that has told newer revisions than it
// has delivered. It goes on in the same history if they are there, and does not if they are not.
func TestSeenBeforeCompaction(t *testing.T) {
	for _, loses := range []bool{false, true} {
		t.Run(fmt.Sprintf("loses=%t", loses), func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
				s, h := openHeld(t, db, mvcc.Config{})
				writer := open(t, db, mvcc.Config{})
				start := put(t, writer, "/start", 0, "x")
				if err := s.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				watch, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: start})
				if err != nil {
					t.Fatal(err)
				}
				gate := make(chan struct{})
				h.hold(gate, nil)
				// One key, so that the rows that were replaced are swept.
				var r contract.Revision
				for range 10 {
					r = put(t, writer, "/k", r, "x")
				}
				if list(t, s) != r {
					t.Fatalf("the list is not at %d", r)
				}
				head := r + 1
				if loses {
					if err := writer.Close(); err != nil {
						t.Fatal(err)
					}
					loseFrom(t, db, r, head)
					writer = open(t, db, mvcc.Config{})
				} else {
					put(t, writer, "/k", r, "x")
				}
				if list(t, s) != head {
					t.Fatalf("the list is not at %d", head)
				}
				if err := writer.Compact(t.Context(), r-2); err != nil {
					t.Fatal(err)
				}
				if err := writer.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
				close(gate)
				ended(t, watch)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				for ctx.Err() == nil && s.Delivered() < head {
					_ = s.Ready(ctx) // it is asked again while the history is looked into
				}
				if fenced := become(t, s, head) > head; fenced != loses {
					t.Errorf("fenced: %t", fenced)
				}
			})
		})
	}
}

// TestCommitAfterLoss: a process has seen positions that the log is not compared with yet, and the
// database loses some of them. Then it reads a newer head. It commits nothing in that history
// before it has noticed: what its writers expect may be a revision of the lost one.
func TestCommitAfterLoss(t *testing.T) {
	for _, tc := range []struct {
		name string
		// told are the revisions of lists, after the delivered one; lost the first one that is
		// lost, -1 if none is.
		told []contract.Revision
		lost contract.Revision
	}{
		{"the delivered one is lost", nil, 0},
		{"1 was told and is lost", []contract.Revision{1}, 1},
		{"1 and 3 were told, and 3 is lost", []contract.Revision{1, 3}, 3},
		{"1 and 3 were told, and both are lost", []contract.Revision{1, 3}, 1},
		{"1 and 3 were told, and none is lost", []contract.Revision{1, 3}, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
				s, h := openHeld(t, db, mvcc.Config{})
				writer := open(t, db, mvcc.Config{})
				start := put(t, writer, "/start", 0, "x")
				if err := s.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				h.hold(make(chan struct{}), nil)
				newest := put(t, writer, "/more", 0, "x")
				<-h.tailed // from now on the process reads only what this test does
				for _, told := range tc.told {
					newest = start + told
					for writer.Delivered() < newest {
						put(t, writer, contract.Key(fmt.Sprintf("/told/%d", writer.Delivered())), 0,
							"x")
					}
					if r := list(t, s); r != newest {
						t.Fatalf("the list is at %d, want %d", r, newest)
					}
				}
				if tc.lost < 0 {
					put(t, writer, "/last", 0, "x")
				} else {
					// It has to be the other store that notices.
					if err := writer.Close(); err != nil {
						t.Fatal(err)
					}
					loseFrom(t, db, start+tc.lost, newest+1)
				}
				if r := list(t, s); r != newest+1 {
					t.Fatalf("the list is at %d, want %d", r, newest+1)
				}
				r, err := s.Commit(t.Context(), contract.Mutation{Key: "/start", Expect: start,
					Value: []byte("mine")})
				if tc.lost < 0 {
					if err != nil || r != newest+2 {
						t.Errorf("the write is at %d, %v", r, err)
					}
					return
				}
				if !errors.Is(err, mvcc.ErrOtherEra) {
					t.Errorf("the write is at %d, %v", r, err)
				}
				kv, head, err := s.Get(t.Context(), "/start")
				if kv != nil && kv.Revision != start || err != nil || head < newest+contract.JumpBefore(1) {
					t.Errorf("there is %+v at %d, %v", kv, head, err)
				}
				put(t, s, "/mine", 0, "x")
			})
		})
	}
}

// TestCommitAfterCompaction: a process that was paused writes when compaction has passed all that
// it has seen. Its first group is refused. The second one succeeds, even if the time for retries is
// over, if the rows that it has seen are there. If one was swept, nothing proves that the history
// is the same. Then what was read before is not written on.
func TestCommitAfterCompaction(t *testing.T) {
	for _, swept := range []bool{false, true} {
		t.Run(fmt.Sprintf("swept=%t", swept), func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
				s, h := openHeld(t, db, mvcc.Config{RetryFor: time.Millisecond})
				writer := open(t, db, mvcc.Config{})
				seen := put(t, writer, "/k", 0, "x")
				if err := s.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				gate := make(chan struct{})
				h.hold(gate, nil)
				put(t, writer, "/more", 0, "x")
				<-h.tailed // from now on the process reads only what this test does
				era := s.Era()
				r := seen
				if swept {
					r = put(t, writer, "/k", r, "x")
				}
				head := put(t, writer, "/other", 0, "x")
				if err := writer.Compact(t.Context(), head); err != nil {
					t.Fatal(err)
				}
				if err := writer.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
				if swept {
					try := func(m contract.Mutation) {
						t.Helper()
						if _, err := s.Commit(t.Context(), m); err == nil ||
							!strings.Contains(err.Error(), "nothing was written: read again") {
							t.Errorf("a write on what was read before the compaction: %v", err)
						}
					}
					try(contract.Mutation{Key: "/k", Expect: r, Value: []byte("x")})
					groups := h.groups.Load()
					h.hold(nil, nil)
					close(gate)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					if err := s.Ready(ctx); err != nil {
						t.Fatal(err)
					}
					try(contract.Mutation{Key: "/k", Expect: r, Era: era, Value: []byte("x")})
					if n := h.groups.Load() - groups; n != 0 {
						t.Errorf("%d groups were begun for a write of another era", n)
					}
					put(t, s, "/k", r, "y")
				} else if r = put(t, s, "/k", seen, "y"); r != head+1 {
					t.Errorf("the write has revision %d, after %d", r, head)
				}
				if n := h.groups.Load(); n != 2 && !swept {
					t.Errorf("%d groups were begun, want one that was refused and another", n)
				}
				var epoch int
				if err := raw(t,
					db).QueryRow("SELECT epoch FROM rowkeeper_store").Scan(&epoch); err != nil ||
					epoch != 1 {
					t.Errorf("the epoch is %d, %v", epoch, err)
				}
			})
		})
	}
}

// TestLateAnswerOfLostHistory: a list that took longer than the delivery of what it has seen is not
// answered if that is lost by then.
func TestLateAnswerOfLostHistory(t *testing.T) {
	for _, loses := range []bool{false, true} {
		t.Run(fmt.Sprintf("loses=%t", loses), func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
				s, h := openHeld(t, db, mvcc.Config{})
				gate, page := make(chan struct{}), make(chan struct{})
				writer := open(t, db, mvcc.Config{})
				start := put(t, writer, "/start", 0, "x")
				if err := s.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				h.hold(gate, page)
				told := put(t, writer, "/told", 0, "x")
				answer := make(chan contract.Revision, 1)
				go func() {
					res, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/", End: "0"})
					if err != nil {
						t.Error(err)
						res = &mvcc.RangeResult{}
					}
					answer <- res.Revision
				}()
				<-h.paged
				if err := writer.Close(); err != nil {
					t.Fatal(err)
				}
				if loses {
					loseFrom(t, db, start+1, start+2)
				} else {
					writer = open(t, db, mvcc.Config{})
					put(t, writer, "/more", 0, "x")
				}
				h.hold(nil, nil)
				close(gate)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := s.Ready(ctx); err != nil {
					t.Fatal(err)
				}
				close(page)
				if r := <-answer; loses && r == told || !loses && r != told {
					t.Errorf("the list is at %d; %d had been there when it was read", r, told)
				}
			})
		})
	}
}

// TestCopyOfAnotherInode puts the file of a copy that was fenced twice in the place of the file
// that stores have open.
func TestCopyOfAnotherInode(t *testing.T) {
	db := dbtest.Open(t, dbtest.SQLite)
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, db, mvcc.Config{Logger: testLogger(t)})
	put(t, s, "/a", 0, "x")
	copied := u.Path + ".drill"
	if _, err := raw(t, db).Exec("VACUUM INTO ?", copied); err != nil {
		t.Fatal(err)
	}
	// The copy has its own fingerprint from here on.
	drilled := dbtest.DB{Kind: db.Kind, URL: "sqlite://" + copied, Driver: db.Driver}
	if err := open(t, drilled, mvcc.Config{Logger: testLogger(t)}).Close(); err != nil {
		t.Fatal(err)
	}
	d := raw(t, drilled)
	exec(t, d, "DELETE FROM rowkeeper_log WHERE revision > 1000",
		"UPDATE rowkeeper_store SET epoch = 5, compacted = 1")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	var seen contract.Revision
	for i := range 20 {
		seen = put(t, s, contract.Key(fmt.Sprintf("/b/%d", i)), 0, "x")
	}
	rename(t, copied, u.Path)
	if head := become(t, s, seen); head < seen+contract.JumpBefore(1) {
		t.Errorf("the head is %d after %d was seen", head, seen)
	}
	lost(t, s, 1, seen)
	put(t, s, "/c", 0, "x")
}

// lateIdentity is a backend that tells its identity only when answer is closed, after hold was set.
type lateIdentity struct {
	contract.Backend
	hold          atomic.Bool
	once          sync.Once
	asked, answer chan struct{}
}

func (b *lateIdentity) Identity(ctx context.Context) (contract.Identity, error) {
	if b.hold.Load() {
		b.once.Do(func() { close(b.asked) })
		<-b.answer
	}
	return b.Backend.Identity(ctx)
}

// TestOneFenceForAReplacedFile puts a copy of the past in the place of the file that two stores
// have open. Both notice. The one that comes later to fence finds that it was done.
func TestOneFenceForAReplacedFile(t *testing.T) {
	db := dbtest.Open(t, dbtest.SQLite)
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	first := open(t, db, mvcc.Config{Logger: testLogger(t)})
	late := &lateIdentity{Backend: openBackend(t, db), asked: make(chan struct{}),
		answer: make(chan struct{})}
	second, err := mvcc.Open(t.Context(), late, mvcc.Config{Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	put(t, first, "/a", 0, "x")
	copied := u.Path + ".backup"
	if _, err := raw(t, db).Exec("VACUUM INTO ?", copied); err != nil {
		t.Fatal(err)
	}
	seen := put(t, first, "/b", 0, "x")
	if head, err := second.Head(t.Context()); err != nil || head != seen {
		t.Fatalf("the head is %d, %v, want %d", head, err, seen)
	}
	late.hold.Store(true)
	rename(t, copied, u.Path)
	var (
		head contract.Revision
		wg   sync.WaitGroup
	)
	wg.Go(func() { head = become(t, second, seen) })
	<-late.asked
	fence := become(t, first, seen)
	close(late.answer)
	wg.Wait()
	if head != fence {
		t.Errorf("the second store is at %d, and the first has fenced at %d", head, fence)
	}
}
