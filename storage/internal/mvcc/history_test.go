package mvcc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// raw opens a database without any of our code, to do to it what an administrator could.
func raw(t testing.TB, db dbtest.DB) *sql.DB {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	driver, dsn := "pgx", db.URL
	switch db.Kind {
	case dbtest.SQLite:
		driver, dsn = "sqlite", u.Path+"?_pragma=busy_timeout(10000)"
	case dbtest.MariaDB, dbtest.MySQL:
		c := mysqldriver.NewConfig()
		c.User, c.Net, c.Addr, c.DBName = u.User.Username(), "tcp", u.Host,
			strings.TrimPrefix(u.Path, "/")
		c.Passwd, _ = u.User.Password()
		driver, dsn = "mysql", c.FormatDSN()
	}
	d, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func exec(t *testing.T, d *sql.DB, statements ...string) {
	t.Helper()
	tx, err := d.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, s := range statements {
		if _, err := tx.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// tables are the tables that a dump holds.
var tables = []string{"rowkeeper_log", "rowkeeper_live", "rowkeeper_lease", "rowkeeper_store",
	"rowkeeper_aborted"}

// dump copies the tables beside themselves.
func dump(t *testing.T, d *sql.DB) {
	t.Helper()
	for _, table := range tables {
		if dbtest.OnTiDB(dbtest.MySQL) {
			exec(t, d, "CREATE TABLE dump_"+table+" LIKE "+table, "INSERT INTO dump_"+table+" SELECT * FROM "+table)
			continue
		}
		exec(t, d, "CREATE TABLE dump_"+table+" AS SELECT * FROM "+table)
	}
}

// restore puts the dump's rows in the place of the tables' rows, in one transaction. It leaves
// everything by which the database itself could be known.
func restore(t *testing.T, d *sql.DB) {
	t.Helper()
	var statements []string
	for _, table := range tables {
		statements = append(statements, "DELETE FROM "+table, "INSERT INTO "+table+
			" SELECT * FROM dump_"+table)
	}
	exec(t, d, append(statements, newHeads()...)...)
}

// TestRestoreUnderRunningServers restores an older dump while stores run, with one store ahead of
// the one that notices.
func TestRestoreUnderRunningServers(t *testing.T) {
	for _, behind := range []int{10, 30} {
		t.Run(fmt.Sprintf("first to write has seen %d of 100, the dump has 20", behind),
			func(t *testing.T) {
				dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
					// The lagging store is a process that does nothing but commit: it knows what it
					// has seen itself. The one ahead neither polls nor is notified, so that it does
					// not notice the restore first.
					ahead, h := openHeld(t, db, mvcc.Config{PollActive: time.Hour,
						PollIdle: time.Hour})
					start := ahead.Delivered()
					write := func(from, to int) {
						for i := from; i < to; i++ {
							put(t, ahead, contract.Key(fmt.Sprintf("/k/%03d", i)), 0,
								"before the restore")
						}
					}
					write(0, 10)
					d, gate := raw(t, db), make(chan struct{})
					if behind == 10 {
						lag := openBackend(t, db)
						defer lag.Close()
						st, err := lag.State(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						write(10, 20)
						dump(t, d)
						write(20, 100)
						h.hold(gate, nil)
						restore(t, d)
						// The dump has all that it has seen, so its write is taken: a revision that
						// the other store has seen with other content.
						res, err := lag.Commit(t.Context(),
							&contract.Group{Token: contract.Token{9}, Seen: st.Head,
								Mutations: []*contract.Mutation{{Key: "/lagging", Value: []byte("x")}}})
						if err != nil || res.State.Head.Revision != start+21 {
							t.Fatalf("the lagging process's write: %+v, %v", res, err)
						}
					} else {
						write(10, 20)
						dump(t, d)
						write(20, 30)
						lag := openBackend(t, db)
						defer lag.Close()
						st, err := lag.State(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						write(30, 100)
						h.hold(gate, nil)
						restore(t, d)
						_, err = lag.Commit(t.Context(),
							&contract.Group{Token: contract.Token{9}, Seen: st.Head,
								Mutations: []*contract.Mutation{{Key: "/lagging", Value: []byte("x")}}})
						if contract.ClassOf(err) != contract.Fenced {
							t.Fatalf("a write by a process that has seen more than the dump has: %v",
								err)
						}
					}
					watch, err := ahead.Watch(t.Context(),
						mvcc.WatchOptions{Prefix: "/", After: start + 100})
					if err != nil {
						t.Fatal(err)
					}
					close(gate)
					var revision contract.Revision
					for revision == 0 {
						revision, err = ahead.Commit(t.Context(),
							contract.Mutation{Key: "/after", Value: []byte("x")})
						if err != nil && contract.ClassOf(err) != contract.Unavailable {
							t.Fatal(err)
						}
					}
					if revision < start+100+contract.JumpBefore(1) {
						t.Fatalf("after the restore, a write got revision %d; %d had been seen",
							revision, start+100)
					}
					if b, err := watch.Next(t.Context()); !errors.Is(err, contract.ErrCompacted) {
						t.Fatalf("a watch over the restore: %+v, %v", b, err)
					}
					// All that was written in the lost history reads as compacted, everywhere and
					// for ever.
					for _, s := range []*mvcc.Engine{ahead, open(t, db, mvcc.Config{})} {
						for _, at := range []contract.Revision{start + 5, start + 20, start + 21,
							start + 100} {
							if _, err := s.Range(t.Context(),
								mvcc.RangeOptions{Start: "/", End: "0",
									At: at}); !errors.Is(err, contract.ErrCompacted) {
								t.Errorf("a list at %d, before the restore: %v", at, err)
							}
						}
						res, err := s.Range(t.Context(),
							mvcc.RangeOptions{Start: "/k/", End: "/k0"})
						if err != nil || len(res.KVs) != 20 {
							t.Errorf("after the restore: %v, %v", res, err)
						}
					}
				})
			})
	}
}

// TestLostTail takes the newest rows away, as the promotion of a standby without them does.
func TestLostTail(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		s := open(t, db, mvcc.Config{Logger: testLogger(t)})
		r := put(t, s, "/a", 0, "kept")
		lost := put(t, s, "/b", 0, "lost")
		watch, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: lost})
		if err != nil {
			t.Fatal(err)
		}
		cut(t, db, r+1)
		head, err := s.Head(t.Context())
		for err != nil && contract.ClassOf(err) == contract.Unavailable {
			head, err = s.Head(t.Context())
		}
		if err != nil || head < lost+contract.JumpBefore(1) {
			t.Fatalf("the head is %d, %v after revision %d was lost", head, err, lost)
		}
		if _, err := watch.Next(t.Context()); !errors.Is(err, contract.ErrCompacted) {
			t.Fatalf("the watch: %v", err)
		}
		if kv, _, err := s.Get(t.Context(), "/a"); err != nil || kv == nil || kv.Revision != r {
			t.Fatalf("what was kept: %v, %v", kv, err)
		}
	})
}

