package sqlite

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// write runs a transaction on the writing connection, under the commit lock, which is SQLite's lock of writers: BEGIN IMMEDIATE waits for it,
// and what is read after it is what the last writer committed, in whatever process. fn reports whether there is anything to commit.
//
// The context may end the wait and fn's statements, never a COMMIT.
func (b *backend) write(ctx context.Context, fn func(*conn) (bool, error)) error {
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	return b.transact(ctx, func(c *conn) (bool, error) {
		if err := b.checkFence(); err != nil {
			return false, err
		}
		return fn(c)
	})
}

// transact is write for as long as the context lasts, on a fenced file, too.
func (b *backend) transact(ctx context.Context, fn func(*conn) (bool, error)) error {
	return b.transactAt(ctx, b.cfg.synchronous, fn)
}

// transactAt is transact with another value of PRAGMA synchronous.
func (b *backend) transactAt(ctx context.Context, synchronous string, fn func(*conn) (bool, error)) error {
	committed := false
	err := b.on(ctx, b.commits, func(c *conn) error {
		// A file that was replaced is not written any more. That is also seen after the operation, but then it is too late for the commit.
		if b.hasMoved() {
			return errMoved
		}
		restore, err := b.at(c, synchronous)
		if err != nil {
			return err
		}
		defer restore()
		if err := b.begin(ctx, c); err != nil {
			return err
		}
		release := c.interruptible(ctx)
		dirty := false
		err = b.checkWriter(c)
		if err == nil {
			dirty, err = fn(c)
		}
		release()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || !dirty {
			b.rollBack(c)
			return err
		}
		if err := c.exec(commit); err != nil {
			b.rollBack(c)
			return b.commitOutcome(err)
		}
		committed = true
		b.boundLog(c)
		return nil
	})
	if committed && err != nil {
		return mvcc.Errorf(mvcc.Unknown, "the database %s was replaced during a commit: %w", b.name(), err)
	}
	return err
}

// knownSchema is the schema version of this program.
var knownSchema = migrations.SQLite.Newest()

// checkWriter refuses, under the commit lock, to write after a migration has ended the time of this
// program's schema version.
func (b *backend) checkWriter(c *conn) error {
	s, err := c.prepare(selectOldestWriter)
	if err != nil {
		return err
	}
	row, err := s.step()
	if err != nil || !row {
		return err // who writes finds out what is missing
	}
	oldest := s.colInt(0)
	s.reset()
	if oldest > knownSchema {
		return mvcc.Errorf(mvcc.Invalid,
			"a newer rowkeeper has migrated the database %s, and this one, of schema version %d, must not write to it any more; use a newer rowkeeper", b.name(), knownSchema)
	}
	return nil
}

// begin takes the commit lock. SQLite has no queue for it: whoever asks when it is free has it. So the pauses are short, or a process would
// wait for ever beside one that commits group after group.
func (b *backend) begin(ctx context.Context, c *conn) error {
	const shortest, longest = 100 * time.Microsecond, 2 * time.Millisecond
	err := c.exec(beginImmediate)
	if !isBusy(err) {
		return err
	}
	if b.onWait != nil {
		b.onWait()
	}
	patience := time.NewTimer(b.cfg.busyTimeout)
	defer patience.Stop()
	pause := shortest
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-patience.C:
			return err
		case <-timer.C:
		}
		if err = c.exec(beginImmediate); !isBusy(err) {
			return err
		}
		pause = min(2*pause, longest)
		timer.Reset(pause)
	}
}

// rollBack ends a transaction, unless SQLite has rolled it back already because of its error. A connection on which that fails is not used again.
func (b *backend) rollBack(c *conn) {
	if !c.inTransaction() {
		return
	}
	if err := c.exec(rollback); err != nil || c.inTransaction() {
		c.broken = true
		b.opts.Logger.Error("cannot roll back; the connection is closed", "database", b.name(), "err", err)
	}
}

// guard reads, under the commit lock, what [mvcc.CheckGroup] and [mvcc.Resolve] ask for: about a token,
// and the row at a revision.
func (b *backend) guard(c *conn, token mvcc.Token, at mvcc.Revision) (g mvcc.Guard, err error) {
	s, err := c.prepare(selectGuard)
	if err != nil {
		return g, err
	}
	row, err := s.int(int64(at)).blob(token[:]).step()
	if err == nil && !row {
		err = mvcc.ErrEmptyStore
	}
	if err != nil {
		return g, err
	}
	b.scanState(s, &g.State)
	if !s.colNull(5) {
		g.At = s.colToken(5)
	}
	g.Aborted = s.colInt(6) != 0
	s.reset()
	return g, nil
}
