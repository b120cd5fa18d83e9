package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// TestListsLeaveConnections: however many lists wait for the database, single rows can be read.
func TestListsLeaveConnections(t *testing.T) {
	database := migrated(t)
	conn, holder := connect(t, database), connect(t, database)
	opts := options(t)
	opts.Timeout = 20 * time.Minute // the server gives up no list while the test lasts
	b, err := contract.OpenBackend(t.Context(), postgres.Driver, database, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	exec(t, holder, "BEGIN", "LOCK TABLE rowkeeper_live IN ACCESS EXCLUSIVE MODE")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var lists, reads sync.WaitGroup
	for range 20 {
		lists.Go(func() {
			if _, _, err := b.Count(ctx, "a", "z", 0, 0); err != nil {
				t.Errorf("a list: %v", err)
			}
		})
	}
	eventually(t, "lists to wait for the table", func() bool { return waiting(t, conn) >= 6 })
	for range 20 {
		reads.Go(func() {
			if _, err := b.FirstAt(ctx, 1); err != nil {
				t.Errorf("a read of a row: %v", err)
			}
		})
	}
	reads.Wait()
	exec(t, holder, "COMMIT")
	lists.Wait()
}
