package postgres_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// The advice for a role that may not create tables is enough for it to migrate.
func TestMigrateWithoutCreate(t *testing.T) {
	database := dbtest.Open(t, dbtest.Postgres).URL
	admin := connect(t, database)
	exec(t, admin, `REVOKE CREATE ON SCHEMA public FROM public`)
	user := role(t, admin)
	_, err := postgres.Driver.Migrate(t.Context(), as(t, database, user, secret), options(t))
	wantClass(t, err, contract.Denied)
	_, advice, _ := strings.Cut(err.Error(), "(GRANT ")
	advice, _, ok := strings.Cut(advice, " TO the role")
	if !ok {
		t.Fatalf("the error is %v", err)
	}
	_, err = postgres.Driver.Migrate(t.Context(), with(t, as(t, database, user, secret), "search_path",
		"nowhere"), options(t))
	wantClass(t, err, contract.Invalid)
	if !strings.Contains(err.Error(), "search_path") || strings.Contains(err.Error(), "migrate up") {
		t.Errorf("the error is %v", err)
	}
	exec(t, admin, `GRANT `+advice+` TO `+user)
	if _, err := postgres.Driver.Migrate(t.Context(), as(t, database, user, secret),
		options(t)); err != nil {
		t.Error(err)
	}

	// A schema that the role may not use is as one that does not exist.
	elsewhere := with(t, as(t, database, user, secret), "search_path", "elsewhere")
	exec(t, admin, `CREATE SCHEMA elsewhere`)
	_, err = postgres.Driver.Migrate(t.Context(), elsewhere, options(t))
	wantClass(t, err, contract.Invalid)
	if !strings.Contains(err.Error(), "grant it USAGE and CREATE ON SCHEMA") {
		t.Errorf("the error is %v", err)
	}
	exec(t, admin, `GRANT USAGE, CREATE ON SCHEMA elsewhere TO `+user)
	if _, err := postgres.Driver.Migrate(t.Context(), elsewhere, options(t)); err != nil {
		t.Error(err)
	}
}

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
