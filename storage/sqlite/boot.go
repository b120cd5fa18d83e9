package sqlite

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Durability implements [mvcc.Backend]. What is not on the disk is in the operating system's memory, so
// it is lost with its boot. A store in memory is lost in any case.
func (b *backend) Durability(ctx context.Context) (d mvcc.Durability, err error) {
	err = b.readDespiteFence(ctx, b.heads, func(c *conn) error {
		s, err := c.prepare(selectBoot)
		if err != nil {
			return err
		}
		defer s.reset()
		row, err := s.step()
		if err == nil && !row {
			err = mvcc.ErrEmptyStore
		}
		if err != nil {
			return err
		}
		d.Recorded = s.colString(0)
		return nil
	})
	if b.cfg.memory() {
		return d, err
	}
	d.Relaxed, d.Boot = b.cfg.synchronous != "FULL", bootID()
	if b.opts.Boot != nil {
		d.Boot = b.opts.Boot()
	}
	return d, err
}

// RecordBoot implements [mvcc.Backend]. With synchronous=FULL a commit waits until the disk has the
// write-ahead log up to its end, and so all commits before it. With OFF the file itself is never waited
// for, so it is made to have the record before the log is begun anew.
func (b *backend) RecordBoot(ctx context.Context, from, boot string) error {
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	return b.transactAt(ctx, "FULL", func(c *conn) (bool, error) {
		s, err := c.prepare(updateBoot)
		if err != nil {
			return false, err
		}
		err = s.text(from).text(boot).run()
		return c.changed() > 0, err
	})
}

// at makes the connection's commits as durable as synchronous says, until the returned function is called.
// A connection on which that fails is not used again.
func (b *backend) at(c *conn, synchronous string) (restore func(), err error) {
	if synchronous == b.cfg.synchronous || b.cfg.memory() {
		return func() {}, nil
	}
	if err := c.set("synchronous", synchronous); err != nil {
		return nil, err
	}
	return func() {
		if b.cfg.synchronous == "OFF" {
			c.busyTimeout(checkpointWait)
			if emptied, err := c.checkpoint(); err != nil || !emptied {
				b.opts.Logger.Warn("cannot copy the write-ahead log to the database: if the machine ends before "+
					"that is done, nobody may notice that writes are lost", "database", b.name(), "err", err)
			}
			c.busyTimeout(0)
		}
		if err := c.set("synchronous", b.cfg.synchronous); err != nil {
			c.broken = true
			b.opts.Logger.Error("cannot reset PRAGMA synchronous; the connection is closed", "database", b.name(), "err", err)
		}
	}, nil
}
