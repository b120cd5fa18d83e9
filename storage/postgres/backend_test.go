package postgres_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/backendtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/logintest"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

func TestMain(m *testing.M) {
	logintest.Main()
	os.Exit(dbtest.Main(m))
}

// options are those of tests.
func options(t testing.TB) contract.DriverOptions {
	return contract.DriverOptions{Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
		Timeout: 30 * time.Second}
}

type testWriter struct{ testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.Logf("%s", p)
	return len(p), nil
}

// migrated returns the URL of an empty store.
func migrated(t testing.TB) string {
	t.Helper()
	url := dbtest.Open(t, dbtest.Postgres).URL
	if _, err := postgres.Driver.Migrate(t.Context(), url, options(t)); err != nil {
		t.Fatal(err)
	}
	return url
}

func openURL(t testing.TB, url string) contract.Backend {
	t.Helper()
	b, err := contract.OpenBackend(t.Context(), postgres.Driver, url, options(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// connect connects to the database without the driver.
func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func TestBackend(t *testing.T) {
	for _, mode := range []string{"", "&prepared_statements=false"} {
		t.Run("prepared"+mode, func(t *testing.T) {
			t.Parallel()
			backendtest.Run(t, func(t testing.TB) backendtest.Subject {
				db := dbtest.Open(t, dbtest.Postgres)
				return backendtest.OfStore(t, postgres.Driver, db.URL+mode, options)
			})
		})
	}
}
