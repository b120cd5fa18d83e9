package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// How many connections each kind of work has besides those of reads, so that none takes those of another: commits (with resolution,
// compaction and sweep), the head, the tail, identity and fences.
const (
	commitConns = 3
	headConns   = 2
	tailConns   = 3
	adminConns  = 1
)

type backend struct {
	server  *server
	log     *slog.Logger
	timeout time.Duration
	limits  mvcc.Limits
	// galera: the commit lock of one node is not one of the others; see takeTurn.
	galera bool

	commits, heads, tails, reads *sql.DB
	// admin accepts a server with another fingerprint: Identity and Fence are how this process moves to it.
	admin *sql.DB

	// onSweep, if not nil, is called by a sweep that has read what it will delete. For tests.
	onSweep func()
}

// newBackend makes the pools. Nothing connects yet.
func newBackend(s *server, timeout time.Duration) *backend {
	return &backend{
		server:  s,
		log:     s.log,
		timeout: timeout,
		commits: s.pool(connector{server: s, transactions: true}, commitConns),
		heads:   s.pool(connector{server: s}, headConns),
		tails:   s.pool(connector{server: s}, tailConns),
		reads:   s.pool(connector{server: s}, s.cfg.readConns),
		admin:   s.pool(connector{server: s, transactions: true, anyServer: true}, adminConns),
	}
}

func (s *server) pool(c connector, size int) *sql.DB {
	db := sql.OpenDB(&c)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	if c.anyServer {
		db.SetMaxIdleConns(-1) // each use finds out anew what the server is
	}
	db.SetConnMaxLifetime(s.cfg.connLifetime)
	db.SetConnMaxIdleTime(s.cfg.connIdleTime)
	return db
}

func (b *backend) Limits() mvcc.Limits { return b.limits }

func (b *backend) Close() error {
	var errs []error
	for _, db := range []*sql.DB{b.commits, b.heads, b.tails, b.reads, b.admin} {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// Pools implements mvcc.Pooled.
func (b *backend) Pools() []mvcc.Pool {
	pools := []mvcc.Pool{}
	for _, p := range []struct {
		name string
		db   *sql.DB
	}{{"commit", b.commits}, {"head", b.heads}, {"tail", b.tails}, {"read", b.reads}} {
		s := p.db.Stats()
		pools = append(pools, mvcc.Pool{Name: p.name, InUse: s.InUse, Idle: s.Idle, Max: s.MaxOpenConnections})
	}
	return pools
}

// stateColumns is how many columns the state has.
const stateColumns = 7

// tokenColumn receives a token. NULL leaves it as it is.
type tokenColumn mvcc.Token

func (t *tokenColumn) Scan(v any) error {
	if v == nil {
		return nil
	}
	if b, ok := v.([]byte); !ok || copy(t[:], b) != len(t) {
		return fmt.Errorf("a token is %T %v", v, v)
	}
	return nil
}

// numberColumn receives a number. NULL is 0.
type numberColumn int64

func (n *numberColumn) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*n = 0
	case int64:
		*n = numberColumn(v)
	default:
		return fmt.Errorf("a number is %T %v", v, v)
	}
	return nil
}

// stateRow receives a state. All are NULL in a row that is none.
type stateRow struct {
	epoch, head, compacted, swept, now int64
	token                              mvcc.Token
	readOnly                           sql.RawBytes
	found                              bool
}

func (s *stateRow) columns() []any {
	return []any{(*numberColumn)(&s.epoch), (*numberColumn)(&s.head), (*tokenColumn)(&s.token), (*numberColumn)(&s.compacted),
		(*numberColumn)(&s.swept), &s.readOnly, (*numberColumn)(&s.now)}
}

