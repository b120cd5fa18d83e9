package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// TestRoleTimeout: a role's statement_timeout is not the one by which this program connects, also
// through a pooler in session mode, which would refuse the setting as a parameter of the connection.
func TestRoleTimeout(t *testing.T) {
	for _, pooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("pooled=%t", pooled), func(t *testing.T) {
			database := migrated(t)
			admin := connect(t, database)
			const limit = 300 * time.Millisecond
			user := role(t, admin, `GRANT ALL ON ALL TABLES IN SCHEMA public TO %s`, fmt.Sprintf(`ALTER ROLE %%s SET statement_timeout = %d`, limit.Milliseconds()))
			url := as(t, database, user, secret)
			if pooled {
				url = with(t, startPgBouncer(t, url, "session"), "pool_max_conns", "1")
			}
			// What reads the store while it connects has to wait.
			holder := connect(t, database)
			exec(t, holder, "BEGIN", "LOCK TABLE rowkeeper_store IN ACCESS EXCLUSIVE MODE")
			opened := make(chan error, 1)
			go func() {
				b, err := postgres.Driver.Open(t.Context(), url, options(t))
				if err == nil {
					err = b.Close()
				}
				opened <- err
			}()
			eventually(t, "a session to wait for longer than the role allows", func() bool {
				select {
				case err := <-opened:
					t.Fatalf("it did not wait for the table: %v", err)
				default:
				}
				var waits bool
				if err := admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
					WHERE usename = $1 AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > $2 * interval '1 ms')`,
					user, 3*limit.Milliseconds()).Scan(&waits); err != nil {
					t.Fatal(err)
				}
				return waits
			})
			exec(t, holder, "COMMIT")
			if err := <-opened; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSweepLeavesTheStoreRow: a version of the store row for each batch of the sweep would make commits
// slow while somebody holds a snapshot. What was not recorded is swept again by another process.
func TestSweepLeavesTheStoreRow(t *testing.T) {
	database := migrated(t)
	b, conn := openURL(t, database), connect(t, database)
	defer b.Close()
	seen := head(t, b)
	for n := range 5 {
		g := &mvcc.Group{Token: newToken(), Seen: seen}
		for i := range 100 {
			expect := mvcc.Revision(0)
			if n > 0 {
				expect = seen.Revision - 99 + mvcc.Revision(i)
			}
			g.Mutations = append(g.Mutations, &mvcc.Mutation{Key: mvcc.Key(fmt.Sprintf("%03d", i)), Expect: expect, Value: []byte("v")})
		}
		res, err := b.Commit(t.Context(), g)
		if err != nil || !res.Outcomes[99].Accepted {
			t.Fatal(res, err)
		}
		seen = res.State.Head
	}
	if _, err := mvcc.RaiseCompacted(t.Context(), b, seen.Revision); err != nil {
		t.Fatal(err)
	}
	version := func() (v string) {
		if err := conn.QueryRow(t.Context(), `SELECT ctid::text FROM rowkeeper_store`).Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	sweep := func(b mvcc.Backend) (int, mvcc.State) {
		n, s, err := mvcc.SweepBatch(t.Context(), b, 5)
		if err != nil {
			t.Fatal(err)
		}
		return n, s
	}
	before, changes, deleted := version(), 0, 0
	const batches = 80
	for range batches {
		n, _ := sweep(b)
		deleted += n
		if now := version(); now != before {
			before = now
			changes++
		}
	}
	if changes != 1 {
		t.Errorf("%d batches have changed the store row %d times", batches, changes)
	}
	other := openURL(t, database)
	defer other.Close()
	for _, b := range []mvcc.Backend{other, b} {
		for s := (mvcc.State{Compacted: 1}); s.Swept < s.Compacted; {
			var n int
			n, s = sweep(b)
			deleted += n
		}
	}
	// All but the newest of each key, and the first marker.
	if deleted != 401 {
		t.Errorf("%d rows were deleted", deleted)
	}
	if s, err := b.State(t.Context()); err != nil || s.Swept != seen.Revision {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestListsLeaveConnections: however many lists wait for the database, single rows can be read.
func TestListsLeaveConnections(t *testing.T) {
	database := migrated(t)
	conn, holder := connect(t, database), connect(t, database)
	opts := options(t)
	opts.Timeout = 20 * time.Minute // the server gives up no list while the test lasts
	b, err := postgres.Driver.Open(t.Context(), database, opts)
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
