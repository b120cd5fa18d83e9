package sqlite

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/backendtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

func options(t testing.TB) mvcc.DriverOptions {
	return mvcc.DriverOptions{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Timeout: 30 * time.Second}
}

// fresh makes a migrated database and returns its URL.
func fresh(t testing.TB) string {
	t.Helper()
	url := "sqlite://" + filepath.Join(t.TempDir(), "state.db")
	migrate(t, url)
	return url
}

func migrate(t testing.TB, url string) {
	t.Helper()
	if _, err := Driver.Migrate(context.Background(), url, options(t)); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, url string) mvcc.Backend {
	t.Helper()
	b, err := Driver.Open(context.Background(), url, options(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Run("File", func(t *testing.T) {
		backendtest.Run(t, func(t testing.TB) backendtest.Database {
			url := fresh(t)
			return backendtest.Database{Open: func(t testing.TB) mvcc.Backend { return open(t, url) }}
		})
	})
	t.Run("Memory", func(t *testing.T) {
		backendtest.Run(t, func(t testing.TB) backendtest.Database {
			return backendtest.Database{Open: func(t testing.TB) mvcc.Backend { return open(t, "memory:") }, Private: true}
		})
	})
}