// TestRestoreWhileStopped makes other tables of the same name and content, as a restore with all
// servers stopped does.
func TestRestoreWhileStopped(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		s := open(t, db, mvcc.Config{Logger: testLogger(t)})
		r := put(t, s, "/a", 0, "1")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again := open(t, db, mvcc.Config{Logger: testLogger(t)})
		if head, err := again.Head(t.Context()); err != nil || head != r {
			t.Fatalf("reopened without a restore: head %d, %v, want %d", head, err, r)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		d := raw(t, db)
		switch db.Kind {
		case dbtest.SQLite:
			u, err := url.Parse(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			copyFile(t, d, u.Path)
		case dbtest.Postgres:
			exec(t, d, "ALTER TABLE rowkeeper_log RENAME TO dumped",
				"CREATE TABLE rowkeeper_log (LIKE dumped INCLUDING ALL)",
				"INSERT INTO rowkeeper_log SELECT * FROM dumped", "DROP TABLE dumped CASCADE")
		default:
			// MySQL tells tables apart by their creation, in seconds.
			for same := 1; same == 1; {
				if err := d.QueryRow(`SELECT unix_timestamp(create_time) = unix_timestamp() FROM information_schema.tables
					WHERE table_schema = database() AND table_name = 'rowkeeper_aborted'`).Scan(&same); err != nil {
					t.Fatal(err)
				}
			}
			for _, table := range tables {
				exec(t, d, "CREATE TABLE restored LIKE "+table,
					"INSERT INTO restored SELECT * FROM "+table, "DROP TABLE "+table,
					"RENAME TABLE restored TO "+table)
			}
		}
		restored := open(t, db, mvcc.Config{Logger: testLogger(t)})
		if head, err := restored.Head(t.Context()); err != nil || head < r+contract.JumpBefore(1) {
			t.Fatalf("after a restore the head is %d, %v; before it was %d", head, err, r)
		}
		if kv, _, err := restored.Get(t.Context(), "/a"); err != nil || kv == nil ||
			kv.Revision != r {
			t.Fatalf("after a restore: %v, %v", kv, err)
		}
	})
}

