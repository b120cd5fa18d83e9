package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// testLogger logs into the test, until it ends.
func testLogger(t testing.TB) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t = nil
	})
	return slog.New(slog.NewTextHandler(w, nil))
}

type testWriter struct {
	mu sync.Mutex
	t  testing.TB
}

func (w *testWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Log(string(b))
	}
	return len(b), nil
}

// faulty is a backend whose commits and reads can be made to fail.
type faulty struct {
	contract.Backend
	mu sync.Mutex
	// commit, if not nil, takes the place of the next commits.
	commit func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error)
	state  func(ctx context.Context) (contract.State, error)
	// resolve, if not nil, is called before the commit lock is taken for a resolution.
	resolve func()
}

func (f *faulty) Locked(ctx context.Context, o contract.LockOptions, do func(contract.Tx) error) error {
	f.mu.Lock()
	resolve := f.resolve
	f.mu.Unlock()
	if resolve != nil {
		resolve()
	}
	return f.Backend.Locked(ctx, o, do)
}

func (f *faulty) set(commit func(context.Context, *contract.Group) (*contract.GroupResult, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commit = commit
}

func (f *faulty) setState(state func(context.Context) (contract.State, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = state
}

func (f *faulty) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	f.mu.Lock()
	commit := f.commit
	f.mu.Unlock()
	if commit != nil {
		return commit(ctx, g)
	}
	return f.Backend.Commit(ctx, g)
}

func (f *faulty) State(ctx context.Context) (contract.State, error) {
	f.mu.Lock()
	state := f.state
	f.mu.Unlock()
	if state != nil {
		return state(ctx)
	}
	return f.Backend.State(ctx)
}

func openFaulty(t *testing.T, db dbtest.DB, cfg mvcc.Config) (*mvcc.Engine, *faulty) {
	t.Helper()
	f := &faulty{Backend: openBackend(t, db)}
	cfg.Logger = testLogger(t)
	s, err := mvcc.Open(t.Context(), f, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, f
}

func put(t *testing.T, s *mvcc.Engine, key contract.Key, expect contract.Revision,
	value string) contract.Revision {
	t.Helper()
	r, err := s.Commit(t.Context(), contract.Mutation{Key: key, Expect: expect, Value: []byte(value)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestPageBehindAnother: a page of an old revision reads the live rows, and another page of the
// same list learns of a later write before the first one merges. That write is undone in the later
// page only: in the first one, the key's live row is still that of the old revision.
func TestPageBehindAnother(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		s, b := openHeld(t, db, mvcc.Config{})
		first := put(t, s, "/k/a", 0, "1")
		at := put(t, s, "/k/b", 0, "1")
		put(t, s, "/k/c", 0, "1") // a list at the revision needs the delta
		o := mvcc.RangeOptions{Start: "/k/", End: "/k0", At: at}
		page := make(chan struct{})
		b.hold(nil, page)
		listed := make(chan *mvcc.RangeResult, 1)
		go func() {
			r, err := s.Range(t.Context(), o)
			if err != nil {
				t.Error(err)
			}
			listed <- r
		}()
		<-b.paged
		put(t, s, "/k/a", first, "2")
		later, err := s.Range(t.Context(), o)
		close(page)
		earlier := <-listed
		if err != nil || earlier == nil {
			t.Fatal(err)
		}
		for _, r := range []*mvcc.RangeResult{later, earlier} {
			if len(r.KVs) != 2 || r.KVs[0].Key != "/k/a" || r.KVs[0].Revision != first ||
				r.KVs[1].Key != "/k/b" {
				t.Errorf("with the head %d, the list at %d is %+v", r.Head, at, r.KVs)
			}
		}
	})
}

// TestAny: writers that expect nothing all succeed, one after the other, and the events say so; a
// deletion that finds nothing is told.
func TestAny(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		s := open(t, db, mvcc.Config{})
		const writers = 20
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				_, err := s.Commit(t.Context(), contract.Mutation{Key: "/a/k", Expect: contract.Any,
					Value: fmt.Append(nil, i)})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/a/", After: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		prev := contract.Revision(0)
		for i, e := range next(t, w, writers) {
			if e.Prev != prev || e.Version != int64(i+1) {
				t.Errorf("event %d replaces %d and has the version %d", i, e.Prev, e.Version)
			}
			prev = e.Revision
		}
		last, _, err := s.Get(t.Context(), "/a/k")
		if err != nil || last == nil || last.Revision != prev || last.Version != writers {
			t.Fatalf("the key is %+v, %v", last, err)
		}
		_, err = s.Commit(t.Context(), contract.Mutation{Key: "/a/k", Expect: contract.Any, Delete: true})
		if err != nil {
			t.Fatal(err)
		}
		e := next(t, w, 1)[0]
		if was, err := s.Previous(t.Context(), e); err != nil || !e.Deleted ||
			string(was.Value) != string(last.Value) || was.Version != writers {
			t.Errorf("the deletion %+v removed %+v, %v", e, was, err)
		}
		_, err = s.Commit(t.Context(), contract.Mutation{Key: "/a/k", Expect: contract.Any, Delete: true})
		var conflict *contract.ConflictError
		if !errors.As(err, &conflict) || conflict.Current != 0 {
			t.Errorf("the deletion of nothing: %v", err)
		}
	})
}

// next reads a watcher until it has n events.
func next(t *testing.T, w *mvcc.Watcher, n int) []*mvcc.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var events []*mvcc.Event
	for len(events) < n {
		b, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("after %d of %d events: %v", len(events), n, err)
		}
		events = append(events, b.Events...)
	}
	return events
}

