package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
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
		return dbtest.NewServer(t, dbtest.Postgres,
			dbserver.Options{TLS: ca.Server(t, after, host)}).Open()
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
			err := conn.QueryRow(t.Context(),
				`SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&encrypted)
			if !encrypted {
				t.Error("the connection is not encrypted")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		openError(t, verify(t, db, otherFile), contract.Denied, "authority that is not trusted",
			"sslrootcert")
	})
	t.Run("expired", func(t *testing.T) {
		openError(t, verify(t, start(t, -2*time.Hour, "127.0.0.1"), caFile), contract.Denied,
			"has expired", "renew it")
	})
	t.Run("for another host", func(t *testing.T) {
		openError(t, verify(t, start(t, 0, "192.0.2.1"), caFile), contract.Denied, "another host name")
	})
}

// The password is read again for each new connection.
func TestPasswordRotation(t *testing.T) {
	database := migrated(t)
	admin := connect(t, database)
	user := role(t, admin,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO %s`)
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
		exec(t, admin,
			terminate(`usename = '`+user+`'`))
	}
	exec(t, admin, fmt.Sprintf(`ALTER ROLE %s PASSWORD 'another'`, user))
	if got := head(t, b); got != seen {
		t.Errorf("the head is %+v", got)
	}
	kill()
	eventually(t, "a new connection to be refused", func() bool {
		_, err := b.State(t.Context())
		return err != nil && contract.ClassOf(err) == contract.Denied
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

// twoUsers are the users of a database. The backend is opened as the first one.
type twoUsers struct {
	database, first, second string
	admin                   *pgx.Conn
	// url is the backend's.
	url atomic.Value
}

func asFirstOfTwo(t *testing.T) (contract.Backend, *twoUsers) {
	t.Helper()
	u := &twoUsers{database: migrated(t)}
	u.admin = connect(t, u.database)
	const grant = `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO %s`
	u.first, u.second = role(t, u.admin, grant), role(t, u.admin, grant)
	u.url.Store(as(t, u.database, u.first, secret))
	opts := options(t)
	opts.Login = func(context.Context) (contract.Credentials, error) {
		return contract.Credentials{URL: u.url.Load().(string)}, nil
	}
	b, err := contract.OpenBackend(t.Context(), postgres.Driver, u.url.Load().(string), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, u
}

// replace makes the second user that of the URL.
func (u *twoUsers) replace(t *testing.T) { u.url.Store(as(t, u.database, u.second, secret)) }

// The user and the password are those of the URL as it is now, as where each lease of a vault is a
// user of its own.
func TestUserRotation(t *testing.T) {
	b, u := asFirstOfTwo(t)
	seen := head(t, b)
	u.replace(t)
	exec(t, u.admin, fmt.Sprintf(`ALTER ROLE %s NOLOGIN`, u.first),
		terminate(`usename = '`+u.first+`'`))
	eventually(t, "the second user to log in", func() bool {
		_, err := b.State(t.Context())
		return err == nil
	})
	if _, err := b.Commit(t.Context(), group(seen, "a")); err != nil {
		t.Error(err)
	}
	var users int
	if err := u.admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE usename = $1`,
		u.second).Scan(&users); err != nil || users == 0 {
		t.Errorf("%d sessions are the second user's, %v", users, err)
	}
	file := write(t, "password", []byte("not it"))
	u.url.Store(with(t, as(t, u.database, u.second, secret), "password_file", file))
	endSessions := terminate(`usename = '` + u.second + `'`)
	exec(t, u.admin, endSessions)
	eventually(t, "the second user to be refused by name", func() bool {
		_, err := b.State(t.Context())
		return err != nil && contract.ClassOf(err) == contract.Denied &&
			strings.Contains(err.Error(), fmt.Sprintf("the role %q", u.second))
	})
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.State(t.Context()); err != nil {
		t.Errorf("with the password of the new URL's file: %v", err)
	}
	u.url.Store("postgres://%zz")
	exec(t, u.admin, endSessions)
	eventually(t, "the URL to be refused", func() bool {
		_, err := b.State(t.Context())
		return err != nil && contract.ClassOf(err) == contract.Denied
	})
}

// A vault that ends a lease takes the privileges away from its user, and ends no session. Then the
// sessions are replaced by those of the next user.
func TestUserLosesItsPrivileges(t *testing.T) {
	b, u := asFirstOfTwo(t)
	at := head(t, b)
	res, err := b.Commit(t.Context(), group(at, "a"))
	if err != nil {
		t.Fatal(err)
	}
	u.replace(t)
	exec(t, u.admin, `DROP OWNED BY `+u.first)
	if _, err = b.Commit(t.Context(), group(res.State.Head, "b")); !errors.Is(err,
		contract.ErrPrivilege) || contract.ClassOf(err) != contract.Denied {
		t.Errorf("a commit of a user without privileges: %v", err)
	}
	if _, err = b.Commit(t.Context(), group(res.State.Head, "b")); err != nil {
		t.Errorf("the next commit: %v", err)
	}
	if _, err = b.State(t.Context()); err != nil {
		t.Errorf("a read after it: %v", err)
	}
}

// A commit is durable though the server's default is that it need not be, and sessions are as the
// statements want them.
func TestSessionSettings(t *testing.T) {
	database := migrated(t)
	admin := connect(t, database)
	var version int
	if err := admin.QueryRow(t.Context(),
		`SELECT current_setting('server_version_num')::int / 10000`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{"synchronous_commit": "off",
		"default_transaction_isolation": "serializable", "lock_timeout": "1s",
		"statement_timeout": "1s", "idle_in_transaction_session_timeout": "1s",
		"client_min_messages": "error"}
	if version >= 14 {
		settings["idle_session_timeout"] = "1h"
	}
	if version >= 17 {
		settings["transaction_timeout"] = "1h"
	}
	for name, value := range settings {
		exec(t, admin, fmt.Sprintf(`ALTER DATABASE %s SET %s = '%s'`,
			pgx.Identifier{dbName(t, database)}.Sanitize(), name, value))
	}
	b := openURL(t, with(t, database, "idle_in_transaction_session_timeout", "1234"))
	defer b.Close()
	for _, writes := range []bool{false, true} {
		want := map[string]string{"enable_seqscan": "off",
			"default_transaction_isolation": "read committed", "lock_timeout": "10s",
			"statement_timeout":                   "30s",
			"idle_in_transaction_session_timeout": "1234ms", "application_name": "rowkeeper",
			"plan_cache_mode": "force_generic_plan", "client_min_messages": "warning"}
		if version >= 14 {
			want["idle_session_timeout"] = "0"
		}
		if version >= 17 {
			want["transaction_timeout"] = "0"
		}
		if writes {
			want["synchronous_commit"], want["statement_timeout"] = "on", "20s"
			if version >= 17 {
				want["transaction_timeout"] = "20s"
			}
		}
		err := postgres.Session(t.Context(), b, writes, func(conn *pgx.Conn) error {
			for name, value := range want {
				var got string
				if err := conn.QueryRow(t.Context(), `SELECT current_setting($1)`,
					name).Scan(&got); err != nil {
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
	free, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	closed := fmt.Sprint("127.0.0.1:", free)
	host := mustHost(t, database)
	for _, hosts := range []string{host + "," + closed, closed + "," + host} {
		b := openURL(t, strings.Replace(database, "@"+host, "@"+hosts, 1))
		if _, err := b.State(t.Context()); err != nil {
			t.Errorf("%s: %v", hosts, err)
		}
		b.Close()
	}
}

// TestRoleTimeout: a role's statement_timeout is not the one by which this program connects, also
// through a pooler in session mode, which would refuse the setting as a parameter of the
// connection.
func TestRoleTimeout(t *testing.T) {
	for _, pooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("pooled=%t", pooled), func(t *testing.T) {
			database := migrated(t)
			admin := connect(t, database)
			const limit = 300 * time.Millisecond
			user := role(t, admin, `GRANT ALL ON ALL TABLES IN SCHEMA public TO %s`,
				fmt.Sprintf(`ALTER ROLE %%s SET statement_timeout = %d`, limit.Milliseconds()))
			url := as(t, database, user, secret)
			if pooled {
				url = with(t, startPgBouncer(t, url, "session"), "pool_max_conns", "1")
			}
			// A connection that reads the store has to wait.
			holder := connect(t, database)
			exec(t, holder, "BEGIN", "LOCK TABLE rowkeeper_store IN ACCESS EXCLUSIVE MODE")
			opened := make(chan error, 1)
			go func() {
				b, err := contract.OpenBackend(t.Context(), postgres.Driver, url, options(t))
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

// terminate ends the sessions that a condition names, and waits for that: PostgreSQL's own function
// waits from version 14 on only.
func terminate(where string) string {
	return `DO $$
DECLARE
  sessions int[] := ARRAY(SELECT pid FROM pg_stat_activity WHERE ` + where + `);
BEGIN
  PERFORM pg_terminate_backend(session) FROM unnest(sessions) AS session;
  FOR i IN 1..1000 LOOP
    PERFORM pg_stat_clear_snapshot();
    IF NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY(sessions)) THEN
      RETURN;
    END IF;
    PERFORM pg_sleep(0.01);
  END LOOP;
  RAISE 'these sessions do not end: %', sessions;
END $$`
}
