package database

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// openDatabase opens a database of a kind, with settings of mvcc that the product does not offer.
func openDatabase(t testing.TB, d dbtest.DB, c mvcc.Config) *Store {
	t.Helper()
	return openDatabaseThrough(t, d, c, func(b contract.Backend) contract.Backend { return b })
}

// openDatabaseThrough opens a database through a backend of the test's own.
func openDatabaseThrough(t testing.TB, d dbtest.DB, c mvcc.Config,
	through func(contract.Backend) contract.Backend) *Store {
	t.Helper()
	opts := contract.DriverOptions{Logger: slog.New(slog.DiscardHandler), Timeout: time.Minute}
	if _, err := d.Driver.Migrate(t.Context(), d.URL, opts); err != nil {
		t.Fatal(err)
	}
	backend, err := contract.OpenBackend(t.Context(), d.Driver, d.URL, opts)
	if err != nil {
		t.Fatal(err)
	}
	c.Metrics = mvcc.NewMetrics()
	store, err := mvcc.Open(t.Context(), through(backend), c)
	if err != nil {
		t.Fatal(err)
	}
	db := New(store, c.Metrics, Config{})
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// podsHere is where the pods of a store are.
const podsHere contract.Key = "/registry/pods/"

func podKey(name string) contract.Key { return podsHere + "ns/" + contract.Key(name) }

// serve serves the pods of a store, as a façade does.
func serve(s *Store) (*mvcc.Engine, error) { return EngineFor(s, "pods", DefaultPrefix, podsHere) }

func pods(t testing.TB, s *Store) *mvcc.Engine {
	t.Helper()
	engine, err := serve(s)
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

func commit(t testing.TB, s *mvcc.Engine, m contract.Mutation) contract.Revision {
	t.Helper()
	revision, err := s.Commit(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func create(t testing.TB, s *mvcc.Engine, name string) contract.Revision {
	t.Helper()
	return commit(t, s, contract.Mutation{Key: podKey(name), Value: []byte(name)})
}

func change(t testing.TB, s *mvcc.Engine, name, value string) contract.Revision {
	t.Helper()
	return commit(t, s, contract.Mutation{Key: podKey(name), Expect: contract.Any, Value: []byte(value)})
}

func remove(t testing.TB, s *mvcc.Engine, name string) {
	t.Helper()
	commit(t, s, contract.Mutation{Key: podKey(name), Expect: contract.Any, Delete: true})
}

// list returns the pods that are there.
func list(t testing.TB, s *mvcc.Engine) []mvcc.KeyValue {
	t.Helper()
	r, err := s.Range(t.Context(), mvcc.RangeOptions{Start: podsHere, End: contract.PrefixEnd(podsHere)})
	if err != nil {
		t.Fatal(err)
	}
	return r.KVs
}

// get reads a pod.
func get(t testing.TB, s *mvcc.Engine, name string) *mvcc.KeyValue {
	t.Helper()
	kv, _, err := s.Get(t.Context(), podKey(name))
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// watch watches the pods from a revision on.
func watch(t testing.TB, s *mvcc.Engine, after contract.Revision) *mvcc.Watcher {
	t.Helper()
	w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: podsHere, After: after})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, ctx.Err())
		}
	}
}
