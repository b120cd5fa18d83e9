package mysql_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestListsLeaveConnections: however many lists wait for the database, what expiry and compaction
// need can be read.
func TestListsLeaveConnections(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		dbtest.NotOnTiDB(t, db.Kind, "it locks no table")
		// no list is given up while the test lasts
		b, a := openFor(t, db.URL, 20*time.Minute), admin(t, db.URL)
		holder, err := a.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Close()
		exec(t, holder, "LOCK TABLES rowkeeper_live WRITE")
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
		eventually(t, "lists to wait for the table", func() bool {
			var n int
			if err := a.QueryRow(`SELECT COUNT(*) FROM information_schema.processlist p
				WHERE p.db = DATABASE() AND p.state LIKE 'Waiting for table metadata lock'`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n >= 6
		})
		for range 20 {
			reads.Go(func() {
				if _, err := b.FirstAt(ctx, 1); err != nil {
					t.Errorf("a read of a row: %v", err)
				}
			})
		}
		reads.Wait()
		exec(t, holder, "UNLOCK TABLES")
		lists.Wait()
	})
}
