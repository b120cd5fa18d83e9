package mysql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// with changes parts of a URL.
func with(tb testing.TB, databaseURL string, change func(*url.URL, url.Values)) string {
	tb.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		tb.Fatal(err)
	}
	q := u.Query()
	change(u, q)
	u.RawQuery = q.Encode()
	return u.String()
}

// as changes the account.
func as(tb testing.TB, databaseURL, user, password string) string {
	return with(tb, databaseURL, func(u *url.URL, _ url.Values) {
		u.User = url.UserPassword(user, password)
	})
}

// account creates an account with privileges on the database, or with none, and removes it when the
// test ends.
func account(tb testing.TB, db *sql.DB, privileges string) (name string) {
	tb.Helper()
	var schema string
	if err := db.QueryRow("SELECT DATABASE()").Scan(&schema); err != nil {
		tb.Fatal(err)
	}
	name = "rk" + schema[len(schema)-12:]
	exec(tb, db, fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY 'its secret'", name))
	tb.Cleanup(func() { exec(tb, db, fmt.Sprintf("DROP USER '%s'@'%%'", name)) })
	if privileges != "" {
		exec(tb, db, fmt.Sprintf("GRANT %s ON `%s`.* TO '%s'@'%%'", privileges, schema, name))
	}
	return name
}

// fails opens a database that cannot be opened, and checks the sentence.
func fails(tb testing.TB, databaseURL string, class contract.Class, want string) {
	tb.Helper()
	opts := options(tb)
	opts.Timeout = 2 * time.Second
	b, openErr := contract.OpenBackend(context.Background(), mysql.Driver, databaseURL, opts)
	if openErr == nil {
		b.Close()
		tb.Fatalf("the database was opened, want an error about %q", want)
	}
	wantClass(tb, openErr, class)
	if !strings.Contains(openErr.Error(), want) || strings.Contains(openErr.Error(), "\n") {
		tb.Errorf("the error is %v, want %q", openErr, want)
	}
	if strings.Contains(openErr.Error(), "secret") {
		tb.Errorf("the error tells the password: %v", openErr)
	}
}

func TestOpenErrors(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		fails(t, db.URL, contract.Invalid, "run `rowkeeper migrate up`")
		migrate(t, db.URL)
		a := admin(t, db.URL)
		user := account(t, a, "SELECT")

		fails(t, as(t, db.URL, user, "wrong secret"), contract.Denied, "access denied")
		fails(t, as(t, db.URL, "nobody_of_that_name", "wrong secret"), contract.Denied, "access denied")
		missing := with(t, db.URL, func(u *url.URL, _ url.Values) { u.Path = "/rowkeeper_missing" })
		fails(t, missing, contract.Denied, "the database does not exist")
		fails(t, as(t, missing, user, "its secret"), contract.Denied,
			"the account has no privileges on the database")
		fails(t, with(t, db.URL, func(u *url.URL, _ url.Values) { u.Host = "host.invalid:3306" }),
			contract.Unavailable, "the host name does not resolve")

		// A pool of one connection is enough to open the database.
		state(t, open(t, with(t, db.URL, func(_ *url.URL, q url.Values) {
			q.Set("pool_max_conns", "1")
		})))

		// Nobody listens; somebody listens and says nothing; somebody hangs up.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := func(l net.Listener) string {
			return with(t, db.URL, func(u *url.URL, _ url.Values) { u.Host = l.Addr().String() })
		}
		fails(t, at(l), contract.Unavailable, "no answer in time")
		l.Close()
		fails(t, at(l), contract.Unavailable, "nothing answers at "+l.Addr().String()+": check that "+
			"MySQL or MariaDB runs")
		l, err = net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		fails(t, at(l), contract.Unavailable, "closed before the server had let it in")

		// Schemas of other programs.
		exec(t, a, "INSERT INTO rowkeeper_schema (version_id, is_applied) VALUES (99, 1)")
		open(t, db.URL) // it only expands
		exec(t, a, "UPDATE rowkeeper_store SET oldest_writer = 99")
		fails(t, db.URL, contract.Invalid, "use a newer rowkeeper")
		exec(t, a, "DELETE FROM rowkeeper_schema WHERE version_id > 0")
		fails(t, db.URL, contract.Invalid, "run `rowkeeper migrate up`")

		if _, err := contract.OpenBackend(t.Context(), mysql.Driver, "mysql://rk@h",
			options(t)); err == nil || contract.ClassOf(err) != contract.Denied {
			t.Errorf("a URL without a database: %v", err)
		}
	}, kinds...)
}

// TestLostConnection: clients are told what happened, not the driver's words for it.
func TestLostConnection(t *testing.T) {
	const server = "mysql://rk@db.example:3306/rowkeeper"
	for _, err := range []error{driver.ErrBadConn, gomysql.ErrInvalidConn} {
		if told := mysql.Judge(server, err); !errors.Is(told, err) {
			t.Errorf("%q does not wrap %q", told, err)
		}
		for _, told := range []error{mysql.Judge(server, err), mysql.ConnectError(server, err)} {
			wantClass(t, told, contract.Unavailable)
			if !strings.Contains(told.Error(), "db.example") || strings.Contains(told.Error(), err.Error()) {
				t.Errorf("%q becomes %q", err, told)
			}
		}
	}
}

