package sqlkit_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// fake is a database in which every read blocks until release is closed, and then answers rows.
type fake struct {
	began   chan sqlkit.Class
	release chan struct{}
	rows    []row
}

func (f *fake) Query(ctx context.Context, r *sqlkit.Read, each func(sqlkit.Cursor) bool,
	_ ...any) error {
	f.began <- r.Class
	select {
	case <-f.release:
	case <-ctx.Done():
		return contract.Errorf(contract.Unavailable, "%w", ctx.Err())
	}
	for _, row := range f.rows {
		if !each(row) {
			return nil
		}
	}
	return nil
}

// row is a row whose columns are an int64, a string, or nil for NULL. Without state it has the
// rows' own columns only.
type row struct {
	state   *contract.State
	columns []any
}

func (r row) State(st *contract.State) bool {
	if r.state != nil {
		*st = *r.state
	}
	return r.state != nil
}
func (r row) More() bool               { return len(r.columns) > 0 }
func (r row) Int(i int) int64          { n, _ := r.columns[i].(int64); return n }
func (r row) Bool(i int) bool          { return r.Int(i) != 0 }
func (r row) Token(int) contract.Token { return contract.Token{} }
func (r row) Key(i int) contract.Key   { return contract.Key(r.columns[i].(string)) }
func (r row) Value(i int) []byte {
	if v, ok := r.columns[i].(string); ok {
		return []byte(v)
	}
	return nil
}

var writable = &contract.State{Head: contract.Position{Revision: 9}, Writable: true,
	Now: time.UnixMicro(1000)}

func answers(rows ...row) *fake {
	f := &fake{began: make(chan sqlkit.Class, 1000), release: make(chan struct{}), rows: rows}
	close(f.release)
	return f
}

// TestListsLeaveConnections: however many lists there are, of all connections but one or two some
// are left for single keys. A store that is alone may use each of them.
func TestListsLeaveConnections(t *testing.T) {
	for _, test := range []struct{ conns, lists, singles int }{{1, 1, 0}, {2, 1, 1}, {3, 1, 2},
		{8, 6, 2}} {
		t.Run(fmt.Sprint(test.conns), func(t *testing.T) {
			f := &fake{began: make(chan sqlkit.Class, 1000), release: make(chan struct{}),
				rows: []row{{state: writable}}}
			r := sqlkit.NewReader(f, &sqlkit.Statements{}, sqlkit.NewTurns(test.conns), sqlkit.NewTurns(4))
			var done sync.WaitGroup
			lists := []func() error{
				func() error {
					_, err := r.Page(t.Context(), contract.PageQuery{Limit: 1})
					return err
				},
				func() error { _, _, err := r.Values(t.Context(), nil); return err },
				func() error { _, _, err := r.Count(t.Context(), "", "", 0, 0); return err },
				func() error {
					_, _, err := r.Replaced(t.Context(), contract.ReplacedQuery{})
					return err
				},
			}
			for i := range 40 {
				done.Go(func() {
					if err := lists[i%len(lists)](); err != nil {
						t.Error(err)
					}
				})
			}
			began := func(n int, class sqlkit.Class) {
				t.Helper()
				for range n {
					if got := <-f.began; got != class {
						t.Errorf("a read of class %d begins, want %d", got, class)
					}
				}
			}
			began(test.lists, sqlkit.List)
			// A list whose caller gives up says so.
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := r.Page(ended,
				contract.PageQuery{Limit: 1}); contract.ClassOf(err) != contract.Unavailable || err == nil {
				t.Errorf("a list that waited in vain: %v", err)
			}
			for range test.singles { // no list comes between
				done.Go(func() {
					if _, _, err := r.Get(t.Context(), "k"); err != nil {
						t.Error(err)
					}
				})
			}
			began(test.singles, sqlkit.Single)
			if _, _, err := r.Get(ended, "k"); contract.ClassOf(err) != contract.Unavailable ||
				err == nil {
				t.Errorf("beyond the connections that there are: %v", err)
			}
			close(f.release)
			done.Wait()
		})
	}
}

// shared is a backend whose reads of single keys first take a connection that stores share.
type shared struct {
	contract.Backend
	r *sqlkit.Reader
}

func (s shared) Get(ctx context.Context, key contract.Key) (*contract.Row, contract.State, error) {
	if _, st, err := s.r.Get(ctx, key); err != nil {
		return nil, st, err
	}
	return s.Backend.Get(ctx, key)
}

// pool is a database of some connections, on which a read takes until it is released.
type pool struct {
	conns   chan struct{}
	blocked fake
}

func (p *pool) Query(ctx context.Context, r *sqlkit.Read, each func(sqlkit.Cursor) bool,
	args ...any) error {
	select {
	case p.conns <- struct{}{}:
	case <-ctx.Done():
		return contract.Errorf(contract.Unavailable, "%w", ctx.Err())
	}
	defer func() { <-p.conns }()
	return p.blocked.Query(ctx, r, each, args...)
}

