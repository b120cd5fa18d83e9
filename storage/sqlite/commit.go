package sqlite

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

func (b *backend) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	res := &contract.GroupResult{}
	asked := time.Now()
	err := b.write(ctx, func(c *sqlite3.Conn) (bool, error) {
		res.LockWait = time.Since(asked)
		guard, err := b.guard(c, g.Token, g.Seen.Revision)
		if err == nil {
			guard.Earlier, err = tokensAt(c, g.Earlier)
		}
		if err == nil {
			err = contract.CheckGroup(g, guard)
		}
		if err != nil {
			return false, err
		}
		st := guard.State
		res.Before, res.State, res.Time = st.Head, st, st.Now.Truncate(time.Microsecond)

		var failed error
		removed := removed{b: b, c: c, mutations: g.Mutations, values: map[int][]byte{}}
		outcomes, accepted := contract.Decide(g.Mutations, st.Head.Revision,
			func(k contract.Key) contract.Current {
				current, err := live(c, k)
				if err != nil {
					failed = b.damagedKey(k, err)
				}
				return current
			}, removed.lost)
		for i, value := range removed.values {
			outcomes[i].PrevValue = value
		}
		res.Outcomes = outcomes
		if failed == nil {
			failed = removed.failed
		}
		if failed != nil || accepted == 0 {
			return false, failed
		}
		if err := b.checkSpace(c, g.Mutations); err != nil {
			return false, err
		}
		for i, m := range g.Mutations {
			if !outcomes[i].Accepted {
				continue
			}
			if err := b.apply(c, g.Token, res.Time, m, &outcomes[i]); err != nil {
				return false, b.damagedKey(m.Key, err)
			}
		}
		res.State.Head.Revision += contract.Revision(accepted)
		res.State.Head.Token = g.Token
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// tokensAt reads the tokens of the rows at the positions' revisions, zero for those that are not
// there.
func tokensAt(c *sqlite3.Conn, positions []contract.Position) ([]contract.Token, error) {
	tokens := make([]contract.Token, len(positions))
	for i, p := range positions {
		s, err := c.Prepare(selectToken)
		if err != nil {
			return nil, err
		}
		if _, err := s.Int(int64(p.Revision)).Row(func() {
			tokens[i] = colToken(s, 0)
		}); err != nil {
			return nil, err
		}
	}
	return tokens, nil
}

// live reads where a key is, zero if it does not exist.
func live(c *sqlite3.Conn, k contract.Key) (current contract.Current, err error) {
	s, err := c.Prepare(selectLive)
	if err != nil {
		return current, err
	}
	_, err = s.BlobString(string(k)).Row(func() {
		current = contract.Current{Revision: contract.Revision(s.ColInt(0)),
			Create: contract.Revision(s.ColInt(1)), Version: s.ColInt(2), Lease: contract.Lease(s.ColInt(3))}
	})
	return current, err
}

// leaseRow reads a lease, and tells whether it is there.
func leaseRow(c *sqlite3.Conn, l contract.Lease) (row contract.LeaseRow, found bool, err error) {
	s, err := c.Prepare(selectLease)
	if err != nil {
		return row, false, err
	}
	found, err = s.Int(int64(l)).Row(func() {
		row = contract.LeaseRow{Lease: l, TTL: s.ColInt(0), Expiry: s.ColInt(1)}
	})
	return row, found, err
}

// removed reads, before anything is written, the values that the deletions of a group remove, so
// that a deletion whose value is lost is refused alone. So is a key whose lease has ended.
type removed struct {
	b         *backend
	c         *sqlite3.Conn
	mutations []*contract.Mutation
	// values are those of the mutations by their place, and bytes their size.
	values map[int][]byte
	bytes  int
	// failed is an error that is not of one key.
	failed error
}

func (r *removed) lost(i int, at contract.Current) error {
	m := r.mutations[i]
	if m.Lease != 0 && r.failed == nil {
		row, found, err := leaseRow(r.c, m.Lease)
		if r.failed = err; err == nil && (!found || row.Expiry == 0) {
			return contract.ErrNoLease
		}
	}
	if !m.Delete || m.HasPrev || r.failed != nil {
		return nil
	}
	s, err := r.c.Prepare(selectValue)
	if err != nil {
		r.failed = err
		return nil
	}
	found, err := s.Int(int64(at.Revision)).Row(func() {
		if r.bytes < groupBytes {
			r.values[i] = s.ColBlob(0)
			r.bytes += len(r.values[i])
		}
	})
	switch {
	case sqlite3.Is(err, sqlite3.Corrupt):
		return r.b.damagedKey(m.Key, err)
	case err != nil:
		r.failed = err
		return nil
	case !found:
		lost := contract.LostValue(m.Key, at.Revision)
		return contract.Errorf(contract.Data, "%w", lost)
	}
	return nil
}

// apply writes an accepted mutation.
func (b *backend) apply(c *sqlite3.Conn, token contract.Token, now time.Time, m *contract.Mutation,
	o *contract.Outcome) error {
	s, err := c.Prepare(insertLog)
	if err != nil {
		return err
	}
	s.Int(int64(o.Revision)).BlobString(string(m.Key)).Int(int64(o.Prev)).Int(int64(o.Create))
	s.Int(o.Version).Int(int64(o.Lease)).Blob(token[:]).Int(now.UnixMicro()).Bool(m.Delete)
	if m.Delete {
		s.Null()
	} else {
		s.Blob(m.Value)
	}
	if err := s.Run(); err != nil {
		return err
	}

	switch {
	case m.Delete:
		if s, err = c.Prepare(deleteLive); err == nil {
			s.BlobString(string(m.Key))
		}
	case o.Prev == 0:
		if s, err = c.Prepare(insertLive); err == nil {
			s.BlobString(string(m.Key)).Int(int64(o.Revision)).Int(int64(o.Create))
			s.Int(o.Version).Int(int64(o.Lease))
			bindExpiry(s, m.Expiry(now))
		}
	default:
		if s, err = c.Prepare(updateLive); err == nil {
			s.BlobString(string(m.Key)).Int(int64(o.Revision)).Int(o.Version).Int(int64(o.Lease))
			bindExpiry(s, m.Expiry(now))
		}
	}
	if err != nil {
		return err
	}
	return s.Run()
}

// bindExpiry binds the next parameter to an expiry, 0 for never.
func bindExpiry(s *sqlite3.Stmt, expiry int64) {
	if expiry == 0 {
		s.Null()
	} else {
		s.Int(expiry)
	}
}