// copyFile puts a copy of a SQLite database in its place.
func copyFile(t *testing.T, d *sql.DB, path string) {
	t.Helper()
	if _, err := d.Exec("VACUUM INTO ?", path+".copy"); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	rename(t, path+".copy", path)
}

// TestNewerSchema brings the schema further while two stores of this program write, as a rolling
// upgrade does: they go on, and a third one may start, until a migration says that programs of this
// version must not write any more.
func TestNewerSchema(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		stores := []*mvcc.Engine{open(t, db, mvcc.Config{Logger: testLogger(t)}),
			open(t, db, mvcc.Config{Logger: testLogger(t)})}
		start := stores[0].Delivered()
		watch, err := stores[1].Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: start})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		written := make(chan int)
		begun := make(chan struct{})
		go func() {
			n := 0
			for ctx.Err() == nil {
				put(t, stores[n%2], contract.Key(fmt.Sprintf("/k/%d", n)), 0, "x")
				if n++; n == 10 {
					close(begun)
				}
			}
			written <- n
		}()
		<-begun
		d := raw(t, db)
		var newest int64
		if err := d.QueryRow("SELECT max(version_id) FROM rowkeeper_schema").Scan(&newest); err != nil {
			t.Fatal(err)
		}
		// An expanding migration of the next release does this. DDL waits for the writers, and they
		// for it.
		for _, s := range []string{
			"ALTER TABLE rowkeeper_live ADD COLUMN note BIGINT",
			fmt.Sprintf("INSERT INTO rowkeeper_schema (version_id, is_applied) VALUES (%d, true)",
				newest+1),
		} {
			if _, err := d.Exec(strings.Replace(s, "BIGINT", map[bool]string{true: "INTEGER",
				false: "BIGINT"}[db.Kind == dbtest.SQLite], 1)); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
		third := open(t, db, mvcc.Config{Logger: testLogger(t)})
		put(t, third, "/third", 0, "x")
		stop()
		n := <-written + 1
		for i, e := range next(t, watch, n) {
			if e.Revision != start+contract.Revision(i)+1 {
				t.Fatalf("event %d has revision %d", i, e.Revision)
			}
		}
		// The release after the next removes what this program needs.
		exec(t, d, fmt.Sprintf("UPDATE rowkeeper_store SET oldest_writer = %d", newest+1))
		if _, err := contract.OpenBackend(t.Context(), db.Driver, db.URL,
			contract.DriverOptions{Logger: testLogger(t), Timeout: 10e9}); contract.ClassOf(err) != contract.Invalid || err == nil ||
			!strings.Contains(err.Error(), "newer rowkeeper") {
			t.Fatalf("opening a database that is too new: %v", err)
		}
		// Those that are running stop writing, and say why.
		before, err := stores[0].Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range stores {
			_, err := s.Commit(t.Context(), contract.Mutation{Key: "/outdated"})
			if err == nil || contract.ClassOf(err) != contract.Invalid ||
				!strings.Contains(err.Error(), "use a newer rowkeeper") {
				t.Errorf("a write by a program that is too old: %v", err)
			}
			if err := s.Compact(t.Context(), before); err == nil ||
				contract.ClassOf(err) != contract.Invalid {
				t.Errorf("a compaction by a program that is too old: %v", err)
			}
		}
		if head, err := stores[0].Head(t.Context()); err != nil || head != before {
			t.Errorf("the head is %d, %v; it was %d", head, err, before)
		}
	})
}

