package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// The tables are restored from a dump under a running server: they have other oids, and connections
// made from then on notice it.
func TestRestoredTables(t *testing.T) {
	url := migrated(t)
	b, admin := openURL(t, with(t, url, "application_name", "before")), connect(t, url)
	defer b.Close()
	id, err := b.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := contract.RecordFingerprint(t.Context(), b, id.Actual); err != nil {
		t.Fatal(err)
	}
	res, err := b.Commit(t.Context(), group(head(t, b), "before"))
	if err != nil {
		t.Fatal(err)
	}
	exec(t, admin, `CREATE TABLE restored (LIKE rowkeeper_log INCLUDING ALL)`,
		`INSERT INTO restored SELECT * FROM rowkeeper_log`, `DROP TABLE rowkeeper_log CASCADE`,
		`ALTER TABLE restored RENAME TO rowkeeper_log`)
	// The connections that there are go on: nothing is lost that this process has seen, so there is
	// no harm.
	if res, err = b.Commit(t.Context(), group(res.State.Head, "a")); err != nil {
		t.Fatal(err)
	}
	exec(t, admin,
		terminate(`datname = current_database() AND application_name = 'before'`))
	eventually(t, "the restore to be noticed", func() bool {
		_, err := b.State(t.Context())
		return err != nil && contract.ClassOf(err) == contract.Fenced
	})
	if id, err = b.Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := contract.StartEpoch(t.Context(), b, contract.Fence{Seen: res.State.Head, Token: newToken(),
		Jump: 1 << 32, Fingerprint: id.Actual}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "commits to work again, by a new connection", func() bool {
		_, err := b.Commit(t.Context(), group(head(t, b), "b"))
		return err == nil
	})
	// Another store in the same place is none that could be fenced.
	exec(t, admin, `UPDATE rowkeeper_store SET identity = 'another'`,
		terminate(`datname = current_database() AND application_name = 'before'`))
	eventually(t, "the other store to be noticed", func() bool {
		_, err := b.State(t.Context())
		return err != nil && contract.ClassOf(err) == contract.Invalid &&
			strings.Contains(err.Error(), "another store")
	})
}

