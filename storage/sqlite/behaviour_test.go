package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// TestLogIsBounded writes while readers are always in the write-ahead log, with SQLite's own checkpoints and without them, as if readers
// kept these from ever starting the log anew.
func TestLogIsBounded(t *testing.T) {
	ctx := context.Background()
	for _, pages := range []int32{32, 0} {
		b := open(t, fresh(t)).(*backend)
		defer b.Close()
		b.walLimit = 1 << 20
		c, err := b.commits.get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		c.autocheckpoint(pages)
		b.commits.put(c)
		f := filler{store: b, value: bytes.Repeat([]byte("v"), 1024)}
		f.grow(t, 1000)

		var wg sync.WaitGroup
		ended := make(chan struct{})
		var reads atomic.Int64
		for range cap(b.reads.slots) {
			wg.Go(func() {
				for {
					select {
					case <-ended:
						return
					default:
					}
					if _, err := b.Page(ctx, mvcc.PageQuery{Start: "/", End: "0", Limit: 10}); err != nil {
						t.Error(err)
						return
					}
					reads.Add(1)
				}
			})
		}
		longest, written := int64(0), int64(0)
		for range 60 {
			before := b.walSize()
			f.update(t, 50)
			longest = max(longest, b.walSize())
			written += max(b.walSize()-before, 0)
		}
		close(ended)
		wg.Wait()
		t.Logf("%d reads beside 3,000 updates; the log was %d KB long", reads.Load(), longest>>10)
		// One group and what one checkpoint waits for may come on top.
		if longest > 3*b.walLimit {
			t.Errorf("the log has grown to %d bytes", longest)
		}
		if pages == 0 && written < 2*b.walLimit {
			t.Errorf("only %d bytes were written to the log", written)
		}
	}
}

// TestLogOutlivesAReader holds one snapshot for long: the log grows, writers go on, and when the reader is gone it is emptied.
func TestLogOutlivesAReader(t *testing.T) {
	ctx := context.Background()
	b := open(t, fresh(t)).(*backend)
	defer b.Close()
	b.walLimit = 1 << 20
	f := filler{store: b, value: bytes.Repeat([]byte("v"), 4096)}
	f.grow(t, 100)
	reader, err := b.reads.get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var st mvcc.State
	done, err := b.snapshot(reader, &st)
	if err != nil {
		t.Fatal(err)
	}
	for b.walSize() < 2*b.walLimit {
		f.update(t, 50)
	}
	done()
	b.reads.put(reader)
	f.update(t, 50)
	for range 200 {
		if b.walSize() < b.walLimit {
			return
		}
		f.update(t, 50)
	}
	t.Errorf("the log is still %d bytes long", b.walSize())
}

