package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// ofStore are the options by which a store is opened.
func ofStore(t testing.TB, name string) contract.DriverOptions {
	return contract.DriverOptions{Store: name, Logger: testLogger(t), Timeout: 30 * time.Second}
}

// openStore opens a store by its name.
func openStore(t *testing.T, db dbtest.DB, name string) *mvcc.Engine {
	t.Helper()
	b, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, name))
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
	if _, err := contract.CreateStore(t.Context(), db.Driver, db.URL, ofStore(t, name)); err != nil {
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
				done, err := contract.CreateStore(t.Context(), db.Driver, db.URL, ofStore(t, "team-b"))
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
		for name, want := range map[string]bool{"": false, contract.DefaultStore: false,
			"team-a": true} {
			if done, err := contract.CreateStore(t.Context(), db.Driver, db.URL,
				ofStore(t, name)); err != nil || done != want {
				t.Errorf("create %q: %t, %v", name, done, err)
			}
		}
		stores, err := db.Driver.Stores(t.Context(), db.URL, ofStore(t, ""))
		if want := []string{"default", "team-a", "team-b"}; err != nil ||
			!slices.Equal(stores, want) {
			t.Errorf("the stores are %v, %v, want %v", stores, err, want)
		}
		_, err = contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, "team-c"))
		if contract.ClassOf(err) != contract.Invalid ||
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
		names := []string{contract.DefaultStore, "team-a", "team-b"}
		for _, name := range names {
			createStore(t, db, name)
			s := openStore(t, db, name)
			put(t, s, "/k", 0, name)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			file := db
			if db.Kind == dbtest.SQLite && name != contract.DefaultStore {
				file.URL += ".stores/" + name + ".db"
			}
			d := raw(t, file)
			exec(t, d, "UPDATE rowkeeper_store SET fingerprint = 'another database'")
			// SQLite's log would be that of another file.
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
		epoch := func(name string) contract.Epoch {
			t.Helper()
			b, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, name))
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
				want := contract.Epoch(1)
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
		opened := make([]*mvcc.Engine, stores)
		var wg sync.WaitGroup
		for n := range opened {
			name := fmt.Sprint("store-", n)
			createStore(t, db, name)
			s := openStore(t, db, name)
			opened[n] = s
			for k := range keys {
				wg.Go(func() {
					key, at := contract.Key(fmt.Sprint("/k/", k)), contract.Revision(0)
					for round := range rounds {
						r, err := s.Commit(t.Context(), contract.Mutation{Key: key, Expect: at,
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

// TestDropStore: servers that use a store that is dropped answer that, and their watches end, while
// those of other stores go on; a store that is created under its name is empty and begins beyond
// the old history; and who had opened the old one does not go over to it.
func TestDropStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		for _, name := range []string{"team-a", "team-b"} {
			createStore(t, db, name)
		}
		a, b := openStore(t, db, "team-a"), openStore(t, db, "team-b")
		other := openStore(t, db, contract.DefaultStore)
		watch := func(s *mvcc.Engine) *mvcc.Watcher {
			t.Helper()
			w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: s.Delivered()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Close)
			return w
		}
		var wg sync.WaitGroup
		for i := range 1200 {
			wg.Go(func() { put(t, a, contract.Key(fmt.Sprint("/k/", i)), 0, "of a") })
		}
		wg.Wait()
		last := a.Delivered()
		ends, goesOn, alsoGoesOn := watch(a), watch(b), watch(other)
		drop := func() bool {
			t.Helper()
			backend, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, "team-a"))
			if err != nil {
				t.Fatal(err)
			}
			defer backend.Close()
			dropped, err := contract.Drop(t.Context(), backend)
			if err != nil {
				t.Fatal(err)
			}
			u, st, err := backend.Usage(t.Context())
			if err != nil || u != (contract.Usage{}) || !st.Dropped() {
				t.Errorf("after the drop there is %+v at %+v, %v", u, st, err)
			}
			return dropped
		}
		if !drop() {
			t.Error("the store was dropped before")
		}
		// The watch ends without another read.
		if _, err := ends.Next(t.Context()); !errors.Is(err, contract.ErrDropped) {
			t.Errorf("the watch: %v", err)
		}
		all := func(s *mvcc.Engine) map[string]error {
			_, _, get := s.Get(t.Context(), "/k/1")
			_, head := s.Head(t.Context())
			_, create := s.Commit(t.Context(), contract.Mutation{Key: "/new", Value: []byte("v")})
			_, remove := s.Commit(t.Context(), contract.Mutation{Key: "/k/1", Expect: 3, Delete: true})
			_, fence := s.Fence(t.Context())
			_, watch := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: last})
			return map[string]error{"get": get, "head": head, "create": create, "delete": remove,
				"fence": fence, "watch": watch, "compact": s.Compact(t.Context(), last),
				"ready": s.Ready(t.Context())}
		}
		for what, err := range all(a) {
			if !errors.Is(err, contract.ErrDropped) {
				t.Errorf("%s: %v", what, err)
			}
		}
		backend, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, "team-a"))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := mvcc.Open(t.Context(), backend, mvcc.Config{}); !errors.Is(err,
			contract.ErrDropped) {
			t.Errorf("the dropped store is opened: %v, %v", s, err)
		}
		stores, err := db.Driver.Stores(t.Context(), db.URL, ofStore(t, ""))
		if want := []string{"default", "team-b"}; err != nil || !slices.Equal(stores, want) {
			t.Errorf("the stores are %v, %v", stores, err)
		}
		if drop() {
			t.Error("the store was dropped twice")
		}
		if r := put(t, b, "/b", 0, "of b"); next(t, goesOn, 1)[0].Revision != r {
			t.Error("the watch of another store has missed an event")
		}
		if r := put(t, other, "/o", 0, "of the other"); next(t, alsoGoesOn, 1)[0].Revision != r {
			t.Error("the watch of the default store has missed an event")
		}

		var created atomic.Int32
		for range 3 {
			wg.Go(func() {
				done, err := contract.CreateStore(t.Context(), db.Driver, db.URL, ofStore(t, "team-a"))
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
		renewed := openStore(t, db, "team-a")
		if r := renewed.Delivered(); r < last+1<<33 {
			t.Errorf("the new store begins at %d, and the old one ended at %d", r, last)
		}
		if n, err := renewed.Count(t.Context(), "/", "0"); err != nil || n != 0 {
			t.Errorf("the new store has %d keys, %v", n, err)
		}
		if w, err := renewed.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/",
			After: last}); !errors.Is(err, contract.ErrCompacted) {
			t.Errorf("a watch resumes in the new store: %v, %v", w, err)
		}
		put(t, renewed, "/k/1", 0, "of the new store")
		for what, err := range all(a) {
			// To compact up to a revision of the old one does nothing to the new one.
			if contract.ClassOf(err) != contract.Invalid && what != "compact" {
				t.Errorf("in the new store's place, %s: %v", what, err)
			}
		}
		if n, err := renewed.Count(t.Context(), "/", "0"); err != nil || n != 1 {
			t.Errorf("the new store has %d keys, %v", n, err)
		}
	})
}

