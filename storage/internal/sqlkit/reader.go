package sqlkit

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Reader implements the reads of [contract.Backend].
type Reader struct {
	db Runner
	// reads has the turns of the classes Single and List, and tails those of the class Tail.
	reads, tails *line
	// member, if the store is one, hears of a server that is read-only, or refuses the user.
	member interface{ leave() }

	state, tail, parts, get, getKeys, page, pageKeys, replaced, values Read
	chain, changes, users                                              Read
	count, countUpTo, expired, firstAt, sweep, size                    Read
	leases, lapsing, attached, stateForKeys                            Read
	attachedTo, countLeases                                            Read
	usage, growth, quota, home, everywhere, indexes                    Read
	indexRows, indexRowsBack                                           Read
	pageOf, countOf, replacedOf                                        func(n int) string
}

// NewReader makes a Reader, of which reads bounds the classes Single and List, and tails the class
// Tail.
func NewReader(db Runner, s *Statements, reads, tails *Turns) *Reader {
	member, _ := db.(interface{ leave() })
	return &Reader{
		member:   member,
		db:       db,
		reads:    reads.line(),
		tails:    tails.line(),
		state:    Read{What: "read the state", Class: Head, SQL: s.State, OneRow: true},
		tail:     Read{What: "read the log", Class: Tail, SQL: s.Tail, Columns: 13},
		parts:    Read{What: "read the log", Class: Tail, SQL: s.Parts, Columns: 13},
		get:      Read{What: "read a key", Class: Single, SQL: s.Get, Columns: 8, OneRow: true},
		getKeys:  Read{What: "read keys", Class: Single, SQL: s.GetKeys, Columns: 6},
		page:     Read{What: "list keys", Class: List, SQL: s.Page, Columns: 6},
		pageKeys: Read{What: "list keys", Class: List, SQL: s.PageKeys, Columns: 5},
		replaced: Read{What: "read what was replaced", Class: List, SQL: s.Replaced, Columns: 2},
		values:   Read{What: "read values", Class: List, SQL: s.Values, Columns: 6},
		chain:    Read{What: "read the history of a key", Class: List, SQL: s.Chain, Columns: 7},
		changes:  Read{What: "read what was changed", Class: List, SQL: s.Changes, Columns: 7},
		users:    Read{What: "read the users of a history", Class: List, SQL: s.Users, Columns: 3},
		count:    Read{What: "count keys", Class: List, SQL: s.Count, Columns: 1, OneRow: true},
		stateForKeys: Read{What: "read keys", Class: Single, SQL: s.State,
			OneRow: true},
		countUpTo: Read{What: "count keys", Class: List, SQL: s.CountUpTo, Columns: 1,
			OneRow: true},
		expired:  Read{What: "read expired keys", Class: Maintenance, SQL: s.Expired, Columns: 3},
		leases:   Read{What: "read leases", Class: List, SQL: s.Leases, Columns: 3},
		lapsing:  Read{What: "read leases", Class: Maintenance, SQL: s.Lapsing, Columns: 3},
		attached: Read{What: "read the keys of a lease", Class: List, SQL: s.Attached, Columns: 2},
		attachedTo: Read{What: "read the keys of leases", Class: Maintenance, SQL: s.AttachedTo,
			Columns: 3},
		countLeases: Read{What: "count the leases", Class: Maintenance, SQL: s.CountLeases,
			Columns: 1, OneRow: true},
		firstAt: Read{What: "read the log", Class: Maintenance, SQL: s.FirstAt, Columns: 2},
		sweep: Read{What: "read what can be swept", Class: Maintenance, SQL: s.Sweep,
			Columns: 3},
		size: Read{What: "read the sizes of the tables", Class: Maintenance, SQL: s.Size,
			Columns: 2, OneRow: true},
		usage: Read{What: "measure the objects", Class: Maintenance, SQL: s.Usage, Columns: 2,
			OneRow: true},
		growth: Read{What: "measure what was written", Class: Maintenance, SQL: s.Growth, Columns: 4,
			OneRow: true},
		quota: Read{What: "read the quota", Class: Maintenance, SQL: s.Quota, Columns: 3,
			OneRow: true},
		home: Read{What: "read where the store has come from", Class: Maintenance, SQL: s.Home,
			Columns: 1, OneRow: true},
		everywhere: Read{What: "read a key of all stores", Class: List, SQL: s.Everywhere,
			Columns: 3},
		indexes: Read{What: "read the indexes", Class: Maintenance, SQL: s.Indexes, Columns: 2,
			OneRow: true},
		indexRows:     Read{What: "read an index", Class: List, SQL: s.IndexRows, Columns: 3},
		indexRowsBack: Read{What: "read an index", Class: List, SQL: s.IndexRowsBack, Columns: 3},
		pageOf:        s.PageOf,
		countOf:       s.CountOf,
		replacedOf:    s.ReplacedOf,
	}
}