// TestSocket connects by a Unix socket, where the server has one that this process can see.
func TestSocket(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		var path string
		if err := admin(t, db.URL).QueryRow("SELECT @@socket").Scan(&path); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Skipf("the server's socket is not on this machine: %v", err)
		}
		b := open(t, with(t, db.URL, func(u *url.URL, q url.Values) {
			u.Host = ""
			q.Set("socket", path)
		}))
		mustPut(t, b, "a")
		fails(t, with(t, db.URL, func(u *url.URL, q url.Values) {
			u.Host = ""
			q.Set("socket", path+"-missing")
		}), contract.Unavailable, "no such file")
	})
}

// TestDamage: a store that lacks what must be there says so.
func TestDamage(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		dbtest.NotOnTiDB(t, db.Kind, "the head is not in the log, and no table is made of another one")
		b, a := open(t, db.URL), admin(t, db.URL)
		revision := mustPut(t, b, "a")
		damaged := func(err error) {
			t.Helper()
			wantClass(t, err, contract.Invalid)
			if !strings.Contains(err.Error(), "damaged") {
				t.Errorf("the error is %v", err)
			}
		}
		mustPut(t, b, "b")
		exec(t, a, fmt.Sprintf("DELETE FROM rowkeeper_log WHERE revision = %d", revision))
		_, _, err := b.Get(t.Context(), "a")
		damaged(err)
		_, err = b.Page(t.Context(), contract.PageQuery{Start: "a", End: "z", Limit: 10})
		damaged(err)
		// The value that a deletion removes is gone. The deletion is refused, and nothing else.
		seen := state(t, b).Head
		r, err := b.Commit(t.Context(), newGroup(seen, &contract.Mutation{Key: "a", Expect: revision,
			Delete: true}, put("c", 0, "")))
		if err != nil || r.Outcomes[0].Accepted || !r.Outcomes[1].Accepted {
			t.Fatalf("the outcomes are %+v, %v", r, err)
		}
		wantClass(t, r.Outcomes[0].Err, contract.Data)

		exec(t, a, "CREATE TABLE kept AS SELECT * FROM rowkeeper_store",
			"DELETE FROM rowkeeper_store")
		for _, ask := range []func() error{
			func() error { _, err := b.State(t.Context()); return err },
			func() error { _, err := b.Tail(t.Context(), 1, 10, contract.PrevOfAll); return err },
			func() error { _, err := b.Identity(t.Context()); return err },
			func() error { _, err := contract.RaiseCompacted(t.Context(), b, 1); return err },
			func() error { _, _, err := contract.SweepBatch(t.Context(), b, 10); return err },
			func() error {
				_, err := b.Commit(t.Context(), newGroup(seen, put("x", 0, "")))
				return err
			},
		} {
			damaged(ask())
		}
		exec(t, a, "INSERT INTO rowkeeper_store SELECT * FROM kept", "DROP TABLE kept",
			"DELETE FROM rowkeeper_log")
		_, err = b.State(t.Context())
		damaged(err)
		exec(t, a, "DROP TABLE rowkeeper_log")
		_, err = b.State(t.Context())
		wantClass(t, err, contract.Invalid)
	})
}

// TestPrivileges: what an account may not do is said in one sentence, and what it needs is what the
// documentation says.
func TestPrivileges(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		a := admin(t, db.URL)
		user := account(t, a, "SELECT, INSERT, UPDATE, DELETE")
		limited := as(t, db.URL, user, "its secret")
		_, err := mysql.Driver.Migrate(t.Context(), limited, options(t))
		wantClass(t, err, contract.Denied)
		if !strings.Contains(err.Error(), "the account lacks a privilege") {
			t.Errorf("the error is %v", err)
		}

		var schema string
		if err := a.QueryRow("SELECT DATABASE()").Scan(&schema); err != nil {
			t.Fatal(err)
		}
		exec(t, a, fmt.Sprintf("GRANT CREATE, ALTER, INDEX, DROP, CREATE VIEW ON `%s`.* TO '%s'@'%%'",
			schema, user))
		migrate(t, limited)
		exec(t, a, fmt.Sprintf("REVOKE CREATE, ALTER, INDEX, DROP, CREATE VIEW ON `%s`.* FROM '%s'@'%%'",
			schema, user))

		b := open(t, limited)
		r := mustPut(t, b, "a")
		mustPut(t, b, "b")
		if _, err := b.Identity(t.Context()); err != nil {
			t.Error(err)
		}
		if err := contract.RecordFingerprint(t.Context(), b, "x"); err != nil {
			t.Error(err)
		}
		if _, err := contract.RaiseCompacted(t.Context(), b, r); err != nil {
			t.Error(err)
		}
		if _, _, err := contract.SweepBatch(t.Context(), b, 10); err != nil {
			t.Error(err)
		}
		if s, err := b.Size(t.Context()); err != nil || s.Total == 0 && !dbtest.OnTiDB(db.Kind) {
			t.Errorf("the size is %+v, %v", s, err)
		}
		if _, err := contract.StartEpoch(t.Context(), b,
			contract.Fence{Seen: state(t, b).Head, Token: contract.Token{1}, Jump: 1 << 32}); err != nil {
			t.Error(err)
		}

		exec(t, a, fmt.Sprintf("REVOKE INSERT ON `%s`.* FROM '%s'@'%%'", schema, user))
		readOnly := open(t, limited)
		_, err = readOnly.Commit(t.Context(), newGroup(state(t, readOnly).Head, put("c", 0, "")))
		wantClass(t, err, contract.Denied)
		if !strings.Contains(err.Error(), "the account lacks a privilege") {
			t.Errorf("the error is %v", err)
		}
	}, kinds...)
}
