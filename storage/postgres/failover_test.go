package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// A server becomes a standby, and is promoted: its time line is another one then.
func TestStandbyAndPromotion(t *testing.T) {
	s := dbtest.NewServer(t, dbtest.Postgres, dbserver.Options{})
	db := s.Open()
	if _, err := postgres.Driver.Migrate(t.Context(), db.URL, options(t)); err != nil {
		t.Fatal(err)
	}
	b := openURL(t, db.URL)
	defer b.Close()
	before, err := b.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := contract.RecordFingerprint(t.Context(), b, before.Actual); err != nil {
		t.Fatal(err)
	}
	res, err := b.Commit(t.Context(), group(head(t, b), "a"))
	if err != nil {
		t.Fatal(err)
	}
	seen := res.State.Head

	s.Exec(`COPY (SELECT) TO PROGRAM 'cat > standby.signal'`)
	s.Stop()
	s.Start()
	standby := func(err error) {
		t.Helper()
		wantClass(t, err, contract.ReadOnly)
		if !strings.Contains(err.Error(), "standby") {
			t.Errorf("the error is %v", err)
		}
	}
	// Each pool may have connections that the old server has ended; what they say is that it is
	// away.
	for _, ask := range []func() error{
		func() error { _, err := b.State(t.Context()); return err },
		func() error { _, _, err := b.Get(t.Context(), "a"); return err },
		func() error { _, err := b.Commit(t.Context(), group(seen, "b")); return err },
	} {
		eventually(t, "the old connections to be given up", func() bool {
			err = ask()
			return err != nil && contract.ClassOf(err) != contract.Unavailable
		})
		standby(err)
	}
	_, err = contract.StartEpoch(t.Context(), b, contract.Fence{Seen: seen, Token: newToken(),
		Jump: 1 << 32})
	wantClass(t, err, contract.ReadOnly)
	openError(t, db.URL, contract.ReadOnly, "standby", "primary")

	s.Exec(`SELECT pg_promote()`)
	eventually(t, "the promotion to be noticed", func() bool {
		_, err := b.State(t.Context())
		return err != nil && contract.ClassOf(err) == contract.Fenced
	})
	_, err = b.Commit(t.Context(), group(seen, "b"))
	wantClass(t, err, contract.Fenced)
	after, err := b.Identity(t.Context())
	if err != nil || after.Recorded != before.Actual || after.Actual == before.Actual ||
		after.Store != before.Store {
		t.Fatalf("the identity is %+v after %+v, %v", after, before, err)
	}

	// Another process opens the same database now. It can read, so that its store finds the same
	// and fences.
	opened := openURL(t, db.URL)
	defer opened.Close()
	if got := head(t, opened); got != seen {
		t.Errorf("the head is %+v, want %+v", got, seen)
	}
	st, err := contract.StartEpoch(t.Context(), opened, contract.Fence{Seen: seen, Replaces: seen.Epoch,
		Token: newToken(), Jump: 1 << 32, Fingerprint: after.Actual})
	if err != nil || st.Head.Epoch != seen.Epoch+1 {
		t.Fatalf("the state after the fence is %+v, %v", st, err)
	}
	// The first one fences, too, and finds that this was done. Then both work again.
	if _, err := b.State(t.Context()); contract.ClassOf(err) != contract.Fenced {
		t.Errorf("the first process before it fences: %v", err)
	}
	if again, err := contract.StartEpoch(t.Context(), b, contract.Fence{Seen: seen, Replaces: seen.Epoch,
		Token: newToken(), Jump: 1 << 32, Fingerprint: after.Actual}); err != nil ||
		again.Head != st.Head {
		t.Fatalf("the second fence: %+v, %v, want %+v", again, err, st)
	}
	for i, b := range []contract.Backend{b, opened} {
		_, err = b.Commit(t.Context(), group(seen, "c"))
		wantClass(t, err, contract.Fenced)
		if _, err := b.Commit(t.Context(),
			group(head(t, b), contract.Key(fmt.Sprintf("d%d", i)))); err != nil {
			t.Error(err)
		}
	}
}

