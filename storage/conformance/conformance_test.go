package conformance_test

import (
	"flag"
	"os"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/conformance"
	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
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

func TestRaw(t *testing.T)    { each(t, conformance.RunRaw) }
func TestCached(t *testing.T) { each(t, conformance.RunCached) }

func TestCachedByList(t *testing.T) {
	if testing.Short() {
		t.Skip("the same tests as TestCached, which fills its caches as Kubernetes does by default")
	}
	each(t, conformance.RunCachedByList)
}

func each(t *testing.T, run func(*testing.T, conformance.Config)) {
	for _, kind := range append(dbtest.Kinds(), dbtest.Memory) {
		t.Run(string(kind), func(t *testing.T) {
			if testing.Short() && kind == dbtest.Memory {
				t.Skip("SQLite in a file differs by its connections alone")
			}
			dbtest.Open(t, kind) // skips the kind as a whole
			run(t, conformance.Config{Open: func(t *testing.T) *storage.Database {
				t.Helper()
				d := dbtest.Open(t, kind)
				db, err := storage.Open(t.Context(),
					storage.Config{URL: d.URL, Drivers: []storage.Driver{d.Driver}, Migrate: true})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := db.Close(); err != nil {
						t.Error(err)
					}
				})
				return db
			}})
		})
	}
}
