package mvcc_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// ofStore are the options by which a store is opened.
func ofStore(t testing.TB, name string) mvcc.DriverOptions {
	return mvcc.DriverOptions{Store: name, Logger: testLogger(t), Timeout: 30 * time.Second}
}

// openStore opens a store by its name.
func openStore(t *testing.T, db dbtest.DB, name string) *mvcc.Store {
	t.Helper()
	b, err := db.Driver.Open(t.Context(), db.URL, ofStore(t, name))
	if err != nil {
		t.Fatal(err)
	}
	s, err := mvcc.Open(t.Context(), b, mvcc.Config{Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// createStore creates a store.
func createStore(t *testing.T, db dbtest.DB, name string) {
	t.Helper()
	if _, err := db.Driver.CreateStore(t.Context(), db.URL, ofStore(t, name)); err != nil {
		t.Fatal(err)
	}
}

// TestCreateStore: of several who create a store at the same time, in a database without a schema,
// one does; an unknown store is named in an error that says how to create it; and all are listed.
func TestCreateStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		var created atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				done, err := db.Driver.CreateStore(t.Context(), db.URL, ofStore(t, "team-b"))
				if err != nil {
					t.Error(err)
				}
				if done {
					created.Add(1)
				}
			})
		}
		wg.Wait()
		if n := created.Load(); n != 1 {
			t.Errorf("the store was created %d times", n)
		}
		for name, want := range map[string]bool{"": false, mvcc.DefaultStore: false,
			"team-a": true} {
			if done, err := db.Driver.CreateStore(t.Context(), db.URL,
				ofStore(t, name)); err != nil || done != want {
				t.Errorf("create %q: %t, %v", name, done, err)
			}
		}
		stores, err := db.Driver.Stores(t.Context(), db.URL, ofStore(t, ""))
		if want := []string{"default", "team-a", "team-b"}; err != nil ||
			!slices.Equal(stores, want) {
			t.Errorf("the stores are %v, %v, want %v", stores, err, want)
		}
		_, err = db.Driver.Open(t.Context(), db.URL, ofStore(t, "team-c"))
		if mvcc.ClassOf(err) != mvcc.Invalid ||
			!strings.Contains(err.Error(), `no store "team-c"`) ||
			!strings.Contains(err.Error(), "rowkeeper stores create team-c") {
			t.Errorf("an unknown store: %v", err)
		}
		for _, name := range []string{"team-a", "team-b"} {
			if r := put(t, openStore(t, db, name), "/k", 0, "v"); r != 2 {
				t.Errorf("the first revision of %s is %d", name, r)
			}
		}
	})
}

// TestStoresFenceThemselves: when the database is found to be another one, each store that is
// opened fences itself, and no other store; and a fence leaves the watches of other stores open.
func TestStoresFenceThemselves(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		names := []string{mvcc.DefaultStore, "team-a", "team-b"}
		for _, name := range names {
			createStore(t, db, name)
			s := openStore(t, db, name)
			put(t, s, "/k", 0, name)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			file := db
			if db.Kind == dbtest.SQLite && name != mvcc.DefaultStore {
				file.URL += ".stores/" + name + ".db"
			}
			exec(t, raw(t, file), "UPDATE rowkeeper_store SET fingerprint = 'another database'")
		}
		epoch := func(name string) mvcc.Epoch {
			t.Helper()
			b, err := db.Driver.Open(t.Context(), db.URL, ofStore(t, name))
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			id, err := b.Identity(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return id.Epoch
		}
		for i, name := range names {
			s := openStore(t, db, name)
			if got := s.Delivered(); got < 1<<32 {
				t.Errorf("%s goes on at revision %d", name, got)
			}
			for j, other := range names {
				want := mvcc.Epoch(1)
				if j <= i {
					want = 2
				}
				if got := epoch(other); got != want {
					t.Errorf("after %s was opened, %s is in epoch %d, want %d", name, other, got,
						want)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		a, b := openStore(t, db, "team-a"), openStore(t, db, "team-b")
		w, err := b.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: b.Delivered()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if _, err := a.Fence(t.Context()); err != nil {
			t.Fatal(err)
		}
		put(t, a, "/k2", 0, "of a")
		r := put(t, b, "/k3", 0, "of b")
		if events := next(t, w, 1); events[0].Revision != r || events[0].Key != "/k3" {
			t.Errorf("the watch has %+v", events)
		}
	})
}

// TestStoresWriteTogether: stores of one database take writes, compact and sweep at the same time,
// and each ends with what was written to it, densely numbered.
func TestStoresWriteTogether(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		const stores, keys, rounds = 4, 20, 30
		opened := make([]*mvcc.Store, stores)
		var wg sync.WaitGroup
		for n := range opened {
			name := fmt.Sprint("store-", n)
			createStore(t, db, name)
			s := openStore(t, db, name)
			opened[n] = s
			for k := range keys {
				wg.Go(func() {
					key, at := mvcc.Key(fmt.Sprint("/k/", k)), mvcc.Revision(0)
					for round := range rounds {
						r, err := s.Commit(t.Context(), mvcc.Mutation{Key: key, Expect: at,
							Value: fmt.Append(nil, name, " ", round)})
						if err != nil {
							t.Errorf("%s: %v", name, err)
							return
						}
						if at = r; k == 0 && round%10 == 9 {
							if err := s.Compact(t.Context(), r); err != nil {
								t.Errorf("%s: compact: %v", name, err)
							}
						}
					}
				})
			}
		}
		wg.Wait()
		for n, s := range opened {
			head, err := s.Head(t.Context())
			if err != nil || head != 1+keys*rounds {
				t.Errorf("store %d is at revision %d, %v, want %d", n, head, err, 1+keys*rounds)
			}
			if found, err := s.Count(t.Context(), "/", "0"); err != nil || found != keys {
				t.Errorf("store %d has %d keys, %v", n, found, err)
			}
		}
	})
}
