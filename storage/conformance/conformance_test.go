package conformance_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/conformance"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestMain lets 8 tests run at once, since most of them only wait, unless -parallel is given.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	os.Exit(dbtest.Main(m))
}

// The suites are tests of their own, so that one of them, or one kind of database, can be run
// alone:
//
//	go test ./storage/conformance -run 'TestCached$/postgres'

func TestCached(t *testing.T) { each(t, conformance.RunCached, dbtest.Kinds()...) }

// TestRaw also runs on SQLite in memory, which differs from SQLite in a file by its connections
// alone.
func TestRaw(t *testing.T) {
	each(t, conformance.RunRaw, append(dbtest.Kinds(), dbtest.Memory)...)
}

// TestCachedByList fills the watch caches by lists, as older servers do. The lists come from the
// storage, whose tests run on each database, so one shows it.
func TestCachedByList(t *testing.T) {
	if testing.Short() {
		t.Skip("the same tests as TestCached, which fills its caches as Kubernetes does by default")
	}
	each(t, conformance.RunCachedByList, dbtest.SQLite)
}

func each(t *testing.T, run func(*testing.T, conformance.Config), kinds ...dbtest.Kind) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			if testing.Short() && kind == dbtest.Memory {
				t.Skip("SQLite in a file differs by its connections alone")
			}
			dbtest.Open(t, kind) // skips the kind as a whole
			run(t, conformance.Config{Open: func(t *testing.T) *storage.Store {
				t.Helper()
				d := dbtest.Open(t, kind)
				c := storage.Config{URL: d.URL, Drivers: []storage.Driver{d.Driver}, Migrate: true}
				if kind != dbtest.Memory {
					c.Store = "tested"
					if _, err := storage.CreateStore(t.Context(), c); err != nil {
						t.Fatal(err)
					}
					fillDefault(t, d)
				}
				store, err := storage.Open(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := store.Close(); err != nil {
						t.Error(err)
					}
				})
				return store
			}})
		})
	}
}

// fillDefault puts into the default store of the database what no test can use, where the tests
// keep their objects: whoever reads it fails. It checks at the end that nothing was added.
func fillDefault(t *testing.T, d dbtest.DB) {
	t.Helper()
	b, err := contract.OpenBackend(t.Context(), d.Driver, d.URL,
		contract.DriverOptions{Logger: slog.New(slog.DiscardHandler), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	st, err := b.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := &contract.Group{Token: contract.Token{1}, Seen: st.Head}
	for _, key := range []contract.Key{"/pods/a", "/pods/default/foo", "/registry/pods/a",
		"/registry/pods/default/foo"} {
		g.Mutations = append(g.Mutations, &contract.Mutation{Key: key, Value: []byte("no object")})
	}
	res, err := b.Commit(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if st, err := b.State(context.Background()); err != nil || st.Head != res.State.Head {
			t.Errorf("the default store is at %+v, %v, and was at %+v", st.Head, err,
				res.State.Head)
		}
	})
}
