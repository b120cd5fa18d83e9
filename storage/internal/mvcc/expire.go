package mvcc

import (
	"context"
	"time"
)

// Expiry is an absolute time in the database, set and compared by the database's clock: a process whose clock is wrong does no
// harm, and a restart forgets nothing. Every process reaps; the deletion is a compare-and-set like any other, so two that reap the
// same key make one deletion, and a key that was renewed meanwhile stays.

// reapBatch is how many keys are reaped at a time: one commit group.
const reapBatch = 256

// reapIn makes the reaper look after this time.
func (s *Store) reapIn(d time.Duration) {
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

func (s *Store) reapLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-s.reapSoon:
			if at := time.Now().Add(d); at.Before(next) {
				next = at
				timer.Reset(d)
			}
			continue
		case <-timer.C:
		}
		pause, err := s.reap(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("cannot reap expired keys; trying again", "err", err)
			pause = time.Second
		}
		next = time.Now().Add(pause)
		timer.Reset(pause)
	}
}

// DeleteExpired deletes what has expired by now, in place of waiting until the background does so.
func (s *Store) DeleteExpired(ctx context.Context) error {
	_, err := s.reap(ctx)
	return err
}

// reap deletes what has expired and returns the time until it should look again.
func (s *Store) reap(ctx context.Context) (time.Duration, error) {
	for {
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		expired, next, err := s.b.Expired(opCtx, reapBatch)
		cancel()
		if err != nil {
			return 0, err
		}
		writes := make([]*write, 0, len(expired))
		for _, e := range expired {
			w, err := s.enqueue(ctx, Mutation{Key: e.Key, Expect: e.Revision, Delete: true})
			if err != nil {
				return 0, err
			}
			writes = append(writes, w)
		}
		reaped := 0
		for _, w := range writes {
			<-w.done
			if w.err == nil {
				reaped++
			}
		}
		s.metrics.reaped(reaped)
		if len(expired) == reapBatch && reaped > 0 {
			continue
		}
		if next <= 0 || next > s.cfg.ExpiryIdle {
			next = s.cfg.ExpiryIdle
		}
		if reaped < len(expired) {
			// Another process was faster, or the key was renewed, or the commit failed.
			next = time.Second
		}
		// The database's clock and the timer need not agree to the millisecond; looking a little late costs nothing.
		return next + 5*time.Millisecond, nil
	}
}