// errEnough ends a read whose values have reached [contract.ReadBytes]: to read the rest would take
// as long as to use it.
var errEnough = errors.New("enough was read")

// result is what the rows of a read have brought so far.
type result struct {
	state contract.State
	found bool
	err   error
}

// line is where the reads of a class have their turns, nil if they have none.
func (r *Reader) line(c Class) *line {
	switch c {
	case Single, List:
		return r.reads
	case Tail:
		return r.tails
	}
	return nil
}

// query runs a read. It calls each for every row that has more than the state, until each returns
// an error.
func (r *Reader) query(ctx context.Context, q *Read, each func(Cursor) error,
	args ...any) (contract.State, error) {
	if l := r.line(q.Class); l != nil {
		if err := l.begin(ctx, q.Class); err != nil {
			return contract.State{}, contract.Errorf(contract.Unavailable,
				"cannot %s: other reads were not done in time: %w", q.What, err)
		}
		defer l.end(q.Class)
	}
	res := &result{}
	err := r.db.Query(ctx, q, func(c Cursor) bool {
		if c.State(&res.state) {
			res.found = true
		}
		if each != nil && c.More() {
			res.err = each(c)
		}
		return res.err == nil
	}, args...)
	if r.member != nil && (useless(err) || res.found && !res.state.Writable) {
		r.member.leave()
	}
	switch {
	case err != nil:
		return res.state, err
	case res.err != nil && !errors.Is(res.err, errEnough):
		return res.state, res.err
	case !res.found && res.err != nil:
		return res.state, contract.Errorf(contract.Unavailable,
			"cannot %s: %w before the row with the state came", q.What, res.err)
	case !res.found:
		return res.state, contract.ErrEmptyStore
	}
	return res.state, nil
}

// maintain is query for a caller that does not get the state: it refuses a server whose answers may
// be late.
func (r *Reader) maintain(ctx context.Context, q *Read, each func(Cursor) error,
	args ...any) (contract.State, error) {
	st, err := r.query(ctx, q, each, args...)
	if err == nil && !st.Writable {
		err = contract.Errorf(contract.ReadOnly, "cannot %s: the server is read-only: a standby, or set so",
			q.What)
	}
	return st, err
}

// bound counts the bytes of a read's values.
type bound int

// add returns errEnough when the bound is reached.
func (b *bound) add(bytes int) error {
	if *b += bound(bytes); b.reached() {
		return errEnough
	}
	return nil
}

func (b *bound) reached() bool { return *b >= contract.ReadBytes }

// inOrder sorts what came in the order of an index: SQL promises no order of a UNION.
func inOrder[T any](rows []T, order func(a, b *T) int) {
	for i := 1; i < len(rows); i++ {
		if order(&rows[i-1], &rows[i]) > 0 {
			slices.SortFunc(rows, func(a, b T) int { return order(&a, &b) })
			return
		}
	}
}

