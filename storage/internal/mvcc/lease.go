package mvcc

import (
	"context"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// GrantLease grants a lease for a time in seconds, with an ID, or one that it chooses if that is 0.
// It returns the head, too.
func (s *Store) GrantLease(ctx context.Context, l contract.Lease, ttl int64) (contract.LeaseRow, contract.Revision, error) {
	row := contract.LeaseRow{Lease: l, TTL: ttl}
	if l == 0 {
		row.Lease = contract.Lease(1 + rand.Int64N(1<<63-1))
	}
	granted, tries := false, 0
	st, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		tries++
		granted, st, err = contract.GrantLease(ctx, s.b, &row)
		return st, err
	})
	switch {
	case err != nil:
		return row, 0, err
	case !granted && tries > 1 && l != 0:
		return row, 0, contract.ErrUnknownOutcome // it may be that of an earlier try
	case !granted && l != 0:
		return row, 0, contract.ErrLeaseExists
	}
	s.reapIn(row.Left(st.Now))
	return row, st.Head.Revision, nil
}

// RenewLease makes a lease last from now on as long as it was granted for. It returns the head,
// too.
func (s *Store) RenewLease(ctx context.Context, l contract.Lease) (contract.LeaseRow, contract.Revision, error) {
	q, err := s.renewals.ask(ctx, l)
	if err != nil {
		return contract.LeaseRow{}, 0, err
	}
	row, found := q.found[l]
	if !found {
		return row, q.head, contract.ErrNoLease
	}
	return row, q.head, nil
}

// queryRenewals is the query of coalesced renewals.
func (s *Store) queryRenewals(leases []contract.Lease) (map[contract.Lease]contract.LeaseRow, contract.Revision, error) {
	found := map[contract.Lease]contract.LeaseRow{}
	st, err := s.read(s.ctx, func(ctx context.Context) (contract.State, error) {
		renewed, st, err := contract.RenewLeases(ctx, s.b, leases)
		for _, r := range renewed {
			found[r.Lease] = r
		}
		return st, err
	})
	return found, st.Head.Revision, s.unlessClosed(err)
}

// RevokeLease ends a lease and deletes its keys. After an error the lease may have ended, and its
// keys are deleted in the background then. Without one, none of them is left.
func (s *Store) RevokeLease(ctx context.Context, l contract.Lease) error {
	var ended []contract.Lease
	st, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		ended, st, err = contract.EndLeases(ctx, s.b, []contract.Lease{l}, true)
		return st, err
	})
	switch {
	case err != nil:
		return err
	case len(ended) == 0:
		return contract.ErrNoLease
	}
	s.reapIn(0)
	if err := s.reaping.acquire(ctx); err != nil {
		return err
	}
	defer s.reaping.release()
	empty, err := s.detach(ctx, l, st.Head.Epoch)
	switch {
	case err != nil || empty:
		return err
	case s.damagedOf(l):
		return contract.Errorf(contract.Data, "the lease has ended, and a key of it is damaged and cannot be deleted: "+
			"the server's log names it")
	}
	return contract.Errorf(contract.Unavailable, "the lease has ended, and not all of its keys could be deleted yet")
}

// damagedOf tells whether a key of the lease is damaged. reaping is held.
func (s *Store) damagedOf(l contract.Lease) bool {
	for _, d := range s.damaged {
		if d.lease == l {
			return true
		}
	}
	return false
}

// LeaseOf returns a lease that has not lapsed and how long it lasts, and the head.
func (s *Store) LeaseOf(ctx context.Context, l contract.Lease) (row contract.LeaseRow, left time.Duration,
	head contract.Revision, err error) {
	rows, st, err := s.leases(ctx, l, 1)
	if err != nil {
		return row, 0, 0, err
	}
	if len(rows) == 0 || rows[0].Lease != l || rows[0].Left(st.Now) <= 0 {
		return row, 0, st.Head.Revision, contract.ErrNoLease
	}
	return rows[0], rows[0].Left(st.Now), st.Head.Revision, nil
}

