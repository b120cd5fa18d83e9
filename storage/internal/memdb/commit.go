package memdb

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// micro is a time in the precision of the log.
func micro(t time.Time) time.Time { return t.Truncate(time.Microsecond) }

// Commit implements [contract.Backend].
func (b *Backend) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	res := &contract.GroupResult{}
	err := b.transact(ctx, "Commit", func(t *tables) (bool, error) {
		st := t.state(b.d.now())
		guard := t.guard(st, g.Token, g.Seen.Revision)
		for _, p := range g.Earlier {
			guard.Earlier = append(guard.Earlier, t.token(p.Revision))
		}
		if err := contract.CheckGroup(g, guard); err != nil {
			return false, err
		}
		res.Before, res.State, res.Time = st.Head, st, micro(st.Now)
		removed := removed{t: t, mutations: g.Mutations, values: map[int][]byte{}}
		current := func(k contract.Key) contract.Current {
			l := t.current(k)
			return contract.Current{Revision: l.revision, Create: l.create, Version: l.version,
				Lease: l.lease}
		}
		outcomes, accepted := contract.Decide(g.Mutations, st.Head.Revision, current, removed.lost)
		for i, m := range g.Mutations {
			o := &outcomes[i]
			o.PrevValue = removed.values[i]
			if !o.Accepted {
				continue
			}
			if err := t.apply(m, o, g.Token, res.Time); err != nil {
				return false, err
			}
		}
		res.Outcomes, res.State.Head = outcomes, t.state(st.Now).Head
		return accepted > 0, nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// removed finds the values that the deletions of a group remove.
type removed struct {
	t         *tables
	mutations []*contract.Mutation
	// values are those of the mutations by their place, and bytes their size.
	values map[int][]byte
	bytes  int
}

// lost refuses a deletion whose value is lost, or a key whose lease has ended, alone.
func (r *removed) lost(i int, at contract.Current) error {
	m := r.mutations[i]
	if m.Lease != 0 {
		if lease, found := r.t.lease(m.Lease); !found || lease.Expiry == 0 {
			return contract.ErrNoLease
		}
	}
	if !m.Delete || m.HasPrev {
		return nil
	}
	row := r.t.row(at.Revision)
	if row == nil {
		return contract.Errorf(contract.Data, "%w", contract.LostValue(m.Key, at.Revision))
	}
	if r.bytes < groupBytes {
		r.values[i] = row.Value
		r.bytes += len(row.Value)
	}
	return nil
}

// apply writes an accepted mutation.
func (t *tables) apply(m *contract.Mutation, o *contract.Outcome, token contract.Token, now time.Time) error {
	row := contract.Row{Key: m.Key, Revision: o.Revision, Prev: o.Prev, Create: o.Create,
		Version: o.Version, Lease: o.Lease, Token: token, Time: now, Deleted: m.Delete}
	if !m.Delete {
		row.Value = m.Value
	}
	if err := t.append(row); err != nil {
		return err
	}
	t.remove(m.Key)
	if m.Delete {
		return nil
	}
	return t.insert(liveRow{key: m.Key, revision: o.Revision, create: o.Create,
		version: o.Version, lease: o.Lease, expiry: m.Expiry(now)})
}