// TestUnknownOutcome loses the answer of a commit in all ways, and looks at what the writers are
// told.
func TestUnknownOutcome(t *testing.T) {
	lost := contract.Errorf(contract.Unknown, "the connection was lost")
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		t.Run("committed", func(t *testing.T) {
			s, f := openFaulty(t, db, mvcc.Config{})
			w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/committed/",
				After: s.Delivered()})
			if err != nil {
				t.Fatal(err)
			}
			f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
				f.set(nil)
				if _, err := f.Backend.Commit(ctx, g); err != nil {
					return nil, err
				}
				return nil, lost
			})
			r := put(t, s, "/committed/a", 0, "1")
			if events := next(t, w, 1); events[0].Revision != r || string(events[0].Value) != "1" {
				t.Fatalf("event %v for the write %d", events[0], r)
			}
			var conflict *contract.ConflictError
			if _, err := s.Commit(t.Context(), contract.Mutation{Key: "/committed/a",
				Value: []byte("2")}); !errors.As(err, &conflict) {
				t.Fatalf("a second creation: %v", err)
			}
		})
		t.Run("refused in a committed group", func(t *testing.T) {
			s, f := openFaulty(t, db, mvcc.Config{})
			old := put(t, s, "/refused/a", 0, "1")
			put(t, s, "/refused/a", old, "2")
			begun, release := make(chan struct{}, 2), make(chan struct{})
			f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
				begun <- struct{}{}
				<-release // until all writers wait
				if len(g.Mutations) == 1 {
					return f.Backend.Commit(ctx, g)
				}
				f.set(nil)
				if _, err := f.Backend.Commit(ctx, g); err != nil {
					return nil, err
				}
				return nil, lost
			})
			errs := make([]error, 3)
			var wg, first sync.WaitGroup
			first.Go(func() { put(t, s, "/refused/first", 0, "") })
			<-begun
			for i, m := range []contract.Mutation{
				{Key: "/refused/a", Expect: old, Value: []byte("stale")},
				{Key: "/refused/b", Value: []byte("new")},
				{Key: "/refused/b", Value: []byte("second")},
			} {
				wg.Go(func() { _, errs[i] = s.Commit(t.Context(), m) })
			}
			waitForQueue(t, s, 3)
			close(release)
			wg.Wait()
			first.Wait()
			var conflict *contract.ConflictError
			if !errors.As(errs[0], &conflict) {
				t.Errorf("the stale write: %v", errs[0])
			}
			if (errs[1] == nil) == (errs[2] == nil) {
				t.Errorf("of two creations of one key: %v, %v", errs[1], errs[2])
			}
		})
		t.Run("zombie", func(t *testing.T) {
			// The group hangs before the lock; it is declared aborted and repeated; then the first
			// one goes on.
			s, f := openFaulty(t, db, mvcc.Config{})
			var zombie *contract.Group
			f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
				zombie = g
				f.set(nil)
				return nil, lost
			})
			r := put(t, s, "/zombie/a", 0, "1")
			if _, err := f.Backend.Commit(t.Context(), zombie); contract.ClassOf(err) != contract.Aborted {
				t.Fatalf("the zombie's commit: %v", err)
			}
			if kv, head, err := s.Get(t.Context(), "/zombie/a"); err != nil || kv.Revision != r ||
				head != r {
				t.Fatalf("after the zombie: %v at %d, %v", kv, head, err)
			}
		})
		t.Run("compacted", func(t *testing.T) {
			s, f := openFaulty(t, db, mvcc.Config{})
			f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
				f.set(nil)
				if _, err := f.Backend.Commit(ctx, g); err != nil {
					return nil, err
				}
				// Another replica replaces the row, compacts and sweeps.
				seen := g.Seen
				seen.Revision, seen.Token = seen.Revision+1, g.Token
				other := &contract.Group{Token: contract.Token{1, byte(seen.Revision)}, Seen: seen,
					Mutations: []*contract.Mutation{{Key: "/gone/a", Expect: seen.Revision,
						Value: []byte("other")}}}
				if _, err := f.Backend.Commit(ctx, other); err != nil {
					return nil, err
				}
				if _, err := contract.RaiseCompacted(ctx, f.Backend, seen.Revision+1); err != nil {
					return nil, err
				}
				for {
					_, st, err := contract.SweepBatch(ctx, f.Backend, 1000)
					if err != nil {
						return nil, err
					}
					if st.Swept == st.Compacted {
						return nil, lost
					}
				}
			})
			if r, err := s.Commit(t.Context(), contract.Mutation{Key: "/gone/a",
				Value: []byte("mine")}); !errors.Is(err, contract.ErrUnknownOutcome) {
				t.Fatalf("a write whose row was swept: %d, %v", r, err)
			}
		})
	})
}