// TestReadsLeaveConnections: clients of a store who read hundreds of keys as they were at a
// revision, which no two of them share a query for, leave a connection to the other stores.
func TestReadsLeaveConnections(t *testing.T) {
	const conns = 8
	turns, taken := sqlkit.NewTurns(conns), make(chan struct{}, conns)
	store := func(name string, release chan struct{}) (*mvcc.Engine, *pool) {
		p := &pool{taken, fake{began: make(chan sqlkit.Class, 1_000), release: release,
			rows: []row{{state: writable}}}}
		b := memdb.New(name, time.Now).Open(contract.DriverOptions{})
		s, err := mvcc.Open(t.Context(), shared{b, sqlkit.NewReader(p, &sqlkit.Statements{}, turns,
			sqlkit.NewTurns(conns))},
			mvcc.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s, p
	}
	release, open := make(chan struct{}), make(chan struct{})
	close(open)
	flooded, p := store("flooded", release)
	quiet, _ := store("quiet", open)
	var reads sync.WaitGroup
	for range 200 {
		reads.Go(func() {
			if _, _, err := flooded.GetAt(t.Context(), "k", 1); err != nil {
				t.Error(err)
			}
		})
	}
	for range conns - 1 {
		<-p.blocked.began
	}
	if _, _, err := quiet.Get(t.Context(), "k"); err != nil {
		t.Errorf("the other store: %v", err)
	}
	if n := len(p.blocked.began); n > 0 {
		t.Errorf("%d reads too many have begun", n)
	}
	close(release)
	reads.Wait()
}

// TestReplaysLeaveConnections: watches of two stores that catch up take all connections. Another
// read on these waits for the first piece of the log that ends, and not for all that are wanted.
func TestReplaysLeaveConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const conns = 4
		turns, taken := sqlkit.NewTurns(conns), make(chan struct{}, conns)
		release, open := make(chan struct{}), make(chan struct{})
		close(open)
		store := func(release chan struct{}) *sqlkit.Reader {
			p := &pool{taken, fake{began: make(chan sqlkit.Class, 1_000), release: release,
				rows: []row{{state: writable}}}}
			return sqlkit.NewReader(p, &sqlkit.Statements{}, sqlkit.NewTurns(conns), turns)
		}
		quiet := store(open)
		var reads sync.WaitGroup
		for _, want := range []int{conns - 1, conns} {
			r := store(release)
			for range 100 {
				reads.Go(func() {
					if _, err := r.Tail(t.Context(), 1, 1, contract.PrevOfAll); err != nil {
						t.Error(err)
					}
				})
			}
			if synctest.Wait(); len(taken) != want {
				t.Errorf("%d connections are taken, want %d", len(taken), want)
			}
		}
		answered := false
		reads.Go(func() {
			if _, err := quiet.State(t.Context()); err != nil {
				t.Error(err)
			}
			answered = true
		})
		synctest.Wait()
		release <- struct{}{} // a piece of the log ends
		if synctest.Wait(); !answered {
			t.Error("the state is not read after a piece of the log")
		}
		close(release)
		reads.Wait()
	})
}

// TestClasses: what expiry, compaction, watches and consistent reads need does not wait for lists.
func TestClasses(t *testing.T) {
	f := answers(row{state: writable})
	r := sqlkit.KeysReader{Reader: sqlkit.NewReader(f, &sqlkit.Statements{},
		sqlkit.NewTurns(4), sqlkit.NewTurns(4))}
	for _, read := range []struct {
		class sqlkit.Class
		ask   func() error
	}{
		{sqlkit.Head, func() error { _, err := r.State(t.Context()); return err }},
		{sqlkit.Tail, func() error {
			_, err := r.Tail(t.Context(), 1, 1, contract.PrevOfAll)
			return err
		}},
		{sqlkit.Single, func() error { _, _, err := r.Get(t.Context(), "k"); return err }},
		{sqlkit.Single, func() error { _, _, err := r.GetKeys(t.Context(), nil); return err }},
		{sqlkit.Maintenance, func() error { _, _, err := r.Expired(t.Context(), 1); return err }},
		{sqlkit.Maintenance, func() error { _, err := r.FirstAt(t.Context(), 1); return err }},
		{sqlkit.Maintenance, func() error { _, err := r.Size(t.Context()); return err }},
	} {
		if err := read.ask(); err != nil {
			t.Error(err)
		}
		if class := <-f.began; class != read.class {
			t.Errorf("a read is of class %d, want %d", class, read.class)
		}
	}
}

