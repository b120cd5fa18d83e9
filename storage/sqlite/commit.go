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

		f := finder{b: b, c: c, compacted: st.Compacted}
		outcomes, accepted := contract.DecideGroup(g, st.Head.Revision, f.found())
		res.Outcomes = outcomes
		if f.failed != nil || accepted == 0 {
			return false, f.failed
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
		res.State.Head.Revision += g.Rises(accepted)
		res.State.Head.Token = g.Token
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// tokensAt reads the tokens of the rows at the positions' revisions, zero for rows that are not
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
		current = contract.Current{ID: contract.RowID(s.ColInt(0)),
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

// finder reads, before anything is written, what [contract.Decide] asks for.
type finder struct {
	b         *backend
	c         *sqlite3.Conn
	compacted contract.Revision
	// failed is an error that is not of one key. After it nothing is read.
	failed error
}

func (f *finder) found() *contract.Found {
	return &contract.Found{Compacted: f.compacted, Current: f.current, Compared: f.compared,
		Touched: f.touched, Held: f.held, Removed: f.removed,
		Returned: contract.Returned{Bound: groupBytes}}
}

func (f *finder) current(k contract.Key) contract.Current {
	current, err := live(f.c, k)
	if err != nil {
		f.failed = f.b.damagedKey(k, err)
	}
	return current
}

// compared reads the keys of a comparison up to the first that does not fit.
func (f *finder) compared(of *contract.Condition, c *contract.Comparison) (some, misfit bool) {
	if f.failed != nil {
		return false, false
	}
	if c.Changed {
		return f.comparedSince(of, c)
	}
	s, err := f.c.Prepare(selectCompared)
	if err != nil {
		f.failed = err
		return false, false
	}
	defer s.Reset()
	s.BlobString(string(c.Start)).BlobString(string(c.End))
	s.Bool(c.Property == contract.CompareValue)
	for !misfit {
		row, err := s.Step()
		if err != nil {
			f.failed = err
		}
		if !row {
			break
		}
		some = true
		misfit = !c.Fits(contract.Current{ID: contract.RowID(s.ColInt(0)),
			Create: contract.Revision(s.ColInt(1)), Version: s.ColInt(2),
			Lease: contract.Lease(s.ColInt(3))}, s.ColBlob(4))
	}
	return some, misfit
}

// comparedSince is compared for the keys that were written since a condition's Since.
func (f *finder) comparedSince(of *contract.Condition, c *contract.Comparison) (some, misfit bool) {
	s, err := f.c.Prepare(selectAny)
	if err == nil {
		some, err = s.BlobString(string(c.Start)).BlobString(string(c.End)).Row(func() {})
	}
	f.failed = err
	seen := map[contract.Key]bool{}
	f.written(of.Since, func(k contract.Key) bool {
		if k < c.Start || k >= c.End || seen[k] {
			return true
		}
		seen[k] = true
		at := f.current(k)
		if at.ID == 0 || f.failed != nil {
			return f.failed == nil
		}
		var value []byte
		if c.Property == contract.CompareValue {
			value, _, err = f.value(at.ID)
			f.failed = err
		}
		misfit = !c.Fits(at, value)
		return !misfit && f.failed == nil
	})
	return some, misfit
}

// written calls each for the keys that were written since a revision, until it returns false.
func (f *finder) written(since contract.Revision, each func(contract.Key) bool) {
	if f.failed != nil {
		return
	}
	s, err := f.c.Prepare(selectWritten)
	if err != nil {
		f.failed = err
		return
	}
	defer s.Reset()
	s.Int(int64(since)).Int(int64(contract.Lowest(since)))
	for {
		row, err := s.Step()
		if err != nil {
			f.failed = err
		}
		if !row || !each(contract.Key(s.ColString(0))) {
			return
		}
	}
}

func (f *finder) touched(c *contract.Condition) (touched bool) {
	f.written(c.Since, func(k contract.Key) bool {
		touched = c.Touches(k)
		return !touched
	})
	return touched
}

// value reads the value of a row of the log, and tells whether the row is there.
func (f *finder) value(id contract.RowID) (value []byte, there bool, err error) {
	s, err := f.c.Prepare(selectValue)
	if err == nil {
		there, err = s.Int(int64(id)).Row(func() { value = s.ColBlob(0) })
	}
	return value, there, err
}

func (f *finder) held(l contract.Lease) bool {
	if f.failed != nil {
		return true
	}
	row, found, err := leaseRow(f.c, l)
	f.failed = err
	return found && row.Expiry != 0
}

func (f *finder) removed(m *contract.Mutation, at contract.RowID) (value []byte, there bool,
	err error) {
	if f.failed != nil {
		return nil, true, nil
	}
	value, there, err = f.value(at)
	if sqlite3.Is(err, sqlite3.Corrupt) {
		return nil, false, f.b.damagedKey(m.Key, err)
	}
	f.failed = err
	return value, there, nil
}

// apply writes an accepted mutation.
func (b *backend) apply(c *sqlite3.Conn, token contract.Token, now time.Time, m *contract.Mutation,
	o *contract.Outcome) error {
	var before []contract.Entry
	text := insertLog
	if m.Indexed {
		text = insertIndexedLog
		var err error
		if before, _, err = entriesOf(c, selectEntries, m.Key, 0); err != nil {
			return err
		}
	}
	s, err := c.Prepare(text)
	if err != nil {
		return err
	}
	s.Int(int64(o.ID())).BlobString(string(m.Key)).Int(int64(o.Prev)).Int(int64(o.Create))
	s.Int(o.Version).Int(int64(o.Lease)).Blob(token[:]).Int(now.UnixMicro()).Bool(m.Delete)
	if m.Delete {
		s.Null()
	} else {
		s.Blob(m.Value)
	}
	switch {
	case m.Indexed && o.Prev != 0:
		s.Blob(contract.PackEntries(before)) // not NULL if there are none
	case m.Indexed:
		s.Null()
	}
	if err := s.Run(); err != nil {
		return err
	}
	if m.By != nil {
		if s, err = c.Prepare(insertUser); err != nil {
			return err
		}
		if err := s.Int(int64(o.ID())).Text(m.By.Name).Text(m.By.AuditID).Run(); err != nil {
			return err
		}
	}

	switch {
	case m.Delete:
		if s, err = c.Prepare(deleteLive); err == nil {
			s.BlobString(string(m.Key))
		}
	case o.Prev == 0:
		if s, err = c.Prepare(insertLive); err == nil {
			s.BlobString(string(m.Key)).Int(int64(o.ID())).Int(int64(o.Create))
			s.Int(o.Version).Int(int64(o.Lease))
			bindExpiry(s, m.Expiry(now))
		}
	default:
		if s, err = c.Prepare(updateLive); err == nil {
			s.BlobString(string(m.Key)).Int(int64(o.ID())).Int(o.Version).Int(int64(o.Lease))
			bindExpiry(s, m.Expiry(now))
		}
	}
	if err == nil {
		err = s.Run()
	}
	if err != nil || !m.Indexed {
		return err
	}
	return reindex(c, m.Key, before, m.Entries, !m.Delete)
}

// entriesOf reads the entries of a key, at a live row if one is named, and tells whether there is
// that row.
func entriesOf(c *sqlite3.Conn, text string, k contract.Key,
	at contract.RowID) (entries []contract.Entry, found bool, err error) {
	s, err := c.Prepare(text)
	if err != nil {
		return nil, false, err
	}
	if s.BlobString(string(k)); at != 0 {
		s.Int(int64(at))
	}
	var packed []byte
	if found, err = s.Row(func() { packed = s.ColBlob(0) }); err == nil {
		entries, err = contract.UnpackEntries(packed)
	}
	return entries, found, err
}

// reindex changes the entries of a key, and records them in its live row if there is one.
func reindex(c *sqlite3.Conn, k contract.Key, before, after []contract.Entry, lives bool) error {
	gone, added := contract.EntryChanges(before, after)
	for _, change := range []struct {
		text    string
		entries []contract.Entry
	}{{deleteEntry, gone}, {insertEntry, added}} {
		for _, e := range change.entries {
			s, err := c.Prepare(change.text)
			if err == nil {
				err = s.BlobString(string(e)).BlobString(string(k)).Run()
			}
			if err != nil {
				return err
			}
		}
	}
	if !lives || len(gone)+len(added) == 0 {
		return nil
	}
	s, err := c.Prepare(updateEntries)
	if err != nil {
		return err
	}
	if s.BlobString(string(k)); len(after) > 0 {
		s.Blob(contract.PackEntries(after))
	} else {
		s.Null()
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