// TestBehindAnsweredGroup: a writer that waits for each of its answers waits behind no group, so
// none of its writes is refused, however little time they have.
func TestBehindAnsweredGroup(t *testing.T) {
	s := open(t, inMemory(t), mvcc.Config{RetryFor: time.Nanosecond})
	r := contract.Revision(0)
	for range 1500 {
		r = put(t, s, "/k", r, "x")
	}
}

// TestBehindUnknownOutcome: while nobody knows what became of a group, the writers behind it are
// answered. Nothing of theirs is written. When it is known, writes go on.
func TestBehindUnknownOutcome(t *testing.T) {
	db := inMemory(t)
	s, f := openFaulty(t, db, mvcc.Config{RetryFor: 50 * time.Millisecond, ResolveFor: time.Hour,
		Timeout: time.Hour})
	resolving, release := make(chan struct{}), make(chan struct{})
	f.mu.Lock()
	f.resolve = func() { close(resolving); <-release }
	f.mu.Unlock()
	f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
		f.set(nil)
		return nil, contract.Errorf(contract.Unknown, "the connection was lost")
	})
	first := make(chan error, 1)
	go func() {
		_, err := s.Commit(t.Context(), contract.Mutation{Key: "/first"})
		first <- err
	}()
	<-resolving
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 { // one that comes early, and one after others were refused
		var errs [5]error
		var behind sync.WaitGroup
		for i := range errs {
			behind.Go(func() {
				_, errs[i] = s.Commit(ctx,
					contract.Mutation{Key: contract.Key(fmt.Sprintf("/behind/%d", i))})
			})
		}
		behind.Wait()
		for i, err := range errs {
			var refused *contract.Error
			if !errors.As(err, &refused) || refused.Class != contract.Unavailable ||
				!strings.Contains(err.Error(), "nothing was written") {
				t.Errorf("writer %d behind the group: %v", i, err)
			}
		}
	}
	close(release)
	if err := <-first; contract.ClassOf(err) != contract.Unavailable ||
		!strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("the writer of the group: %v", err)
	}
	f.mu.Lock()
	f.resolve = nil
	f.mu.Unlock()
	if n, err := s.Count(t.Context(), "/", "0"); err != nil || n != 0 {
		t.Errorf("%d keys were written, %v", n, err)
	}
	put(t, s, "/behind/0", 0, "")
}

