package mvcc

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// checkQuota refuses a write that would make a store larger which holds as much as it may, unless
// the write makes room in the end. The last measurement tells what the store holds, so it may come
// to hold more.
func (s *Engine) checkQuota(ctx context.Context, m *contract.Mutation) error {
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

// checkLeaseQuota refuses a lease where the store holds as much as it may.
func (s *Engine) checkLeaseQuota() error {
	if excess := s.excess.Load(); excess != nil {
		return excess.Refuses(true, 0)
	}
	return nil
}

// measured is what a store held at a position, zero if it was not measured.
type measured struct {
	at    contract.Position
	usage contract.Usage
	// history is what the store keeps of it, as one piece what was there when this process began.
	// It is measured if kept is true.
	history []contract.Aged
	kept    bool
	// leases are how many there were when they were counted.
	leases  int64
	counted bool
}

// quotaLoop measures the store while it has a quota, at once and then again and again.
func (s *Engine) quotaLoop(ctx context.Context) {
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

// quota reads the quota, unless a poll has told it a short while ago. The declarations of indexes
// are read if they have changed.
func (s *Engine) quota(ctx context.Context) (q contract.Quota, st contract.State, err error) {
	if p, ok := s.tailer.lastPoll(s.cfg.QuotaInterval / 2); ok {
		return p.Quota, p.State, s.follow(ctx, p.Generation)
	}
	var generation int64
	st, err = s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		q, generation, st, err = s.b.Quota(ctx)
		return st, err
	})
	if err == nil {
		err = s.follow(ctx, generation)
	}
	return q, st, err
}

// measure reads the quota, and what the store holds if it has one: by what was written since the
// last time, and only if compaction has passed that, by all objects. History that needs more bytes
// than the objects may is compacted, whatever the policy keeps.
func (s *Engine) measure(ctx context.Context, m *measured) error {
	var usage contract.Usage
	q, st, err := s.quota(ctx)
	if err != nil {
		return err
	}
	if q == (contract.Quota{}) {
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
	grows := func(st contract.State) bool {
		return since.at.Epoch == st.Head.Epoch && since.at.Revision >= st.Compacted
	}
	if since.at != st.Head && grows(st) {
		var grown contract.Growth
		st, err = s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
			grown, st, err = s.b.Growth(ctx, since.at.Revision)
			return st, err
		})
		usage.Objects = since.usage.Objects + grown.Objects
		usage.Bytes = since.usage.Bytes + grown.Bytes
		m.at, m.usage = st.Head, usage
		m.history = contract.Age(since.history, contract.PieceOf(since.at.Revision,
			st.Head.Revision, grown), st.Compacted, q.Bytes)
	}
	if err == nil && !grows(st) {
		st, err = s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
			usage, st, err = s.b.Usage(ctx)
			return st, err
		})
		// The history may be another one, with other leases.
		m.at, m.usage, m.kept, m.counted = st.Head, usage, false, false
	}
	if err != nil {
		*m = measured{}
		return err
	}
	// Leases that other processes grant are counted when this one grants a lease, too, and until
	// there is room again. So a store without leases costs no statement more.
	if s.leasesMoved.Swap(false) || !m.counted || s.excess.Load() != nil {
		if _, err = s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
			m.leases, st, err = s.b.CountLeases(ctx)
			return st, err
		}); err != nil {
			*m = measured{}
			return err
		}
		m.counted = true
	}
	s.excess.Store(contract.ExcessOf(q, contract.WithLeases(m.usage, m.leases)))
	switch {
	case q.Bytes == 0:
		m.history, m.kept = nil, false
	case !m.kept:
		m.history, m.kept = s.keptHistory(ctx, st), true
	}
	if r := contract.EarlyBoundary(m.history, q.Bytes); r > st.Compacted {
		return s.Compact(ctx, r)
	}
	return nil
}

// keptHistory measures the history that there is in a state: by what its rows have replaced, or if
// the database does not tell that in time, by their number. A store that nobody uses for a while is
// closed, so without this each opening would let it have a history more.
func (s *Engine) keptHistory(ctx context.Context, st contract.State) []contract.Aged {
	var grown contract.Growth
	now, err := s.attempt(ctx, func(ctx context.Context) (now contract.State, err error) {
		grown, now, err = s.b.Growth(ctx, st.Compacted)
		return now, err
	})
	if err != nil {
		now, grown = st, contract.Growth{}
	}
	if now.Head.Epoch != st.Head.Epoch {
		return nil // it is measured anew
	}
	return []contract.Aged{contract.PieceOf(st.Compacted, now.Head.Revision, grown)}
}
