package memdb

import (
	"context"
	"slices"
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
		outcomes, accepted := contract.DecideGroup(g, st.Head.Revision, t.found())
		for i, m := range g.Mutations {
			o := &outcomes[i]
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

// found finds what [contract.Decide] asks for.
func (t *tables) found() *contract.Found {
	return &contract.Found{
		Compacted: t.store.compacted,
		Current: func(k contract.Key) contract.Current {
			l := t.current(k)
			return contract.Current{ID: l.id, Create: l.create, Version: l.version,
				Lease: l.lease}
		},
		Compared: func(of *contract.Condition, c *contract.Comparison) (some, misfit bool) {
			for _, l := range t.between(c.Start, c.End) {
				if some = true; c.Changed && l.id.Revision() <= of.Since {
					continue
				}
				at := contract.Current{ID: l.id, Create: l.create, Version: l.version,
					Lease: l.lease}
				var value []byte
				if row := t.row(l.id); row != nil {
					value = row.Value
				}
				misfit = misfit || !c.Fits(at, value)
			}
			return some, misfit
		},
		Touched: func(c *contract.Condition) bool {
			return slices.ContainsFunc(t.after(c.Since),
				func(r contract.Row) bool { return c.Touches(r.Key) })
		},
		Held: func(l contract.Lease) bool {
			lease, found := t.lease(l)
			return found && lease.Expiry != 0
		},
		Removed: func(_ *contract.Mutation, at contract.RowID) ([]byte, bool, error) {
			row := t.row(at)
			if row == nil {
				return nil, false, nil
			}
			return row.Value, true, nil
		},
		Returned: contract.Returned{Bound: groupBytes},
	}
}

// apply writes an accepted mutation.
func (t *tables) apply(m *contract.Mutation, o *contract.Outcome, token contract.Token, now time.Time) error {
	row := contract.Row{Key: m.Key, Revision: o.Revision, Part: o.Part, Prev: o.Prev, Create: o.Create,
		Version: o.Version, Lease: o.Lease, Token: token, Time: now, Deleted: m.Delete}
	if !m.Delete {
		row.Value = m.Value
	}
	if err := t.append(row); err != nil {
		return err
	}
	if m.By != nil {
		if t.users == nil {
			t.users = map[contract.RowID]contract.User{}
		}
		t.users[o.ID()] = *m.By
	}
	l := liveRow{key: m.Key, id: o.ID(), create: o.Create,
		version: o.Version, lease: o.Lease, expiry: m.Expiry(now), entries: m.Entries}
	before := t.current(m.Key).entries
	if !m.Indexed {
		l.entries = before
	} else if o.Prev != 0 {
		t.note(o.ID(), before)
	}
	t.remove(m.Key)
	if m.Delete {
		return nil
	}
	return t.insert(l)
}
