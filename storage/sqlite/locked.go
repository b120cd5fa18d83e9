package sqlite

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Locked implements [mvcc.Backend]. An unbounded transaction is in the write-ahead log until it is
// committed, which is as large as what it writes by then; readers go on with what was before.
func (b *backend) Locked(ctx context.Context, o mvcc.LockOptions, f func(mvcc.Tx) error) error {
	var end func()
	if o.Unbounded {
		ctx, end = b.long.begin(ctx)
	} else {
		ctx, end = b.timeout(ctx)
	}
	defer end()
	var callers foreign
	err := b.transact(ctx, func(c *conn) (bool, error) {
		if !o.AnyServer {
			if err := b.checkFence(); err != nil {
				return false, err
			}
		}
		guard, err := b.guard(c, mvcc.Token{}, 0)
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

// tx implements [mvcc.Tx].
type tx struct {
	view
	// dirty tells whether anything was written.
	dirty bool
}

// run runs a statement that writes.
func (t *tx) run(text string, bind func(*stmt)) error {
	s, err := t.c.prepare(text)
	if err == nil {
		bind(s)
		err = s.run()
	}
	t.dirty = t.dirty || err == nil && t.c.changed() > 0
	return t.b.classify(t.ctx, err)
}

func (t *tx) Group(token mvcc.Token, after mvcc.Revision) (g mvcc.Guard, rows []mvcc.Row, err error) {
	defer func() { err = t.b.classify(t.ctx, err) }()
	if g, err = t.b.guard(t.c, token, after); err != nil {
		return g, nil, err
	}
	s, err := t.c.prepare(selectGroup)
	if err != nil {
		return g, nil, err
	}
	s.int(int64(after)).blob(token[:])
	for {
		row, err := s.step()
		if err != nil || !row {
			return g, rows, err
		}
		rows = append(rows, mvcc.Row{
			Revision: s.colRevision(0), Key: s.colKey(1), Prev: s.colRevision(2), Create: s.colRevision(3), Token: token,
			Time: time.UnixMicro(s.colInt(4)).UTC(), Deleted: s.colInt(5) != 0,
		})
	}
}

func (t *tx) Abort(token mvcc.Token, seen mvcc.Revision) error {
	return t.run(insertAborted, func(s *stmt) { s.blob(token[:]).int(int64(seen)) })
}

func (t *tx) SetCompacted(r mvcc.Revision) error {
	return t.run(updateCompacted, func(s *stmt) { s.int(int64(r)) })
}

func (t *tx) RecordFingerprint(fingerprint string) error {
	return t.run(updateFingerprint, func(s *stmt) { s.text(fingerprint) })
}

func (t *tx) Mark(st mvcc.State, fingerprint string) error {
	err := t.run(insertLog, func(s *stmt) {
		s.int(int64(st.Head.Revision)).key("").int(0).int(0).blob(st.Head.Token[:]).int(st.Now.UnixMicro()).bool(true).null()
	})
	if err != nil {
		return err
	}
	return t.run(updateEpoch, func(s *stmt) {
		s.int(int64(st.Head.Epoch)).int(int64(st.Compacted)).int(int64(st.Swept))
		if fingerprint == "" {
			s.null()
		} else {
			s.text(fingerprint)
		}
	})
}

func (t *tx) Clear() error {
	if err := t.run(deleteAllLive, func(*stmt) {}); err != nil {
		return err
	}
	return t.run(deleteAllLog, func(*stmt) {})
}

func (t *tx) Insert(token mvcc.Token, write func(func(*mvcc.Record) error) error) error {
	now := t.state.Now.UnixMicro()
	return write(func(r *mvcc.Record) error {
		err := t.run(insertLog, func(s *stmt) {
			s.int(int64(r.Revision)).key(r.Key).int(0).int(int64(r.Create)).blob(token[:]).int(now).bool(false).blob(r.Value)
		})
		if err != nil {
			return err
		}
		return t.run(insertLive, func(s *stmt) {
			s.key(r.Key).int(int64(r.Revision)).int(int64(r.Create))
			if r.Expiry == 0 {
				s.null()
			} else {
				s.int(r.Expiry)
			}
		})
	})
}
