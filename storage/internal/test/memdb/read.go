package memdb

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// read begins a read: of the newest version, which is what the last transaction has committed.
func (b *Backend) read(ctx context.Context, method string) (*tables, contract.State, error) {
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	if err := b.begin(ctx, method); err != nil {
		return nil, contract.State{}, err
	}
	t := b.d.version.Load()
	return t, t.state(b.d.now()), nil
}

// visible tells whether a live row was there at a revision, 0 for now.
func (l *liveRow) visible(at contract.Revision) bool { return at == 0 || l.id.Revision() <= at }

// haveOne tells whether there is one of some entries.
func haveOne(entries, some []contract.Entry) bool {
	return slices.ContainsFunc(some, func(e contract.Entry) bool { return slices.Contains(entries, e) })
}

// row returns what a read of keys says of a live row, without its value.
func (l *liveRow) row() contract.Row {
	return contract.Row{Key: l.key, Revision: l.id.Revision(), Part: l.id.Part(), Create: l.create, Version: l.version,
		Lease: l.lease}
}

func (l *liveRow) expired(of contract.Lease) contract.Expired {
	return contract.Expired{Key: l.key, Revision: l.id.Revision(), Part: l.id.Part(), Lease: of}
}

// State implements [contract.Backend].
func (b *Backend) State(ctx context.Context) (contract.State, error) {
	_, st, err := b.read(ctx, "State")
	return st, err
}

// Tail implements [contract.Backend].
func (b *Backend) Tail(ctx context.Context, from contract.Revision, limit int, prev contract.Prev) (
	*contract.Tail, error) {
	t, st, err := b.read(ctx, "Tail")
	if err != nil {
		return nil, err
	}
	return t.tail(st, t.from(from), limit, prev), nil
}

// Parts implements [contract.Backend].
func (b *Backend) Parts(ctx context.Context, below contract.RowID, upto contract.Revision, limit int,
	prev contract.Prev) (*contract.Tail, error) {
	t, st, err := b.read(ctx, "Parts")
	if err != nil {
		return nil, err
	}
	rows := slices.Clone(t.below(below))
	rows = slices.DeleteFunc(rows, func(r contract.Row) bool { return r.Revision > upto })
	if prev == contract.NoValues {
		for i := range rows {
			rows[i].Value = nil
		}
	}
	return t.tail(st, rows, limit, prev), nil
}

// tail is the answer with as many of the rows as it may have, and their previous values.
func (t *tables) tail(st contract.State, rows []contract.Row, limit int,
	prev contract.Prev) *contract.Tail {
	tail := &contract.Tail{State: st}
	bytes := 0
	for _, r := range rows {
		if len(tail.Rows) == limit || tail.More {
			break
		}
		if r.Deleted || prev == contract.PrevOfAll {
			if p := t.row(r.Prev); p != nil {
				r.HasPrev, r.PrevValue, r.PrevLease = true, p.Value, p.Lease
			}
			if prev == contract.NoValues {
				r.PrevValue = nil
			}
		}
		tail.Rows = append(tail.Rows, r)
		bytes += len(r.Value) + len(r.PrevValue)
		tail.More = bytes >= contract.ReadBytes
	}
	return tail
}

// Get implements [contract.Backend].
func (b *Backend) Get(ctx context.Context, key contract.Key) (*contract.Row, contract.State, error) {
	t, st, err := b.read(ctx, "Get")
	if err != nil {
		return nil, st, err
	}
	l := t.current(key)
	if l.id == 0 {
		return nil, st, nil
	}
	row := t.row(l.id)
	if row == nil {
		return nil, st, contract.LostValue(key, l.id.Revision())
	}
	found := *row
	return &found, st, nil
}

// Page implements [contract.Backend].
func (b *Backend) Page(ctx context.Context, q contract.PageQuery) (*contract.Page, error) {
	t, st, err := b.read(ctx, "Page")
	if err != nil {
		return nil, err
	}
	page := &contract.Page{State: st}
	bytes := 0
	if len(q.Entries) > 0 {
		page.Generation = t.store.indexes.Generation
	}
	for _, l := range t.between(q.Start, q.End) {
		if len(page.Rows) == q.Limit || page.More {
			break
		}
		if !l.visible(q.At) || len(q.Entries) > 0 && !haveOne(l.entries, q.Entries) {
			continue
		}
		row := l.row()
		if !q.KeysOnly || len(q.Entries) > 0 {
			logged := t.row(l.id)
			if logged == nil {
				return nil, contract.LostValue(l.key, l.id.Revision())
			}
			row.Value = logged.Value
		}
		page.Rows = append(page.Rows, row)
		bytes += len(row.Value)
		page.More = bytes >= contract.ReadBytes
	}
	return page, nil
}

