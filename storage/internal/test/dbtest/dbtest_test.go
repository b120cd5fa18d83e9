package dbtest_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// open opens a database without the project's drivers.
func open(t *testing.T, db dbtest.DB) *sql.DB {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	var conn *sql.DB
	switch u.Scheme {
	case "sqlite":
		conn, err = sql.Open("sqlite", u.Path)
	case "memory":
		conn, err = sql.Open("sqlite", ":memory:")
	case "postgres":
		conn, err = sql.Open("pgx", db.URL)
	case "mysql":
		c, cerr := mysqlConfig(db.URL)
		if cerr != nil {
			t.Fatal(cerr)
		}
		var connector driver.Connector
		connector, err = mysql.NewConnector(c)
		conn = sql.OpenDB(connector)
	default:
		t.Fatalf("an unknown scheme: %s", db.URL)
	}
	if err != nil {
		t.Fatal(err)
	}
	conn.SetMaxOpenConns(1)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// mysqlConfig is what the driver needs for a URL.
func mysqlConfig(address string) (*mysql.Config, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	c := mysql.NewConfig()
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Net, c.Addr = "tcp", u.Host
	c.DBName = strings.TrimPrefix(u.Path, "/")
	c.Logger = &mysql.NopLogger{}
	return c, nil
}

func exec(t *testing.T, conn *sql.DB, statements ...string) {
	t.Helper()
	for _, q := range statements {
		if _, err := conn.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func count(t *testing.T, conn *sql.DB) int {
	t.Helper()
	var n int
	if err := conn.QueryRowContext(t.Context(), "SELECT count(*) FROM t").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Each database is empty, though the tests of a process share a server.
func TestEachDatabaseIsEmpty(t *testing.T) {
	for range 2 {
		dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
			t.Parallel()
			conn := open(t, db)
			exec(t, conn, "CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)")
			if n := count(t, conn); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}
			if db.Version == "" {
				t.Error("the version is unknown")
			}
		}, append(dbtest.Kinds(), dbtest.Memory)...)
	}
}

// A database is dropped though a transaction is open in it.
func TestOpenTransactionDoesNotHoldUpTheDrop(t *testing.T) {
	for _, kind := range dbtest.Servers() {
		var conn *sql.DB
		t.Run(string(kind), func(t *testing.T) {
			conn = open(t, dbtest.Open(t, kind))
			exec(t, conn, "CREATE TABLE t (a int)", "BEGIN", "INSERT INTO t VALUES (1)")
		})
	}
}

// A server of a test's own keeps what was committed when it is killed, and comes back on the same
// port.
func TestServerSurvivesKill(t *testing.T) {
	for _, kind := range dbtest.Servers() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := dbtest.NewServer(t, kind, dbserver.Options{})
			conn := open(t, s.Open())
			exec(t, conn, "CREATE TABLE t (a int)")
			for i, end := range []func(){s.Kill, s.Stop, s.Kill} {
				exec(t, conn, "INSERT INTO t VALUES (1)")
				end()
				if err := conn.PingContext(t.Context()); err == nil {
					t.Fatal("the server answers after its end")
				}
				s.Start()
				if n := count(t, conn); n != i+1 {
					t.Fatalf("%d rows, want %d", n, i+1)
				}
			}
		})
	}
}

// A server of a test's own has the settings and the certificate that the test wants, and freezes
// when it is told to.
func TestServerOptions(t *testing.T) {
	for _, kind := range dbtest.Servers() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			ca := dbtest.NewAuthority(t)
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(ca.PEM(t))
			s := dbtest.NewServer(t, kind, dbserver.Options{TLS: ca.Server(t, 0, "127.0.0.1"),
				Settings: map[string]string{"max_connections": "77"}})
			conn := openTLS(t, s.Open(), roots)

			want := map[string]string{"max_connections": "77"}
			if kind == dbtest.Postgres {
				want["fsync"], want["synchronous_commit"], want["full_page_writes"] = "on", "on",
					"on"
			} else {
				want["innodb_flush_log_at_trx_commit"], want["innodb_doublewrite"] = "1", "ON"
			}
			for name, value := range want {
				query := "SHOW VARIABLES LIKE '" + name + "'"
				if kind == dbtest.Postgres {
					query = "SELECT name, setting FROM pg_settings WHERE name = '" + name + "'"
				}
				var got string
				if err := conn.QueryRowContext(t.Context(), query).Scan(new(string), &got); err != nil {
					t.Fatal(err)
				}
				if got != value {
					t.Errorf("%s is %s, want %s", name, got, value)
				}
			}

			s.Pause()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := conn.ExecContext(ctx, "SELECT 1"); err == nil {
				t.Error("the server answers while it is frozen")
			}
			s.Resume()
			if err := conn.PingContext(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// openTLS opens a database over TLS, and trusts the roots only.
func openTLS(t *testing.T, db dbtest.DB, roots *x509.CertPool) *sql.DB {
	t.Helper()
	config := &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
	if db.Kind == dbtest.Postgres {
		c, err := pgx.ParseConfig(db.URL)
		if err != nil {
			t.Fatal(err)
		}
		c.TLSConfig = config
		conn := stdlib.OpenDB(*c)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	c, err := mysqlConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.TLS = config
	connector, err := mysql.NewConnector(c)
	if err != nil {
		t.Fatal(err)
	}
	conn := sql.OpenDB(connector)
	t.Cleanup(func() { conn.Close() })
	return conn
}
