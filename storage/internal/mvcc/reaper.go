package mvcc

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Expiry is an absolute time in the database, set and compared by the database's clock: a process
// whose clock is wrong does no harm, and a restart forgets nothing. Every process reaps; the
// deletion is a compare-and-set like any other, so two that reap the same key make one deletion,
// and a key that was renewed meanwhile stays.

// reapBatch is how many keys are reaped at a time: one commit group.
const reapBatch = 256

// reapRetry is the longest pause after a failure: how late keys may expire once the database is
// back.
const reapRetry = 10 * time.Second

// clockSkew is how late the reaper looks: the database's clock and the timer need not agree to the
// millisecond, and to look a little late costs nothing.
const clockSkew = 5 * time.Millisecond

// reapIn makes the reaper look after this time.
func (s *Engine) reapIn(d time.Duration) {
	select {
	case s.reapSoon <- d:
	default:
		select {
		case other := <-s.reapSoon:
			d = min(d, other)
		default:
		}
		select {
		case s.reapSoon <- d:
		default:
		}
	}
}

func (s *Engine) reapLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	// idle: nothing is known that expires before next.
	idle := false
	outage := outageLog{log: s.log, what: "reap expired keys"}
	failing := contract.RetryPolicy()
	failing.MaxInterval = reapRetry
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-s.reapSoon:
			if at := time.Now().Add(d); at.Before(next) {
				next, idle = at, false
				timer.Reset(d)
			}
			continue
		case <-timer.C:
		}
		began := time.Now()
		if looked := s.tailer.lookedAt().Add(s.cfg.ExpiryIdle); idle && looked.After(began) {
			// A poll has looked meanwhile, and would have said what expires before that.
			next = looked
			timer.Reset(looked.Sub(began))
			continue
		}
		pause, err := s.reap(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			outage.failed(err)
			pause = failing.NextBackOff()
		default:
			outage.over()
			failing.Reset()
			s.tailer.looked(began)
		}
		idle = err == nil && pause >= s.cfg.ExpiryIdle
		pause = min(pause, s.cfg.ExpiryIdle)
		next = time.Now().Add(pause)
		timer.Reset(pause)
	}
}

// DeleteExpired deletes what has expired by now, in place of waiting until the background does so.
func (s *Engine) DeleteExpired(ctx context.Context) error {
	_, err := s.reap(ctx)
	return err
}

// Rest does what the background would do by now, for a store that is about to be closed, and
// returns how long it is until there is more to do. That is Never if nothing expires and nothing is
// left to be compacted, whatever time passes.
func (s *Engine) Rest(ctx context.Context) (next time.Duration, err error) {
	next, err = 0, contract.ErrClosed // if it panics
	s.guarded(func() { next, err = s.rest(ctx) })()
	return next, err
}

func (s *Engine) rest(ctx context.Context) (time.Duration, error) {
	next, err := s.reap(ctx)
	if err != nil || s.cfg.Compaction.Window < 0 {
		return next, err
	}
	pass, err := s.compactOnce(ctx)
	if err == nil && !pass.settled {
		next = min(next, s.cfg.Compaction.Window)
	}
	if _, shared := s.b.(contract.Shared); err == nil && !shared {
		err = contract.GiveBack(ctx, s.b)
	}
	return next, err
}

// Volatile tells whether the store is gone when it is closed.
func (s *Engine) Volatile() bool {
	v, ok := s.b.(contract.Volatile)
	return ok && v.Volatile()
}

