package mvcc

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"time"
)

// A lease is a row of its own, and keys are attached to it. It lapses at a time of the database's
// clock, unless it is renewed before. When it lapses or is revoked it ends: it is marked so, and
// then its keys are deleted, each at a revision of its own, and then the row.
//
// A key is attached to no lease that has ended. A group attaches keys, and a lease ends, under the
// commit lock. So a group is before the end, and who looks for the lease's keys after the end finds
// them; or it is after the end, and is refused. So no key is left behind when the row goes,
// whatever process has written it. And no lease ends that was renewed in time, since it is renewed
// under the lock, too, and what lapses is decided there.
//
// Any process goes on with what another one has left. A row that is marked as ended is looked for
// like one that has lapsed.

// LeaseRow is a lease as the database holds it.
type LeaseRow struct {
	Lease Lease
	// TTL is for how many seconds it was granted, and is renewed.
	TTL int64
	// Expiry is when it lapses, in microseconds since 1970 by the database's clock. 0 means that it
	// has ended, and that its keys are being deleted.
	Expiry int64
}

// Left is how long it is until the lease lapses. It is not positive if that is over.
func (r *LeaseRow) Left(now time.Time) time.Duration {
	return time.Duration(r.Expiry-now.UnixMicro()) * time.Microsecond
}

// Renew makes the lease last from now on as long as it was granted for.
func (r *LeaseRow) Renew(now time.Time) { r.Expiry = now.UnixMicro() + r.TTL*1_000_000 }

// MaxTTL is the longest time to live of a lease, in seconds, as it is in etcd.
const MaxTTL = 9_000_000_000

var (
	// ErrNoLease: there is no such lease, or it has ended.
	ErrNoLease = errors.New("there is no such lease, or it has ended")
	// ErrLeaseExists refuses to grant a lease with the ID of another one.
	ErrLeaseExists = errors.New("there is a lease with this ID")
)

// GrantLease stores a lease, unless there is one with its ID. It returns the state before it.
func GrantLease(ctx context.Context, b Backend, r *LeaseRow) (granted bool, st State, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		st = tx.State()
		found, err := tx.Leases([]Lease{r.Lease})
		if granted = len(found) == 0; err != nil || !granted {
			return err
		}
		r.Renew(st.Now)
		return tx.PutLeases([]LeaseRow{*r})
	})
	return granted, st, err
}

// RenewLeases renews those of the leases that have not lapsed, and returns them, and the state
// before it.
func RenewLeases(ctx context.Context, b Backend,
	leases []Lease) (renewed []LeaseRow, st State, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		st, renewed = tx.State(), nil
		found, err := tx.Leases(leases)
		for _, r := range found {
			if r.Left(st.Now) > 0 {
				r.Renew(st.Now)
				renewed = append(renewed, r)
			}
		}
		if err != nil || len(renewed) == 0 {
			return err
		}
		return tx.PutLeases(renewed)
	})
	return renewed, st, err
}

// EndLeases marks those of the leases as ended that have lapsed, or all if they are revoked. It
// returns those that have ended now or before, and the state before it.
func EndLeases(ctx context.Context, b Backend, leases []Lease,
	revoked bool) (ended []Lease, st State, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		st, ended = tx.State(), nil
		found, err := tx.Leases(leases)
		var now []LeaseRow
		for _, r := range found {
			if !revoked && r.Left(st.Now) > 0 {
				continue
			}
			ended = append(ended, r.Lease)
			if r.Expiry != 0 {
				r.Expiry = 0
				now = append(now, r)
			}
		}
		if err != nil || len(now) == 0 {
			return err
		}
		return tx.PutLeases(now)
	})
	return ended, st, err
}

// ForgetLease removes a lease that ended in the epoch, and that no key is attached to. In another
// epoch an import may have stored a lease with the same ID, and keys of it.
func ForgetLease(ctx context.Context, b Backend, l Lease, epoch Epoch) error {
	return repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		found, err := tx.Leases([]Lease{l})
		if err != nil || len(found) == 0 || found[0].Expiry != 0 ||
			tx.State().Head.Epoch != epoch {
			return err
		}
		return tx.DropLeases([]Lease{l})
	})
}

// GrantLease grants a lease for a time in seconds, with an ID, or one that it chooses if that is 0.
// It returns the head, too.
func (s *Store) GrantLease(ctx context.Context, l Lease, ttl int64) (LeaseRow, Revision, error) {
	row := LeaseRow{Lease: l, TTL: ttl}
	if l == 0 {
		row.Lease = Lease(1 + rand.Int64N(1<<63-1))
	}
	granted, tries := false, 0
	st, err := s.read(ctx, func(ctx context.Context) (st State, err error) {
		tries++
		granted, st, err = GrantLease(ctx, s.b, &row)
		return st, err
	})
	switch {
	case err != nil:
		return row, 0, err
	case !granted && tries > 1 && l != 0:
		return row, 0, ErrUnknownOutcome // it may be that of an earlier try
	case !granted && l != 0:
		return row, 0, ErrLeaseExists
	}
	s.reapIn(row.Left(st.Now))
	return row, st.Head.Revision, nil
}

