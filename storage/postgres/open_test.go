package postgres_test

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// openError opens a database, which must fail by a sentence on one line that has the wanted parts
// and no secrets.
func openError(t testing.TB, database string, class contract.Class, parts ...string) {
	t.Helper()
	b, err := contract.OpenBackend(t.Context(), postgres.Driver, database, options(t))
	if err == nil {
		b.Close()
		t.Fatalf("the database was opened, want an error with %q", parts)
	}
	wantClass(t, err, class)
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error is %q, want %q in it", err, p)
		}
	}
	if text := err.Error(); strings.Contains(text, "s3cr") || strings.Contains(text, "p@ss") ||
		strings.Contains(text, "word") && !strings.Contains(text, "password") {
		t.Errorf("the error has the password in it: %s", text)
	} else if strings.Contains(text, "\n") {
		t.Errorf("the error has several lines: %q", text)
	}
	var known *contract.Error
	if !errors.As(err, &known) {
		t.Errorf("the error is a %T", err)
	}
	t.Log(err)
}

func TestOpenErrors(t *testing.T) {
	database := migrated(t)
	admin := connect(t, database)
	user := role(t, admin)
	withUser := as(t, database, user, secret)
	elsewhere := func(host, path string) string {
		u, err := url.Parse(withUser)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			u.Host = host
		}
		if path != "" {
			u.Path = path
		}
		return u.String()
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := silent.Addr().String()
	silent.Close()

	t.Run("wrong password", func(t *testing.T) {
		openError(t, as(t, database, user, secret+"x"), contract.Denied, "refuses the login", user,
			"check the password", "28P01")
	})
	t.Run("unknown role", func(t *testing.T) {
		openError(t, as(t, database, "nobody_of_this_name", secret), contract.Denied,
			"refuses the login", "nobody_of_this_name")
	})
	t.Run("role that may not log in", func(t *testing.T) {
		exec(t, admin, fmt.Sprintf(`ALTER ROLE %s NOLOGIN`, user))
		openError(t, withUser, contract.Denied, "refuses the login", user, "may log in", "28000")
		exec(t, admin, fmt.Sprintf(`ALTER ROLE %s LOGIN`, user))
	})
	t.Run("missing database", func(t *testing.T) {
		openError(t, elsewhere("", "/no_such_database"), contract.Denied,
			`no database "no_such_database"`, "create it")
	})
	t.Run("wrong host", func(t *testing.T) {
		openError(t, elsewhere("no-such-host.invalid", ""), contract.Unavailable, "host",
			"cannot be found", "no-such-host.invalid")
	})
	t.Run("wrong port", func(t *testing.T) {
		openError(t, elsewhere(closed, ""), contract.Unavailable, "nothing answers at "+closed,
			"refused")
	})
	t.Run("several hosts, none there", func(t *testing.T) {
		openError(t, strings.Replace(withUser, "@"+mustHost(t, withUser), "@"+closed+","+closed+"1",
			1), contract.Denied, "cannot be parsed")
		openError(t, strings.Replace(withUser, "@"+mustHost(t, withUser), "@"+closed+",localhost:1",
			1), contract.Unavailable, closed, "localhost:1")
	})
	t.Run("missing privileges", func(t *testing.T) {
		openError(t, withUser, contract.Denied, "privilege")
		exec(t, admin, fmt.Sprintf(`GRANT SELECT ON ALL TABLES IN SCHEMA public TO %s`, user),
			fmt.Sprintf(`GRANT INSERT ON rowkeeper_log TO %s`, user))
		openError(t, withUser, contract.Denied, user, "grant it", "DELETE ON rowkeeper_log",
			"UPDATE ON rowkeeper_store")
		_, err := contract.OpenBackend(t.Context(), postgres.Driver, withUser, options(t))
		_, advice, _ := strings.Cut(err.Error(), "grant it ")
		for grant := range strings.SplitSeq(advice, ", ") {
			exec(t, admin, fmt.Sprintf(`GRANT %s TO %s`, grant, user))
		}
		openURL(t, withUser).Close()
	})
	t.Run("row-level security", func(t *testing.T) {
		exec(t, admin, `ALTER TABLE rowkeeper_store ENABLE ROW LEVEL SECURITY`)
		openError(t, withUser, contract.Denied, "BYPASSRLS", "DISABLE ROW LEVEL SECURITY")
		exec(t, admin, `ALTER TABLE rowkeeper_store DISABLE ROW LEVEL SECURITY`)
		openURL(t, withUser).Close()
	})
	t.Run("schema that may not be used", func(t *testing.T) {
		exec(t, admin, `REVOKE USAGE ON SCHEMA public FROM PUBLIC`)
		openError(t, withUser, contract.Denied, user, "USAGE ON SCHEMA public")
		opts := options(t)
		if _, err := postgres.Driver.Migrate(t.Context(), withUser, opts); err == nil ||
			!strings.Contains(err.Error(), "USAGE ON SCHEMA public") {
			t.Errorf("a migration: %v", err)
		}
		exec(t, admin, `GRANT USAGE ON SCHEMA public TO PUBLIC`)
	})
	t.Run("too many connections", func(t *testing.T) {
		exec(t, admin, fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT 0`, user))
		openError(t, withUser, contract.Unavailable, "CONNECTION LIMIT", "pool_max_conns", "53300")
		exec(t, admin, fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT -1`, user))
	})
	t.Run("no connect privilege", func(t *testing.T) {
		exec(t, admin, fmt.Sprintf(`REVOKE CONNECT ON DATABASE %s FROM PUBLIC`,
			pgx.Identifier{dbName(t, database)}.Sanitize()))
		openError(t, withUser, contract.Denied, "may not connect", "grant it CONNECT")
	})
	t.Run("missing schema", func(t *testing.T) {
		openError(t, dbtest.Open(t, dbtest.Postgres).URL, contract.Invalid,
			"holds no rowkeeper store yet", "rowkeeper migrate up")
		openError(t, with(t, database, "search_path", "elsewhere"), contract.Invalid,
			"rowkeeper migrate up")
	})
	t.Run("newer schema", func(t *testing.T) {
		newer := migrated(t)
		conn := connect(t, newer)
		exec(t, conn, `INSERT INTO rowkeeper_schema (version_id, is_applied) VALUES (99, true)`)
		b := openURL(t, newer)
		b.Close()
		exec(t, conn, `UPDATE rowkeeper_store SET oldest_writer = 99`)
		openError(t, newer, contract.Invalid, "version 99, newer", "use a newer rowkeeper")
	})
	t.Run("damaged store", func(t *testing.T) {
		damaged := migrated(t)
		exec(t, connect(t, damaged), `DELETE FROM rowkeeper_store`)
		openError(t, damaged, contract.Invalid, "damaged", "rowkeeper_store")
	})
	t.Run("read-only hosts", func(t *testing.T) {
		exec(t, admin, fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_read_only = on`,
			pgx.Identifier{dbName(t, database)}.Sanitize()))
		openError(t, with(t, database, "target_session_attrs", "read-write"), contract.ReadOnly,
			"none of the PostgreSQL servers", "takes writes")
	})
	t.Run("unknown parameter", func(t *testing.T) {
		openError(t, with(t, database, "pool_max_cons", "3"), contract.Denied, "pool_max_cons",
			"correct its parameters")
		openError(t, with(t, database, "prepared_statements", "maybe"), contract.Denied,
			"prepared_statements")
		openError(t, with(t, database, "pool_max_conns", "none"), contract.Denied, "pool_max_conns")
		openError(t, with(t, database, "target_session_attrs", "any-of-them"), contract.Denied,
			"target_session_attrs")
	})
	t.Run("missing files", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "missing")
		openError(t, with(t, database, "password_file", missing), contract.Denied, "password", missing)
		openError(t, with(t, database, "sslmode", "verify-full", "sslrootcert", missing),
			contract.Denied, missing)
	})
	t.Run("malformed", func(t *testing.T) {
		for _, u := range []string{
			"postgres://user:s3cr%zzp@ss:word@host/db", "postgres://user:p@ss:word@host/db",
			"postgres://user:s3cr/p@ss@host:port/db",
			"postgres://user:s3cr@host:p@ss:word/db?sslmode=disable",
			"postgres://host/db?password=s3cr%zz",
		} {
			openError(t, u, contract.Denied, "the database URL", "%XX")
		}
	})
}

// A server says its version when a connection begins.
func TestOldServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b := pgproto3.NewBackend(conn, conn)
			if _, err := b.ReceiveStartupMessage(); err == nil {
				b.Send(&pgproto3.AuthenticationOk{})
				b.Send(&pgproto3.ParameterStatus{Name: "server_version",
					Value: "12.22 (Debian 12.22-1.pgdg120+1)"})
				b.Send(&pgproto3.BackendKeyData{SecretKey: []byte{0, 0, 0, 0}})
				b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				if err := b.Flush(); err == nil {
					_, _ = b.Receive() // the client goes away
				}
			}
			conn.Close()
		}
	})
	openError(t, fmt.Sprintf("postgres://user@%s/db?sslmode=disable", l.Addr()), contract.Invalid,
		"PostgreSQL 12.22", "version 13 or later is needed")
	for text, want := range map[string]int{"15.18 (Debian 15.18-0+deb12u1)": 15, "18beta1": 18,
		"13.0": 13, "17": 17} {
		if got, err := postgres.MajorVersion(text); err != nil || got != want {
			t.Errorf("%q is of major version %d, %v", text, got, err)
		}
	}
	if _, err := postgres.MajorVersion("devel"); err == nil {
		t.Error("a version without a number was read")
	}
}

// The server's role needs no rights on the schema, and not the ones that managed services keep for
// themselves.
func TestUnprivilegedRole(t *testing.T) {
	database := migrated(t)
	admin := connect(t, database)
	exec(t, admin, `REVOKE ALL ON SCHEMA public FROM PUBLIC`,
		`REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`,
		fmt.Sprintf(`REVOKE ALL ON DATABASE %s FROM PUBLIC`,
			pgx.Identifier{dbName(t, database)}.Sanitize()))
	user := role(t, admin, `GRANT CONNECT ON DATABASE `+
		pgx.Identifier{dbName(t, database)}.Sanitize()+` TO %s`,
		`GRANT USAGE ON SCHEMA public TO %s`,
		`GRANT SELECT, INSERT, DELETE ON rowkeeper_log TO %s`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON rowkeeper_live TO %s`,
		`GRANT SELECT, UPDATE ON rowkeeper_store TO %s`,
		`GRANT SELECT, INSERT, DELETE ON rowkeeper_aborted TO %s`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON rowkeeper_lease TO %s`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON rowkeeper_resource TO %s`,
		`GRANT SELECT, INSERT, DELETE ON rowkeeper_index TO %s`,
		`GRANT SELECT, INSERT, DELETE ON rowkeeper_user TO %s`,
		`GRANT SELECT ON rowkeeper_schema TO %s`)
	b := openURL(t, as(t, database, user, secret))
	defer b.Close()
	id, err := b.Identity(t.Context())
	if err != nil || !strings.Contains(id.Actual, "system=?xmin=") ||
		!strings.Contains(id.Actual, "timeline=0") {
		t.Fatalf("the identity is %+v, %v", id, err)
	}
	if again, err := b.Identity(t.Context()); err != nil || again != id {
		t.Errorf("the identity is %+v, %v", again, err)
	}
	seen := head(t, b)
	res, err := b.Commit(t.Context(), group(seen, "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := contract.RaiseCompacted(t.Context(), b, res.State.Head.Revision); err != nil {
		t.Error(err)
	}
	if n, _, err := contract.SweepBatch(t.Context(), b, 100); err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
	if r, err := contract.ResolveGroup(t.Context(), b, newToken(), res.State.Head); err != nil ||
		!r.Aborted {
		t.Errorf("resolved %+v, %v", r, err)
	}
	if _, err := b.Size(t.Context()); err != nil {
		t.Error(err)
	}
	if err := contract.RecordFingerprint(t.Context(), b, id.Actual); err != nil {
		t.Error(err)
	}
	if _, err := contract.StartEpoch(t.Context(), b, contract.Fence{Seen: res.State.Head, Token: newToken(),
		Jump: 1 << 32, Fingerprint: id.Actual}); err != nil {
		t.Error(err)
	}
	_, err = postgres.Driver.Status(t.Context(), as(t, database, user, secret), options(t))
	if err != nil {
		t.Error(err)
	}
}