// TestReplacedStore: who finds another store in the place of the one that it has opened, and did
// not hear of the drop, knows as well that the store was dropped.
func TestReplacedStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		createStore(t, db, "team-a")
		backend, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, "team-a"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := mvcc.Open(t.Context(), backend, mvcc.Config{PollActive: time.Hour,
			PollIdle: time.Hour, PollListening: time.Hour, QuotaInterval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		other, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, "team-a"))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if _, err := contract.Drop(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Driver.CreateStore(t.Context(), db.URL, ofStore(t, "team-a")); err != nil {
			t.Fatal(err)
		}
		if head, err := s.Head(t.Context()); err == nil {
			t.Errorf("the store that was dropped is at %d", head)
		}
		select {
		case <-s.Dropped():
		case <-time.After(time.Minute):
			t.Error("the store is not known to have been dropped")
		}
	})
}

// TestImportIntoAStore: a restore into one store leaves the watches of others open.
func TestImportIntoAStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		createStore(t, db, "team-a")
		a, other := openStore(t, db, "team-a"), openStore(t, db, contract.DefaultStore)
		put(t, a, "/k", 0, "replaced")
		w, err := other.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/",
			After: other.Delivered()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		record := contract.Record{Key: "/restored", Revision: 2, Create: 2, Version: 1,
			Value: []byte("v")}
		in := &contract.Import{Store: "elsewhere", Head: 2, Replace: true,
			Records: func(each func(*contract.Record) error) error { return each(&record) }}
		if _, err := a.Import(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if n, err := a.Count(t.Context(), "/", "0"); err != nil || n != 1 {
			t.Errorf("the store has %d keys, %v", n, err)
		}
		r := put(t, other, "/o", 0, "of the other")
		if events := next(t, w, 1); events[0].Revision != r {
			t.Errorf("the watch has %+v", events)
		}
	})
}