// waitForQueue waits until n writes wait for the committer.
func waitForQueue(t *testing.T, s *mvcc.Engine, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := mvcc.WaitQueued(ctx, s, n); err != nil {
		t.Fatal(err)
	}
}

// TestDataErrorIsNarrowedDown has the database reject one value: the others of its group are
// written.
func TestDataErrorIsNarrowedDown(t *testing.T) {
	db := inMemory(t)
	s, f := openFaulty(t, db, mvcc.Config{})
	begun, release := make(chan struct{}, 100), make(chan struct{})
	f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
		begun <- struct{}{}
		<-release
		for _, m := range g.Mutations {
			if string(m.Value) == "bad" {
				return nil, contract.Errorf(contract.Data, "bad value")
			}
		}
		return f.Backend.Commit(ctx, g)
	})
	const n = 20
	errs := make([]error, n)
	var wg, first sync.WaitGroup
	first.Go(func() { put(t, s, "/first", 0, "") })
	<-begun
	for i := range n {
		value := "good"
		if i == 13 {
			value = "bad"
		}
		wg.Go(func() {
			_, errs[i] = s.Commit(t.Context(), contract.Mutation{Key: contract.Key(fmt.Sprintf("/%d", i)),
				Value: []byte(value)})
		})
	}
	waitForQueue(t, s, n)
	close(release)
	wg.Wait()
	first.Wait()
	for i, err := range errs {
		if (i == 13) != (contract.ClassOf(err) == contract.Data && err != nil) {
			t.Errorf("write %d: %v", i, err)
		}
	}
}

// TestGivingUp cancels a writer in the queue (nothing is written) and one in a group (unknown).
func TestGivingUp(t *testing.T) {
	db := inMemory(t)
	s, f := openFaulty(t, db, mvcc.Config{})
	begun, release := make(chan struct{}, 10), make(chan struct{})
	f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
		begun <- struct{}{}
		<-release
		return f.Backend.Commit(ctx, g)
	})
	inGroup, cancelInGroup := context.WithCancel(t.Context())
	inQueue, cancelInQueue := context.WithCancel(t.Context())
	var errGroup, errQueue error
	var group, queue sync.WaitGroup
	group.Go(func() { _, errGroup = s.Commit(inGroup, contract.Mutation{Key: "/group"}) })
	<-begun
	queue.Go(func() { _, errQueue = s.Commit(inQueue, contract.Mutation{Key: "/queue"}) })
	waitForQueue(t, s, 1)
	cancelInGroup()
	group.Wait()
	cancelInQueue()
	queue.Wait()
	close(release)
	if !errors.Is(errGroup, contract.ErrUnknownOutcome) || !errors.Is(errGroup, context.Canceled) {
		t.Errorf("in the group: %v", errGroup)
	}
	if !errors.Is(errQueue, context.Canceled) || errors.Is(errQueue, contract.ErrUnknownOutcome) {
		t.Errorf("in the queue: %v", errQueue)
	}
	put(t, s, "/after", 0, "")
	for key, want := range map[contract.Key]bool{"/group": true, "/queue": false} {
		if kv, _, err := s.Get(t.Context(), key); err != nil || (kv != nil) != want {
			t.Errorf("%s: %v, %v", key, kv, err)
		}
	}
}

