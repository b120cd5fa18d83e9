package mysql_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/backendtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// kinds are the databases of this package.
var kinds = []dbtest.Kind{dbtest.MariaDB, dbtest.MySQL}

// each runs a test on an empty store in each of them.
func each(t *testing.T, f func(t *testing.T, db dbtest.DB)) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		migrate(t, db.URL)
		f(t, db)
	}, kinds...)
}

func options(tb testing.TB) mvcc.DriverOptions {
	return mvcc.DriverOptions{Logger: slog.New(slog.NewTextHandler(testWriter{tb}, nil)), Timeout: 30 * time.Second}
}

type testWriter struct{ testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.Logf("%s", p)
	return len(p), nil
}

// migrate brings a database to the newest schema.
func migrate(tb testing.TB, url string) {
	tb.Helper()
	if _, err := mysql.Driver.Migrate(context.Background(), url, options(tb)); err != nil {
		tb.Fatal(err)
	}
}

// open opens a backend and closes it when the test ends.
func open(tb testing.TB, url string) mvcc.Backend {
	tb.Helper()
	b, err := mysql.Driver.Open(context.Background(), url, options(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return b
}

func TestBackend(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			backendtest.Run(t, func(t testing.TB) backendtest.Database {
				db := dbtest.Open(t, kind)
				migrate(t, db.URL)
				return backendtest.Database{Open: func(t testing.TB) mvcc.Backend {
					b, err := mysql.Driver.Open(context.Background(), db.URL, options(t))
					if err != nil {
						t.Fatal(err)
					}
					return b
				}}
			})
		})
	}
}
