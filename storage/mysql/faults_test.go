package mysql_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// shortTimeout makes the server wait a second at most for a lock, or for a client in the middle of
// a transaction.
const shortTimeout = 3 * time.Second

// openFor opens a backend whose operations may take so long.
func openFor(tb testing.TB, url string, timeout time.Duration) contract.Backend {
	tb.Helper()
	opts := options(tb)
	opts.Timeout = timeout
	b, err := contract.OpenBackend(context.Background(), mysql.Driver, url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { b.Close() })
	return b
}

// admin opens a database without this package, as an administrator does.
func admin(tb testing.TB, databaseURL string) *sql.DB {
	tb.Helper()
	connector, err := driver.NewConnector(login(tb, databaseURL))
	if err != nil {
		tb.Fatal(err)
	}
	db := sql.OpenDB(connector)
	tb.Cleanup(func() { db.Close() })
	return db
}

// login is the configuration of a connection past the backend.
func login(tb testing.TB, databaseURL string) *driver.Config {
	tb.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		tb.Fatal(err)
	}
	c := driver.NewConfig()
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Net, c.Addr, c.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	c.Logger = &driver.NopLogger{}
	c.MultiStatements = true
	return c
}

func exec(tb testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, statements ...string) {
	tb.Helper()
	for _, q := range statements {
		if _, err := db.ExecContext(context.Background(), q); err != nil {
			tb.Fatalf("%s: %v", q, err)
		}
	}
}

func state(tb testing.TB, b contract.Backend) contract.State {
	tb.Helper()
	s, err := b.State(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func newGroup(seen contract.Position, ms ...*contract.Mutation) *contract.Group {
	g := &contract.Group{Seen: seen, Mutations: ms}
	rand.Read(g.Token[:])
	return g
}

func put(key contract.Key, expect contract.Revision, value string) *contract.Mutation {
	return &contract.Mutation{Key: key, Expect: expect, Value: []byte(value)}
}

// mustPut writes a key that does not exist, and returns its revision.
func mustPut(tb testing.TB, b contract.Backend, key contract.Key) contract.Revision {
	tb.Helper()
	r, err := b.Commit(context.Background(), newGroup(state(tb, b).Head, put(key, 0, "value")))
	if err != nil {
		tb.Fatal(err)
	}
	if !r.Outcomes[0].Accepted {
		tb.Fatalf("%q was refused: %+v", key, r.Outcomes[0])
	}
	return r.Outcomes[0].Revision
}

func wantClass(tb testing.TB, err error, want ...contract.Class) {
	tb.Helper()
	for _, c := range want {
		if err != nil && contract.ClassOf(err) == c {
			return
		}
	}
	tb.Fatalf("the error is %v of class %v, want class %v", err, contract.ClassOf(err), want)
}

// eventually waits until the condition holds. InnoDB's list of transactions is renewed only for who
// has not read it for 100 ms.
func eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	timeout := time.NewTimer(90 * time.Second)
	defer timeout.Stop()
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout.C:
			tb.Fatalf("waited in vain for %s", what)
		}
	}
}

// waiting counts the sessions that wait for the commit lock in a database, or in its queue.
func waiting(tb testing.TB, db *sql.DB) int {
	tb.Helper()
	var queued int
	if err := db.QueryRow(`SELECT COUNT(*) FROM information_schema.processlist p
		WHERE p.db = DATABASE() AND p.state = 'User lock'`).Scan(&queued); err != nil {
		tb.Fatal(err)
	}
	return len(waiters(tb, db)) + queued
}

// waiters are the sessions that wait for a row in a database.
func waiters(tb testing.TB, db *sql.DB) (ids []int) {
	tb.Helper()
	query := `SELECT t.trx_mysql_thread_id FROM information_schema.innodb_trx t
		JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
		WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()`
	var version string
	if err := db.QueryRow("SELECT VERSION()").Scan(&version); err != nil {
		tb.Fatal(err)
	}
	if strings.Contains(version, "TiDB") {
		query = `SELECT t.session_id FROM information_schema.tidb_trx t
			WHERE t.state = 'LockWaiting' AND t.db = DATABASE()`
	}
	rows, err := db.Query(query)
	if err != nil {
		tb.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			tb.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		tb.Fatal(err)
	}
	return ids
}

