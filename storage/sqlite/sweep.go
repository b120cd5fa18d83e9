package sqlite

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Sweepable implements [mvcc.Backend].
func (b *backend) Sweepable(ctx context.Context, limit int) (from mvcc.Sweepable, err error) {
	err = b.readRows(ctx, b.tails, selectOldestToken, &from.State, func(*stmt) {}, func(s *stmt) {
		if !s.colNull(0) {
			from.Aborted = s.colRevision(0)
		}
	})
	if err != nil {
		return from, err
	}
	st := &from.State
	err = b.readRows(ctx, b.tails, selectSweep, st,
		func(s *stmt) { s.int(int64(st.Swept)).int(int64(st.Compacted)).int(int64(limit) + 1) },
		func(s *stmt) {
			from.Rows = append(from.Rows, mvcc.SweepRow{Revision: s.colRevision(0), Prev: s.colRevision(1), Deleted: s.colInt(2) != 0})
		})
	return from, err
}

// Sweep implements [mvcc.Backend]. It holds the commit lock all the time, as every writer of a file does.
func (b *backend) Sweep(ctx context.Context, p *mvcc.SweepPlan) (deleted int, err error) {
	if !p.Empty() {
		err = b.write(ctx, func(c *conn) (bool, error) {
			deleted, err = b.sweep(c, p)
			return true, err
		})
		if err != nil {
			return 0, err
		}
	}
	return deleted, b.shrink(ctx)
}

func (b *backend) sweep(c *conn, p *mvcc.SweepPlan) (deleted int, err error) {
	guard, err := b.guard(c, mvcc.Token{}, 0)
	if err != nil {
		return 0, err
	}
	if err := p.Check(guard.State); err != nil {
		return 0, err
	}
	s, err := c.prepare(deleteLog)
	if err != nil {
		return 0, err
	}
	for _, r := range p.Revisions {
		if err := s.int(int64(r)).run(); err != nil {
			return 0, err
		}
		deleted += c.changed()
	}
	if p.Swept > guard.State.Swept {
		if s, err = c.prepare(updateSwept); err != nil {
			return 0, err
		}
		if err := s.int(int64(p.Swept)).run(); err != nil {
			return 0, err
		}
	}
	if p.Forget == 0 {
		return deleted, nil
	}
	if s, err = c.prepare(deleteAborted); err != nil {
		return 0, err
	}
	return deleted, s.int(int64(p.Forget)).run()
}

// shrink gives free pages back to the file system, in short transactions, when they are more than an eighth of the file. Fewer are soon used again.
func (b *backend) shrink(ctx context.Context) error {
	if b.cfg.memory() {
		return nil
	}
	for range shrinkSteps {
		var st mvcc.State
		much := false
		err := b.readRows(ctx, b.tails, selectPages, &st, func(*stmt) {}, func(s *stmt) {
			pages, free := s.colInt(1), s.colInt(2)
			much = free > shrinkFrom && free > pages/8
		})
		if err != nil || !much {
			return err
		}
		err = b.write(ctx, func(c *conn) (bool, error) { return true, c.exec(giveBack) })
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	// shrinkFrom is the number of free pages that are always kept.
	shrinkFrom = 256
	// shrinkSteps is how many times a sweep gives pages back, at most.
	shrinkSteps = 8
)
