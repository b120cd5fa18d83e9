package mvcc

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// CompactionPolicy says what history is kept. A zero value means its default.
type CompactionPolicy struct {
	// Window is the time for which every revision can be read and watched from. Default 10 minutes.
	// Negative: nothing is compacted unless Engine.Compact is called.
	Window time.Duration
	// Keep is the number of newest revisions that are kept however old they are. Default 1,000.
	Keep contract.Revision
	// Interval is how often the boundary is moved. Default one minute.
	Interval time.Duration
	// SweepRows is how many rows of the log one batch of the sweep looks at. Default 500.
	SweepRows int
}

func (p CompactionPolicy) withDefaults() CompactionPolicy {
	set(&p.Window, 10*time.Minute)
	set(&p.Keep, 1_000)
	set(&p.Interval, time.Minute)
	set(&p.SweepRows, 500)
	return p
}

// compactLoop moves the boundary and sweeps. All replicas do so at once: the boundary only rises,
// and a batch that another replica has swept is empty. A random part of the interval keeps them
// from doing it in step.
func (s *Engine) compactLoop(ctx context.Context) {
	p := s.cfg.Compaction
	var last compactionPass
	// The interval is between the beginnings of passes: a pass that sweeps for long does not make
	// the history longer. A pass that is due meanwhile begins at its end.
	next := time.Now()
	later := func() { next = time.Now().Add(p.Interval*9/10 + rand.N(p.Interval/5+1)) }
	for later(); ; {
		var due <-chan time.Time // never, without a window
		if p.Window >= 0 {
			due = time.After(time.Until(next))
		}
		var err error
		select {
		case <-ctx.Done():
			return
		case <-due:
			later()
			last, err = s.compactAgain(ctx, last)
		case <-s.sweepSoon:
			err = s.Sweep(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.metrics.compactionFailed()
			s.log.Warn("compaction failed; trying again later", "err", err)
		}
	}
}

// compactionPass is what a pass has left.
type compactionPass struct {
	head      contract.Position
	compacted contract.Revision
	size      contract.Size
	// settled: the next pass has nothing to do while the head and the boundary are the same. All
	// that the policy lets go is gone, whatever time passes. Where a store has space of its own,
	// the pass before left the same size: so there is none to be given back either.
	settled bool
}

// compactAgain is a pass after another one. A store that nobody writes to needs no statement: what
// others write, and where they move the boundary, this process learns from the tailer.
func (s *Engine) compactAgain(ctx context.Context, last compactionPass) (compactionPass, error) {
	_, shared := s.b.(contract.Shared)
	if last.settled && s.hub.position() == last.head &&
		s.hub.compactedRevision() == last.compacted {
		if shared {
			_, err := s.measureTables(ctx) // the other stores may have changed it
			return last, err
		}
		return last, nil
	}
	next, err := s.compactOnce(ctx)
	if err != nil {
		return compactionPass{}, err
	}
	// The size of tables that stores share says nothing of this one, which has no space of its own.
	if !shared {
		next.settled = next.settled && next.size == last.size
	}
	return next, nil
}

// compactOnce is a pass. settled does not yet say anything of the size.
func (s *Engine) compactOnce(ctx context.Context) (pass compactionPass, err error) {
	st, target, err := s.moveBoundary(ctx)
	if err != nil {
		return pass, err
	}
	if err := s.Sweep(ctx); err != nil {
		return pass, err
	}
	if pass.size, err = s.measureTables(ctx); err != nil {
		return pass, err
	}
	pass.head, pass.compacted = st.Head, target
	pass.settled = target >= st.Head.Revision-s.cfg.Compaction.Keep
	return pass, nil
}

// moveBoundary moves the boundary to where the policy has it.
func (s *Engine) moveBoundary(ctx context.Context) (st contract.State, target contract.Revision, err error) {
	end, err := s.cfg.Scheduler.turn(ctx)
	if err != nil {
		return st, 0, err
	}
	defer end()
	if st, err = s.read(ctx, s.b.State); err != nil {
		return st, 0, err
	}
	if target, err = s.boundary(ctx, st); err == nil && target > st.Compacted {
		err = s.Compact(ctx, target)
	}
	return st, target, err
}

// measureTables has the metrics tell the size of the database. Of the stores that share tables, one
// asks for it now and then, and the others take its answer.
func (s *Engine) measureTables(ctx context.Context) (size contract.Size, err error) {
	var polls *Polls
	if _, shared := s.b.(contract.Shared); shared {
		polls = s.cfg.Polls
	}
	size, asks := polls.lastSize(s.cfg.Compaction.Interval * 3 / 4)
	if asks {
		if size, err = s.Size(ctx); err != nil {
			return size, err
		}
		polls.sized(size)
	}
	if size != (contract.Size{}) {
		s.metrics.size(size)
	}
	return size, nil
}

// boundary returns the newest revision that the policy lets go: at least Window old and followed by
// at least Keep others.
func (s *Engine) boundary(ctx context.Context, st contract.State) (contract.Revision, error) {
	p := s.cfg.Compaction
	return s.newestUntil(ctx, st.Compacted, st.Head.Revision-p.Keep+1, st.Now.Add(-p.Window))
}

// newestUntil returns the newest revision in (old, young) that is not after a time, or old. Rows'
// times are those of the database's clock and rise with the revisions, but for steps of that clock,
// which move the answer by as much; so a binary search over the primary key finds it.
func (s *Engine) newestUntil(ctx context.Context, old, young contract.Revision,
	limit time.Time) (contract.Revision, error) {
	for old+1 < young {
		middle := old + (young-old)/2
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		row, err := s.b.FirstAt(opCtx, middle)
		cancel()
		if err != nil {
			return 0, err
		}
		if row == nil || row.Revision >= young || row.Time.After(limit) {
			young = middle
		} else {
			old = row.Revision
		}
	}
	return old, nil
}

// Compact moves the boundary: from its return on, in this process, and within a moment in the
// others, reads below the revision answer ErrCompacted. The sweep, which follows in the background,
// removes the rows that were replaced. The order matters: if rows were removed first, a list that
// is still allowed could miss them.
func (s *Engine) Compact(ctx context.Context, r contract.Revision) error {
	_, err := s.compact(ctx, r, contract.RaiseCompacted)
	return err
}

// CompactExactly is Compact that returns ErrCompacted if the boundary is at the revision or above
// it, and a *FutureRevisionError if the head is below it. It returns the head.
func (s *Engine) CompactExactly(ctx context.Context, r contract.Revision) (contract.Revision, error) {
	return s.compact(ctx, r, contract.RaiseCompactedTo)
}

func (s *Engine) compact(ctx context.Context, r contract.Revision,
	raise func(context.Context, contract.Backend, contract.Revision) (contract.State, error)) (contract.Revision, error) {
	if s.ctx.Err() != nil {
		return 0, contract.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	st, err := raise(ctx, s.b, r)
	if err != nil {
		return 0, err
	}
	s.hub.sawCompacted(st.Compacted)
	s.deltas.compacted(st.Compacted)
	s.metrics.compacted(st)
	select {
	case s.sweepSoon <- struct{}{}:
	default:
	}
	return st.Head.Revision, nil
}

// CompactedRevision is the newest boundary that this process knows of, 0 if nothing was ever
// compacted.
func (s *Engine) CompactedRevision() contract.Revision { return s.hub.compactedRevision() }

// Sweep removes what the boundary has released, in batches with pauses, so that writers go on.
func (s *Engine) Sweep(ctx context.Context) error {
	p := s.cfg.Compaction
	end := time.Now().Add(p.Interval * 3 / 4)
	for rows := p.SweepRows; ; {
		if s.ctx.Err() != nil {
			return contract.ErrClosed
		}
		endTurn, err := s.cfg.Scheduler.turn(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		deleted, st, err := contract.SweepBatch(opCtx, s.b, rows)
		cancel()
		endTurn()
		if err != nil {
			if contract.ClassOf(err) == contract.Transient && ctx.Err() == nil {
				contract.Wait(ctx, 10*time.Millisecond)
				continue
			}
			return err
		}
		s.hub.sawCompacted(st.Compacted)
		s.metrics.swept(deleted, st)
		debt := st.Compacted - st.Swept
		if debt <= 0 {
			return nil
		}
		pause, late := sweepPause(debt, rows, time.Since(began), time.Until(end))
		if rows = p.SweepRows; late {
			rows = lateBatch * p.SweepRows
		}
		contract.Wait(ctx, pause)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

const (
	// lateBatch is how many times larger the batches of a sweep are that is late: most of a small
	// batch is the way to a busy database and back.
	lateBatch = 4
	// longBatch is how long a batch takes that is not made larger: on SQLite it keeps writers out,
	// and what takes so long there is the rows.
	longBatch = 100 * time.Millisecond
	// fenceDebt is more than any store writes between two sweeps. A fence twenty minutes after
	// the one before moves the head as far.
	fenceDebt contract.Revision = 1 << 32
)

// sweepPause is how long the sweep rests after a batch of rows that took a while, if it is to end
// in the time that is left. It takes a quarter of the database's time at most if that is enough. If
// it is not, it hurries, since a sweep that is slower than the writers would never end. If it has
// no time to rest any more, it rests for half of what a batch took, so that writers get their turn,
// and is late: larger batches may help, unless the batch was long. A debt of fenceDebt is the jump
// of a fence: what is before the fence is what was there then, and nobody adds to it.
func sweepPause(debt contract.Revision, rows int, took, left time.Duration) (pause time.Duration, late bool) {
	if debt >= fenceDebt {
		return 3 * took, false
	}
	batches := debt/contract.Revision(rows) + 1
	pause = left/time.Duration(batches) - took
	if pause < took/2 {
		return took / 2, took < longBatch
	}
	return min(pause, 3*took), false
}