// TestCloseAnswersEveryWriter closes a store with writers in the group and in the queue.
func TestCloseAnswersEveryWriter(t *testing.T) {
	for _, closeFor := range []time.Duration{time.Minute, time.Nanosecond} {
		t.Run(closeFor.String(), func(t *testing.T) {
			db := inMemory(t)
			s, f := openFaulty(t, db, mvcc.Config{CloseFor: closeFor})
			begun, release := make(chan struct{}, 1), make(chan struct{})
			f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
				f.set(nil)
				begun <- struct{}{}
				<-release
				return f.Backend.Commit(context.WithoutCancel(ctx), g)
			})
			var wg sync.WaitGroup
			errs := make([]error, 10)
			wg.Go(func() { _, errs[0] = s.Commit(t.Context(), contract.Mutation{Key: "/0"}) })
			<-begun
			for i := 1; i < len(errs); i++ {
				wg.Go(func() {
					_, errs[i] = s.Commit(t.Context(),
						contract.Mutation{Key: contract.Key(fmt.Sprintf("/%d", i))})
				})
			}
			waitForQueue(t, s, len(errs)-1)
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			if closeFor < time.Minute {
				<-mvcc.CommitStopped(s)
			}
			close(release)
			wg.Wait()
			<-closed
			reopened := open(t, db, mvcc.Config{})
			for i, err := range errs {
				kv, _, getErr := reopened.Get(t.Context(), contract.Key(fmt.Sprintf("/%d", i)))
				if getErr != nil || (err == nil) != (kv != nil) ||
					(err != nil && !errors.Is(err, contract.ErrClosed)) {
					t.Errorf("write %d was answered %v; it is there: %v (%v)", i, err,
						kv != nil, getErr)
				}
			}
			if _, err := s.Commit(t.Context(), contract.Mutation{Key: "/late"}); !errors.Is(err,
				contract.ErrClosed) {
				t.Errorf("a write after Close: %v", err)
			}
			if _, err := s.Head(t.Context()); !errors.Is(err, contract.ErrClosed) {
				t.Errorf("a read after Close: %v", err)
			}
		})
	}
}

// TestHeadJoinsOnlyLaterQueries holds a query of the head: a reader that comes meanwhile must not
// get its answer, and readers that come together share one.
func TestHeadJoinsOnlyLaterQueries(t *testing.T) {
	// In a bubble no time passes, so that no query counts as slow.
	synctest.Test(t, func(t *testing.T) {
		s, f := openFaulty(t, inMemory(t), mvcc.Config{})
		synctest.Wait() // the first poll is over
		begun, release := make(chan struct{}, 100), make(chan struct{})
		f.setState(func(ctx context.Context) (contract.State, error) {
			st, err := f.Backend.State(ctx)
			begun <- struct{}{}
			<-release
			return st, err
		})
		var first sync.WaitGroup
		first.Go(func() {
			if _, err := s.Head(t.Context()); err != nil {
				t.Error(err)
			}
		})
		<-begun
		r := put(t, s, "/a", 0, "")
		var readers sync.WaitGroup
		for range 20 {
			readers.Go(func() {
				if head, err := s.Head(t.Context()); err != nil || head < r {
					t.Errorf("the head is %d, %v after the write %d was acknowledged", head, err, r)
				}
			})
		}
		synctest.Wait()
		close(release)
		first.Wait()
		readers.Wait()
		if n := len(begun); n != 1 {
			t.Errorf("%d queries for all who came later", n)
		}
	})
}

// TestSlowWatcher lets a watcher fall out of the ring: it goes on from the log, with neither gap
// nor overlap, and the others do not notice.
func TestSlowWatcher(t *testing.T) {
	db := inMemory(t)
	s := open(t, db, mvcc.Config{Ring: mvcc.RingLimits{Events: 10, Bytes: 1 << 20}, TailRows: 7})
	after := s.Delivered()
	slow, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: after})
	if err != nil {
		t.Fatal(err)
	}
	fast, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: after})
	if err != nil {
		t.Fatal(err)
	}
	const n = 100
	for i := range n {
		put(t, s, contract.Key(fmt.Sprintf("/%d", i)), 0, "x")
		if got := next(t, fast, 1); len(got) != 1 || got[0].Revision != after+contract.Revision(i)+1 {
			t.Fatalf("event %d: %v", i, got)
		}
	}
	for i, e := range next(t, slow, n) {
		if e.Revision != after+contract.Revision(i)+1 {
			t.Fatalf("event %d has revision %d", i, e.Revision)
		}
	}
	put(t, s, "/last", 0, "x")
	if e := next(t, slow, 1)[0]; e.Key != "/last" {
		t.Fatal(e)
	}
}