// GetKeys implements [contract.KeysReader].
func (b *Backend) GetKeys(ctx context.Context, keys []contract.Key) (
	found []contract.Row, st contract.State, err error) {
	t, st, err := b.read(ctx, "GetKeys")
	if err != nil {
		return nil, st, err
	}
	bytes := 0
	for _, k := range keys {
		l := t.current(k)
		if l.id == 0 {
			continue
		}
		row := l.row()
		if logged := t.row(l.id); logged != nil && bytes < contract.ReadBytes {
			row.Value = logged.Value
			bytes += len(row.Value)
		}
		found = append(found, row)
	}
	return found, st, nil
}

// Replaced implements [contract.Backend].
func (b *Backend) Replaced(ctx context.Context, q contract.ReplacedQuery) (
	replaced []contract.Replaced, st contract.State, err error) {
	t, st, err := b.read(ctx, "Replaced")
	if err != nil {
		return nil, st, err
	}
	for _, r := range t.after(q.After) {
		if r.Revision > q.Upto {
			continue
		}
		if said, known := t.said[r.ID()]; len(q.Entries) > 0 && known && r.Revision > q.Known &&
			!haveOne(said, q.Entries) {
			continue
		}
		if prev := r.Prev.Revision(); prev >= 1 && prev <= q.At && r.Key >= q.Start && r.Key < q.End {
			replaced = append(replaced, contract.Replaced{Key: r.Key, ID: r.Prev})
		}
	}
	return replaced, st, nil
}

// Values implements [contract.Backend].
func (b *Backend) Values(ctx context.Context, ids []contract.RowID) (
	found []contract.Row, st contract.State, err error) {
	t, st, err := b.read(ctx, "Values")
	if err != nil {
		return nil, st, err
	}
	bytes := 0
	for _, r := range ids {
		if row := t.row(r); row != nil && bytes < contract.ReadBytes {
			v := contract.Row{Key: row.Key, Revision: row.Revision, Part: row.Part, Create: row.Create, Version: row.Version,
				Lease: row.Lease, Value: row.Value}
			found = append(found, v)
			bytes += len(v.Value)
		}
	}
	return found, st, nil
}

// Chain implements [contract.Backend].
func (b *Backend) Chain(ctx context.Context, key contract.Key, id contract.RowID, limit int) (
	rows []contract.Row, st contract.State, err error) {
	t, st, err := b.read(ctx, "Chain")
	if err != nil {
		return nil, st, err
	}
	for row := t.row(id); row != nil && row.Key == key && len(rows) < limit; row = t.row(row.Prev) {
		rows = append(rows, past(row))
	}
	return rows, st, nil
}

// Changes implements [contract.Backend].
func (b *Backend) Changes(ctx context.Context, q contract.ChangesQuery) (
	rows []contract.Row, st contract.State, err error) {
	t, st, err := b.read(ctx, "Changes")
	if err != nil {
		return nil, st, err
	}
	for _, r := range t.after(q.After) {
		if r.Revision <= q.Upto && r.Key >= q.Start && r.Key < q.End {
			rows = append(rows, past(&r))
		}
	}
	slices.SortFunc(rows, func(a, b contract.Row) int { return contract.NewestFirst(&a, &b) })
	return rows, st, nil
}

// past is what a read of the history says of a row.
func past(r *contract.Row) contract.Row {
	return contract.Row{Key: r.Key, Revision: r.Revision, Part: r.Part, Prev: r.Prev,
		Create: r.Create, Version: r.Version, Time: r.Time, Deleted: r.Deleted}
}

// Users implements [contract.Backend].
func (b *Backend) Users(ctx context.Context, ids []contract.RowID) (found []contract.UserRow,
	st contract.State, err error) {
	t, st, err := b.read(ctx, "Users")
	if err != nil {
		return nil, st, err
	}
	for _, id := range ids {
		if u, ok := t.users[id]; ok {
			found = append(found, contract.UserRow{ID: id, User: u})
		}
	}
	return found, st, nil
}