// state returns what was received. It is called before the next row is read.
func (s *stateRow) state() mvcc.State {
	s.found = s.head > 0
	return mvcc.State{
		Head:      mvcc.Position{Epoch: mvcc.Epoch(s.epoch), Revision: mvcc.Revision(s.head), Token: s.token},
		Compacted: mvcc.Revision(s.compacted),
		Swept:     mvcc.Revision(s.swept),
		// MySQL says 0, newer MariaDBs say OFF; both know degrees of read-only besides.
		Writable: string(s.readOnly) == "0" || strings.EqualFold(string(s.readOnly), "OFF"),
		Now:      time.UnixMicro(s.now),
	}
}

func damaged(format string, args ...any) error {
	return mvcc.Errorf(mvcc.Invalid, "the store is damaged, restore it from a backup: "+format, args...)
}

var errNoState = damaged("it has no store row or an empty log")

// discard receives a column that is not wanted.
type discard struct{}

func (discard) Scan(any) error { return nil }

func discards(n int) []any {
	d := make([]any, n)
	for i := range d {
		d[i] = discard{}
	}
	return d
}

// one runs a read that returns one row, with the state and what is in more.
func (b *backend) one(ctx context.Context, db *sql.DB, what, query string, args []any, more ...any) (mvcc.State, error) {
	var st mvcc.State
	err := b.each(ctx, db, what, query, args, func(rows *sql.Rows) error {
		var s stateRow
		if err := rows.Scan(append(s.columns(), more...)...); err != nil {
			return err
		}
		st = s.state()
		return nil
	})
	if err == nil && st.Head.Revision == 0 {
		err = errNoState
	}
	return st, err
}

// many runs a read whose first row is the state. columns receive those of the other rows, for each of which row is called.
func (b *backend) many(ctx context.Context, db *sql.DB, what, query string, args, columns []any, row func() error) (mvcc.State, error) {
	m := newManyRows(columns, row)
	if err := b.each(ctx, db, what, query, args, m.scan); err != nil {
		return m.state, err
	}
	return m.state, m.complete()
}

// manyRows receives a state, then rows.
type manyRows struct {
	first, rest []any
	row         func() error
	s           stateRow
	state       mvcc.State
}

func newManyRows(columns []any, row func() error) *manyRows {
	m := &manyRows{row: row}
	m.first = append(m.s.columns(), discards(len(columns))...)
	m.rest = append(discards(stateColumns), columns...)
	return m
}

func (m *manyRows) scan(rows *sql.Rows) error {
	if !m.s.found {
		if err := rows.Scan(m.first...); err != nil {
			return err
		}
		m.state = m.s.state()
		return m.complete()
	}
	if err := rows.Scan(m.rest...); err != nil {
		return err
	}
	return m.row()
}

func (m *manyRows) complete() error {
	if !m.s.found {
		return errNoState
	}
	return nil
}

// each runs a read and calls f for each row. database/sql tries again by itself only when the driver says that nothing was sent.
func (b *backend) each(ctx context.Context, db *sql.DB, what, query string, args []any, f func(*sql.Rows) error) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return b.failed(what, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return b.failed(what, err)
		}
	}
	if err := rows.Err(); err != nil {
		return b.failed(what, err)
	}
	return nil
}

func (b *backend) State(ctx context.Context) (mvcc.State, error) {
	st, err := b.one(ctx, b.heads, "read the state", selectState, nil)
	if err == nil && !st.Writable {
		b.server.suspect()
	}
	return st, err
}

// logRow receives a row of the log.
type logRow struct {
	revision, prev, create, time int64
	key                          sql.RawBytes
	token                        mvcc.Token
	deleted                      bool
	value                        []byte
}

func (r *logRow) columns() []any {
	return []any{&r.revision, &r.key, &r.prev, &r.create, (*tokenColumn)(&r.token), &r.time, &r.deleted, &r.value}
}

func (r *logRow) row() mvcc.Row {
	return mvcc.Row{
		Key:      mvcc.Key(r.key),
		Revision: mvcc.Revision(r.revision),
		Prev:     mvcc.Revision(r.prev),
		Create:   mvcc.Revision(r.create),
		Token:    r.token,
		Time:     time.UnixMicro(r.time),
		Deleted:  r.deleted,
		Value:    r.value,
	}
}

