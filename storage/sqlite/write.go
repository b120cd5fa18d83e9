package sqlite

import (
	"context"
	"errors"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// write runs a transaction on the writing connection, under the commit lock, which is SQLite's lock of writers: BEGIN IMMEDIATE waits for it,
// and what is read after it is what the last writer committed, in whatever process. fn reports whether there is anything to commit.
//
// The context may end the wait and fn's statements, never a COMMIT.
func (b *backend) write(ctx context.Context, fn func(*conn) (bool, error)) error {
	return b.writeDespiteFence(ctx, func(c *conn) (bool, error) {
		if err := b.checkFence(); err != nil {
			return false, err
		}
		return fn(c)
	})
}

func (b *backend) writeDespiteFence(ctx context.Context, fn func(*conn) (bool, error)) error {
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	return b.transact(ctx, fn)
}

// transact is write for as long as the context lasts, on a fenced file, too.
func (b *backend) transact(ctx context.Context, fn func(*conn) (bool, error)) error {
	committed := false
	err := b.on(ctx, b.commits, func(c *conn) error {
		// A file that was replaced is not written any more. That is also seen after the operation, but then it is too late for the commit.
		if b.hasMoved() {
			return errMoved
		}
		if err := b.begin(ctx, c); err != nil {
			return err
		}
		release := c.interruptible(ctx)
		dirty, err := fn(c)
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

// guard reads the state under the commit lock, and tells whether the token is aborted and what token the row at a revision has.
func (b *backend) guard(c *conn, token mvcc.Token, at mvcc.Revision) (st mvcc.State, found bool, has mvcc.Token, aborted bool, err error) {
	s, err := c.prepare(selectGuard)
	if err != nil {
		return st, false, has, false, err
	}
	row, err := s.int(int64(at)).blob(token[:]).step()
	if err == nil && !row {
		err = b.noStore()
	}
	if err != nil {
		return st, false, has, false, err
	}
	b.scanState(s, &st)
	found, has, aborted = !s.colNull(5), s.colToken(5), s.colInt(6) != 0
	s.reset()
	return st, found, has, aborted, nil
}

func (b *backend) Commit(ctx context.Context, g *mvcc.Group) (*mvcc.GroupResult, error) {
	res := &mvcc.GroupResult{}
	asked := time.Now()
	err := b.write(ctx, func(c *conn) (bool, error) {
		res.LockWait = time.Since(asked)
		st, found, has, aborted, err := b.guard(c, g.Token, g.Seen.Revision)
		switch {
		case err != nil:
			return false, err
		case aborted:
			return false, mvcc.Errorf(mvcc.Aborted, "the commit was given up before it began")
		case st.Head.Epoch != g.Seen.Epoch, st.Head.Revision < g.Seen.Revision,
			found && has != g.Seen.Token, !found && g.Seen.Revision > st.Compacted:
			return false, mvcc.Errorf(mvcc.Fenced, "the history of the database %s has changed: it was restored or fenced", b.name())
		}
		res.Before, res.State, res.Time = st.Head, st, st.Now.Truncate(time.Microsecond)

		var failed error
		outcomes, accepted := mvcc.Decide(g.Mutations, st.Head.Revision, func(k mvcc.Key) (mvcc.Revision, mvcc.Revision) {
			revision, create, err := live(c, k)
			if err != nil {
				failed = err
			}
			return revision, create
		})
		res.Outcomes = outcomes
		if failed != nil || accepted == 0 {
			return false, failed
		}
		for i, m := range g.Mutations {
			if !outcomes[i].Accepted {
				continue
			}
			if err := b.apply(c, g.Token, res.Time, m, &outcomes[i]); err != nil {
				return false, err
			}
		}
		res.State.Head.Revision += mvcc.Revision(accepted)
		res.State.Head.Token = g.Token
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// live reads a key's revision and creation revision, 0 and 0 if it does not exist.
func live(c *conn, k mvcc.Key) (revision, create mvcc.Revision, err error) {
	s, err := c.prepare(selectLive)
	if err != nil {
		return 0, 0, err
	}
	row, err := s.key(k).step()
	if err != nil || !row {
		return 0, 0, err
	}
	revision, create = s.colRevision(0), s.colRevision(1)
	s.reset()
	return revision, create, nil
}

// apply writes an accepted mutation.
func (b *backend) apply(c *conn, token mvcc.Token, now time.Time, m *mvcc.Mutation, o *mvcc.Outcome) error {
	if m.Delete && !m.HasPrev {
		s, err := c.prepare(selectValue)
		if err != nil {
			return err
		}
		row, err := s.int(int64(m.Expect)).step()
		if err != nil {
			return err
		}
		if !row {
			return b.noRow(m.Key, m.Expect)
		}
		o.PrevValue = s.colBytes(0)
		s.reset()
	}

	s, err := c.prepare(insertLog)
	if err != nil {
		return err
	}
	s.int(int64(o.Revision)).key(m.Key).int(int64(m.Expect)).int(int64(o.Create)).blob(token[:]).int(now.UnixMicro()).bool(m.Delete)
	if m.Delete {
		s.null()
	} else {
		s.blob(m.Value)
	}
	if err := s.run(); err != nil {
		return err
	}

	switch {
	case m.Delete:
		if s, err = c.prepare(deleteLive); err == nil {
			s.key(m.Key)
		}
	case m.Expect == 0:
		if s, err = c.prepare(insertLive); err == nil {
			s.key(m.Key).int(int64(o.Revision)).int(int64(o.Create))
			bindExpiry(s, now, m.TTL)
		}
	default:
		if s, err = c.prepare(updateLive); err == nil {
			s.key(m.Key).int(int64(o.Revision))
			bindExpiry(s, now, m.TTL)
		}
	}
	if err != nil {
		return err
	}
	return s.run()
}

func bindExpiry(s *stmt, now time.Time, ttl time.Duration) {
	if ttl <= 0 {
		s.null()
		return
	}
	s.int(now.Add(ttl).UnixMicro())
}

func (b *backend) Resolve(ctx context.Context, token mvcc.Token, after mvcc.Position) (*mvcc.Resolution, error) {
	r := &mvcc.Resolution{}
	err := b.write(ctx, func(c *conn) (bool, error) {
		st, _, _, aborted, err := b.guard(c, token, after.Revision)
		if err != nil {
			return false, err
		}
		r.State = st
		if aborted {
			r.Aborted = true
			return false, nil
		}
		s, err := c.prepare(selectGroup)
		if err != nil {
			return false, err
		}
		s.int(int64(after.Revision)).blob(token[:])
		for {
			row, err := s.step()
			if err != nil {
				return false, err
			}
			if !row {
				break
			}
			r.Rows = append(r.Rows, mvcc.Row{
				Revision: s.colRevision(0), Key: s.colKey(1), Prev: s.colRevision(2), Create: s.colRevision(3), Token: token,
				Time: time.UnixMicro(s.colInt(4)).UTC(), Deleted: s.colInt(5) != 0,
			})
		}
		if len(r.Rows) > 0 {
			r.Committed = true
			return false, nil
		}
		// The group's rows have revisions after the position. Where compaction has passed it they may have been there, and after a fence
		// they may have been in the history that was lost: the fence has moved compacted, too.
		if st.Compacted > after.Revision {
			return false, nil
		}
		if s, err = c.prepare(insertAborted); err != nil {
			return false, err
		}
		r.Aborted = true
		return true, s.blob(token[:]).int(st.Now.UnixMicro()).run()
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (b *backend) RecordFingerprint(ctx context.Context, fingerprint string) error {
	return b.write(ctx, func(c *conn) (bool, error) {
		s, err := c.prepare(updateFingerprint)
		if err != nil {
			return false, err
		}
		err = s.text(fingerprint).run()
		return c.changed() > 0, err
	})
}

func (b *backend) Compact(ctx context.Context, revision mvcc.Revision) (st mvcc.State, err error) {
	err = b.write(ctx, func(c *conn) (bool, error) {
		done, err := b.snapshot(c, &st)
		if err != nil {
			return false, err
		}
		done()
		revision = min(revision, st.Head.Revision)
		if revision <= st.Compacted {
			return false, nil
		}
		s, err := c.prepare(updateCompacted)
		if err != nil {
			return false, err
		}
		st.Compacted = revision
		return true, s.int(int64(revision)).run()
	})
	return st, err
}

// abortedFor is how long an aborted token is kept: far longer than any transaction with it could still be waiting.
const abortedFor = time.Hour

func (b *backend) Sweep(ctx context.Context, limit int) (deleted int, st mvcc.State, err error) {
	plan, err := b.planSweep(ctx, limit)
	if err != nil {
		return 0, mvcc.State{}, err
	}
	st = plan.state
	// A sweep that has nothing to do, as most have, does not take the commit lock.
	if plan.next != st.Swept || len(plan.released) > 0 || plan.tokens {
		err = b.write(ctx, func(c *conn) (bool, error) {
			done, err := b.snapshot(c, &st)
			if err != nil {
				return false, err
			}
			done()
			deleted, err = plan.run(c, &st)
			return true, err
		})
		if err != nil {
			return 0, mvcc.State{}, err
		}
	}
	return deleted, st, b.shrink(ctx)
}

// sweepPlan is what a batch of the sweep will do.
type sweepPlan struct {
	// state is that in which it was planned.
	state mvcc.State
	// released are the rows to delete, and next is the new swept revision.
	released []mvcc.Revision
	next     mvcc.Revision
	// tokens tells whether there are aborted tokens from before forget, in microseconds, to delete.
	tokens bool
	forget int64
}

// planSweep finds what the next rows in (swept, compacted], at most limit, have released. It does so before the commit lock is taken: these rows do
// not change any more, a head that was passed will never be the head again, and only a sweep that also moves swept deletes any of them.
func (b *backend) planSweep(ctx context.Context, limit int) (plan sweepPlan, err error) {
	st := &plan.state
	plan.forget = b.now().Add(-abortedFor).UnixMicro()
	err = b.readRows(ctx, b.tails, selectOldTokens, st, func(s *stmt) { s.int(plan.forget) }, func(s *stmt) { plan.tokens = s.colInt(0) != 0 })
	if err != nil {
		return plan, err
	}
	type row struct {
		revision, prev mvcc.Revision
		deleted        bool
	}
	var rows []row
	err = b.readRows(ctx, b.tails, selectSweep, st,
		func(s *stmt) { s.int(int64(st.Swept)).int(int64(st.Compacted)).int(int64(limit) + 1) },
		func(s *stmt) { rows = append(rows, row{s.colRevision(0), s.colRevision(1), s.colInt(2) != 0}) })
	if err != nil {
		return plan, err
	}
	plan.next = st.Compacted
	if len(rows) > limit {
		// There may be more. The row at swept, if it is there, does not count.
		if rows[0].revision != st.Swept {
			rows = rows[:limit]
		}
		plan.next = rows[len(rows)-1].revision
	}
	for _, r := range rows {
		if r.prev != 0 && r.revision != st.Swept {
			plan.released = append(plan.released, r.prev)
		}
		if r.deleted && r.revision != st.Head.Revision {
			plan.released = append(plan.released, r.revision)
		}
	}
	return plan, nil
}

// run does it under the commit lock, where the state is st, unless another sweep was faster.
func (plan *sweepPlan) run(c *conn, st *mvcc.State) (deleted int, err error) {
	if plan.tokens {
		s, err := c.prepare(deleteAborted)
		if err != nil {
			return 0, err
		}
		if err := s.int(plan.forget).run(); err != nil {
			return 0, err
		}
	}
	if st.Swept != plan.state.Swept {
		return 0, nil
	}
	s, err := c.prepare(deleteLog)
	if err != nil {
		return 0, err
	}
	for _, r := range plan.released {
		if err := s.int(int64(r)).run(); err != nil {
			return 0, err
		}
		deleted += c.changed()
	}
	if s, err = c.prepare(updateSwept); err != nil {
		return 0, err
	}
	st.Swept = plan.next
	return deleted, s.int(int64(plan.next)).run()
}

// shrink gives free pages back to the file system, in short transactions, when they are more than an eighth of the file. Fewer are soon used again.
func (b *backend) shrink(ctx context.Context) error {
	if b.cfg.memory() {
		return nil
	}
	for range shrinkSteps {
		var st mvcc.State
		much := false
		err := b.readRows(ctx, b.tails, selectSize, &st, func(*stmt) {}, func(s *stmt) {
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

func (b *backend) Fence(ctx context.Context, f mvcc.Fence) (st mvcc.State, err error) {
	err = b.writeDespiteFence(ctx, func(c *conn) (bool, error) {
		done, err := b.snapshot(c, &st)
		if err != nil {
			return false, err
		}
		done()
		if st.Head.Epoch > f.Seen.Epoch {
			return false, nil
		}
		st.Head = mvcc.Position{Epoch: f.Seen.Epoch + 1, Revision: f.Marker(st), Token: f.Token}
		st.Compacted = st.Head.Revision
		return true, mark(c, &st, f.Fingerprint)
	})
	if err == nil {
		b.fenced.Store(false)
	}
	return st, err
}

// mark writes the marker and the epoch of a fence, after which the state is st. An empty fingerprint leaves the recorded one.
func mark(c *conn, st *mvcc.State, fingerprint string) error {
	s, err := c.prepare(insertLog)
	if err != nil {
		return err
	}
	s.int(int64(st.Head.Revision)).key("").int(0).int(0).blob(st.Head.Token[:]).int(st.Now.UnixMicro()).bool(true).null()
	if err := s.run(); err != nil {
		return err
	}
	if s, err = c.prepare(updateEpoch); err != nil {
		return err
	}
	s.int(int64(st.Head.Epoch)).int(int64(st.Compacted))
	if fingerprint == "" {
		s.null()
	} else {
		s.text(fingerprint)
	}
	return s.run()
}