// TestFileShrinks deletes much, compacts and sweeps: the file gets smaller while the store is open.
func TestFileShrinks(t *testing.T) {
	ctx := context.Background()
	b := open(t, fresh(t)).(*backend)
	defer b.Close()
	f := filler{store: b, value: bytes.Repeat([]byte("v"), 8000)}
	f.grow(t, 3000)
	checkpoint := func() int64 {
		t.Helper()
		c, err := b.commits.get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer b.commits.put(c)
		if ok, err := c.checkpoint(); !ok || err != nil {
			t.Fatal(ok, err)
		}
		fi, err := os.Stat(b.cfg.path)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	full := checkpoint()
	var ms []*mvcc.Mutation
	for i, k := range f.keys {
		ms = append(ms, &mvcc.Mutation{Key: k, Expect: f.revisions[i], Delete: true, HasPrev: true})
		if len(ms) == 500 {
			f.commit(t, ms)
			ms = nil
		}
	}
	st, err := mvcc.RaiseCompacted(ctx, b, f.seen.Revision)
	if err != nil {
		t.Fatal(err)
	}
	for st.Swept < st.Compacted {
		if _, st, err = mvcc.SweepBatch(ctx, b, 500); err != nil {
			t.Fatal(err)
		}
	}
	left := checkpoint()
	// Free pages are kept up to an eighth of what there is, or shrinkFrom.
	if most := int64(shrinkFrom+100)*pageSize + full/8; left > most {
		t.Errorf("the file had %d bytes and has %d, want at most %d", full, left, most)
	}
	size, err := b.Size(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if size.Live > 1<<20 || size.Total < left {
		t.Errorf("the size is %+v", size)
	}
	checkWhole(t, b.cfg.path)
}

// clock is a clock that stands still until it is moved.
type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Time          { return time.UnixMicro(c.now.Load()).UTC() }
func (c *clock) advance(d time.Duration) { c.now.Add(d.Microseconds()) }

func TestClock(t *testing.T) {
	ctx := context.Background()
	for _, url := range []string{fresh(t), "memory:"} {
		c := &clock{}
		c.now.Store(time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC).UnixMicro())
		opts := options(t)
		opts.Now = c.Now
		b, err := Driver.Open(ctx, url, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		st, err := b.State(ctx)
		if err != nil || !st.Now.Equal(c.Now()) {
			t.Fatalf("now is %v, %v, want %v", st.Now, err, c.Now())
		}
		r, err := b.Commit(ctx, &mvcc.Group{Token: newToken(), Seen: st.Head, Mutations: []*mvcc.Mutation{
			{Key: "a", TTL: time.Minute}, {Key: "b", TTL: time.Second}, {Key: "c"},
		}})
		if err != nil || !r.Time.Equal(c.Now()) {
			t.Fatalf("the group's time is %+v, %v", r, err)
		}
		for _, step := range []struct {
			advance time.Duration
			expired string
			next    time.Duration
		}{
			{0, "", time.Second},
			{time.Second - time.Microsecond, "", time.Microsecond},
			{time.Microsecond, "b", 59 * time.Second},
			{59*time.Second - time.Microsecond, "b", time.Microsecond},
			{time.Microsecond, "ba", 0},
		} {
			c.advance(step.advance)
			keys, next, err := b.Expired(ctx, 10)
			got := ""
			for _, k := range keys {
				got += string(k.Key)
			}
			if err != nil || got != step.expired || next != step.next {
				t.Errorf("%s: after %v %q have expired and the next does in %v, %v, want %+v", url, step.advance, got, next, err, step)
			}
		}
		row, err := b.FirstAt(ctx, r.Before.Revision+1)
		if err != nil || !row.Time.Equal(r.Time) {
			t.Errorf("the row is %+v, %v, want time %v", row, err, r.Time)
		}

		// An aborted token is forgotten an hour later, by a sweep that has nothing else to do.
		token := newToken()
		if res, err := mvcc.ResolveGroup(ctx, b, token, r.State.Head); err != nil || !res.Aborted {
			t.Fatalf("%+v, %v", res, err)
		}
		group := func() error {
			_, err := b.Commit(ctx, &mvcc.Group{Token: token, Seen: r.State.Head, Mutations: []*mvcc.Mutation{{Key: "d"}}})
			return err
		}
		for _, step := range []struct {
			advance time.Duration
			aborted bool
		}{{0, true}, {time.Hour, true}, {time.Second, false}} {
			c.advance(step.advance)
			if _, _, err := mvcc.SweepBatch(ctx, b, 10); err != nil {
				t.Fatal(err)
			}
			if err := group(); (err != nil && mvcc.ClassOf(err) == mvcc.Aborted) != step.aborted {
				t.Errorf("%s: after %v more the group ends with %v", url, step.advance, err)
			}
		}
	}
}

// hold keeps the commit lock until the returned function is called.
func hold(t *testing.T, b mvcc.Backend) (release func()) {
	t.Helper()
	holding, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- b.(*backend).write(context.Background(), func(*conn) (bool, error) {
			close(holding)
			<-end
			return false, nil
		})
	}()
	<-holding
	return func() {
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestWaitForTheLock ends a wait for another process's commit lock by a context, by the operation's timeout, and by busy_timeout.
func TestWaitForTheLock(t *testing.T) {
	url := fresh(t)
	other := open(t, url)
	defer other.Close()
	release := hold(t, other)
	for _, test := range []struct {
		name, query string
		timeout     time.Duration
		cancel      bool
		class       mvcc.Class
		cause       error
	}{
		{"context", "", time.Minute, true, mvcc.Unavailable, context.Canceled},
		{"timeout", "", 20 * time.Millisecond, false, mvcc.Unavailable, context.DeadlineExceeded},
		{"busy_timeout", "?busy_timeout=20ms", time.Minute, false, mvcc.Transient, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			opts := options(t)
			opts.Timeout = test.timeout
			store, err := Driver.Open(context.Background(), url+test.query, opts)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			st, err := store.State(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if test.cancel {
				store.(*backend).onWait = cancel
			}
			_, err = store.Commit(ctx, &mvcc.Group{Token: newToken(), Seen: st.Head, Mutations: []*mvcc.Mutation{{Key: "a"}}})
			oneSentence(t, err, test.class, "the database "+store.(*backend).name())
			if test.cause != nil && !errors.Is(err, test.cause) {
				t.Errorf("the cause of %v is not %v", err, test.cause)
			}
			if n, _, err := store.Count(context.Background(), "a", "b", 0, 0); err != nil || n != 0 {
				t.Errorf("the refused commit has written %d keys, %v", n, err)
			}
		})
	}
	release()
	st, err := other.State(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if st.Head.Revision != 1 {
		t.Errorf("the head is %+v", st.Head)
	}
}

// TestInterrupt ends a statement that would never end.
func TestInterrupt(t *testing.T) {
	for _, url := range []string{fresh(t), "memory:"} {
		b := open(t, url).(*backend)
		defer b.Close()
		ctx, cancel := context.WithCancel(context.Background())
		var st mvcc.State
		began := false
		err := b.readRows(ctx, b.reads, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE ?1 = 1`, &st,
			func(s *stmt) {
				s.int(1)
				began = true
				time.AfterFunc(time.Millisecond, cancel)
			}, func(*stmt) {})
		oneSentence(t, err, mvcc.Unavailable, "did not answer in time")
		if !began || !errors.Is(err, context.Canceled) {
			t.Errorf("began: %v; %v", began, err)
		}
		// The connection is as good as before, and nothing of the interruption is left.
		for range 3 {
			for range cap(b.reads.slots) {
				if _, err := b.Page(context.Background(), mvcc.PageQuery{Start: "a", End: "b", Limit: 1}); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestPools: connections are opened when they are needed, no more than are in use at once, and none is lost.
func TestPools(t *testing.T) {
	ctx := context.Background()
	b := open(t, fresh(t)+"?readers=3").(*backend)
	defer b.Close()
	f := filler{store: b, value: []byte("v")}
	f.grow(t, 10)
	f.update(t, 5)
	for range 10 {
		if _, err := b.Page(ctx, mvcc.PageQuery{Start: "/", End: "0", Limit: 10}); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.reads.opened.Load(); n != 1 {
		t.Errorf("reads one after the other have opened %d connections", n)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := b.Page(ctx, mvcc.PageQuery{Start: "/", End: "0", Limit: 10}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want := map[string]int{"commit": 1, "head": 1, "tail": 2, "read": 3, "poll": 1}
	for _, p := range b.Pools() {
		if p.InUse != 0 || p.Max != want[p.Name] || p.Idle > p.Max || p.Name == "commit" && p.Idle != 1 || p.Name == "poll" && p.Idle != 0 {
			t.Errorf("the pool is %+v", p)
		}
		delete(want, p.Name)
	}
	if len(want) != 0 {
		t.Errorf("there are no pools %v", want)
	}
	c, err := b.reads.get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if p := b.reads.usage(); p.InUse != 1 {
		t.Errorf("the pool is %+v", p)
	}
	c.broken = true
	b.reads.put(c)
	if p := b.reads.usage(); p.InUse != 0 || p.Idle > 2 {
		t.Errorf("the pool is %+v", p)
	}
}

// TestDamagedWhileOpen overwrites pages of the open file.
func TestDamagedWhileOpen(t *testing.T) {
	path := fmt.Sprintf("%s/state.db", t.TempDir())
	filled(t, path, 3000)
	b := open(t, "sqlite://"+path)
	defer b.Close()
	for page := 200; page < 220; page++ {
		damage(t, path, page*pageSize)
	}
	_, err := b.Page(context.Background(), mvcc.PageQuery{Start: "/", End: "0", Limit: 5000})
	oneSentence(t, err, mvcc.Invalid, path, "is damaged: restore a backup")
	if _, err := b.State(context.Background()); err != nil {
		t.Errorf("the state, which is not on a damaged page: %v", err)
	}
}

// TestClosed: an operation that comes after Close opens no connection, and so leaves no file of SQLite's behind.
func TestClosed(t *testing.T) {
	for _, url := range []string{fresh(t), "memory:"} {
		b := open(t, url).(*backend)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		m := &moving{b: b}
		for name, do := range m.operations() {
			if name == "Changed" && b.cfg.memory() {
				continue // nobody else writes there, so it asks nobody
			}
			if err := do(); mvcc.ClassOf(err) != mvcc.Unavailable || err == nil || !strings.Contains(err.Error(), "was closed") {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
		for _, p := range b.pools() {
			if n := p.opened.Load(); n != 0 {
				t.Errorf("%d connections of the pool %s are open after Close", n, p.name)
			}
		}
	}
}
