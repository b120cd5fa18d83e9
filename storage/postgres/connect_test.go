package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

const secret = "s3cr%t/p@ss:word"

// as returns the URL for another user.
func as(t testing.TB, database, user, password string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// role creates a role that may log in, for the time of the test, and returns its name.
func role(t testing.TB, conn *pgx.Conn, grants ...string) string {
	t.Helper()
	name := fmt.Sprintf("role_%x", newToken())
	exec(t, conn, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD '%s'`, name, secret))
	t.Cleanup(func() {
		for _, s := range []string{"DROP OWNED BY ", "DROP ROLE "} {
			if _, err := conn.Exec(context.Background(), s+name); err != nil {
				t.Error(err)
			}
		}
	})
	for _, g := range grants {
		exec(t, conn, fmt.Sprintf(g, name))
	}
	return name
}

// openError opens a database, which must fail by a sentence on one line that has the wanted parts and no secrets.
func openError(t testing.TB, database string, class mvcc.Class, parts ...string) {
	t.Helper()
	b, err := postgres.Driver.Open(t.Context(), database, options(t))
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
	if text := err.Error(); strings.Contains(text, "s3cr") || strings.Contains(text, "p@ss") || strings.Contains(text, "word") && !strings.Contains(text, "password") {
		t.Errorf("the error has the password in it: %s", text)
	} else if strings.Contains(text, "\n") {
		t.Errorf("the error has several lines: %q", text)
	}
	var known *mvcc.Error
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
		openError(t, as(t, database, user, secret+"x"), mvcc.Denied, "refuses the login", user, "check the password", "28P01")
	})
	t.Run("unknown role", func(t *testing.T) {
		openError(t, as(t, database, "nobody_of_this_name", secret), mvcc.Denied, "refuses the login", "nobody_of_this_name")
	})
	t.Run("missing database", func(t *testing.T) {
		openError(t, elsewhere("", "/no_such_database"), mvcc.Denied, `no database "no_such_database"`, "create it")
	})
	t.Run("wrong host", func(t *testing.T) {
		openError(t, elsewhere("no-such-host.invalid", ""), mvcc.Unavailable, "host", "cannot be found", "no-such-host.invalid")
	})
	t.Run("wrong port", func(t *testing.T) {
		openError(t, elsewhere(closed, ""), mvcc.Unavailable, "nothing answers at "+closed, "refused")
	})
	t.Run("several hosts, none there", func(t *testing.T) {
		openError(t, strings.Replace(withUser, "@"+mustHost(t, withUser), "@"+closed+","+closed+"1", 1), mvcc.Denied, "cannot be parsed")
		openError(t, strings.Replace(withUser, "@"+mustHost(t, withUser), "@"+closed+",localhost:1", 1), mvcc.Unavailable, closed, "localhost:1")
	})
	t.Run("missing privileges", func(t *testing.T) {
		openError(t, withUser, mvcc.Denied, "privilege")
		exec(t, admin, fmt.Sprintf(`GRANT SELECT ON ALL TABLES IN SCHEMA public TO %s`, user), fmt.Sprintf(`GRANT INSERT ON rowkeeper_log TO %s`, user))
		openError(t, withUser, mvcc.Denied, user, "grant it", "DELETE ON rowkeeper_log", "UPDATE ON rowkeeper_store")
	})
	t.Run("too many connections", func(t *testing.T) {
		exec(t, admin, fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT 0`, user))
		openError(t, withUser, mvcc.Unavailable, "CONNECTION LIMIT", "pool_max_conns", "53300")
		exec(t, admin, fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT -1`, user))
	})
	t.Run("no connect privilege", func(t *testing.T) {
		exec(t, admin, fmt.Sprintf(`REVOKE CONNECT ON DATABASE %s FROM PUBLIC`, pgx.Identifier{dbName(t, database)}.Sanitize()))
		openError(t, withUser, mvcc.Denied, "may not connect", "grant it CONNECT")
	})
	t.Run("missing schema", func(t *testing.T) {
		openError(t, dbtest.Open(t, dbtest.Postgres).URL, mvcc.Invalid, "holds no rowkeeper store yet", "rowkeeper migrate up")
		openError(t, with(t, database, "search_path", "elsewhere"), mvcc.Invalid, "rowkeeper migrate up")
	})
	t.Run("newer schema", func(t *testing.T) {
		newer := migrated(t)
		conn := connect(t, newer)
		exec(t, conn, `INSERT INTO rowkeeper_schema (version_id, is_applied) VALUES (99, true)`)
		b := openURL(t, newer)
		b.Close()
		exec(t, conn, `UPDATE rowkeeper_store SET oldest_writer = 99`)
		openError(t, newer, mvcc.Invalid, "version 99, newer", "use a newer rowkeeper")
	})
	t.Run("damaged store", func(t *testing.T) {
		damaged := migrated(t)
		exec(t, connect(t, damaged), `DELETE FROM rowkeeper_store`)
		openError(t, damaged, mvcc.Invalid, "damaged", "rowkeeper_store")
	})
	t.Run("read-only hosts", func(t *testing.T) {
		exec(t, admin, fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_read_only = on`, pgx.Identifier{dbName(t, database)}.Sanitize()))
		openError(t, with(t, database, "target_session_attrs", "read-write"), mvcc.ReadOnly, "none of the PostgreSQL servers", "takes writes")
	})
	t.Run("unknown parameter", func(t *testing.T) {
		openError(t, with(t, database, "pool_max_cons", "3"), mvcc.Denied, "pool_max_cons", "correct its parameters")
		openError(t, with(t, database, "prepared_statements", "maybe"), mvcc.Denied, "prepared_statements")
		openError(t, with(t, database, "pool_max_conns", "none"), mvcc.Denied, "pool_max_conns")
		openError(t, with(t, database, "target_session_attrs", "any-of-them"), mvcc.Denied, "target_session_attrs")
	})
	t.Run("missing files", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "missing")
		openError(t, with(t, database, "password_file", missing), mvcc.Denied, "password", missing)
		openError(t, with(t, database, "sslmode", "verify-full", "sslrootcert", missing), mvcc.Denied, missing)
	})
	t.Run("malformed", func(t *testing.T) {
		for _, u := range []string{
			"postgres://user:s3cr%zzp@ss:word@host/db", "postgres://user:p@ss:word@host/db", "postgres://user:s3cr/p@ss@host:port/db",
			"postgres://user:s3cr@host:p@ss:word/db?sslmode=disable", "postgres://host/db?password=s3cr%zz",
		} {
			openError(t, u, mvcc.Denied, "the database URL", "%XX")
		}
	})
}

