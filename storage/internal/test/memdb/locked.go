package memdb

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Locked implements [contract.Backend]. There is only one server.
func (b *Backend) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	if !o.Unbounded {
		var cancel context.CancelFunc
		ctx, cancel = b.bounded(ctx)
		defer cancel()
	}
	return b.transact(ctx, "Locked", func(t *tables) (bool, error) {
		x := &tx{view: view{ctx: ctx, t: t, state: t.state(b.d.now())}, fingerprint: b.d.name}
		err := f(x)
		return x.changed, err
	})
}

// tx implements [contract.Tx].
type tx struct {
	view
	// changed tells whether anything was written.
	changed     bool
	fingerprint string
}

func (x *tx) Fingerprint() string { return x.fingerprint }

func (x *tx) Group(token contract.Token, after contract.Revision) (contract.Guard, []contract.Row, error) {
	var rows []contract.Row
	for _, r := range x.t.from(after + 1) {
		if r.Token == token {
			r.Value = nil
			rows = append(rows, r)
		}
	}
	return x.t.guard(x.t.state(x.state.Now), token, after), rows, nil
}

func (x *tx) Abort(token contract.Token, seen contract.Revision) error {
	x.changed = true
	x.t.aborted = append(slices.Clone(x.t.aborted), abortedRow{token, seen})
	return nil
}

func (x *tx) SetCompacted(r contract.Revision) error {
	x.changed = true
	x.t.store.compacted = r
	return nil
}

func (x *tx) RecordFingerprint(fingerprint string) error {
	if x.t.store.fingerprint == "" {
		x.changed = true
		x.t.store.fingerprint = fingerprint
	}
	return nil
}

func (x *tx) Mark(st contract.State, fingerprint string) error {
	x.changed = true
	s := &x.t.store
	s.epoch, s.compacted, s.swept = st.Head.Epoch, st.Compacted, st.Swept
	if fingerprint != "" {
		s.fingerprint = fingerprint
	}
	return x.t.append(contract.Row{Revision: st.Head.Revision, Token: st.Head.Token,
		Time: micro(st.Now), Deleted: true})
}

func (x *tx) Remove(keys []contract.Key) error {
	x.changed = true
	gone := map[contract.RowID]bool{}
	for _, k := range keys {
		if l := x.t.current(k); l.id != 0 {
			gone[l.id] = true
			x.t.remove(k)
		}
	}
	x.t.keep(func(r *contract.Row) bool { return !gone[r.ID()] })
	x.t.forget()
	return nil
}

func (x *tx) Clear() error {
	x.changed = true
	x.t.live, x.t.log, x.t.parts, x.t.leases, x.t.said = nil, nil, nil, nil, nil
	x.t.users = nil
	return nil
}

func (x *tx) Leases(leases []contract.Lease) (found []contract.LeaseRow, err error) {
	for _, l := range leases {
		if row, ok := x.t.lease(l); ok {
			found = append(found, row)
		}
	}
	return found, nil
}

func (x *tx) PutLeases(rows []contract.LeaseRow) error {
	var leases []contract.Lease
	for _, r := range rows {
		leases = append(leases, r.Lease)
	}
	if err := x.DropLeases(leases); err != nil {
		return err
	}
	x.t.leases = append(x.t.leases, rows...)
	slices.SortFunc(x.t.leases, func(a, b contract.LeaseRow) int { return cmp.Compare(a.Lease, b.Lease) })
	return nil
}

func (x *tx) DropLeases(leases []contract.Lease) error {
	x.changed = true
	x.t.leases = slices.DeleteFunc(slices.Clone(x.t.leases), func(r contract.LeaseRow) bool {
		return slices.Contains(leases, r.Lease)
	})
	return nil
}

func (x *tx) Erase(limit int) (int, error) {
	x.changed = true
	keys, parts := min(limit, len(x.t.live)), min(limit, len(x.t.parts))
	rows := min(limit-parts, len(x.t.log)-1)
	x.t.live, x.t.log, x.t.parts, x.t.aborted = x.t.live[keys:], x.t.log[rows:], x.t.parts[parts:], nil
	x.t.directories = nil
	return keys + parts + rows + x.t.forget(), nil
}

func (x *tx) Renew() error {
	x.changed = true
	s := &x.t.store
	s.identity, s.fingerprint, s.boot, s.quota = s.identity+"'", "", "", contract.Quota{}
	s.indexes = contract.Indexes{}
	return nil
}

func (x *tx) SetQuota(q contract.Quota) error {
	x.changed = true
	x.t.store.quota = q
	return nil
}

func (x *tx) Home() (string, error) { return x.t.store.home, nil }

func (x *tx) SetHome(home string) error {
	x.changed = true
	x.t.store.home = home
	return nil
}

func (x *tx) SetIdentity(identity string) error {
	x.changed = true
	x.t.store.identity = identity
	return nil
}

func (x *tx) Directories() ([]contract.Directory, error) { return x.t.directories, nil }

func (x *tx) PutDirectories(directories []contract.Directory) error {
	x.changed = true
	all := slices.Clone(x.t.directories)
	for _, d := range directories {
		all = slices.DeleteFunc(all, func(o contract.Directory) bool { return o.Path == d.Path })
	}
	x.t.directories = append(all, directories...)
	return nil
}

func (x *tx) Indexes() (*contract.Indexes, error) { return x.t.store.declared(), nil }

func (x *tx) SetIndexes(declared *contract.Indexes) error {
	x.changed = true
	x.t.store.indexes = *declared
	x.t.store.indexes.All = slices.Clone(declared.All)
	return nil
}

func (x *tx) Reindex(keys []contract.Reindexed) error {
	for _, k := range keys {
		if i, found := x.t.livePlace(k.Key); found && x.t.live[i].id == k.ID {
			x.changed = true
			x.t.live[i].entries = k.Entries
		}
	}
	return nil
}

// DropEntries finds the entries where the keys have them. There is no other table.
func (x *tx) DropEntries(low, high contract.Entry, limit int) (n int, err error) {
	x.changed = true
	for i := range x.t.live {
		l := &x.t.live[i]
		l.entries = slices.DeleteFunc(slices.Clone(l.entries), func(e contract.Entry) bool {
			if e < low || e >= high || n == limit {
				return false
			}
			n++
			return true
		})
	}
	return n, nil
}

func (x *tx) Insert(token contract.Token, write func(func(*contract.Record) error) error) error {
	x.changed = true
	return write(func(r *contract.Record) error {
		err := x.t.put(contract.Row{Key: r.Key, Revision: r.Revision, Part: r.Part, Create: r.Create,
			Version: r.Version, Lease: r.Lease, Token: token, Time: micro(x.state.Now),
			Value: bytes.Clone(r.Value)})
		if err != nil {
			return err
		}
		return x.t.insert(liveRow{key: r.Key, id: r.ID(), create: r.Create,
			version: r.Version, lease: r.Lease, expiry: r.LiveExpiry()})
	})
}