// Count implements [contract.Backend].
func (b *Backend) Count(ctx context.Context, start, end contract.Key, at contract.Revision, limit int64) (
	n int64, st contract.State, err error) {
	t, st, err := b.read(ctx, "Count")
	if err != nil {
		return 0, st, err
	}
	for _, l := range t.between(start, end) {
		if limit > 0 && n == limit {
			break
		}
		if l.visible(at) {
			n++
		}
	}
	return n, st, nil
}

// Expired implements [contract.Backend].
func (b *Backend) Expired(ctx context.Context, limit int) (
	expired []contract.Expired, next time.Duration, err error) {
	t, st, err := b.read(ctx, "Expired")
	if err != nil {
		return nil, 0, err
	}
	expiring := slices.DeleteFunc(slices.Clone(t.live), func(l liveRow) bool {
		return l.expiry <= 0
	})
	slices.SortStableFunc(expiring, func(a, b liveRow) int {
		return cmp.Compare(a.expiry, b.expiry)
	})
	for _, l := range expiring {
		left := time.Duration(l.expiry-st.Now.UnixMicro()) * time.Microsecond
		if left > 0 || len(expired) == limit {
			return expired, max(left, time.Microsecond), nil
		}
		expired = append(expired, l.expired(0))
	}
	return expired, 0, nil
}

// Leases implements [contract.Backend].
func (b *Backend) Leases(ctx context.Context, from contract.Lease, limit int) ([]contract.LeaseRow,
	contract.State, error) {
	t, st, err := b.read(ctx, "Leases")
	if err != nil {
		return nil, st, err
	}
	rows := slices.DeleteFunc(slices.Clone(t.leases), func(r contract.LeaseRow) bool {
		return r.Lease < from
	})
	return rows[:min(limit, len(rows))], st, nil
}

// Lapsing implements [contract.Backend].
func (b *Backend) Lapsing(ctx context.Context, from int64,
	limit int) ([]contract.LeaseRow, contract.State, error) {
	t, st, err := b.read(ctx, "Lapsing")
	if err != nil {
		return nil, st, err
	}
	rows := slices.DeleteFunc(slices.Clone(t.leases), func(r contract.LeaseRow) bool {
		return r.Expiry < from
	})
	slices.SortStableFunc(rows, func(a, b contract.LeaseRow) int {
		return cmp.Compare(a.Expiry, b.Expiry)
	})
	return rows[:min(limit, len(rows))], st, nil
}

// Attached implements [contract.Backend].
func (b *Backend) Attached(ctx context.Context, l contract.Lease, from contract.Key, limit int) (
	keys []contract.Expired, st contract.State, err error) {
	t, st, err := b.read(ctx, "Attached")
	if err != nil {
		return nil, st, err
	}
	for _, row := range t.live {
		if row.lease == l && row.key >= from && len(keys) < limit {
			keys = append(keys, row.expired(l))
		}
	}
	return keys, st, nil
}

// AttachedTo implements [contract.Backend].
func (b *Backend) AttachedTo(ctx context.Context, leases []contract.Lease, limit int) (
	keys []contract.Expired, st contract.State, err error) {
	t, st, err := b.read(ctx, "AttachedTo")
	if err != nil {
		return nil, st, err
	}
	for _, row := range t.live {
		if row.lease != 0 && slices.Contains(leases, row.lease) && len(keys) < limit {
			keys = append(keys, row.expired(row.lease))
		}
	}
	return keys, st, nil
}

// CountLeases implements [contract.Backend].
func (b *Backend) CountLeases(ctx context.Context) (int64, contract.State, error) {
	t, st, err := b.read(ctx, "CountLeases")
	return int64(len(t.leases)), st, err
}

// FirstAt implements [contract.Backend].
func (b *Backend) FirstAt(ctx context.Context, revision contract.Revision) (*contract.Row, error) {
	t, _, err := b.read(ctx, "FirstAt")
	if err != nil {
		return nil, err
	}
	for _, r := range t.from(revision) {
		return &contract.Row{Revision: r.Revision, Time: r.Time}, nil
	}
	return nil, nil
}

// Usage implements [contract.Backend].
func (b *Backend) Usage(ctx context.Context) (u contract.Usage, st contract.State, err error) {
	t, st, err := b.read(ctx, "Usage")
	if err != nil {
		return u, st, err
	}
	for _, l := range t.live {
		u.Objects++
		u.Bytes += int64(len(l.key))
		if row := t.row(l.id); row != nil {
			u.Bytes += int64(len(row.Value))
		}
	}
	return u, st, nil
}