// TestLostTailUnderNewerRows takes the newest row away and writes others in its place and beyond,
// as a replica does that had not seen it: the head is higher than what this process has delivered,
// and the history is another one all the same.
func TestLostTailUnderNewerRows(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		s := open(t, db, mvcc.Config{Logger: testLogger(t)})
		put(t, s, "/a", 0, "kept")
		lost := put(t, s, "/b", 0, "lost")
		watch, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: lost})
		if err != nil {
			t.Fatal(err)
		}
		token, key := "x'%032x'", "`key`"
		if db.Kind == dbtest.Postgres {
			token, key = "decode('%032x', 'hex')", "key"
		}
		store, id := storeColumn(db.Kind)
		exec(t, raw(t, db), append([]string{
			fmt.Sprintf("UPDATE rowkeeper_log SET token = "+token+" WHERE revision = %d", 1, lost),
			fmt.Sprintf("INSERT INTO rowkeeper_log ("+store+"revision, "+key+
				", prev_revision, create_revision, version, lease, token, time, deleted, value) "+
				"SELECT "+id+"revision + 1, "+key+", revision, create_revision, version + 1, lease, "+
				token+", time, deleted, value FROM rowkeeper_log WHERE revision = %d", 2, lost)},
			newHeads()...)...)
		if b, err := watch.Next(t.Context()); !errors.Is(err, contract.ErrCompacted) {
			t.Fatalf("the watch, after %d: %+v, %v", lost, b, err)
		}
		if err := s.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// cut takes the rows from revision r on away.
func cut(t *testing.T, db dbtest.DB, r contract.Revision) {
	t.Helper()
	exec(t, raw(t, db), append([]string{fmt.Sprintf("DELETE FROM rowkeeper_live WHERE revision >= %d", r),
		fmt.Sprintf("DELETE FROM rowkeeper_log WHERE revision >= %d", r)}, newHeads()...)...)
}

// newHeads writes what the log says into the rows of stores, which have their heads on TiDB.
func newHeads() []string {
	if !dbtest.OnTiDB(dbtest.MySQL) {
		return nil
	}
	return []string{`UPDATE rowkeeper_store s
		JOIN (SELECT store, MAX(revision) AS newest FROM rowkeeper_log GROUP BY store) m ON m.store = s.id
		JOIN rowkeeper_log h ON h.store = m.store AND h.revision = m.newest
		SET s.head = h.revision, s.head_token = h.token, s.head_time = h.time`}
}

// lose takes the rows from revision r on away, and writes other mutations in their place.
func lose(t *testing.T, db dbtest.DB, r contract.Revision, mutations ...contract.Mutation) {
	t.Helper()
	cut(t, db, r)
	b := openBackend(t, db)
	defer b.Close()
	st, err := b.State(t.Context())
	if err != nil || st.Head.Revision != r-1 {
		t.Fatalf("the state is %+v, %v", st, err)
	}
	for i := range mutations {
		res, err := b.Commit(t.Context(), &contract.Group{Token: contract.Token{byte(i), 77}, Seen: st.Head,
			Mutations: []*contract.Mutation{&mutations[i]}})
		if err != nil || !res.Outcomes[0].Accepted {
			t.Fatalf("mutation %d: %v", i, err)
		}
		st = res.State
	}
}

// heldCommit holds one commit back until it is let go.
type heldCommit struct {
	contract.Backend
	hold         atomic.Bool
	begun, letGo chan struct{}
}

func (h *heldCommit) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	if h.hold.CompareAndSwap(true, false) {
		close(h.begun)
		<-h.letGo
	}
	return h.Backend.Commit(ctx, g)
}

// TestQueuedOverAnEpoch: a write that was queued in one history is not done in another one, in
// which the revision that it expects may stand for a state that the writer has not seen.
func TestQueuedOverAnEpoch(t *testing.T) {
	db := dbtest.Open(t, dbtest.SQLite)
	h := &heldCommit{Backend: openBackend(t, db), begun: make(chan struct{}), letGo: make(chan struct{})}
	// Nothing is noticed before the lost rows have others in their place.
	s, err := mvcc.Open(t.Context(), h, mvcc.Config{Logger: testLogger(t),
		PollActive: time.Hour, PollIdle: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	let := sync.OnceFunc(func() { close(h.letGo) })
	defer let()
	begun := put(t, s, "/first", 0, "A")
	seen := put(t, s, "/k", 0, "A")
	h.hold.Store(true)
	commit := func(m contract.Mutation) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := s.Commit(context.WithoutCancel(t.Context()), m)
			done <- err
		}()
		return done
	}
	first := commit(contract.Mutation{Key: "/first", Expect: begun, Value: []byte("x")})
	<-h.begun
	second := commit(contract.Mutation{Key: "/k", Expect: seen, Value: []byte("on top of A")})
	if err := mvcc.WaitQueued(t.Context(), s, 1); err != nil {
		t.Fatal(err)
	}
	lose(t, db, seen, contract.Mutation{Key: "/k", Value: []byte("B")},
		contract.Mutation{Key: "/z", Value: []byte("C")})
	for become(t, s, seen) < 1<<32 && t.Context().Err() == nil {
		runtime.Gosched()
	}
	let()
	for what, done := range map[string]chan error{"begun": first, "queued": second} {
		if err := <-done; !errors.Is(err, mvcc.ErrOtherEra) {
			t.Errorf("a write that was %s before the fence: %v, want it refused", what, err)
		}
	}
}