// at returns the bounds of the IDs of rows for a snapshot; 0 stands for none.
func at(r contract.Revision) (low, high int64) {
	if r == 0 {
		r = math.MaxInt64
	}
	return int64(contract.Lowest(r)), int64(r)
}

func revision(c Cursor, column int) contract.Revision { return contract.Revision(c.Int(column)) }

// place sets where a row is, of which a column has the ID.
func place(r *contract.Row, c Cursor, column int) {
	id := contract.RowID(c.Int(column))
	r.Revision, r.Part = id.Revision(), id.Part()
}

func lease(c Cursor, column int) contract.Lease { return contract.Lease(c.Int(column)) }

// keyRow reads the columns that come first where a read returns keys.
func keyRow(c Cursor) contract.Row {
	r := contract.Row{Key: c.Key(0), Create: revision(c, 2), Version: c.Int(3), Lease: lease(c, 4)}
	place(&r, c, 1)
	return r
}

// expired reads the first columns of a key that expires, or is attached to a lease.
func expired(c Cursor, l contract.Lease) contract.Expired {
	id := contract.RowID(c.Int(1))
	return contract.Expired{Key: c.Key(0), Revision: id.Revision(), Part: id.Part(), Lease: l}
}

// leaseRow reads the columns where a read returns leases.
func leaseRow(c Cursor) contract.LeaseRow {
	return contract.LeaseRow{Lease: lease(c, 0), TTL: c.Int(1), Expiry: c.Int(2)}
}

func moment(c Cursor, column int) time.Time { return time.UnixMicro(c.Int(column)) }

// State implements [contract.Backend].
func (r *Reader) State(ctx context.Context) (contract.State, error) {
	return r.query(ctx, &r.state, nil)
}

// Tail implements [contract.Backend].
func (r *Reader) Tail(ctx context.Context, from contract.Revision, limit int,
	prev contract.Prev) (*contract.Tail, error) {
	t, err := r.logged(ctx, &r.tail, prev == contract.PrevOfAll, int64(from), int64(limit))
	if err == nil {
		inOrder(t.Rows, func(a, b *contract.Row) int { return cmp.Compare(a.Revision, b.Revision) })
	}
	return t, err
}

// Parts implements [contract.Backend].
func (r *Reader) Parts(ctx context.Context, below contract.RowID, upto contract.Revision, limit int,
	prev contract.Prev) (*contract.Tail, error) {
	values := prev != contract.NoValues
	t, err := r.logged(ctx, &r.parts, values, values, prev == contract.PrevOfAll, int64(below),
		int64(contract.Lowest(upto)), int64(limit))
	if err == nil {
		inOrder(t.Rows, func(a, b *contract.Row) int { return cmp.Compare(b.ID(), a.ID()) })
	}
	return t, err
}

// logged reads rows of the log.
func (r *Reader) logged(ctx context.Context, q *Read, args ...any) (*contract.Tail, error) {
	var (
		t     contract.Tail
		bytes bound
		err   error
	)
	t.State, err = r.query(ctx, q, func(c Cursor) error {
		row := contract.Row{
			Key: c.Key(1), Prev: revision(c, 2), Create: revision(c, 3),
			Version: c.Int(4), Lease: lease(c, 5), Token: c.Token(6), Time: moment(c, 7),
			Deleted: c.Bool(8), Value: c.Value(9), HasPrev: c.Bool(10),
		}
		place(&row, c, 0)
		if row.HasPrev {
			row.PrevLease, row.PrevValue = lease(c, 11), c.Value(12)
		}
		t.Rows = append(t.Rows, row)
		return bytes.add(len(row.Value) + len(row.PrevValue))
	}, args...)
	if err != nil {
		return nil, err
	}
	t.More = bytes.reached()
	return &t, nil
}