// Growth implements [contract.Backend].
func (b *Backend) Growth(ctx context.Context, after contract.Revision) (
	u contract.Growth, st contract.State, err error) {
	t, st, err := b.read(ctx, "Growth")
	if err != nil {
		return u, st, err
	}
	for _, r := range t.after(after) {
		u.Rows++
		if !r.Deleted {
			u.Objects++
			u.Bytes += int64(len(r.Key) + len(r.Value))
		}
		if p := t.row(r.Prev); p != nil {
			u.Objects--
			u.Bytes -= int64(len(p.Key) + len(p.Value))
			u.Replaced += int64(len(p.Key) + len(p.Value))
		}
	}
	return u, st, nil
}

// Quota implements [contract.Backend].
func (b *Backend) Quota(ctx context.Context) (q contract.Quota, generation int64, st contract.State, err error) {
	t, st, err := b.read(ctx, "Quota")
	if err != nil {
		return q, 0, st, err
	}
	return t.store.quota, t.store.indexes.Generation, st, nil
}

// Home implements [contract.Backend].
func (b *Backend) Home(ctx context.Context) (home string, st contract.State, err error) {
	t, st, err := b.read(ctx, "Home")
	if err != nil {
		return "", st, err
	}
	return t.store.home, st, nil
}

// Indexes implements [contract.Backend].
func (b *Backend) Indexes(ctx context.Context) (*contract.Indexes, contract.State, error) {
	t, st, err := b.read(ctx, "Indexes")
	if err != nil {
		return nil, st, err
	}
	return t.store.declared(), st, nil
}

// declared returns a copy of the declarations.
func (s *storeRow) declared() *contract.Indexes {
	x := s.indexes
	x.All = slices.Clone(x.All)
	return &x
}

// CountEntries implements [contract.Backend].
func (b *Backend) CountEntries(ctx context.Context, entries []contract.Entry, start, end contract.Key,
	limit int64) (n int64, st contract.State, err error) {
	t, st, err := b.read(ctx, "CountEntries")
	if err != nil {
		return 0, st, err
	}
	for _, e := range entries {
		var of int64
		for _, l := range t.between(start, end) {
			if slices.Contains(l.entries, e) {
				of = min(of+1, limit)
			}
		}
		n += of
	}
	return n, st, nil
}

// IndexRows implements [contract.Backend].
func (b *Backend) IndexRows(ctx context.Context, q contract.IndexWalk) (*contract.IndexRows,
	contract.State, error) {
	t, st, err := b.read(ctx, "IndexRows")
	if err != nil {
		return nil, st, err
	}
	found := &contract.IndexRows{Generation: t.store.indexes.Generation}
	for _, l := range t.between(q.Start, q.End) {
		for _, e := range l.entries {
			p := contract.IndexRow{Entry: e, Key: l.key}
			if q.Backwards && p.Compare(q.From) < 0 && e >= q.Bound ||
				!q.Backwards && p.Compare(q.From) >= 0 && e < q.Bound {
				found.Rows = append(found.Rows, p)
			}
		}
	}
	slices.SortFunc(found.Rows, contract.IndexRow.Compare)
	if q.Backwards {
		slices.Reverse(found.Rows)
	}
	found.Rows = found.Rows[:min(len(found.Rows), q.Limit)]
	return found, st, nil
}

// Everywhere implements [contract.Backend]. There is one store.
func (b *Backend) Everywhere(ctx context.Context,
	key contract.Key) (map[string][]byte, contract.State, error) {
	row, st, err := b.Get(ctx, key)
	if err != nil || row == nil {
		return nil, st, err
	}
	return map[string][]byte{contract.DefaultStore: row.Value}, st, nil
}

// Size implements [contract.Backend].
func (b *Backend) Size(ctx context.Context) (contract.Size, error) {
	t, _, err := b.read(ctx, "Size")
	if err != nil {
		return contract.Size{}, err
	}
	var bytes int64
	for _, rows := range [][]contract.Row{t.log, t.parts} {
		for i := range rows {
			bytes += int64(len(rows[i].Key) + len(rows[i].Value))
		}
	}
	return contract.Size{Total: bytes, Live: bytes}, nil
}