// holdLock takes the commit lock in a session that is not one of ours.
func holdLock(tb testing.TB, db *sql.DB) *sql.Conn {
	tb.Helper()
	c, err := db.Conn(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	exec(tb, c, "START TRANSACTION", "SELECT id FROM rowkeeper_store WHERE id = 1 FOR UPDATE")
	return c
}

// TestPanicUnderTheLock: a transaction that panics gives back the commit lock, before the server
// would take it away.
func TestPanicUnderTheLock(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		const patient = 5 * time.Minute // the server takes the lock away after half a minute
		b, other := openFor(t, db.URL, patient), openFor(t, db.URL, patient)
		for i, transact := range []func(panics func()) error{
			func(panics func()) error { return mysql.Transact(t.Context(), b, panics) },
			func(panics func()) error {
				return b.Locked(t.Context(), contract.LockOptions{}, func(contract.Tx) error {
					panics()
					return nil
				})
			},
			func(panics func()) error {
				return b.Locked(t.Context(), contract.LockOptions{Unbounded: true},
					func(contract.Tx) error { panics(); return nil })
			},
		} {
			var panicked *contract.PanicError
			if err := contract.Recovered(func() error {
				return transact(func() { panic("planted") })
			}); !errors.As(err, &panicked) {
				t.Fatalf("transaction %d: %v", i, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			_, err := other.Commit(ctx, newGroup(state(t, other).Head, put(contract.Key(rune('a'+i)), 0, "v")))
			cancel()
			if err != nil {
				t.Fatalf("after transaction %d: %v", i, err)
			}
			mustPut(t, b, contract.Key(rune('A'+i)))
		}
	})
}

// TestLostConnections cuts the connection at each point of a commit. What the writer is told
// afterwards is true.
func TestLostConnections(t *testing.T) {
	type outcome int
	const (
		nothing outcome = iota // nothing was committed and never will be
		committed
		aborted
	)
	for _, test := range []struct {
		name string
		// matches is the statement at which the connection is lost.
		matches func(string) bool
		verdict verdict
		want    outcome
	}{
		{"before the lock", locks, cut, nothing},
		{"while the lock is granted", locks, deliver, nothing},
		{"before COMMIT", commits, cut, aborted},
		{"after COMMIT", commits, deliver, committed},
		{"paused before COMMIT", commits, keep, aborted},
	} {
		t.Run(test.name, func(t *testing.T) {
			each(t, func(t *testing.T, db dbtest.DB) {
				direct := open(t, db.URL)
				mustPut(t, direct, "before")
				p := newProxy(t, db.URL)
				b := openFor(t, p.URL, shortTimeout)
				seen := state(t, b).Head
				p.on(func(_ *link, q string) verdict {
					if test.matches(q) {
						return test.verdict
					}
					return forward
				})
				g := newGroup(seen, put("a", 0, "1"), put("b", 0, "2"))
				_, err := b.Commit(t.Context(), g)
				p.on(nil)
				if test.want == nothing {
					wantClass(t, err, contract.Unavailable)
				} else {
					wantClass(t, err, contract.Unknown)
				}
				// Whoever waits for the lock gets it, also if the client is gone without a trace.
				other := mustPut(t, direct, "after")
				r, err := contract.ResolveGroup(t.Context(), b, g.Token, seen)
				if err != nil {
					t.Fatal(err)
				}
				if r.Committed != (test.want == committed) || r.Aborted == r.Committed {
					t.Fatalf("the resolution is %+v", r)
				}
				if test.want == committed {
					if len(r.Rows) != 2 || r.Rows[0].Key != "a" ||
						r.Rows[1].Revision != seen.Revision+2 || other != seen.Revision+3 {
						t.Errorf("the rows are %+v, the next revision is %d", r.Rows, other)
					}
					return
				}
				if other != seen.Revision+1 {
					t.Errorf("the next revision is %d, want %d", other, seen.Revision+1)
				}
				// The same group cannot be committed any more, another one can.
				_, err = b.Commit(t.Context(), g)
				wantClass(t, err, contract.Aborted)
				mustPut(t, b, "a")
			})
		})
	}
}

// locks tells whether a statement is the first text of a commit group.
func locks(statement string) bool {
	return strings.Contains(statement, "FOR UPDATE") &&
		strings.Contains(statement, "rowkeeper_live")
}

// TestZombieCommits: the text with COMMIT is on its way when its client is gone, and arrives while
// somebody looks for the group. The look has to wait for it, as the group's transaction has the
// commit lock.
func TestZombieCommits(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		b := open(t, db.URL)
		p := newProxy(t, db.URL)
		victim := open(t, p.URL)
		seen := state(t, victim).Head
		kept := make(chan *link, 1)
		p.on(func(l *link, q string) verdict {
			if commits(q) {
				kept <- l
				return keep
			}
			return forward
		})
		g := newGroup(seen, put("a", 0, "1"))
		_, err := victim.Commit(t.Context(), g)
		wantClass(t, err, contract.Unknown)
		type resolved struct {
			*contract.Resolution
			err error
		}
		done := make(chan resolved, 1)
		go func() {
			r, err := contract.ResolveGroup(t.Context(), b, g.Token, seen)
			done <- resolved{r, err}
		}()
		a := admin(t, db.URL)
		eventually(t, "the resolution to wait for the lock", func() bool {
			return waiting(t, a) == 1
		})
		if err := (<-kept).release(); err != nil {
			t.Fatal(err)
		}
		r := <-done
		if r.err != nil || !r.Committed || len(r.Rows) != 1 {
			t.Fatalf("the resolution is %+v, %v", r.Resolution, r.err)
		}
	})
}