func (b *backend) Tail(ctx context.Context, from mvcc.Revision, limit int, prev mvcc.Prev) (*mvcc.Tail, error) {
	var (
		r         logRow
		hasPrev   bool
		prevValue []byte
		t         mvcc.Tail
		err       error
	)
	t.State, err = b.many(ctx, b.tails, "read the log", selectTail, []any{prev == mvcc.PrevOfAll, int64(from), limit},
		append(r.columns(), &hasPrev, &prevValue), func() error {
			row := r.row()
			row.HasPrev, row.PrevValue = hasPrev, prevValue
			t.Rows = append(t.Rows, row)
			return nil
		})
	if err != nil {
		return nil, err
	}
	inOrder(t.Rows, func(a, b mvcc.Row) int { return cmp.Compare(a.Revision, b.Revision) })
	return &t, nil
}

// inOrder sorts what came in the order of an index: SQL promises no order of a UNION.
func inOrder(rows []mvcc.Row, order func(a, b mvcc.Row) int) {
	if !slices.IsSortedFunc(rows, order) {
		slices.SortFunc(rows, order)
	}
}

func (b *backend) Get(ctx context.Context, key mvcc.Key) (*mvcc.Row, mvcc.State, error) {
	var (
		live, prev, create, written sql.NullInt64
		token                       mvcc.Token
		deleted                     sql.NullBool
		row                         = &mvcc.Row{Key: key}
	)
	st, err := b.one(ctx, b.reads, "read a key", selectKey, []any{[]byte(key)},
		&live, discard{}, &prev, &create, (*tokenColumn)(&token), &written, &deleted, &row.Value)
	if err != nil || !live.Valid {
		return nil, st, err
	}
	if !prev.Valid {
		return nil, st, damaged("the log has no row %d, at which the key %q is", live.Int64, string(key))
	}
	row.Revision, row.Prev, row.Create = mvcc.Revision(live.Int64), mvcc.Revision(prev.Int64), mvcc.Revision(create.Int64)
	row.Time, row.Token, row.Deleted = time.UnixMicro(written.Int64), token, deleted.Bool
	return row, st, nil
}

func (b *backend) GetKeys(ctx context.Context, keys []mvcc.Key) ([]mvcc.Row, mvcc.State, error) {
	var (
		key              sql.RawBytes
		revision, create int64
		value            []byte
		found            = make([]mvcc.Row, 0, len(keys))
	)
	st, err := b.many(ctx, b.reads, "read keys", fmt.Sprintf(selectKeys, keyList(keys)), nil, []any{&key, &revision, &create, &value}, func() error {
		found = append(found, mvcc.Row{Key: mvcc.Key(key), Revision: mvcc.Revision(revision), Create: mvcc.Revision(create), Value: value})
		return nil
	})
	return found, st, err
}

// revisionOrMax is the argument for "revision <= ?", where 0 stands for no bound.
func revisionOrMax(r mvcc.Revision) int64 {
	if r == 0 {
		return math.MaxInt64
	}
	return int64(r)
}