// TestMaintenanceRefusesReadOnly: a caller that does not get the state must not act on what is
// late.
func TestMaintenanceRefusesReadOnly(t *testing.T) {
	late := *writable
	late.Writable = false
	r := sqlkit.NewReader(answers(row{state: &late, columns: []any{int64(1), int64(2)}}),
		&sqlkit.Statements{}, sqlkit.NewTurns(4), sqlkit.NewTurns(4))
	_, first := r.FirstAt(t.Context(), 1)
	_, size := r.Size(t.Context())
	for _, err := range []error{first, size} {
		if contract.ClassOf(err) != contract.ReadOnly || err == nil {
			t.Errorf("the error is %v", err)
		}
	}
	if st, err := r.State(t.Context()); err != nil || st.Writable {
		t.Errorf("the state is %+v, %v", st, err)
	}
}

// TestBound: a read ends at ReadBytes, and says so where rows may follow.
func TestBound(t *testing.T) {
	value := strings.Repeat("v", contract.ReadBytes/2)
	var rows, logged []row
	const none = int64(0)
	for i := range int64(5) {
		rows = append(rows, row{columns: []any{fmt.Sprint("k", i), i, i, none, none, value}})
		logged = append(logged, row{columns: []any{i, "k", none, i, none, none, "", none, none,
			value, none}})
	}
	rows, logged = append(rows, row{state: writable}), append(logged, row{state: writable})
	// the state comes first, and the rows in another order than that of the index
	slices.Reverse(rows)
	slices.Reverse(logged)
	p, err := sqlkit.NewReader(answers(rows...), &sqlkit.Statements{},
		sqlkit.NewTurns(4), sqlkit.NewTurns(4)).Page(t.Context(), contract.PageQuery{Limit: 10})
	if err != nil || len(p.Rows) != 2 || !p.More || p.Rows[0].Key >= p.Rows[1].Key ||
		p.State.Head.Revision != 9 {
		t.Errorf("%v", err)
	}
	found, _, err := sqlkit.NewReader(answers(rows...), &sqlkit.Statements{},
		sqlkit.NewTurns(4), sqlkit.NewTurns(4)).Values(t.Context(), nil)
	if err != nil || len(found) != 2 {
		t.Errorf("%d rows, %v", len(found), err)
	}
	tail, err := sqlkit.NewReader(answers(logged...), &sqlkit.Statements{},
		sqlkit.NewTurns(4), sqlkit.NewTurns(4)).Tail(t.Context(), 1, 10, contract.PrevOfAll)
	if err != nil || len(tail.Rows) != 2 || !tail.More ||
		tail.Rows[0].Revision >= tail.Rows[1].Revision {
		t.Errorf("%v", err)
	}
}

// TestCutOffBeforeState: rows that reach the bound before the state came do not mean that there is
// none.
func TestCutOffBeforeState(t *testing.T) {
	value := strings.Repeat("v", contract.ReadBytes)
	f := answers(row{columns: []any{"k", int64(1), int64(1), int64(1), int64(0), value}},
		row{state: writable})
	_, err := sqlkit.NewReader(f, &sqlkit.Statements{}, sqlkit.NewTurns(4), sqlkit.NewTurns(4)).Page(
		t.Context(), contract.PageQuery{Limit: 10})
	if err == nil || contract.ClassOf(err) != contract.Unavailable ||
		err.Error() != "cannot list keys: enough was read before the row with the state came" {
		t.Errorf("the error is %v", err)
	}
}

// TestExpired: the next expiry is told, by rows in any order.
func TestExpired(t *testing.T) {
	at := func(key string, expiry int64) row { return row{columns: []any{key, int64(1), expiry}} }
	rows := []row{{state: writable}, at("later", 4000), at("b", 1000), at("a", 10)}
	for _, test := range []struct {
		limit int
		keys  string
		next  time.Duration
		rows  []row
	}{
		{5, "a b ", 3 * time.Millisecond, rows},
		{1, "a ", time.Microsecond, rows}, // one that has expired is left
		{5, "", 0, rows[:1]},
		{5, "a b ", 0, []row{rows[0], rows[2], rows[3]}},
	} {
		expired, next, err := sqlkit.NewReader(answers(test.rows...), &sqlkit.Statements{},
			sqlkit.NewTurns(4), sqlkit.NewTurns(4)).Expired(t.Context(), test.limit)
		keys := ""
		for _, e := range expired {
			keys += string(e.Key) + " "
		}
		if err != nil || keys != test.keys || next != test.next {
			t.Errorf("limit %d: %q, %v, %v", test.limit, keys, next, err)
		}
	}
}

