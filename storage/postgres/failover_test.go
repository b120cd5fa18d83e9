package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
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