// TestCancelledWhileWaiting: a caller that gives up while its group waits for the lock leaves
// nothing behind that commits later.
func TestCancelledWhileWaiting(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		b, a := open(t, db.URL), admin(t, db.URL)
		seen := state(t, b).Head
		for _, end := range []string{"cancel", "kill"} {
			holder := holdLock(t, a)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := b.Commit(ctx, newGroup(seen, put("a", 0, "1")))
				done <- err
			}()
			eventually(t, "the group to wait for the lock", func() bool {
				return waiting(t, a) == 1
			})
			if end == "cancel" {
				cancel()
			} else {
				exec(t, a, "KILL "+strconv.Itoa(waiters(t, a)[0]))
			}
			wantClass(t, <-done, contract.Unavailable)
			exec(t, holder, "ROLLBACK")
			holder.Close()
			// Its session, which may still have been waiting, is gone when the next one has the
			// lock.
			if r := mustPut(t, b, contract.Key("after "+end)); r != seen.Revision+1 {
				t.Fatalf("%s: the next revision is %d, want %d", end, r, seen.Revision+1)
			}
			seen = state(t, b).Head
		}
	})
}

// TestLockWait: whoever holds the commit lock for too long makes groups fail, one by one, with
// nothing changed.
func TestLockWait(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		b := openFor(t, db.URL, shortTimeout)
		seen := state(t, b).Head
		holder := holdLock(t, admin(t, db.URL))
		_, err := b.Commit(t.Context(), newGroup(seen, put("a", 0, "1")))
		wantClass(t, err, contract.Transient)
		exec(t, holder, "ROLLBACK")
		if got := state(t, b).Head; got != seen {
			t.Errorf("the head is %+v, want %+v", got, seen)
		}
		mustPut(t, b, "a")
	})
}

// TestDeadlock: a group that the server rolls back to end a deadlock has written nothing and can be
// tried again.
func TestDeadlock(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		dbtest.NotOnTiDB(t, db.Kind, "it ends the transaction that closes the circle")
		b, a := open(t, db.URL), admin(t, db.URL)
		seen := mustPut(t, b, "a")
		stranger, err := a.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer stranger.Close()
		exec(t, stranger, "START TRANSACTION")
		for i := range 100 { // the server rolls back the one that has written less
			exec(t, stranger, "INSERT INTO rowkeeper_aborted (store, token, seen) VALUES (1, UNHEX(LPAD("+
				strconv.Itoa(i)+", 32, '0')), 0)")
		}
		exec(t, stranger,
			"UPDATE rowkeeper_live l SET l.revision = l.revision + 1 WHERE l.key = 'a'")
		done := make(chan error, 1)
		go func() {
			_, err := b.Commit(t.Context(), newGroup(state(t, b).Head, put("a", seen, "2")))
			done <- err
		}()
		eventually(t, "the group to wait for the stranger's row", func() bool {
			return waiting(t, a) == 1
		})
		exec(t, stranger, "SELECT id FROM rowkeeper_store WHERE id = 1 FOR UPDATE", "ROLLBACK")
		wantClass(t, <-done, contract.Transient)
		r, err := b.Commit(t.Context(), newGroup(state(t, b).Head, put("a", seen, "2")))
		if err != nil || !r.Outcomes[0].Accepted || r.Outcomes[0].Revision != seen+1 {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

// TestAllConnectionsKilled: the next operation after one that failed works.
func TestAllConnectionsKilled(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		p := newProxy(t, db.URL)
		b := open(t, p.URL)
		for i := range 3 {
			mustPut(t, b, contract.Key("key"+strconv.Itoa(i)))
			if _, _, err := b.Get(t.Context(), "key"); err != nil {
				t.Fatal(err)
			}
			p.cutAll()
			eventually(t, "reads to work again", func() bool {
				_, _, err := b.Get(t.Context(), "key")
				if err == nil {
					_, err = b.State(t.Context())
				}
				return err == nil
			})
		}
	})
}

func token() (t contract.Token) {
	rand.Read(t[:])
	return t
}