// TestRenamedCopy puts a copy that was served elsewhere, and fenced there, in the place of the
// database, while no server runs: the fingerprint that it brings along is not the one that it has
// here.
func TestRenamedCopy(t *testing.T) {
	for _, test := range []struct {
		name string
		// drill makes the copy's own place, and returns its URL; replace puts it in place.
		drill   func(t *testing.T, url string) string
		replace func(t *testing.T, url, drill string)
	}{
		{"database", func(t *testing.T, _ string) string {
			return dbtest.Open(t, dbtest.Postgres).URL
		},
			func(t *testing.T, url, drill string) {
				here := pgx.Identifier{dbName(t, url)}.Sanitize()
				there := pgx.Identifier{dbName(t, drill)}.Sanitize()
				exec(t, connect(t, with(t, drill, "dbname", "postgres")), `DROP DATABASE `+here+
					` WITH (FORCE)`,
					`ALTER DATABASE `+there+` RENAME TO `+here, `CREATE DATABASE `+there)
			}},
		{"schema", func(t *testing.T, url string) string {
			exec(t, connect(t, url), `CREATE SCHEMA drill`)
			return with(t, url, "search_path", "drill")
		}, func(t *testing.T, url, _ string) {
			exec(t, connect(t, url), `DROP SCHEMA public CASCADE`,
				`ALTER SCHEMA drill RENAME TO public`)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			url := migrated(t)
			drill := test.drill(t, url)
			if _, err := postgres.Driver.Migrate(t.Context(), drill, options(t)); err != nil {
				t.Fatal(err)
			}
			b := openURL(t, drill)
			id, err := b.Identity(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = contract.StartEpoch(t.Context(), b, contract.Fence{Seen: head(t, b), Token: newToken(),
				Jump: 1 << 32, Fingerprint: id.Actual})
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			test.replace(t, url, drill)
			b = openURL(t, url)
			defer b.Close()
			if id, err = b.Identity(t.Context()); err != nil || id.Recorded == id.Actual {
				t.Errorf("the identity is %+v, %v", id, err)
			}
		})
	}
}

// TestStoresFenceOverSharedConnections: of two stores over the same connections, each fences for
// itself. One that has gone over to another database is not led back by an old connection, and one
// that has not is not led there by the connections of the other.
func TestStoresFenceOverSharedConnections(t *testing.T) {
	url := migrated(t)
	admin := connect(t, url)
	opts := options(t)
	opts.Store = "team-a"
	if _, err := postgres.Driver.CreateStore(t.Context(), url, opts); err != nil {
		t.Fatal(err)
	}
	db, err := postgres.Driver.Connect(t.Context(), url, options(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	type store struct {
		contract.Backend
		id   contract.Identity
		seen contract.Position
	}
	open := func(name string) *store {
		b, err := db.Store(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		s := &store{Backend: b}
		s.id, _ = b.(contract.Opened).Opened()
		if err := contract.RecordFingerprint(t.Context(), b, s.id.Actual); err != nil {
			t.Fatal(err)
		}
		s.seen = head(t, b)
		return s
	}
	commit := func(s *store, key contract.Key) error {
		res, err := s.Commit(t.Context(), group(s.seen, key))
		if err == nil {
			s.seen = res.State.Head
		}
		return err
	}
	a, b := open("team-a"), open(contract.DefaultStore)
	exec(t, admin, `CREATE TABLE restored (LIKE rowkeeper_log INCLUDING ALL)`,
		`INSERT INTO restored SELECT * FROM rowkeeper_log`, `DROP TABLE rowkeeper_log CASCADE`,
		`ALTER TABLE restored RENAME TO rowkeeper_log`)
	for _, s := range []*store{a, b} {
		if err := commit(s, "on old connections"); err != nil {
			t.Fatal(err)
		}
	}
	fenced := func(s *store, what string) {
		t.Helper()
		_, err := s.State(t.Context())
		if contract.ClassOf(err) != contract.Fenced {
			t.Errorf("%s: %v", what, err)
		}
	}
	a.Backend.(contract.Reconnector).Reconnect()
	fenced(a, "the first store, on new connections")
	fenced(b, "the second one, on connections of the first")
	for _, s := range []*store{a, b} {
		id, err := s.Identity(t.Context())
		if err != nil || !id.Moved() {
			t.Fatalf("the identity is %+v, %v", id, err)
		}
		st, err := contract.StartEpoch(t.Context(), s, contract.Fence{Seen: s.seen, Replaces: id.Epoch,
			Token: newToken(), Jump: 1 << 32, Fingerprint: id.Actual})
		if err != nil {
			t.Fatal(err)
		}
		s.seen = st.Head
		if st, err := s.State(t.Context()); err != nil || st.Head != s.seen {
			t.Fatalf("after the fence the state is %+v, %v", st, err)
		}
		// The pool has a connection on which both have committed before.
		if err := commit(s, "on new connections"); err != nil {
			t.Fatal(err)
		}
		if s == a {
			fenced(b, "the second store after the fence of the first")
		}
	}
}

// TestStoreIsFoundWhereTheAddressLeads: a store that is opened over shared connections is found by
// a new one. Those that are there may lead to where the address led before.
func TestStoreIsFoundWhereTheAddressLeads(t *testing.T) {
	url := migrated(t)
	admin := connect(t, url)
	db, err := postgres.Driver.Connect(t.Context(), url, options(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	first, err := db.Store(t.Context(), contract.DefaultStore)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	id, _ := first.(contract.Opened).Opened()
	if err := contract.RecordFingerprint(t.Context(), first, id.Actual); err != nil {
		t.Fatal(err)
	}
	head(t, first) // by a connection that stays in its pool
	exec(t, admin, `CREATE TABLE restored (LIKE rowkeeper_log INCLUDING ALL)`,
		`INSERT INTO restored SELECT * FROM rowkeeper_log`, `DROP TABLE rowkeeper_log CASCADE`,
		`ALTER TABLE restored RENAME TO rowkeeper_log`)
	second, err := db.Store(t.Context(), contract.DefaultStore)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if id, _ := second.(contract.Opened).Opened(); !id.Moved() {
		t.Errorf("the store was found where the address led before: %+v", id)
	}
}