// Get implements [contract.Backend].
func (r *Reader) Get(ctx context.Context, key contract.Key) (*contract.Row, contract.State, error) {
	var found *contract.Row
	st, err := r.query(ctx, &r.get, func(c Cursor) error {
		value := c.Value(7)
		if value == nil {
			return contract.LostValue(key, revision(c, 0).Revision())
		}
		found = &contract.Row{
			Key: key, Create: revision(c, 1), Version: c.Int(2),
			Lease: lease(c, 3), Prev: revision(c, 4), Token: c.Token(5), Time: moment(c, 6),
			Value: value,
		}
		place(found, c, 0)
		return nil
	}, key)
	return found, st, err
}

// Page implements [contract.Backend].
func (r *Reader) Page(ctx context.Context, q contract.PageQuery) (*contract.Page, error) {
	var (
		p     contract.Page
		bytes bound
		err   error
	)
	low, high := at(q.At)
	read, args := &r.page, []any{q.Start, q.End, low, high, int64(q.Limit)}
	switch {
	case len(q.Entries) > 0:
		read = &Read{What: "list keys by an index", Class: List, SQL: r.pageOf(len(q.Entries)),
			Columns: 6}
		args = append(args, q.Entries)
	case q.KeysOnly:
		read = &r.pageKeys
	}
	p.State, err = r.query(ctx, read, func(c Cursor) error {
		row := keyRow(c)
		if row.Key == "" {
			p.Generation = c.Int(1)
			return nil
		}
		if read != &r.pageKeys {
			if row.Value = c.Value(5); row.Value == nil {
				return contract.LostValue(row.Key, row.Revision)
			}
		}
		p.Rows = append(p.Rows, row)
		return bytes.add(len(row.Value))
	}, args...)
	if err != nil {
		return nil, err
	}
	p.More = bytes.reached()
	inOrder(p.Rows, func(a, b *contract.Row) int {
		return strings.Compare(string(a.Key), string(b.Key))
	})
	return &p, nil
}

// Replaced implements [contract.Backend].
func (r *Reader) Replaced(ctx context.Context,
	q contract.ReplacedQuery) (replaced []contract.Replaced, st contract.State, err error) {
	read := &r.replaced
	args := []any{int64(q.After), int64(q.Upto), int64(contract.Lowest(q.After)),
		int64(contract.Lowest(q.Upto)), int64(contract.Lowest(q.At)), int64(q.At), q.Start, q.End}
	if len(q.Entries) > 0 {
		read = &Read{What: "read what was replaced", Class: List, SQL: r.replacedOf(len(q.Entries)),
			Columns: 2}
		args = append(args, int64(contract.Lowest(q.Known)), int64(q.Known), Packed(q.Entries))
	}
	st, err = r.query(ctx, read, func(c Cursor) error {
		replaced = append(replaced, contract.Replaced{Key: c.Key(0), ID: revision(c, 1)})
		return nil
	}, args...)
	return replaced, st, err
}

// Packed are entries that are looked for among those that the log has of a key. A database without
// arrays has all of them in one value, each as [contract.PackEntries] writes it.
type Packed []contract.Entry

// Values implements [contract.Backend].
func (r *Reader) Values(ctx context.Context,
	ids []contract.RowID) (found []contract.Row, st contract.State, err error) {
	var bytes bound
	st, err = r.query(ctx, &r.values, func(c Cursor) error {
		row := keyRow(c)
		row.Value = c.Value(5)
		found = append(found, row)
		return bytes.add(len(row.Value))
	}, ids)
	return found, st, err
}

// Chain implements [contract.Backend]. The revisions of a key's rows rise with its versions.
func (r *Reader) Chain(ctx context.Context, key contract.Key, id contract.RowID,
	limit int) ([]contract.Row, contract.State, error) {
	return r.past(ctx, &r.chain, int64(id), key, int64(limit))
}

// Changes implements [contract.Backend].
func (r *Reader) Changes(ctx context.Context, q contract.ChangesQuery) ([]contract.Row,
	contract.State, error) {
	return r.past(ctx, &r.changes, int64(q.After), int64(q.Upto), int64(contract.Lowest(q.After)),
		int64(contract.Lowest(q.Upto)), q.Start, q.End)
}