// A primary that was set to read-only answers, and says so.
func TestReadOnlyServer(t *testing.T) {
	url := migrated(t)
	exec(t, connect(t, url), fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_read_only = on`,
		pgx.Identifier{dbName(t, url)}.Sanitize()))
	for _, prepared := range []string{"true", "false"} {
		b := openURL(t, with(t, url, "prepared_statements", prepared))
		defer b.Close()
		s, err := b.State(t.Context())
		if err != nil || s.Writable {
			t.Errorf("the state is %+v, %v", s, err)
		}
		_, err = b.Commit(t.Context(), group(s.Head, "a"))
		wantClass(t, err, contract.ReadOnly)
		_, _, err = contract.SweepBatch(t.Context(), b, 10)
		wantClass(t, err, contract.ReadOnly)
		_, err = b.FirstAt(t.Context(), 1)
		wantClass(t, err, contract.ReadOnly)
		_, _, err = b.Expired(t.Context(), 10)
		wantClass(t, err, contract.ReadOnly)
	}
}

// A wait for a synchronous standby that somebody cancels confirms nothing: the server has the
// commit, the standby may not have it, and a failover would lose it. (A sweep waits for no
// standby.)
func TestCancelledWaitForStandby(t *testing.T) {
	s := dbtest.NewServer(t, dbtest.Postgres, dbserver.Options{})
	db := s.Open()
	if _, err := postgres.Driver.Migrate(t.Context(), db.URL, options(t)); err != nil {
		t.Fatal(err)
	}
	for _, prepared := range []string{"true", "false"} {
		t.Run("prepared_statements="+prepared, func(t *testing.T) {
			b := openURL(t, with(t, db.URL, "prepared_statements", prepared,
				"client_min_messages", "error"))
			defer b.Close()
			admin := connect(t, db.URL)
			exec(t, admin, `SET synchronous_commit = local`)
			seen := head(t, b)
			names := func(standbys string) {
				exec(t, admin, `ALTER SYSTEM SET synchronous_standby_names = '`+standbys+`'`,
					`SELECT pg_reload_conf()`)
			}
			names("nobody")
			defer names("")
			// cancelled runs a write and cancels its waits for the standby.
			cancelled := func(write func() error) (err error) {
				done := make(chan error, 1)
				go func() { done <- write() }()
				eventually(t, "the write to end", func() bool {
					exec(t, admin, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
					select {
					case err = <-done:
						return true
					default:
						return false
					}
				})
				return err
			}
			// The server takes a moment to begin to wait, so the first ones may just be done.
			var err error
			eventually(t, "a wait for the standby", func() bool {
				err = cancelled(func() error {
					return b.Locked(t.Context(), contract.LockOptions{}, func(tx contract.Tx) error {
						return tx.Abort(newToken(), seen.Revision)
					})
				})
				return err != nil
			})
			told := func(what string, err error) {
				t.Helper()
				if err == nil || contract.ClassOf(err) != contract.Unknown ||
					!strings.Contains(err.Error(), "with a warning") {
					t.Errorf("%s: %v, want an unknown outcome", what, err)
				}
			}
			told("a locked transaction", err)
			g := group(seen, contract.Key("c"+prepared))
			told("a commit", cancelled(func() error { _, err := b.Commit(t.Context(), g); return err }))
			// To resolve it is to wait for the standby.
			resolve := func() error {
				r, err := contract.ResolveGroup(t.Context(), b, g.Token, seen)
				if err == nil && !r.Committed {
					err = fmt.Errorf("the resolution is %+v", r)
				}
				return err
			}
			wantClass(t, cancelled(resolve), contract.Transient)
			told("a store", cancelled(func() error {
				opts := options(t)
				opts.Store = "made-" + prepared
				_, err := postgres.Driver.CreateStore(t.Context(), db.URL, opts)
				return err
			}))
			names("")
			if err := resolve(); err != nil {
				t.Error(err)
			}
		})
	}
}