func (b *backend) Page(ctx context.Context, q mvcc.PageQuery) (*mvcc.Page, error) {
	var (
		key              sql.RawBytes
		revision, create int64
		value            []byte
		p                mvcc.Page
		err              error
	)
	query, columns := selectPage, []any{&key, &revision, &create, &value}
	if q.KeysOnly {
		query, columns = selectPageKeys, columns[:3]
	}
	args := []any{[]byte(q.Start), []byte(q.End), revisionOrMax(q.At), q.Limit}
	p.State, err = b.many(ctx, b.reads, "list keys", query, args, columns, func() error {
		if value == nil && !q.KeysOnly {
			return damaged("the log has no value at %d, at which the key %q is", revision, string(key))
		}
		p.Rows = append(p.Rows, mvcc.Row{Key: mvcc.Key(key), Revision: mvcc.Revision(revision), Create: mvcc.Revision(create), Value: value})
		return nil
	})
	if err != nil {
		return nil, err
	}
	inOrder(p.Rows, func(a, b mvcc.Row) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return &p, nil
}

func (b *backend) Replaced(ctx context.Context, q mvcc.ReplacedQuery) ([]mvcc.Replaced, mvcc.State, error) {
	var (
		key      sql.RawBytes
		prev     int64
		replaced []mvcc.Replaced
	)
	st, err := b.many(ctx, b.reads, "read what was replaced", selectReplaced,
		[]any{int64(q.After), int64(q.Upto), int64(q.At), []byte(q.Start), []byte(q.End)}, []any{&key, &prev}, func() error {
			replaced = append(replaced, mvcc.Replaced{Key: mvcc.Key(key), Revision: mvcc.Revision(prev)})
			return nil
		})
	return replaced, st, err
}

func (b *backend) Values(ctx context.Context, revisions []mvcc.Revision) ([]mvcc.Row, mvcc.State, error) {
	var (
		key              sql.RawBytes
		revision, create int64
		value            []byte
		found            []mvcc.Row
	)
	query, columns := fmt.Sprintf(selectValues, revisionList(revisions)), []any{&key, &revision, &create, &value}
	st, err := b.many(ctx, b.reads, "read values", query, nil, columns, func() error {
		found = append(found, mvcc.Row{Key: mvcc.Key(key), Revision: mvcc.Revision(revision), Create: mvcc.Revision(create), Value: value})
		return nil
	})
	return found, st, err
}

func (b *backend) Count(ctx context.Context, start, end mvcc.Key, at mvcc.Revision, limit int64) (int64, mvcc.State, error) {
	var n int64
	query, args := selectCount, []any{[]byte(start), []byte(end), revisionOrMax(at)}
	if limit > 0 {
		query, args = selectCountUpTo, append(args, limit)
	}
	st, err := b.one(ctx, b.reads, "count keys", query, args, &n)
	return n, st, err
}

func (b *backend) Expired(ctx context.Context, limit int) ([]mvcc.Expired, time.Duration, error) {
	var (
		expired []mvcc.Expired
		next    time.Duration
	)
	// One more than the limit tells when the next one expires.
	err := b.each(ctx, b.reads, "read expired keys", selectExpiring, []any{limit + 1}, func(rows *sql.Rows) error {
		var (
			key                   sql.RawBytes
			revision, expiry, now int64
		)
		if err := rows.Scan(&key, &revision, &expiry, &now); err != nil {
			return err
		}
		switch {
		case expiry <= now && len(expired) < limit:
			expired = append(expired, mvcc.Expired{Key: mvcc.Key(key), Revision: mvcc.Revision(revision)})
		case next == 0:
			next = max(time.Duration(expiry-now)*time.Microsecond, time.Microsecond)
		}
		return nil
	})
	return expired, next, err
}

func (b *backend) FirstAt(ctx context.Context, revision mvcc.Revision) (*mvcc.Row, error) {
	var row *mvcc.Row
	err := b.each(ctx, b.reads, "read the log", selectFirstAt, []any{int64(revision)}, func(rows *sql.Rows) error {
		var found, written int64
		if err := rows.Scan(&found, &written); err != nil {
			return err
		}
		row = &mvcc.Row{Revision: mvcc.Revision(found), Time: time.UnixMicro(written)}
		return nil
	})
	return row, err
}

func (b *backend) Size(ctx context.Context) (mvcc.Size, error) {
	var s mvcc.Size
	err := b.each(ctx, b.reads, "read the sizes of the tables", selectSize, nil, func(rows *sql.Rows) error {
		return rows.Scan(&s.Total, &s.Live)
	})
	return s, err
}