// TestAnotherStore: another store in the place of the one that was opened, as of another database's
// dump, is none that this process serves or fences.
func TestAnotherStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		s := open(t, db, mvcc.Config{})
		put(t, s, "/k", 0, "v")
		exec(t, raw(t, db), "UPDATE rowkeeper_store SET identity = 'another', epoch = 2")
		if _, err := s.Head(t.Context()); contract.ClassOf(err) != contract.Invalid ||
			!strings.Contains(err.Error(), "another store (another)") {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestDropIsFinished: a drop that was interrupted after the mark goes on when it is repeated, and a
// store is created in its place only after that.
func TestDropIsFinished(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		createStore(t, db, "team-a")
		s := openStore(t, db, "team-a")
		for i := range 20 {
			put(t, s, contract.Key(fmt.Sprint("/k/", i)), 0, "v")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, "team-a"))
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		err = b.Locked(t.Context(), contract.LockOptions{}, func(tx contract.Tx) error {
			return tx.PutLeases([]contract.LeaseRow{{Lease: 7, TTL: 60, Expiry: 1}})
		})
		if err != nil {
			t.Fatal(err)
		}
		dying := &dying{Backend: b}
		if _, err := contract.Drop(t.Context(), dying); !errors.Is(err, errDied) {
			t.Fatal(err)
		}
		if u, st, err := b.Usage(t.Context()); err != nil || u.Objects != 20 || !st.Dropped() {
			t.Fatalf("there is %+v at %+v, %v", u, st, err)
		}
		createStore(t, db, "team-a")
		again, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, "team-a"))
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if u, st, err := again.Usage(t.Context()); err != nil || u != (contract.Usage{}) ||
			st.Dropped() {
			t.Fatalf("there is %+v at %+v, %v", u, st, err)
		}
		if leases, _, err := again.Leases(t.Context(), 1, 10); err != nil || len(leases) != 0 {
			t.Errorf("there are the leases %v, %v", leases, err)
		}
		if rows, err := again.Tail(t.Context(), 1, 100, contract.PrevOfAll); err != nil ||
			len(rows.Rows) != 2 {
			t.Errorf("the log has %d rows, %v", len(rows.Rows), err)
		}
	})
}

// dying is a backend whose process ends after its first transaction.
type dying struct {
	contract.Backend
	done bool
}

var errDied = errors.New("the process has ended")

func (d *dying) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	if d.done {
		return contract.Errorf(contract.Denied, "%w", errDied)
	}
	d.done = true
	return d.Backend.Locked(ctx, o, f)
}

// TestStoresShareConnections: stores that are opened over the same connections hear of what other
// processes write to them, and go on when others are closed.
func TestStoresShareConnections(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		names := []string{contract.DefaultStore, "team-a", "team-b", "team-c"}
		for _, name := range names {
			createStore(t, db, name)
		}
		shared, err := db.Driver.Connect(t.Context(), db.URL, ofStore(t, ""))
		if err != nil {
			t.Fatal(err)
		}
		stores := map[string]*mvcc.Engine{}
		watches := map[string]*mvcc.Watcher{}
		for _, name := range names {
			b, err := shared.Store(t.Context(), name)
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
			w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: s.Delivered()})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			stores[name], watches[name] = s, w
		}
		if _, err := shared.Store(t.Context(), "unknown"); contract.ClassOf(err) != contract.Invalid {
			t.Errorf("an unknown store: %v", err)
		}
		if err := shared.Close(); err != nil {
			t.Fatal(err)
		}
		for len(names) > 0 {
			for _, name := range names {
				put(t, stores[name], contract.Key("/here/"+fmt.Sprint(len(names))), 0, name)
				other := openStore(t, db, name)
				put(t, other, contract.Key("/there/"+fmt.Sprint(len(names))), 0, name)
				for _, e := range next(t, watches[name], 2) {
					if string(e.Value) != name {
						t.Errorf("the watch of %s has an event of %s", name, e.Value)
					}
				}
			}
			if err := stores[names[0]].Close(); err != nil {
				t.Fatal(err)
			}
			names = names[1:]
		}
	})
}

// TestBusyStoreLeavesConnections: of the connections that stores share, the ones that wait for the
// commit lock of one store leave some to the others.
func TestBusyStoreLeavesConnections(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		createStore(t, db, "team-a")
		shared, err := db.Driver.Connect(t.Context(), db.URL, ofStore(t, ""))
		if err != nil {
			t.Fatal(err)
		}
		defer shared.Close()
		busy, err := shared.Store(t.Context(), "team-a")
		if err != nil {
			t.Fatal(err)
		}
		defer busy.Close()
		b, err := shared.Store(t.Context(), contract.DefaultStore)
		if err != nil {
			t.Fatal(err)
		}
		other, err := mvcc.Open(t.Context(), b, mvcc.Config{Logger: testLogger(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		locked, unlocked := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		defer wg.Wait()
		unlock := sync.OnceFunc(func() { close(unlocked) })
		defer unlock()
		wg.Go(func() {
			if err := busy.Locked(t.Context(), contract.LockOptions{}, func(contract.Tx) error {
				close(locked)
				<-unlocked
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
		<-locked
		for range 12 {
			wg.Go(func() {
				if err := busy.Locked(t.Context(), contract.LockOptions{},
					func(contract.Tx) error { return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		// They have what they can get.
		for deadline := time.Now().Add(time.Minute); ; {
			p, ok := busy.(contract.Pooled)
			if !ok || slices.ContainsFunc(p.Pools(), func(p contract.Pool) bool {
				return p.Name == "commit" && p.InUse >= min(3, p.Max)
			}) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the pools are %v", p.Pools())
			}
			<-time.After(time.Millisecond)
		}
		put(t, other, "/other", 0, "value")
	})
}
