package mvcc

import (
	"context"
	"fmt"
	"time"
)

// Quota bounds what a store holds. 0 is no bound.
type Quota Usage

// Excess says which bounds of a quota a store has reached.
type Excess struct {
	// Objects: as many objects exist as may. Bytes: they are as large as they may be. At least one
	// of them is true.
	Objects, Bytes bool
	// Usage is what the store held when it was measured.
	Usage Usage
	Quota Quota
}

// ExcessOf returns what a store with this usage has reached of its quota, nil if nothing.
func ExcessOf(q Quota, u Usage) *Excess {
	e := Excess{Objects: q.Objects > 0 && u.Objects >= q.Objects,
		Bytes: q.Bytes > 0 && u.Bytes >= q.Bytes, Usage: u, Quota: q}
	if !e.Objects && !e.Bytes {
		return nil
	}
	return &e
}

// Refuses decides whether a write is refused: one that creates a key, or replaces a value by a
// longer one. Everything else makes room, or keeps what there is. It returns an error of class
// [Full] that wraps a *[QuotaError].
func (e *Excess) Refuses(creates bool, growth int) error {
	switch {
	case e.Objects && creates:
		return &Error{Class: Full, Err: &QuotaError{"objects", e.Usage.Objects, e.Quota.Objects}}
	case e.Bytes && (creates || growth > 0):
		return &Error{Class: Full, Err: &QuotaError{"bytes", e.Usage.Bytes, e.Quota.Bytes}}
	}
	return nil
}

// QuotaError says that a store holds as much as it may.
type QuotaError struct {
	// What is "objects" or "bytes".
	What string
	// Used is how many of them there were, Limit how many there may be.
	Used, Limit int64
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("the store has %d %s, and its quota is %d: delete what is not needed, or have "+
		"the quota raised", e.Used, e.What, e.Limit)
}

// SetQuota records what a store may hold. Processes that use it heed that within one and a half of
// their QuotaInterval.
func SetQuota(ctx context.Context, b Backend, q Quota) error {
	return retried(ctx, func() error {
		return repeatable(ctx, b, LockOptions{}, func(tx Tx) error { return tx.SetQuota(q) })
	})
}

// checkQuota refuses a write that would make a store larger which holds as much as it may, unless
// the write makes room in the end. What the store holds is what it held at the last measurement, so
// it may come to hold more.
func (s *Store) checkQuota(ctx context.Context, m *Mutation) error {
	excess := s.excess.Load()
	if excess == nil || m.Delete || m.Ends {
		return nil
	}
	creates, was := m.Expect == 0, len(m.PrevValue)
	if !creates && !m.HasPrev {
		found, _, err := s.Get(ctx, m.Key)
		if err != nil {
			return err
		}
		if creates = found == nil; !creates {
			was = len(found.Value)
		}
	}
	return excess.Refuses(creates, len(m.Value)-was)
}

// measured is what a store held at a position, zero if it was not measured.
type measured struct {
	at    Position
	usage Usage
}

// quotaLoop measures the store while it has a quota, at once and then again and again.
func (s *Store) quotaLoop(ctx context.Context) {
	ticker := time.NewTicker(s.cfg.QuotaInterval)
	defer ticker.Stop()
	outage := outageLog{log: s.log, what: "measure the store"}
	var m measured
	for ctx.Err() == nil {
		if err := s.measure(ctx, &m); err == nil {
			outage.over()
		} else if ctx.Err() == nil {
			outage.failed(err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// quota reads the quota, unless a poll has told it a short while ago.
func (s *Store) quota(ctx context.Context) (q Quota, st State, err error) {
	if p, ok := s.tailer.lastPoll(s.cfg.QuotaInterval / 2); ok {
		return p.Quota, p.State, nil
	}
	st, err = s.read(ctx, func(ctx context.Context) (st State, err error) {
		q, st, err = s.b.Quota(ctx)
		return st, err
	})
	return q, st, err
}

// measure reads the quota, and what the store holds if it has one: by what was written since the
// last time, and only if compaction has passed that, by all objects.
func (s *Store) measure(ctx context.Context, m *measured) error {
	var usage Usage
	q, st, err := s.quota(ctx)
	if err != nil {
		return err
	}
	if q == (Quota{}) {
		*m = measured{}
		s.excess.Store(nil)
		return nil
	}
	end, err := s.cfg.Scheduler.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	since := *m
	grows := func(st State) bool {
		return since.at.Epoch == st.Head.Epoch && since.at.Revision >= st.Compacted
	}
	if since.at != st.Head && grows(st) {
		st, err = s.read(ctx, func(ctx context.Context) (st State, err error) {
			usage, st, err = s.b.Growth(ctx, since.at.Revision)
			return st, err
		})
		usage.Objects += since.usage.Objects
		usage.Bytes += since.usage.Bytes
		*m = measured{st.Head, usage}
	}
	if err == nil && !grows(st) {
		st, err = s.read(ctx, func(ctx context.Context) (st State, err error) {
			usage, st, err = s.b.Usage(ctx)
			return st, err
		})
		*m = measured{st.Head, usage}
	}
	if err != nil {
		*m = measured{}
		return err
	}
	s.excess.Store(ExcessOf(q, m.usage))
	return nil
}
