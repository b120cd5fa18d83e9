package sqlite

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// Sweep implements [contract.Backend]. It holds the commit lock all the time, as every writer of a
// file does.
func (b *backend) Sweep(ctx context.Context, p *contract.SweepPlan) (deleted int, err error) {
	if !p.Empty() {
		err = b.write(ctx, func(c *sqlite3.Conn) (bool, error) {
			deleted, err = b.sweep(c, p)
			return true, err
		})
		if err != nil {
			return 0, err
		}
	}
	return deleted, b.shrink(ctx)
}

func (b *backend) sweep(c *sqlite3.Conn, p *contract.SweepPlan) (deleted int, err error) {
	guard, err := b.guard(c, contract.Token{}, 0)
	if err != nil {
		return 0, err
	}
	if err := p.Check(guard.State); err != nil {
		return 0, err
	}
	if p.Users {
		users, err := c.Prepare(deleteUser)
		if err != nil {
			return 0, err
		}
		for _, r := range p.Rows {
			if err := users.Int(int64(r)).Run(); err != nil {
				return 0, err
			}
		}
	}
	s, err := c.Prepare(deleteLog)
	if err != nil {
		return 0, err
	}
	for _, r := range p.Rows {
		if err := s.Int(int64(r)).Run(); err != nil {
			return 0, err
		}
		deleted += c.Changes()
	}
	if p.Swept > guard.State.Swept {
		if s, err = c.Prepare(updateSwept); err != nil {
			return 0, err
		}
		if err := s.Int(int64(p.Swept)).Run(); err != nil {
			return 0, err
		}
	}
	if p.Forget == 0 {
		return deleted, nil
	}
	if s, err = c.Prepare(deleteAborted); err != nil {
		return 0, err
	}
	return deleted, s.Int(int64(p.Forget)).Run()
}

// shrink gives free pages back to the file system, in short transactions, when they are more than
// an eighth of the file. Fewer are soon used again.
func (b *backend) shrink(ctx context.Context) error {
	if b.cfg.memory() {
		return nil
	}
	for range shrinkSteps {
		var pages, free int64
		err := b.read(ctx, b.tails, func(_ context.Context, c *sqlite3.Conn) (err error) {
			pages, free, err = filePages(c)
			return err
		})
		if err != nil || free <= shrinkFrom || free <= pages/8 {
			return err
		}
		err = b.write(ctx, func(c *sqlite3.Conn) (bool, error) { return true, c.Exec(giveBack) })
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
