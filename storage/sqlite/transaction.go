package sqlite

import (
	"context"
	"errors"
	"time"

	lib "modernc.org/sqlite/lib"

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

func isBusy(err error) bool {
	var e *sqliteError
	return errors.As(err, &e) && e.primary() == lib.SQLITE_BUSY
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

// boundLog keeps the write-ahead log from growing without end. SQLite copies it to the database at every COMMIT that leaves it longer than
// walPages, and the next writer starts it anew if no reader is in it at that moment; under constant readers that may never be the case. So beyond
// walLimit it is emptied by force: a checkpoint that waits for the readers that are in it, while new readers read the database alone.
func (b *backend) boundLog(c *conn) {
	if b.cfg.memory() {
		return
	}
	size := b.walSize()
	if size < b.walLimit {
		b.walRetry = 0
		return
	}
	if size < b.walRetry {
		return
	}
	c.busyTimeout(checkpointWait)
	emptied, err := c.checkpoint()
	c.busyTimeout(0)
	switch {
	case err != nil:
		b.opts.Logger.Warn("cannot copy the write-ahead log to the database; trying again when it has grown", "database", b.name(), "bytes", size, "err", err)
	case !emptied:
		b.opts.Logger.Warn("a reader holds the write-ahead log; trying again when it has grown", "database", b.name(), "bytes", size)
	}
	if err != nil || !emptied {
		b.walRetry = size + b.walLimit/4
	}
}

const (
	// walPages is the length at which a COMMIT copies the log to the database: 8 MiB. A page that was changed many times is copied once, so with
	// a quarter of it commits are a fifth slower; with more they are not faster, but the one that copies takes longer.
	walPages = 8 << 20 / pageSize
	// walLimit is the length in bytes at which it is emptied by force.
	walLimit = 64 << 20
	// checkpointWait is how long, in milliseconds, writers wait for the readers in a log that is too long.
	checkpointWait = 200
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

func (t *tx) Abort(token mvcc.Token) error {
	return t.run(insertAborted, func(s *stmt) { s.blob(token[:]).int(t.state.Now.UnixMicro()) })
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