// past reads rows of the log without values, and returns them from the newest on.
func (r *Reader) past(ctx context.Context, q *Read, args ...any) (rows []contract.Row,
	st contract.State, err error) {
	st, err = r.query(ctx, q, func(c Cursor) error {
		row := contract.Row{Key: c.Key(1), Prev: revision(c, 2), Create: revision(c, 3),
			Version: c.Int(4), Time: moment(c, 5), Deleted: c.Bool(6)}
		place(&row, c, 0)
		rows = append(rows, row)
		return nil
	}, args...)
	inOrder(rows, contract.NewestFirst)
	return rows, st, err
}

// Users implements [contract.Backend].
func (r *Reader) Users(ctx context.Context, ids []contract.RowID) (found []contract.UserRow,
	st contract.State, err error) {
	st, err = r.query(ctx, &r.users, func(c Cursor) error {
		found = append(found, contract.UserRow{ID: revision(c, 0),
			User: contract.User{Name: string(c.Value(1)), AuditID: string(c.Value(2))}})
		return nil
	}, ids)
	return found, st, err
}

// Count implements [contract.Backend].
func (r *Reader) Count(ctx context.Context, start, end contract.Key, upto contract.Revision,
	limit int64) (n int64, st contract.State, err error) {
	low, high := at(upto)
	read, args := &r.count, []any{start, end, low, high}
	if limit > 0 {
		read, args = &r.countUpTo, append(args, limit)
	}
	st, err = r.query(ctx, read, func(c Cursor) error {
		n = c.Int(0)
		return nil
	}, args...)
	return n, st, err
}

// CountEntries implements [contract.Backend].
func (r *Reader) CountEntries(ctx context.Context, entries []contract.Entry, start,
	end contract.Key, limit int64) (n int64, st contract.State, err error) {
	read := &Read{What: "count keys by an index", Class: List, SQL: r.countOf(len(entries)),
		Columns: 1, OneRow: true}
	st, err = r.query(ctx, read, func(c Cursor) error {
		n = c.Int(0)
		return nil
	}, start, end, limit, entries)
	return n, st, err
}

// IndexRows implements [contract.Backend].
func (r *Reader) IndexRows(ctx context.Context, q contract.IndexWalk) (*contract.IndexRows,
	contract.State, error) {
	read, found := &r.indexRows, &contract.IndexRows{}
	if q.Backwards {
		read = &r.indexRowsBack
	}
	entry := contract.Key(q.From.Entry)
	st, err := r.query(ctx, read, func(c Cursor) error {
		entry := c.Key(0)
		if entry == "" {
			found.Generation = c.Int(2)
			return nil
		}
		found.Rows = append(found.Rows, contract.IndexRow{Entry: contract.Entry(entry), Key: c.Key(1)})
		return nil
	}, entry, q.From.Key, entry, contract.Key(q.Bound), q.Start, q.End, int64(q.Limit))
	inOrder(found.Rows, func(a, b *contract.IndexRow) int {
		if q.Backwards {
			a, b = b, a
		}
		return a.Compare(*b)
	})
	return found, st, err
}

// Indexes implements [contract.Backend].
func (r *Reader) Indexes(ctx context.Context) (x *contract.Indexes, st contract.State, err error) {
	st, err = r.query(ctx, &r.indexes, func(c Cursor) (err error) {
		x, err = contract.UnmarshalIndexes(c.Int(0), string(c.Value(1)))
		return err
	})
	return x, st, err
}