// RenewLease makes a lease last from now on as long as it was granted for. It returns the head,
// too.
func (s *Store) RenewLease(ctx context.Context, l Lease) (LeaseRow, Revision, error) {
	q, err := s.renewals.ask(ctx, l)
	if err != nil {
		return LeaseRow{}, 0, err
	}
	row, found := q.found[l]
	if !found {
		return row, q.head, ErrNoLease
	}
	return row, q.head, nil
}

// queryRenewals is the query of coalesced renewals.
func (s *Store) queryRenewals(leases []Lease) (map[Lease]LeaseRow, Revision, error) {
	found := map[Lease]LeaseRow{}
	st, err := s.read(s.ctx, func(ctx context.Context) (State, error) {
		renewed, st, err := RenewLeases(ctx, s.b, leases)
		for _, r := range renewed {
			found[r.Lease] = r
		}
		return st, err
	})
	return found, st.Head.Revision, s.unlessClosed(err)
}

// RevokeLease ends a lease and deletes its keys. After an error the lease may have ended, and its
// keys are deleted in the background then.
func (s *Store) RevokeLease(ctx context.Context, l Lease) error {
	var ended []Lease
	st, err := s.read(ctx, func(ctx context.Context) (st State, err error) {
		ended, st, err = EndLeases(ctx, s.b, []Lease{l}, true)
		return st, err
	})
	switch {
	case err != nil:
		return err
	case len(ended) == 0:
		return ErrNoLease
	}
	s.reapIn(0)
	if err := s.reaping.acquire(ctx); err != nil {
		return err
	}
	defer s.reaping.release()
	_, err = s.detach(ctx, l, st.Head.Epoch)
	return err
}

// LeaseOf returns a lease that has not lapsed and how long it lasts, and the head.
func (s *Store) LeaseOf(ctx context.Context, l Lease) (row LeaseRow, left time.Duration,
	head Revision, err error) {
	rows, st, err := s.leases(ctx, l, 1)
	if err != nil {
		return row, 0, 0, err
	}
	if len(rows) == 0 || rows[0].Lease != l || rows[0].Left(st.Now) <= 0 {
		return row, 0, st.Head.Revision, ErrNoLease
	}
	return rows[0], rows[0].Left(st.Now), st.Head.Revision, nil
}

// leasePage is how many leases, or keys of one, are read at a time.
const leasePage = 1000

// EachLease calls each for the leases that have not lapsed, and returns the head.
func (s *Store) EachLease(ctx context.Context, each func(Lease)) (Revision, error) {
	for from := Lease(0); ; {
		rows, st, err := s.leases(ctx, from, leasePage)
		if err != nil {
			return 0, err
		}
		for _, r := range rows {
			if from = r.Lease + 1; r.Left(st.Now) > 0 {
				each(r.Lease)
			}
		}
		if len(rows) < leasePage || from < 0 {
			return st.Head.Revision, nil
		}
	}
}

func (s *Store) leases(ctx context.Context, from Lease, limit int) (rows []LeaseRow, st State,
	err error) {
	st, err = s.read(ctx, func(ctx context.Context) (st State, err error) {
		rows, st, err = s.b.Leases(ctx, from, limit)
		return st, err
	})
	return rows, st, err
}

// EachAttached calls each for the keys that are attached to a lease.
func (s *Store) EachAttached(ctx context.Context, l Lease, each func(Key)) error {
	for from := Key(""); ; {
		var keys []Expired
		_, err := s.read(ctx, func(ctx context.Context) (st State, err error) {
			keys, st, err = s.b.Attached(ctx, l, from, leasePage)
			return st, err
		})
		if err != nil {
			return err
		}
		for _, k := range keys {
			each(k.Key)
			from = k.Key + "\x00"
		}
		if len(keys) < leasePage {
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
		var lapsed []Lease
		next := Never
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
		ended, st, err := EndLeases(opCtx, s.b, lapsed, false)
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
func (s *Store) detach(ctx context.Context, l Lease, epoch Epoch) (empty bool, err error) {
	attached := func(from Key, limit int) ([]Expired, error) {
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		keys, st, err := s.b.Attached(opCtx, l, from, limit)
		if err == nil && !st.Writable {
			err = Errorf(ReadOnly, "the keys of a lease cannot be read on a read-only server")
		}
		return keys, err
	}
	for from := Key(""); ; {
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
	maps.DeleteFunc(s.damaged, func(_ Key, d damaged) bool { return d.lease == l })
	opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return true, ForgetLease(opCtx, s.b, l, epoch)
}
