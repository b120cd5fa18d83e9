package mysql_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestReadLock: a backup takes its locks while one process is in the middle of a commit and another
// one waits for the commit lock. The backup must not wait for a lock wait timeout, and the writers
// go on when it is done. The timeouts are far longer than the test waits.
func TestReadLock(t *testing.T) {
	const tables = "rowkeeper_aborted %, rowkeeper_index %, rowkeeper_lease %, rowkeeper_live %, rowkeeper_log %, " +
		"rowkeeper_resource %, rowkeeper_schema %, " +
		"rowkeeper_store %, rowkeeper_user %"
	backups := []struct {
		name  string
		locks []string
	}{
		{"lock-all-tables", []string{"FLUSH TABLES WITH READ LOCK"}},
		{"source-data", []string{"FLUSH TABLES", "FLUSH TABLES WITH READ LOCK",
			"START TRANSACTION WITH CONSISTENT SNAPSHOT"}},
		{"lock-tables", []string{"LOCK TABLES " + strings.ReplaceAll(tables, "%", "READ")}},
		{"lock tables for writing",
			[]string{"LOCK TABLES " + strings.ReplaceAll(tables, "%", "WRITE")}},
	}
	waiters := []struct {
		name string
		wait func(context.Context, contract.Backend, contract.Position) error
	}{
		{"commit", func(ctx context.Context, b contract.Backend, seen contract.Position) error {
			_, err := b.Commit(ctx, newGroup(seen, put("second", 0, "value")))
			return err
		}},
		{"resolve", func(ctx context.Context, b contract.Backend, seen contract.Position) error {
			_, err := contract.ResolveGroup(ctx, b, newGroup(seen).Token, seen)
			return err
		}},
		{"sweep", func(ctx context.Context, b contract.Backend, _ contract.Position) error {
			_, _, err := contract.SweepBatch(ctx, b, 10)
			return err
		}},
	}
	eachServer(t, dbserver.Options{}, func(t *testing.T, s *dbtest.Server) {
		for _, backup := range backups {
			for _, waiter := range waiters {
				t.Run(backup.name+"/"+waiter.name, func(t *testing.T) {
					db := s.Open()
					migrate(t, db.URL)
					testReadLock(t, db, backup.locks, waiter.wait)
				})
			}
		}
	})
}

func testReadLock(t *testing.T, db dbtest.DB, locks []string,
	wait func(context.Context, contract.Backend, contract.Position) error) {
	const longTimeout = 20 * time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	p := newProxy(t, db.URL)
	first, second, a := openFor(t, p.URL, longTimeout), openFor(t, db.URL, longTimeout),
		admin(t, db.URL)
	for _, key := range []contract.Key{"a", "b", "c"} {
		mustPut(t, second, key)
	}
	seen := state(t, first).Head
	if _, err := contract.RaiseCompacted(ctx, second, seen.Revision); err != nil {
		t.Fatal(err)
	}

	// The first process has the commit lock, and is about to write.
	reached, release := make(chan struct{}), make(chan struct{})
	p.on(func(_ *link, q string) verdict {
		if commits(q) {
			close(reached)
			<-release
		}
		return forward
	})
	ended := make(chan error, 2)
	go func() {
		_, err := first.Commit(ctx, newGroup(seen, put("first", 0, "value")))
		ended <- err
	}()
	<-reached
	p.on(nil)
	go func() { ended <- wait(ctx, second, seen) }()
	eventually(t, "the second process to wait", func() bool { return waiting(t, a) == 1 })

	backup, err := a.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer backup.Close()
	var id int64
	if err := backup.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		t.Fatal(err)
	}
	locked := make(chan error, 1)
	go func() {
		for _, q := range locks {
			if _, err := backup.ExecContext(ctx, q); err != nil {
				locked <- err
				return
			}
		}
		locked <- nil
	}()
	eventually(t, "the backup to have its locks, or to wait for them", func() bool {
		if len(locked) > 0 {
			return true
		}
		var state string
		if err := a.QueryRowContext(ctx, "SELECT COALESCE(MAX(state), '') FROM "+
			"information_schema.processlist WHERE id = ?", id).Scan(&state); err != nil {
			t.Fatal(err)
		}
		return strings.HasPrefix(state, "Waiting for")
	})
	close(release)
	if err := <-locked; err != nil {
		t.Fatalf("the backup does not get its locks: %v", err)
	}
	exec(t, backup, "UNLOCK TABLES")
	for range 2 {
		// The server may have undone a transaction that was in the way of LOCK TABLES.
		if err := <-ended; err != nil {
			wantClass(t, err, contract.Transient)
		}
	}
	mustPut(t, first, "first, again")
	mustPut(t, second, "second, again")
}
