package sqlite

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// Locked implements [contract.Backend]. Until an unbounded transaction is committed, all that it
// writes is in the write-ahead log. Readers see what was there before.
func (b *backend) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	var end func()
	if o.Unbounded {
		ctx, end = b.long.begin(ctx)
	} else {
		ctx, end = b.timeout(ctx)
	}
	defer end()
	var callers foreign
	err := b.transact(ctx, func(c *sqlite3.Conn) (bool, error) {
		if !o.AnyServer {
			if err := b.checkFence(); err != nil {
				return false, err
			}
		}
		guard, err := b.guard(c, contract.Token{}, 0)
		if err != nil {
			return false, err
		}
		t := &tx{view: view{ctx: ctx, b: b, c: c, state: guard.State}}
		err = f(t)
		return t.dirty, callers.keep(err)
	})
	if err == nil && o.AnyServer {
		b.fenced.Store(false)
	}
	return callers.or(err)
}

// tx implements [contract.Tx].
type tx struct {
	view
	// dirty tells whether anything was written.
	dirty bool
}

// run runs a statement that writes.
func (t *tx) run(text string, bind func(*sqlite3.Stmt)) error {
	s, err := t.c.Prepare(text)
	if err == nil {
		bind(s)
		err = s.Run()
	}
	t.dirty = t.dirty || err == nil && t.c.Changes() > 0
	return t.b.classify(t.ctx, err)
}

func (t *tx) Fingerprint() string { return t.b.fingerprint() }

func (t *tx) Group(token contract.Token,
	after contract.Revision) (g contract.Guard, rows []contract.Row, err error) {
	defer func() { err = t.b.classify(t.ctx, err) }()
	if g, err = t.b.guard(t.c, token, after); err != nil {
		return g, nil, err
	}
	s, err := t.c.Prepare(selectGroup)
	if err != nil {
		return g, nil, err
	}
	err = s.Int(int64(after)).Blob(token[:]).Each(func() error {
		rows = append(rows, contract.Row{
			Revision: contract.Revision(s.ColInt(0)), Key: contract.Key(s.ColString(1)),
			Prev: contract.Revision(s.ColInt(2)), Create: contract.Revision(s.ColInt(3)),
			Version: s.ColInt(4), Lease: contract.Lease(s.ColInt(5)), Token: token,
			Time: time.UnixMicro(s.ColInt(6)).UTC(), Deleted: s.ColInt(7) != 0,
		})
		return nil
	})
	return g, rows, err
}

func (t *tx) Abort(token contract.Token, seen contract.Revision) error {
	return t.run(insertAborted, func(s *sqlite3.Stmt) { s.Blob(token[:]).Int(int64(seen)) })
}

func (t *tx) SetCompacted(r contract.Revision) error {
	return t.run(updateCompacted, func(s *sqlite3.Stmt) { s.Int(int64(r)) })
}

func (t *tx) RecordFingerprint(fingerprint string) error {
	return t.run(updateFingerprint, func(s *sqlite3.Stmt) { s.Text(fingerprint) })
}

func (t *tx) Mark(st contract.State, fingerprint string) error {
	err := t.run(insertLog, func(s *sqlite3.Stmt) {
		s.Int(int64(st.Head.Revision)).BlobString("").Int(0).Int(0).Int(0).Int(0)
		s.Blob(st.Head.Token[:]).Int(st.Now.UnixMicro()).Bool(true).Null()
	})
	if err != nil {
		return err
	}
	return t.run(updateEpoch, func(s *sqlite3.Stmt) {
		s.Int(int64(st.Head.Epoch)).Int(int64(st.Compacted)).Int(int64(st.Swept))
		if fingerprint == "" {
			s.Null()
		} else {
			s.Text(fingerprint)
		}
	})
}

func (t *tx) Clear() error {
	for _, text := range []string{deleteAllLeases, deleteAllLive, deleteAllLog} {
		if err := t.run(text, func(*sqlite3.Stmt) {}); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) Leases(leases []contract.Lease) (found []contract.LeaseRow, err error) {
	for _, l := range leases {
		row, ok, err := leaseRow(t.c, l)
		if err != nil {
			return nil, t.b.classify(t.ctx, err)
		}
		if ok {
			found = append(found, row)
		}
	}
	return found, nil
}

func (t *tx) PutLeases(rows []contract.LeaseRow) error {
	for _, r := range rows {
		if err := t.run(insertLease, func(s *sqlite3.Stmt) {
			s.Int(int64(r.Lease)).Int(r.TTL).Int(r.Expiry)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) DropLeases(leases []contract.Lease) error {
	for _, l := range leases {
		if err := t.run(deleteLease, func(s *sqlite3.Stmt) { s.Int(int64(l)) }); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) Erase(limit int) (n int, err error) {
	for _, text := range []string{eraseLive, eraseLog} {
		if err := t.run(text, func(s *sqlite3.Stmt) { s.Int(int64(limit)) }); err != nil {
			return 0, err
		}
		n += t.c.Changes()
	}
	return n, t.run(eraseAborted, func(*sqlite3.Stmt) {})
}

func (t *tx) Renew() error { return t.run(renewStore, func(*sqlite3.Stmt) {}) }

func (t *tx) SetQuota(q contract.Quota) error {
	return t.run(updateQuota, func(s *sqlite3.Stmt) { s.Int(q.Objects).Int(q.Bytes) })
}

func (t *tx) Insert(token contract.Token, write func(func(*contract.Record) error) error) error {
	now := t.state.Now.UnixMicro()
	return write(func(r *contract.Record) error {
		err := t.run(insertLog, func(s *sqlite3.Stmt) {
			s.Int(int64(r.Revision)).BlobString(string(r.Key)).Int(0).Int(int64(r.Create))
			s.Int(r.Version).Int(int64(r.Lease)).Blob(token[:]).Int(now).Bool(false).Blob(r.Value)
		})
		if err != nil {
			return err
		}
		return t.run(insertLive, func(s *sqlite3.Stmt) {
			s.BlobString(string(r.Key)).Int(int64(r.Revision)).Int(int64(r.Create))
			s.Int(r.Version).Int(int64(r.Lease))
			bindExpiry(s, r.LiveExpiry())
		})
	})
}