// TestFenceByHand ends the watches and moves on far beyond; a second store over the database
// follows.
func TestFenceByHand(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		a, b := open(t, db, mvcc.Config{}), open(t, db, mvcc.Config{})
		old := put(t, a, "/a", 0, "1")
		if err := b.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		watch, err := b.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: old})
		if err != nil {
			t.Fatal(err)
		}
		jump, err := a.Fence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if jump < old+contract.JumpBefore(1) {
			t.Fatalf("the fence jumped from %d to %d", old, jump)
		}
		if _, err := watch.Next(t.Context()); !errors.Is(err, contract.ErrCompacted) {
			t.Fatalf("the other store's watch: %v", err)
		}
		for _, s := range []*mvcc.Engine{a, b} {
			if _, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/", End: "0",
				At: old}); !errors.Is(err, contract.ErrCompacted) {
				t.Errorf("a list at a revision before the fence: %v", err)
			}
			if res, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/",
				End: "0"}); err != nil || len(res.KVs) != 1 || res.Revision < jump {
				t.Errorf("a list after the fence: %v, %v", res, err)
			}
		}
		if r := put(t, b, "/a", old, "2"); r != jump+1 {
			t.Errorf("the first write after the fence at %d has revision %d", jump, r)
		}
		if head, err := a.Head(t.Context()); err != nil || head != jump+1 {
			t.Errorf("head %d, %v", head, err)
		}
	})
}

// TestExpiry writes keys that expire, renews one, and reads the deletions as events.
func TestExpiry(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		s := open(t, db, mvcc.Config{})
		w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: s.Delivered()})
		if err != nil {
			t.Fatal(err)
		}
		commit := func(m contract.Mutation) contract.Revision {
			r, err := s.Commit(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		commit(contract.Mutation{Key: "/short", Value: []byte("v"), TTL: 200 * time.Millisecond})
		renewed := commit(contract.Mutation{Key: "/renewed", Value: []byte("v"),
			TTL: 200 * time.Millisecond})
		commit(contract.Mutation{Key: "/renewed", Expect: renewed, Value: []byte("w")})
		events := next(t, w, 4)
		last := events[3]
		if last.Key != "/short" || !last.Deleted {
			t.Fatalf("the fourth event is %v", last)
		}
		if prev, err := s.PrevValue(t.Context(), last); err != nil || string(prev) != "v" {
			t.Fatalf("the value before the expiry: %q, %v", prev, err)
		}
		if kv, _, err := s.Get(t.Context(), "/renewed"); err != nil || kv == nil {
			t.Fatalf("the renewed key: %v, %v", kv, err)
		}
	})
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	for _, suffix := range []string{"-wal", "-shm"} {
		os.Remove(to + suffix) // what a restore has to do, too, if they were left
	}
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// TestReplayMeetsTheRing has a watcher read from the log what its own process has committed and not
// delivered yet: it does not get it again.
func TestReplayMeetsTheRing(t *testing.T) {
	db := inMemory(t)
	before := open(t, db, mvcc.Config{})
	start := before.Delivered()
	put(t, before, "/a", 0, "")
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	s, f := openFaulty(t, db, mvcc.Config{PollActive: time.Hour, PollIdle: time.Hour})
	w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: start})
	if err != nil {
		t.Fatal(err)
	}
	committed, release := make(chan struct{}), make(chan struct{})
	f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
		f.set(nil)
		res, err := f.Backend.Commit(ctx, g)
		close(committed)
		<-release
		return res, err
	})
	var writer sync.WaitGroup
	writer.Go(func() { put(t, s, "/b", 0, "") })
	<-committed
	next(t, w, 2) // from the log
	got := make(chan []*mvcc.Event)
	go func() { got <- next(t, w, 1) }()
	if err := mvcc.WaitAttached(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	close(release)
	writer.Wait()
	put(t, s, "/c", 0, "")
	if events := <-got; events[0].Key != "/c" {
		t.Fatalf("after /a and /b from the log, the watcher got %s at %d", events[0].Key,
			events[0].Revision)
	}
}