// TestSweepable: the row without a revision has the aborted tokens, and the others are put in
// order.
func TestSweepable(t *testing.T) {
	for _, aborted := range []any{int64(7), nil} {
		f := answers(
			row{state: writable, columns: []any{int64(0), aborted, int64(0)}},
			row{columns: []any{int64(5), int64(3), int64(0)}},
			row{columns: []any{int64(4), int64(0), int64(1)}},
		)
		got, err := sqlkit.NewReader(f, &sqlkit.Statements{},
			sqlkit.NewTurns(1), sqlkit.NewTurns(4)).Sweepable(t.Context(), 10)
		want := []contract.SweepRow{{ID: 4, Deleted: true}, {ID: 5, Prev: 3}}
		n, _ := aborted.(int64)
		if err != nil || !slices.Equal(got.Rows, want) || got.Aborted != contract.Revision(n) ||
			got.State != *writable {
			t.Errorf("got %+v, %v, want %v and %v", got, err, want, aborted)
		}
	}
}

// TestDamage: every database reports damage in the same places, and in the same words.
func TestDamage(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		b := open(t, db)
		st, err := b.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		g := &contract.Group{Token: contract.Token{1}, Seen: st.Head, Mutations: []*contract.Mutation{
			{Key: "a", Value: []byte("1")}, {Key: "b", Value: []byte("2")},
			{Key: "c", Value: []byte("3"), TTL: time.Hour},
		}}
		res, err := b.Commit(t.Context(), g)
		if err != nil {
			t.Fatal(err)
		}
		lost := res.Outcomes[1].Revision
		exec(t, db, fmt.Sprintf("DELETE FROM rowkeeper_log WHERE revision = %d", lost))
		page := func(q contract.PageQuery) func() error {
			q.Start, q.End, q.Limit = "a", "z", 10
			return func() error { _, err := b.Page(t.Context(), q); return err }
		}
		want := contract.LostValue("b", lost)
		for name, ask := range map[string]func() error{
			"get":             func() error { _, _, err := b.Get(t.Context(), "b"); return err },
			"page":            page(contract.PageQuery{}),
			"page of the day": page(contract.PageQuery{At: res.State.Head.Revision}),
		} {
			same(t, name, ask(), want)
		}
		// Reads that do not need the value are answered.
		if err := page(contract.PageQuery{KeysOnly: true})(); err != nil {
			t.Error(err)
		}
		if n, _, err := b.Count(t.Context(), "a", "z", 0, 0); n != 3 || err != nil {
			t.Errorf("%d keys, %v", n, err)
		}

		exec(t, db, "DELETE FROM rowkeeper_store")
		reads := map[string]func() error{
			"state": func() error { _, err := b.State(t.Context()); return err },
			"tail": func() error {
				_, err := b.Tail(t.Context(), 1, 10, contract.PrevOfAll)
				return err
			},
			"get":    func() error { _, _, err := b.Get(t.Context(), "a"); return err },
			"no key": func() error { _, _, err := b.Get(t.Context(), "x"); return err },
			"keys":   page(contract.PageQuery{KeysOnly: true}),
			"replaced": func() error {
				_, _, err := b.Replaced(t.Context(),
					contract.ReplacedQuery{Start: "a", End: "z", Upto: 9})
				return err
			},
			"values": func() error {
				_, _, err := b.Values(t.Context(), []contract.Revision{2})
				return err
			},
			"count": func() error {
				_, _, err := b.Count(t.Context(), "a", "z", 0, 0)
				return err
			},
			"count up to": func() error {
				_, _, err := b.Count(t.Context(), "a", "z", 0, 5)
				return err
			},
			"expired":  func() error { _, _, err := b.Expired(t.Context(), 1); return err },
			"first at": func() error { _, err := b.FirstAt(t.Context(), 1); return err },
			"size":     func() error { _, err := b.Size(t.Context()); return err },
		}
		if k, ok := b.(contract.KeysReader); ok {
			reads["get keys"] = func() error {
				_, _, err := k.GetKeys(t.Context(), []contract.Key{"a"})
				return err
			}
		}
		for name, ask := range reads {
			same(t, name, ask(), contract.ErrEmptyStore)
		}
	})
}

func same(t *testing.T, name string, got error, want *contract.Error) {
	t.Helper()
	if got == nil || got.Error() != want.Error() || contract.ClassOf(got) != contract.Invalid {
		t.Errorf("%s: the error is %v, want %v", name, got, want)
	}
}

func open(t *testing.T, db dbtest.DB) contract.Backend {
	t.Helper()
	opts := contract.DriverOptions{Logger: slog.New(slog.DiscardHandler), Timeout: 30 * time.Second}
	if _, err := db.Driver.Migrate(t.Context(), db.URL, opts); err != nil {
		t.Fatal(err)
	}
	b, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// exec runs a statement beside the driver.
func exec(t *testing.T, db dbtest.DB, statement string) {
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
	defer d.Close()
	if _, err := d.Exec(statement); err != nil {
		t.Fatal(err)
	}
}
