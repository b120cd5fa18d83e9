package sqlite

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// Durability implements [contract.Backend]. A commit that is not on the disk is in the operating
// system's memory, so it is lost with its boot. A store in memory is lost in any case.
func (b *backend) Durability(ctx context.Context) (d contract.Durability, err error) {
	err = b.readDespiteFence(ctx, b.heads, func(_ context.Context, c *sqlite3.Conn) error {
		s, err := c.Prepare(selectBoot)
		if err != nil {
			return err
		}
		found, err := s.Row(func() { d.Recorded = s.ColString(0) })
		if err == nil && !found {
			err = contract.ErrEmptyStore
		}
		return err
	})
	if b.cfg.memory() {
		return d, err
	}
	d.Relaxed, d.Boot = b.cfg.synchronous != "FULL", bootID()
	return d, err
}

// RecordBoot implements [contract.Backend]. With synchronous=FULL a commit waits until the disk has
// the write-ahead log up to its end, and so all commits before it. With OFF the file itself is
// never waited for, so it is made to have the record before the log is begun anew.
func (b *backend) RecordBoot(ctx context.Context, from, boot string) error {
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	return b.transactAt(ctx, "FULL", func(c *sqlite3.Conn) (bool, error) {
		s, err := c.Prepare(updateBoot)
		if err != nil {
			return false, err
		}
		err = s.Text(from).Text(boot).Run()
		return c.Changes() > 0, err
	})
}

// at makes the connection's commits as durable as synchronous says, until the returned function is
// called. A connection on which that fails is not used again.
func (b *backend) at(c *sqlite3.Conn, synchronous string) (restore func(), err error) {
	if synchronous == b.cfg.synchronous || b.cfg.memory() {
		return func() {}, nil
	}
	if err := setSynchronous(c, synchronous); err != nil {
		return nil, err
	}
	return func() {
		if b.cfg.synchronous == "OFF" {
			c.BusyTimeout(checkpointWait)
			if emptied, err := b.emptyLog(c); err != nil || !emptied {
				b.opts.Logger.Warn("cannot copy the write-ahead log to the database: if the "+
					"machine ends before that is done, nobody may notice that writes are lost",
					"database", b.name(), "err", err)
			}
			c.BusyTimeout(0)
		}
		if err := setSynchronous(c, b.cfg.synchronous); err != nil {
			c.Broken = true
			c.KeepLog() // readers have it open
			b.opts.Logger.Error("cannot reset PRAGMA synchronous; the connection is closed",
				"database", b.name(), "err", err)
		}
	}, nil
}