// EachLease calls each for the leases that have not lapsed, and returns the head.
func (s *Store) EachLease(ctx context.Context, each func(contract.Lease)) (contract.Revision, error) {
	for from := contract.Lease(0); ; {
		rows, st, err := s.leases(ctx, from, contract.LeasePage)
		if err != nil {
			return 0, err
		}
		for _, r := range rows {
			if from = r.Lease + 1; r.Left(st.Now) > 0 {
				each(r.Lease)
			}
		}
		if len(rows) < contract.LeasePage || from < 0 {
			return st.Head.Revision, nil
		}
	}
}

func (s *Store) leases(ctx context.Context, from contract.Lease, limit int) (rows []contract.LeaseRow, st contract.State,
	err error) {
	st, err = s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		rows, st, err = s.b.Leases(ctx, from, limit)
		return st, err
	})
	return rows, st, err
}

// EachAttached calls each for the keys that are attached to a lease.
func (s *Store) EachAttached(ctx context.Context, l contract.Lease, each func(contract.Key)) error {
	for from := contract.Key(""); ; {
		var keys []contract.Expired
		_, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
			keys, st, err = s.b.Attached(ctx, l, from, contract.LeasePage)
			return st, err
		})
		if err != nil {
			return err
		}
		for _, k := range keys {
			each(k.Key)
			from = k.Key + "\x00"
		}
		if len(keys) < contract.LeasePage {
			return nil
		}
	}
}

// reapLeases ends the leases that have lapsed, deletes their keys, and returns the time until it
// should look again. reaping is held.
func (s *Store) reapLeases(ctx context.Context) (time.Duration, error) {
	for {
		// Those that cannot be emptied stay the first ones: they must not hide the others.
		limit := reapBatch + s.stuck
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		rows, st, err := s.b.Lapsing(opCtx, limit)
		cancel()
		if err != nil {
			return 0, err
		}
		var lapsed []contract.Lease
		next := contract.Never
		for _, r := range rows {
			if left := r.Left(st.Now); left > 0 {
				next = left
				break
			}
			lapsed = append(lapsed, r.Lease)
		}
		if len(lapsed) == 0 {
			s.stuck = 0
			return next, nil
		}
		opCtx, cancel = context.WithTimeout(ctx, s.cfg.Timeout)
		ended, st, err := contract.EndLeases(opCtx, s.b, lapsed, false)
		cancel()
		if err != nil {
			return 0, err
		}
		stuck := 0
		for _, l := range ended {
			empty, err := s.detach(ctx, l, st.Head.Epoch)
			if err != nil {
				return 0, err
			}
			if !empty {
				stuck++
			}
		}
		if s.stuck = stuck; stuck > 0 {
			next = min(next, reapRetry)
		}
		if len(rows) < limit || stuck == len(ended) {
			return next, nil
		}
	}
}

// detach deletes the keys of a lease that has ended in the epoch, and then the lease. It tells
// whether it could delete all. reaping is held.
func (s *Store) detach(ctx context.Context, l contract.Lease, epoch contract.Epoch) (empty bool, err error) {
	attached := func(from contract.Key, limit int) ([]contract.Expired, error) {
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		keys, st, err := s.b.Attached(opCtx, l, from, limit)
		if err == nil && !st.Writable {
			err = contract.Errorf(contract.ReadOnly, "the keys of a lease cannot be read on a read-only server")
		}
		return keys, err
	}
	for from := contract.Key(""); ; {
		era := s.hub.presentEra()
		keys, err := attached(from, reapBatch)
		if err != nil {
			return false, err
		}
		if len(keys) == 0 {
			break
		}
		from = keys[len(keys)-1].Key + "\x00"
		due, _ := s.due(keys, len(keys))
		for len(due) > 0 {
			n, done, err := s.reapSome(ctx, due, era)
			if err != nil {
				return false, err
			}
			s.metrics.reaped(done)
			due = due[n:]
		}
	}
	if left, err := attached("", 1); err != nil || len(left) > 0 {
		return false, err
	}
	maps.DeleteFunc(s.damaged, func(_ contract.Key, d damaged) bool { return d.lease == l })
	opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return true, contract.ForgetLease(opCtx, s.b, l, epoch)
}