// Expired implements [contract.Backend]. One row more than the limit tells when the next key
// expires.
func (r *Reader) Expired(ctx context.Context, limit int) ([]contract.Expired, time.Duration, error) {
	type row struct {
		contract.Expired
		expiry int64
	}
	var rows []row
	st, err := r.maintain(ctx, &r.expired, func(c Cursor) error {
		rows = append(rows, row{expired(c, 0), c.Int(2)})
		return nil
	}, int64(limit)+1)
	if err != nil {
		return nil, 0, err
	}
	inOrder(rows, func(a, b *row) int { return cmp.Compare(a.expiry, b.expiry) })
	var due []contract.Expired
	now := st.Now.UnixMicro()
	for _, r := range rows {
		if len(due) == limit || r.expiry > now {
			return due, max(time.Duration(r.expiry-now)*time.Microsecond, time.Microsecond), nil
		}
		due = append(due, r.Expired)
	}
	return due, 0, nil
}

// Leases implements [contract.Backend].
func (r *Reader) Leases(ctx context.Context, from contract.Lease,
	limit int) ([]contract.LeaseRow, contract.State, error) {
	rows, st, err := r.leaseRows(ctx, &r.leases, int64(from), int64(limit))
	inOrder(rows, func(a, b *contract.LeaseRow) int { return cmp.Compare(a.Lease, b.Lease) })
	return rows, st, err
}

// Lapsing implements [contract.Backend].
func (r *Reader) Lapsing(ctx context.Context, from int64,
	limit int) ([]contract.LeaseRow, contract.State, error) {
	rows, st, err := r.leaseRows(ctx, &r.lapsing, from, int64(limit))
	inOrder(rows, func(a, b *contract.LeaseRow) int { return cmp.Compare(a.Expiry, b.Expiry) })
	return rows, st, err
}

func (r *Reader) leaseRows(ctx context.Context, read *Read,
	args ...any) (rows []contract.LeaseRow, st contract.State, err error) {
	st, err = r.query(ctx, read, func(c Cursor) error {
		rows = append(rows, leaseRow(c))
		return nil
	}, args...)
	return rows, st, err
}

// Attached implements [contract.Backend].
func (r *Reader) Attached(ctx context.Context, l contract.Lease, from contract.Key,
	limit int) (keys []contract.Expired, st contract.State, err error) {
	st, err = r.query(ctx, &r.attached, func(c Cursor) error {
		keys = append(keys, expired(c, l))
		return nil
	}, -int64(l), from, int64(limit))
	inOrder(keys, func(a, b *contract.Expired) int {
		return strings.Compare(string(a.Key), string(b.Key))
	})
	return keys, st, err
}

// AttachedTo implements [contract.Backend].
func (r *Reader) AttachedTo(ctx context.Context, leases []contract.Lease,
	limit int) (keys []contract.Expired, st contract.State, err error) {
	expiries := make([]contract.Lease, len(leases))
	for i, l := range leases {
		expiries[i] = -l
	}
	st, err = r.query(ctx, &r.attachedTo, func(c Cursor) error {
		keys = append(keys, expired(c, -lease(c, 2)))
		return nil
	}, expiries, int64(limit))
	return keys, st, err
}

// CountLeases implements [contract.Backend].
func (r *Reader) CountLeases(ctx context.Context) (n int64, st contract.State, err error) {
	st, err = r.query(ctx, &r.countLeases, func(c Cursor) error {
		n = c.Int(0)
		return nil
	})
	return n, st, err
}

// FirstAt implements [contract.Backend].
func (r *Reader) FirstAt(ctx context.Context, from contract.Revision) (first *contract.Row, err error) {
	_, err = r.maintain(ctx, &r.firstAt, func(c Cursor) error {
		first = &contract.Row{Revision: revision(c, 0), Time: moment(c, 1)}
		return nil
	}, int64(from))
	return first, err
}

// Sweepable implements [contract.Backend].
func (r *Reader) Sweepable(ctx context.Context, limit int) (contract.Sweepable, error) {
	return r.SweepableAfter(ctx, limit)
}

