package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// Many programs migrate one empty database at once, and each migration runs once.
func TestConcurrentMigrations(t *testing.T) {
	database := dbtest.Open(t, dbtest.Postgres).URL
	list, err := postgres.Driver.Status(t.Context(), database, options(t))
	if err != nil || len(list) == 0 || !list[0].Applied.IsZero() {
		t.Fatalf("the status of an empty database is %+v, %v", list, err)
	}
	var (
		mu  sync.Mutex
		ran int
		wg  sync.WaitGroup
	)
	for range 8 {
		wg.Go(func() {
			done, err := postgres.Driver.Migrate(t.Context(), database, options(t))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			ran += len(done)
		})
	}
	wg.Wait()
	if ran != len(list) {
		t.Errorf("%d migrations were run, want %d", ran, len(list))
	}
	after, err := postgres.Driver.Status(t.Context(), database, options(t))
	if err != nil || len(after) != len(list) || after[0].Applied.IsZero() ||
		time.Since(after[0].Applied).Abs() > time.Hour {
		t.Errorf("the status is %+v, %v", after, err)
	}
}
