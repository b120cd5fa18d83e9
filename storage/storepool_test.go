package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// openPool opens the stores of a new database, of which it creates some, with a clock.
func openPool(t *testing.T, d dbtest.DB, names ...string) (*StorePool, *clocktesting.FakeClock) {
	t.Helper()
	c := Config{URL: d.URL, Drivers: []Driver{d.Driver}, Migrate: true}
	for _, c.Store = range names {
		if _, err := CreateStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	p, err := OpenStores(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Now())
	p.clock = clock
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, clock
}

// openNow is how many stores are open.
func (p *StorePool) openNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.stores)
}

// TestStorePool: a store is opened once for all who use it, and closed a minute after the last one
// has released it; then the next one opens it anew.
func TestStorePool(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		p, clock := openPool(t, d, "team-a", "team-b")
		if p.openNow() != 0 {
			t.Error("a store is open that nobody uses")
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		var found []*Database
		var releases []func()
		for range 8 {
			wg.Go(func() {
				db, release, err := p.Use(t.Context(), "team-a")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				found, releases = append(found, db), append(releases, release)
			})
		}
		wg.Wait()
		for _, db := range found {
			if db != found[0] {
				t.Error("a store was opened twice")
			}
		}
		write := func(db *Database, key mvcc.Key) {
			t.Helper()
			if _, err := db.mvcc.Commit(t.Context(), mvcc.Mutation{Key: key,
				Value: []byte("v")}); err != nil {
				t.Error(err)
			}
		}
		write(found[0], "/a")
		b, releaseB, err := p.Use(t.Context(), "team-b")
		if err != nil {
			t.Fatal(err)
		}
		write(b, "/b")
		for _, release := range releases[1:] {
			release()
			release() // which does nothing
		}
		clock.Step(2 * unusedFor)
		write(found[0], "/used")
		releases[0]()
		again, release, err := p.Use(t.Context(), "team-a")
		if err != nil || again != found[0] {
			t.Fatalf("a store was closed at once: %v", err)
		}
		clock.Step(2 * unusedFor)
		write(again, "/used-again")
		release()
		clock.Step(unusedFor)
		again, release, err = p.Use(t.Context(), "team-a")
		if err != nil || again == found[0] {
			t.Fatalf("a store that nobody used was not closed: %v", err)
		}
		if _, err := found[0].mvcc.Head(t.Context()); !errors.Is(err, mvcc.ErrClosed) {
			t.Errorf("the closed store: %v", err)
		}
		write(again, "/anew")
		release()
		write(b, "/b-goes-on")
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.mvcc.Head(t.Context()); !errors.Is(err, mvcc.ErrClosed) {
			t.Errorf("after the pool was closed: %v", err)
		}
		releaseB()
		if _, _, err := p.Use(t.Context(), "team-a"); !errors.Is(err, errPoolClosed) {
			t.Errorf("after the pool was closed: %v", err)
		}
	})
}

// TestStorePoolErrors: what cannot be opened is tried again by the next one who asks for it, and
// who gives up leaves nothing behind.
func TestStorePoolErrors(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	p, _ := openPool(t, d)
	for _, name := range []string{"", "no_name", "unknown"} {
		if db, _, err := p.Use(t.Context(), name); err == nil || db != nil {
			t.Errorf("the store %q is open", name)
		}
	}
	if n := p.openNow(); n != 0 {
		t.Errorf("%d stores are open", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, release, err := p.Use(ctx, mvcc.DefaultStore); err == nil {
		release()
	} else if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, release, err := p.Use(t.Context(), mvcc.DefaultStore); err != nil {
		t.Error(err)
	} else {
		release()
	}
}

// TestStorePoolRace: stores are used, released and closed by many at the same time, and each use is
// of an open store.
func TestStorePoolRace(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	names := []string{"team-a", "team-b", "team-c"}
	p, clock := openPool(t, d, names...)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				db, release, err := p.Use(t.Context(), names[(i+j)%len(names)])
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := db.mvcc.Commit(t.Context(), mvcc.Mutation{
					Key: mvcc.Key(fmt.Sprint("/", i, "/", j)), Value: []byte("v")}); err != nil {
					t.Error(err)
				}
				release()
				clock.Step(unusedFor)
			}
		})
	}
	wg.Wait()
}

// TestStorePoolDropped: a store that was dropped and created anew is another one for those who use
// it next, also if the old one is still used.
func TestStorePoolDropped(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		p, _ := openPool(t, d, "team-a")
		old, release, err := p.Use(t.Context(), "team-a")
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		c := Config{URL: d.URL, Drivers: []Driver{d.Driver}, Store: "team-a"}
		if _, err := DropStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if _, err := old.mvcc.Head(t.Context()); !errors.Is(err, mvcc.ErrDropped) {
			t.Fatalf("the dropped store: %v", err)
		}
		<-old.mvcc.Dropped()
		if _, err := CreateStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		next, releaseNext, err := p.Use(t.Context(), "team-a")
		if err != nil {
			t.Fatal(err)
		}
		defer releaseNext()
		if _, err := next.mvcc.Commit(t.Context(), mvcc.Mutation{Key: "/a",
			Value: []byte("v")}); err != nil {
			t.Error(err)
		}
	})
}