// reap deletes what has expired and returns the time until it should look again, Never if nothing
// that is there expires.
func (s *Engine) reap(ctx context.Context) (time.Duration, error) {
	if err := s.reaping.acquire(ctx); err != nil {
		return 0, err
	}
	defer s.reaping.release()
	end, err := s.cfg.Scheduler.turn(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	next, err := s.reapKeys(ctx)
	if err != nil {
		return 0, err
	}
	lapse, err := s.reapLeases(ctx)
	return min(next, lapse, contract.Never-clockSkew) + clockSkew, err
}

// reapKeys deletes the keys that have expired by themselves. reaping is held.
func (s *Engine) reapKeys(ctx context.Context) (time.Duration, error) {
	for {
		// The damaged keys stay the oldest ones: they must not hide the others.
		limit, era := reapBatch+len(s.damaged), s.hub.presentEra()
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		expired, next, err := s.b.Expired(opCtx, limit)
		cancel()
		if err != nil {
			return 0, err
		}
		due, retry := s.due(expired, limit)
		reaped := 0
		for left := due; len(left) > 0; {
			n, some, err := s.reapSome(ctx, left, era)
			if err != nil {
				return 0, err
			}
			reaped += n - len(some.left)
			left = left[n:]
		}
		s.metrics.reaped(reaped)
		if len(expired) == limit && reaped > 0 {
			continue
		}
		if next <= 0 {
			next = contract.Never
		}
		if retry > 0 {
			next = min(next, retry)
		}
		if reaped < len(due) {
			// Another process was faster, or the key was renewed, or the commit failed.
			next = min(next, time.Second)
		}
		return next, nil
	}
}

// notReaped are keys that were looked at and not deleted: another process was faster, or they are
// damaged, or their deletion has failed.
type notReaped struct {
	left   []contract.Expired
	failed error
}

// reapSome deletes the first of the expired keys, as many as ReadBytes allows, and returns how many
// it has looked at, and which of them it has not deleted. Their values are read here, before the
// commit lock is taken, so that the committer knows their size and bounds its groups by it.
func (s *Engine) reapSome(ctx context.Context, expired []contract.Expired,
	era contract.Era) (looked int, not notReaped, err error) {
	ids := make([]contract.RowID, len(expired))
	for i := range expired {
		ids[i] = expired[i].ID()
	}
	opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	rows, _, err := s.b.Values(opCtx, ids)
	cancel()
	if err != nil && !ofOneKey(err) {
		return 0, not, err
	}
	values := make(map[contract.RowID]*contract.Row, len(rows))
	for i := range rows {
		values[rows[i].ID()] = &rows[i]
	}
	if err == nil && len(rows) > 0 {
		// The values that the read has left out may be beyond its bound. They are asked for again,
		// after the others.
		n := 0
		for i, e := range expired {
			if values[e.ID()] != nil {
				expired[n], expired[i] = e, expired[n]
				n++
			}
		}
		expired = expired[:n]
	} else {
		// None is there, or one of them cannot be read: they are looked at one by one.
		expired = expired[:1]
		e := expired[0]
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		row, _, err := s.b.Get(opCtx, e.Key)
		cancel()
		switch {
		case err != nil && ofOneKey(err):
			s.damage(e, err)
			return 1, notReaped{left: expired}, nil
		case err != nil:
			return 0, not, err
		case row == nil || row.Revision != e.Revision:
			return 1, notReaped{left: expired}, nil // renewed, or deleted by another process
		}
		values[e.ID()] = row
	}
	writes := make([]*write, 0, len(expired))
	for _, e := range expired {
		w, err := s.enqueue(ctx, contract.Mutation{Key: e.Key, Expect: e.Revision, Era: era, Delete: true,
			PrevValue: values[e.ID()].Value, PrevLease: values[e.ID()].Lease,
			HasPrev: true})
		if err != nil {
			return 0, not, err
		}
		writes = append(writes, w)
	}
	for i, w := range writes {
		select {
		case <-w.done:
		case <-ctx.Done():
			return 0, not, ctx.Err()
		}
		if w.err == nil {
			continue
		}
		not.left = append(not.left, expired[i])
		var conflict *contract.ConflictError
		switch {
		case errors.As(w.err, &conflict):
		case contract.ClassOf(w.err) == contract.Data:
			s.damage(expired[i], w.err)
		default:
			not.failed = w.err
		}
	}
	return len(expired), not, nil
}

// ofOneKey tells whether a read failed for what is stored, and not for the database as a whole.
func ofOneKey(err error) bool {
	class := contract.ClassOf(err)
	return class == contract.Data || class == contract.Invalid
}

// damaged is an expired key that cannot be deleted because what is stored of it is damaged. Its
// deletion is tried again, since somebody may have repaired it, but ever more rarely.
type damaged struct {
	revision contract.Revision
	lease    contract.Lease
	pause    time.Duration
	again    time.Time
}

const (
	firstDamagePause = time.Second
	maxDamagePause   = 10 * time.Minute
)

// damage notes that an expired key cannot be deleted, and logs it the first time.
func (s *Engine) damage(e contract.Expired, err error) {
	d, known := s.damaged[e.Key]
	if !known || d.revision != e.Revision {
		s.log.Error("an expired key is damaged and cannot be deleted; it is tried again ever "+
			"more rarely", "key", string(e.Key), "revision", int64(e.Revision), "err", err)
		d = damaged{revision: e.Revision, lease: e.Lease, pause: firstDamagePause / 2}
	}
	d.pause = min(2*d.pause, maxDamagePause)
	d.again = time.Now().Add(d.pause)
	s.damaged[e.Key] = d
}

// due leaves out the damaged keys whose time has not come, and returns how long it is until it
// comes for the first of them, 0 if there is none. It forgets the keys that are there no more, but
// for the keys of leases.
func (s *Engine) due(expired []contract.Expired, limit int) (due []contract.Expired, retry time.Duration) {
	now := time.Now()
	seen := make(map[contract.Key]struct{}, len(s.damaged))
	for _, e := range expired {
		d, known := s.damaged[e.Key]
		if known {
			seen[e.Key] = struct{}{}
		}
		if left := d.again.Sub(now); known && d.revision == e.Revision && left > 0 {
			if retry == 0 || left < retry {
				retry = left
			}
			continue
		}
		due = append(due, e)
	}
	if len(expired) < limit {
		maps.DeleteFunc(s.damaged, func(k contract.Key, d damaged) bool {
			_, ok := seen[k]
			return !ok && d.lease == 0
		})
	}
	return due, retry
}