// SweepableAfter is Sweepable for a driver whose statement has more parameters.
func (r *Reader) SweepableAfter(ctx context.Context, limit int,
	args ...any) (from contract.Sweepable, err error) {
	from.State, err = r.query(ctx, &r.sweep, func(c Cursor) error {
		row := contract.SweepRow{ID: revision(c, 0), Prev: revision(c, 1), Deleted: c.Bool(2)}
		if row.ID > 0 {
			from.Rows = append(from.Rows, row)
		} else {
			from.Aborted, from.Users = row.Prev, row.Deleted
		}
		return nil
	}, append([]any{int64(limit) + 1}, args...)...)
	inOrder(from.Rows, func(a, b *contract.SweepRow) int { return cmp.Compare(a.ID, b.ID) })
	return from, err
}

// Size implements [contract.Backend].
func (r *Reader) Size(ctx context.Context) (size contract.Size, err error) {
	_, err = r.maintain(ctx, &r.size, func(c Cursor) error {
		size = contract.Size{Total: c.Int(0), Live: c.Int(1)}
		return nil
	})
	return size, err
}

// Usage implements [contract.Backend].
func (r *Reader) Usage(ctx context.Context) (contract.Usage, contract.State, error) {
	return r.measure(ctx, &r.usage)
}

// Growth implements [contract.Backend].
func (r *Reader) Growth(ctx context.Context,
	after contract.Revision) (g contract.Growth, st contract.State, err error) {
	st, err = r.query(ctx, &r.growth, func(c Cursor) error {
		g.Usage = contract.Usage{Objects: c.Int(0), Bytes: c.Int(1)}
		g.Replaced, g.Rows = c.Int(2), c.Int(3)
		return nil
	}, int64(after), int64(contract.Lowest(after)))
	return g, st, err
}

// Quota implements [contract.Backend].
func (r *Reader) Quota(ctx context.Context) (q contract.Quota, generation int64, st contract.State,
	err error) {
	st, err = r.query(ctx, &r.quota, func(c Cursor) error {
		q, generation = contract.Quota{Objects: c.Int(0), Bytes: c.Int(1)}, c.Int(2)
		return nil
	})
	return q, generation, st, err
}

// Home implements [contract.Backend].
func (r *Reader) Home(ctx context.Context) (home string, st contract.State, err error) {
	st, err = r.query(ctx, &r.home, func(c Cursor) error { home = string(c.Value(0)); return nil })
	return home, st, err
}

// Everywhere implements [contract.Backend] where the stores share tables.
func (r *Reader) Everywhere(ctx context.Context,
	key contract.Key) (values map[string][]byte, st contract.State, err error) {
	values = map[string][]byte{}
	st, err = r.query(ctx, &r.everywhere, func(c Cursor) error {
		value := c.Value(2)
		if value == nil {
			return contract.LostValue(key, revision(c, 1).Revision())
		}
		values[string(c.Key(0))] = value
		return nil
	}, key)
	return values, st, err
}

// measure runs a read that returns a number of objects and of bytes.
func (r *Reader) measure(ctx context.Context, q *Read,
	args ...any) (u contract.Usage, st contract.State, err error) {
	st, err = r.query(ctx, q, func(c Cursor) error {
		u = contract.Usage{Objects: c.Int(0), Bytes: c.Int(1)}
		return nil
	}, args...)
	return u, st, err
}

// KeysReader is a Reader that reads several keys at once. It implements [contract.KeysReader].
type KeysReader struct {
	*Reader
}

// GetKeys implements [contract.KeysReader].
func (r KeysReader) GetKeys(ctx context.Context, keys []contract.Key) ([]contract.Row, contract.State, error) {
	if len(keys) == 0 {
		st, err := r.query(ctx, &r.stateForKeys, nil)
		return nil, st, err
	}
	found := make([]contract.Row, 0, len(keys))
	var bytes bound
	st, err := r.query(ctx, &r.getKeys, func(c Cursor) error {
		row := keyRow(c)
		if !bytes.reached() {
			row.Value = c.Value(5)
			_ = bytes.add(len(row.Value)) // which keys exist is still to be told
		}
		found = append(found, row)
		return nil
	}, keys)
	return found, st, err
}
