package sqlite

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// write runs a transaction on the writing connection, under the commit lock, which is SQLite's lock
// of writers: BEGIN IMMEDIATE waits for it, and what is read after it is what the last writer
// committed, in whatever process. fn reports whether there is anything to commit.
//
// The context may end the wait and fn's statements, never a COMMIT.
func (b *backend) write(ctx context.Context, fn func(*sqlite3.Conn) (bool, error)) error {
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	return b.transact(ctx, func(c *sqlite3.Conn) (bool, error) {
		if err := b.checkFence(); err != nil {
			return false, err
		}
		return fn(c)
	})
}

// transact is write for as long as the context lasts, on a fenced file, too.
func (b *backend) transact(ctx context.Context, fn func(*sqlite3.Conn) (bool, error)) error {
	return b.transactAt(ctx, b.cfg.synchronous, fn)
}

// transactAt is transact with another value of PRAGMA synchronous.
func (b *backend) transactAt(ctx context.Context, synchronous string,
	fn func(*sqlite3.Conn) (bool, error)) error {
	committed := false
	err := b.on(ctx, b.commits, func(c *sqlite3.Conn) error {
		b.copyLog(c)
		// A file that was replaced is not written any more. That is also seen after the operation,
		// but then it is too late for the commit.
		if err := b.displaced(); err != nil {
			return err
		}
		restore, err := b.at(c, synchronous)
		if err != nil {
			return err
		}
		defer restore()
		if err := b.begin(ctx, c); err != nil {
			return err
		}
		ended := false
		defer func() {
			if !ended { // also if fn has panicked: who closes the store gives the lock back
				b.rollBack(c)
			}
		}()
		if err := b.markFile(ctx, c); err != nil {
			return err
		}
		dirty, err := interruptible(ctx, c, fn)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || !dirty {
			return err
		}
		if err := c.Exec(commit); err != nil {
			return b.commitOutcome(err)
		}
		ended = true
		committed, b.wrote, b.unfenced = true, true, false
		b.committed(c)
		return nil
	})
	if err == nil {
		b.lost.Store(false) // it was fenced before anything else was done
	}
	if committed && err != nil {
		return contract.Errorf(contract.Unknown, "the database %s was replaced during a commit: %w",
			b.name(), err)
	}
	return err
}

// interruptible does the work of a transaction, which the end of the context interrupts.
func interruptible(ctx context.Context, c *sqlite3.Conn,
	fn func(*sqlite3.Conn) (bool, error)) (dirty bool, err error) {
	defer c.Interruptible(ctx)()
	if err := checkWriter(c); err != nil {
		return false, err
	}
	return fn(c)
}

// knownSchema is the schema version of this program.
var knownSchema = migrations.SQLite.Newest()

// checkWriter reads what [contract.CheckWriter] asks for.
func checkWriter(c *sqlite3.Conn) error {
	s, err := c.Prepare(selectOldestWriter)
	if err != nil {
		return err
	}
	var oldest int64 // who writes finds out what is missing
	if _, err := s.Row(func() { oldest = s.ColInt(0) }); err != nil {
		return err
	}
	return contract.CheckWriter(oldest, knownSchema)
}

// waiting is logged when another process holds the commit lock.
const waiting = "another process is writing to the database; waiting for it"

// begin takes the commit lock. SQLite has no queue for it: the first who asks when it is free gets
// it. So the pauses are short. With longer ones a process would wait for ever beside another one
// that commits group after group.
func (b *backend) begin(ctx context.Context, c *sqlite3.Conn) error {
	const shortest, longest = 100 * time.Microsecond, 2 * time.Millisecond
	err := c.Exec(beginImmediate)
	if !sqlite3.Is(err, sqlite3.Busy) {
		return err
	}
	b.opts.Logger.Debug(waiting, "database", b.name())
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
		if err = c.Exec(beginImmediate); !sqlite3.Is(err, sqlite3.Busy) {
			return err
		}
		pause = min(2*pause, longest)
		timer.Reset(pause)
	}
}

// rollBack ends a transaction, unless SQLite has rolled it back already because of its error. A
// connection on which that fails is not used again.
func (b *backend) rollBack(c *sqlite3.Conn) {
	if !c.InTransaction() {
		return
	}
	if err := c.Exec(rollback); err != nil || c.InTransaction() {
		c.Broken = true
		c.KeepLog() // readers have it open
		b.opts.Logger.Error("cannot roll back; the connection is closed", "database", b.name(),
			"err", err)
	}
}

// guard reads, under the commit lock, what [contract.CheckGroup] and [contract.Resolve] ask for:
// about a token, and the row at a revision.
func (b *backend) guard(c *sqlite3.Conn, token contract.Token,
	at contract.Revision) (g contract.Guard, err error) {
	s, err := c.Prepare(selectGuard)
	if err != nil {
		return g, err
	}
	found, err := s.Int(int64(at)).Blob(token[:]).Row(func() {
		b.scanState(s, &g.State)
		g.At, g.Aborted = colToken(s, stateColumns), s.ColInt(stateColumns+1) != 0
		g.Generation = s.ColInt(stateColumns + 2)
	})
	if err == nil && !found {
		err = contract.ErrEmptyStore
	}
	return g, err
}