// unanswered commits a group, and does not say so, once.
type unanswered struct {
	*held
	once sync.Once
}

func (u *unanswered) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	res, err := u.held.Commit(ctx, g)
	u.once.Do(func() { res, err = nil, contract.Errorf(contract.Unknown, "the connection was lost") })
	return res, err
}

// State waits as the reads of the log do, so that the loss is not noticed halfway.
func (u *unanswered) State(ctx context.Context) (contract.State, error) {
	u.mu.RLock()
	for c := u.tail; c != nil; c = u.tail {
		u.mu.RUnlock()
		if err := await(ctx, c); err != nil {
			return contract.State{}, err
		}
		u.mu.RLock()
	}
	defer u.mu.RUnlock()
	return u.held.State(ctx)
}

// TestResolvedIsSeen: a revision that a writer was told after an unknown outcome is seen. If it is
// lost before the log is read, the process fences, and does not use the revision again.
func TestResolvedIsSeen(t *testing.T) {
	db := dbtest.Open(t, dbtest.SQLite)
	h := &held{Backend: openBackend(t, db), paged: make(chan struct{}, 1),
		tailed: make(chan struct{}, 1)}
	s, err := mvcc.Open(t.Context(), &unanswered{held: h}, mvcc.Config{Logger: testLogger(t),
		PollActive: time.Hour, PollIdle: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	gate := make(chan struct{})
	h.hold(gate, nil)
	told := put(t, s, "/acknowledged", 0, "x")
	lose(t, db, told, contract.Mutation{Key: "/other", Value: []byte("B")},
		contract.Mutation{Key: "/p", Value: []byte("B")})
	h.hold(nil, nil)
	close(gate)
	r, err := s.Commit(t.Context(), contract.Mutation{Key: "/next"})
	for err != nil && contract.ClassOf(err) == contract.Unavailable && t.Context().Err() == nil {
		r, err = s.Commit(t.Context(), contract.Mutation{Key: "/next"})
	}
	if err != nil || r < 1<<32 {
		t.Errorf("%d was acknowledged and lost; the next write is at %d, %v, without a fence", told,
			r, err)
	}
}

// TestSweptDeliveredRow: a process that was paused for longer than the compaction window finds the
// row swept that it delivered last. Nothing proves then that the rows after it belong to the same
// history, so its watches end.
func TestSweptDeliveredRow(t *testing.T) {
	db := dbtest.Open(t, dbtest.SQLite)
	s, h := openHeld(t, db, mvcc.Config{PollActive: time.Hour, PollIdle: time.Hour})
	writer := open(t, db, mvcc.Config{})
	put(t, writer, "/start", 0, "x")
	delivered := put(t, writer, "/lost", 0, "x")
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	watch, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: delivered})
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	h.hold(gate, nil)
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	lose(t, db, delivered, contract.Mutation{Key: "/j", Value: []byte("1")},
		contract.Mutation{Key: "/j", Expect: delivered, Value: []byte("2")},
		contract.Mutation{Key: "/z", Value: []byte("3")})
	b := openBackend(t, db)
	defer b.Close()
	st, err := contract.RaiseCompacted(t.Context(), b, delivered+1)
	for err == nil && st.Swept < st.Compacted {
		_, st, err = contract.SweepBatch(t.Context(), b, 100)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.hold(nil, nil)
	close(gate)
	list(t, s)
	batch, err := watch.Next(t.Context())
	if !errors.Is(err, contract.ErrCompacted) {
		t.Errorf("the watch goes on with %d events, %v; want it to end", len(batch.Events), err)
	}
}