func mustHost(t testing.TB, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func dbName(t testing.TB, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
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
				b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "12.22 (Debian 12.22-1.pgdg120+1)"})
				b.Send(&pgproto3.BackendKeyData{SecretKey: []byte{0, 0, 0, 0}})
				b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				if err := b.Flush(); err == nil {
					_, _ = b.Receive() // the client goes away
				}
			}
			conn.Close()
		}
	})
	openError(t, fmt.Sprintf("postgres://user@%s/db?sslmode=disable", l.Addr()), mvcc.Invalid, "PostgreSQL 12.22", "version 13 or later is needed")
	for text, want := range map[string]int{"15.18 (Debian 15.18-0+deb12u1)": 15, "18beta1": 18, "13.0": 13, "17": 17} {
		if got, err := postgres.MajorVersion(text); err != nil || got != want {
			t.Errorf("%q is of major version %d, %v", text, got, err)
		}
	}
	if _, err := postgres.MajorVersion("devel"); err == nil {
		t.Error("a version without a number was read")
	}
}

func write(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTLS(t *testing.T) {
	ca, other := dbtest.NewAuthority(t), dbtest.NewAuthority(t)
	caFile, otherFile := write(t, "ca.pem", ca.PEM(t)), write(t, "other.pem", other.PEM(t))
	start := func(t *testing.T, after time.Duration, host string) dbtest.DB {
		return dbtest.NewServer(t, dbtest.Postgres, dbserver.Options{TLS: ca.Server(t, after, host)}).Open()
	}
	verify := func(t *testing.T, db dbtest.DB, file string) string {
		return with(t, db.URL, "sslmode", "verify-full", "sslrootcert", file)
	}
	t.Run("valid", func(t *testing.T) {
		db := start(t, 0, "127.0.0.1")
		trusted := verify(t, db, caFile)
		if _, err := postgres.Driver.Migrate(t.Context(), trusted, options(t)); err != nil {
			t.Fatal(err)
		}
		b := openURL(t, trusted)
		defer b.Close()
		if _, err := b.Commit(t.Context(), group(head(t, b), "a")); err != nil {
			t.Fatal(err)
		}
		err := postgres.Session(t.Context(), b, true, func(conn *pgx.Conn) error {
			var encrypted bool
			err := conn.QueryRow(t.Context(), `SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&encrypted)
			if !encrypted {
				t.Error("the connection is not encrypted")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		openError(t, verify(t, db, otherFile), mvcc.Denied, "authority that is not trusted", "sslrootcert")
	})
	t.Run("expired", func(t *testing.T) {
		openError(t, verify(t, start(t, -2*time.Hour, "127.0.0.1"), caFile), mvcc.Denied, "has expired", "renew it")
	})
	t.Run("for another host", func(t *testing.T) {
		openError(t, verify(t, start(t, 0, "192.0.2.1"), caFile), mvcc.Denied, "another host name")
	})
}

// The password is read again for each new connection.
func TestPasswordRotation(t *testing.T) {
	database := migrated(t)
	admin := connect(t, database)
	user := role(t, admin, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO %s`)
	file := write(t, "password", []byte(secret+"\n"))
	u, err := url.Parse(with(t, database, "password_file", file))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(user)
	b := openURL(t, u.String())
	defer b.Close()
	seen := head(t, b)
	kill := func() {
		exec(t, admin, fmt.Sprintf(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '%s'`, user))
	}
	exec(t, admin, fmt.Sprintf(`ALTER ROLE %s PASSWORD 'another'`, user))
	if got := head(t, b); got != seen {
		t.Errorf("the head is %+v", got)
	}
	kill()
	eventually(t, "a new connection to be refused", func() bool {
		_, err := b.State(t.Context())
		return err != nil && mvcc.ClassOf(err) == mvcc.Denied
	})
	if err := os.WriteFile(file, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := head(t, b); got != seen {
		t.Errorf("the head is %+v", got)
	}
	if _, err := b.Commit(t.Context(), group(seen, "a")); err != nil {
		t.Error(err)
	}
	if _, err := b.Identity(t.Context()); err != nil {
		t.Error(err)
	}
}

// The server's role needs no rights on the schema, and not those that managed services keep for themselves.
func TestUnprivilegedRole(t *testing.T) {
	database := migrated(t)
	admin := connect(t, database)
	exec(t, admin, `REVOKE ALL ON SCHEMA public FROM PUBLIC`, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`,
		fmt.Sprintf(`REVOKE ALL ON DATABASE %s FROM PUBLIC`, pgx.Identifier{dbName(t, database)}.Sanitize()))
	user := role(t, admin, `GRANT CONNECT ON DATABASE `+pgx.Identifier{dbName(t, database)}.Sanitize()+` TO %s`, `GRANT USAGE ON SCHEMA public TO %s`,
		`GRANT SELECT, INSERT, DELETE ON rowkeeper_log TO %s`, `GRANT SELECT, INSERT, UPDATE, DELETE ON rowkeeper_live TO %s`,
		`GRANT SELECT, UPDATE ON rowkeeper_store TO %s`, `GRANT SELECT, INSERT, DELETE ON rowkeeper_aborted TO %s`, `GRANT SELECT ON rowkeeper_schema TO %s`)
	b := openURL(t, as(t, database, user, secret))
	defer b.Close()
	id, err := b.Identity(t.Context())
	if err != nil || !strings.Contains(id.Actual, "system=?xmin=") || !strings.Contains(id.Actual, "timeline=0") {
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
	if _, err := mvcc.RaiseCompacted(t.Context(), b, res.State.Head.Revision); err != nil {
		t.Error(err)
	}
	if n, _, err := mvcc.SweepBatch(t.Context(), b, 100); err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
	if r, err := mvcc.ResolveGroup(t.Context(), b, newToken(), res.State.Head); err != nil || !r.Aborted {
		t.Errorf("resolved %+v, %v", r, err)
	}
	if _, err := b.Size(t.Context()); err != nil {
		t.Error(err)
	}
	if err := mvcc.RecordFingerprint(t.Context(), b, id.Actual); err != nil {
		t.Error(err)
	}
	if _, err := mvcc.StartEpoch(t.Context(), b, mvcc.Fence{Seen: res.State.Head, Token: newToken(), Jump: 1 << 32, Fingerprint: id.Actual}); err != nil {
		t.Error(err)
	}
	_, err = postgres.Driver.Status(t.Context(), as(t, database, user, secret), options(t))
	if err != nil {
		t.Error(err)
	}
}

// A commit is durable though the server's default is that it need not be, and sessions are as the statements want them.
func TestSessionSettings(t *testing.T) {
	database := migrated(t)
	exec(t, connect(t, database), fmt.Sprintf(`ALTER DATABASE %s SET synchronous_commit = off`, pgx.Identifier{dbName(t, database)}.Sanitize()),
		fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_isolation = 'serializable'`, pgx.Identifier{dbName(t, database)}.Sanitize()))
	b := openURL(t, with(t, database, "idle_in_transaction_session_timeout", "1234"))
	defer b.Close()
	for _, writes := range []bool{false, true} {
		want := map[string]string{"enable_seqscan": "off", "default_transaction_isolation": "read committed", "lock_timeout": "10s", "statement_timeout": "30s",
			"idle_in_transaction_session_timeout": "1234ms", "application_name": "rowkeeper", "plan_cache_mode": "force_generic_plan"}
		if writes {
			want["synchronous_commit"], want["statement_timeout"] = "on", "20s"
		}
		err := postgres.Session(t.Context(), b, writes, func(conn *pgx.Conn) error {
			for name, value := range want {
				var got string
				if err := conn.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&got); err != nil {
					return err
				}
				if got != value {
					t.Errorf("writes %v: %s is %s, want %s", writes, name, got, value)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Several hosts: the one that takes writes is found, whichever comes first.
func TestSeveralHosts(t *testing.T) {
	database := migrated(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	host := mustHost(t, database)
	for _, hosts := range []string{host + "," + closed, closed + "," + host} {
		b := openURL(t, strings.Replace(database, "@"+host, "@"+hosts, 1))
		if _, err := b.State(t.Context()); err != nil {
			t.Errorf("%s: %v", hosts, err)
		}
		b.Close()
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
	if err != nil || len(after) != len(list) || after[0].Applied.IsZero() || time.Since(after[0].Applied).Abs() > time.Hour {
		t.Errorf("the status is %+v, %v", after, err)
	}
}

func TestClasses(t *testing.T) {
	for code, want := range map[string]mvcc.Class{
		"40001": mvcc.Transient, "40P01": mvcc.Transient, "55P03": mvcc.Transient, "25006": mvcc.ReadOnly, "53100": mvcc.Full, "53200": mvcc.Unavailable,
		"22021": mvcc.Data, "54000": mvcc.Data, "28P01": mvcc.Denied, "3D000": mvcc.Denied, "42501": mvcc.Denied, "42P01": mvcc.Invalid, "57P01": mvcc.Unavailable,
		"57014": mvcc.Unavailable, "08006": mvcc.Unavailable, "XX000": mvcc.Unavailable, "XX001": mvcc.Invalid, "23505": mvcc.Transient, "23514": mvcc.Data, "": mvcc.Unavailable,
	} {
		if got := postgres.ClassOf(code); got != want {
			t.Errorf("%q is of class %v, want %v", code, got, want)
		}
	}
}
