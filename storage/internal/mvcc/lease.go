package mvcc

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// GrantLease grants a lease for a time in seconds, with an ID, or one that it chooses if that is 0.
// It returns the head, too. Grants that wait at the same time are one transaction. One whose caller
// gives up may still be granted, and lapses then.
func (s *Engine) GrantLease(ctx context.Context, l contract.Lease, ttl int64) (contract.LeaseRow, contract.Revision, error) {
	asked := &contract.LeaseRow{Lease: l, TTL: ttl}
	if l == 0 {
		asked.Lease = contract.Lease(1 + rand.Int64N(1<<63-1))
	}
	if err := s.checkLeaseQuota(); err != nil {
		return contract.LeaseRow{}, 0, err
	}
	q, err := s.grants.ask(ctx, asked)
	if err != nil {
		return contract.LeaseRow{}, 0, err
	}
	switch a := q.found[asked]; {
	case a.granted || l == 0:
		return *asked, q.head, nil
	case a.again:
		return contract.LeaseRow{}, 0, contract.ErrUnknownOutcome // it may be that of an earlier try
	}
	return contract.LeaseRow{}, 0, contract.ErrLeaseExists
}

// granted says whether a lease was granted, and whether that was tried more than once.
type granted struct{ granted, again bool }

// queryGrants is the query of coalesced grants.
func (s *Engine) queryGrants(asked []*contract.LeaseRow) (map[*contract.LeaseRow]granted,
	contract.Revision, error) {
	var of []bool
	tries := 0
	st, err := s.read(s.ctx, func(ctx context.Context) (st contract.State, err error) {
		tries++
		of, st, err = contract.GrantLeases(ctx, s.b, asked)
		return st, err
	})
	if err != nil {
		return nil, 0, s.unlessClosed(err)
	}
	found, soonest := make(map[*contract.LeaseRow]granted, len(asked)), contract.Never
	for i, r := range asked {
		found[r] = granted{of[i], tries > 1}
		soonest = min(soonest, r.Left(st.Now))
	}
	s.leasesMoved.Store(true)
	s.reapIn(soonest)
	return found, st.Head.Revision, nil
}

// RenewLease makes a lease last from now on as long as it was granted for. It returns the head,
// too.
func (s *Engine) RenewLease(ctx context.Context, l contract.Lease) (contract.LeaseRow, contract.Revision, error) {
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
func (s *Engine) queryRenewals(leases []contract.Lease) (map[contract.Lease]contract.LeaseRow, contract.Revision, error) {
	found := map[contract.Lease]contract.LeaseRow{}
	st, err := s.read(s.ctx, func(ctx context.Context) (contract.State, error) {
		renewed, st, err := contract.RenewLeases(ctx, s.b, leases, s.served)
		for _, r := range renewed {
			found[r.Lease] = r
		}
		return st, err
	})
	if err != nil && s.ctx.Err() == nil {
		s.served.Lost()
	}
	return found, st.Head.Revision, s.unlessClosed(err)
}

// RevokeLease ends a lease and deletes its keys. After an error the lease may have ended, and its
// keys are deleted in the background then. Without one, none of them is left.
func (s *Engine) RevokeLease(ctx context.Context, l contract.Lease) error {
	var ended contract.Ended
	st, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		ended, st, err = contract.EndLeases(ctx, s.b, []contract.Lease{l}, true, s.served)
		return st, err
	})
	switch {
	case err != nil:
		return err
	case len(ended.Now)+len(ended.Before) == 0:
		return contract.ErrNoLease
	}
	s.reapIn(0)
	if err := s.reaping.acquire(ctx); err != nil {
		return err
	}
	defer s.reaping.release()
	left, err := s.empty(ctx, []contract.Lease{l}, st.Head.Epoch)
	switch {
	case err == nil && len(left) == 0:
		return nil
	case err != nil && contract.ClassOf(err) != contract.Full: // who is told that may give up
		return err
	case s.damagedOf(l):
		return contract.Errorf(contract.Data, "the lease has ended, and a key of it is damaged and cannot be deleted: "+
			"the server's log names it")
	}
	return contract.Errorf(contract.Unavailable, "the lease has ended, and not all of its keys could be deleted yet")
}

// damagedOf tells whether a key of the lease is damaged. reaping is held.
func (s *Engine) damagedOf(l contract.Lease) bool {
	for _, d := range s.damaged {
		if d.lease == l {
			return true
		}
	}
	return false
}

// LeaseOf returns a lease that has not lapsed and how long it lasts, and the head.
func (s *Engine) LeaseOf(ctx context.Context, l contract.Lease) (row contract.LeaseRow, left time.Duration,
	head contract.Revision, err error) {
	rows, st, err := s.leases(ctx, l, 1)
	if err != nil {
		return row, 0, 0, err
	}
	if len(rows) > 0 && rows[0].Lease == l {
		if left = rows[0].LapsesIn(st.Now, s.served.Told(st)); left > 0 {
			return rows[0], left, st.Head.Revision, nil
		}
	}
	return row, 0, st.Head.Revision, contract.ErrNoLease
}

// EachLease calls each for the leases that have not lapsed, and returns the head.
func (s *Engine) EachLease(ctx context.Context, each func(contract.Lease)) (contract.Revision, error) {
	for from := contract.Lease(0); ; {
		rows, st, err := s.leases(ctx, from, contract.LeasePage)
		if err != nil {
			return 0, err
		}
		since := s.served.Told(st)
		for _, r := range rows {
			if from = r.Lease + 1; r.LapsesIn(st.Now, since) > 0 {
				each(r.Lease)
			}
		}
		if len(rows) < contract.LeasePage || from < 0 {
			return st.Head.Revision, nil
		}
	}
}

func (s *Engine) leases(ctx context.Context, from contract.Lease, limit int) (rows []contract.LeaseRow, st contract.State,
	err error) {
	st, err = s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		rows, st, err = s.b.Leases(ctx, from, limit)
		return st, err
	})
	return rows, st, err
}

// EachAttached calls each for the keys that are attached to a lease.
func (s *Engine) EachAttached(ctx context.Context, l contract.Lease, each func(contract.Key)) error {
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

// leasesAtOnce is how many leases end together. MariaDB makes another plan for a longer list.
const leasesAtOnce = 512

// takeOver is how long the keys of a lease that another process has ended are left to that process.
// So of several processes each deletes the keys of other leases, and one goes on if another one
// was killed.
const takeOver = 2 * time.Second

// passPause is how long the next look waits for each leasesAtOnce leases that this one has passed
// over: after an outage there may be very many, and each of them may get another time.
const passPause = 10 * time.Millisecond

// leaseLook is how soon a process looks when lapses next what another process has attached to a
// lease. It is the least time of a lease. Without that look the keys would outlive the lease for as
// long as ExpiryIdle, if the process that has granted it was killed.
const leaseLook = time.Second

// lapsing is what a look at some leases has found.
type lapsing struct {
	// lapsed are to be ended, and ended have been, and their keys are to be deleted. beyond lapse
	// too late.
	lapsed, ended, beyond []contract.Lease
	// waiting says for others that have ended when this process sees to their keys.
	waiting map[contract.Lease]time.Time
	// passed are the leases whose time is over and that are left as they are, for now.
	passed int
	// next is how long it is until one of the others may be ended.
	next time.Duration
}

// look decides what is done with leases. known are the waiting ones of the last walk.
func look(rows []contract.LeaseRow, now, since time.Time, known map[contract.Lease]time.Time) lapsing {
	l := lapsing{waiting: map[contract.Lease]time.Time{}, next: contract.Never}
	for i := range rows {
		r := &rows[i]
		left := r.LapsesIn(now, since)
		if r.Expiry == 0 {
			at, waits := known[r.Lease]
			if !waits {
				at = now.Add(takeOver)
			}
			if left = at.Sub(now); left > 0 {
				l.waiting[r.Lease] = at
			}
		}
		switch {
		case left > 0:
			l.next = min(l.next, left)
			if r.Left(now) <= 0 {
				l.passed++
			}
			if r.Beyond(now) {
				l.beyond = append(l.beyond, r.Lease)
			}
		case r.Expiry == 0:
			l.ended = append(l.ended, r.Lease)
		default:
			l.lapsed = append(l.lapsed, r.Lease)
		}
	}
	return l
}

// service is what a process has served since a time: while it goes on, no expiry can come to lie
// too far in the future unseen.
type service struct {
	since time.Time
	epoch contract.Epoch
}

// leaseWalk reads the leases in the order of expiry, each once, and does what is due. It goes on
// for as long as their time is over, and to the last one if this process has not seen them all
// since its service began. So it takes time that grows with the number of leases.
type leaseWalk struct {
	s       *Engine
	service service
	// from is the greatest expiry that was read, and seen the leases that have it.
	from int64
	seen map[contract.Lease]struct{}
	// These are gathered from all looks.
	waiting map[contract.Lease]time.Time
	passed  int
	next    time.Duration
}

// reapLeases ends the leases that have lapsed, deletes their keys, and returns the time until it
// should look again. reaping is held.
func (s *Engine) reapLeases(ctx context.Context) (time.Duration, error) {
	w := leaseWalk{s: s, waiting: map[contract.Lease]time.Time{}, next: contract.Never}
	for more := true; more; {
		var err error
		if more, err = w.page(ctx); err != nil {
			maps.Copy(s.ended, w.waiting)
			return 0, err
		}
	}
	s.ended, s.bounded = w.waiting, w.service
	return max(w.next, time.Duration(w.passed/leasesAtOnce)*passPause), nil
}

// page reads the next leases, and does what is due. It tells whether others have to be read.
func (w *leaseWalk) page(ctx context.Context) (more bool, err error) {
	s := w.s
	limit := leasesAtOnce + 2*len(w.seen)
	opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	rows, st, err := s.b.Lapsing(opCtx, w.from, limit)
	cancel()
	if err != nil {
		return false, err
	}
	since := s.served.Told(st)
	if w.service.since.IsZero() {
		w.service = service{since, st.Head.Epoch}
	}
	if len(rows) == limit {
		left := rows[len(rows)-1].Left(st.Now)
		if more = left <= 0 || s.bounded != w.service; !more {
			w.next = min(w.next, left)
		}
	}
	for some := range slices.Chunk(w.fresh(rows), leasesAtOnce) {
		if err := w.some(ctx, some, st, since); err != nil {
			return false, err
		}
	}
	return more, nil
}

// fresh leaves out the leases that the page before had.
func (w *leaseWalk) fresh(rows []contract.LeaseRow) (fresh []contract.LeaseRow) {
	for _, r := range rows {
		if _, before := w.seen[r.Lease]; !before || r.Expiry > w.from {
			fresh = append(fresh, r)
		}
		if r.Expiry > w.from || w.seen == nil {
			w.from, w.seen = r.Expiry, map[contract.Lease]struct{}{}
		}
		w.seen[r.Lease] = struct{}{}
	}
	return fresh
}

// some does what is due of some leases.
func (w *leaseWalk) some(ctx context.Context, rows []contract.LeaseRow, st contract.State,
	since time.Time) error {
	s := w.s
	l := look(rows, st.Now, since, s.ended)
	maps.Copy(w.waiting, l.waiting)
	w.passed += l.passed
	if len(l.beyond) > 0 {
		if err := s.boundLeases(ctx, l.beyond); err != nil {
			return err
		}
	}
	ended := contract.Ended{Before: l.ended}
	if len(l.lapsed) > 0 {
		var err error
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		ended, st, err = contract.EndLeases(opCtx, s.b, l.lapsed, false, s.served)
		cancel()
		if err != nil {
			return s.unwritten(ctx, err)
		}
		for _, id := range ended.Before { // by another process, a moment ago
			w.waiting[id] = st.Now.Add(takeOver)
			w.passed++
			l.next = min(l.next, takeOver)
		}
		if len(ended.Now)+len(ended.Before) < len(l.lapsed) {
			l.next = 0 // some have got time, or were renewed a moment ago
		}
		ended.Before = l.ended
	}
	left, err := s.empty(ctx, slices.Concat(ended.Now, ended.Before), st.Head.Epoch)
	if err != nil {
		return err
	}
	for _, id := range left {
		w.waiting[id] = st.Now.Add(reapRetry)
		w.passed++
		l.next = min(l.next, reapRetry)
	}
	w.next = min(w.next, max(l.next, 0))
	return nil
}

// boundLeases bounds leases that lapse too late.
func (s *Engine) boundLeases(ctx context.Context, leases []contract.Lease) error {
	opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	n, _, err := contract.BoundLeases(opCtx, s.b, leases)
	if err != nil {
		return s.unwritten(ctx, err)
	}
	if n > 0 {
		s.log.Warn("leases lapsed later than they can, since the database's clock was ahead of what "+
			"it is now, and have their whole time from now on", "leases", n)
	}
	return nil
}

// unwritten notes that leases could not be written. So they cannot be renewed, either.
func (s *Engine) unwritten(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		s.served.Lost()
	}
	return err
}

// empty deletes the keys of leases that have ended in the epoch, and then the leases. It returns
// the leases that it could not empty. reaping is held.
//
// The keys of a lease are deleted at one revision, as in etcd, and so are those of several leases
// together: they were emptied by one process a moment later anyway. If that is not possible, each
// half of the leases is emptied by itself. So a lease with more keys than a commit takes, or with a
// damaged one, holds no other one up, and its own keys are deleted in several commits.
func (s *Engine) empty(ctx context.Context, leases []contract.Lease,
	epoch contract.Epoch) (left []contract.Lease, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	done, err := s.emptyAsOne(ctx, leases, epoch)
	if err != nil {
		return nil, err
	}
	if done {
		maps.DeleteFunc(s.damaged, func(_ contract.Key, d damaged) bool {
			return d.lease != 0 && slices.Contains(leases, d.lease)
		})
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		s.leasesMoved.Store(true)
		return nil, contract.ForgetLeases(opCtx, s.b, leases, epoch)
	}
	if len(leases) == 1 {
		if done, err = s.detach(ctx, leases[0], epoch); err == nil && !done {
			left = leases
		}
		return left, err
	}
	for _, half := range [][]contract.Lease{leases[:len(leases)/2], leases[len(leases)/2:]} {
		some, err := s.empty(ctx, half, epoch)
		if err != nil {
			return nil, err
		}
		left = append(left, some...)
	}
	return left, nil
}

// emptyTries is how often the keys of leases are deleted as one. A client may write one of them
// meanwhile, without the lease; then it is not a key of the lease any more.
const emptyTries = 3

// emptyAsOne deletes the keys of leases by one write. It tells whether it has: there may be too
// many keys or bytes for that, or damaged keys, or clients that write them meanwhile.
func (s *Engine) emptyAsOne(ctx context.Context, leases []contract.Lease,
	epoch contract.Epoch) (done bool, err error) {
	most := reapBatch
	if len(leases) == 1 {
		most = contract.MaxParts + 1
	}
	for range emptyTries {
		era := s.hub.presentEra()
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		keys, st, err := s.b.AttachedTo(opCtx, leases, most+1)
		cancel()
		switch {
		case err != nil:
			return false, err
		case !st.Writable:
			return false, errReadOnlyKeys
		case st.Head.Epoch != epoch: // an import may have brought a lease of this number, which lives
			return false, ErrOtherEra
		case len(keys) == 0 || len(keys) > most:
			return len(keys) == 0, nil
		}
		ms, err := s.deletions(ctx, keys, era)
		if err != nil || ms == nil {
			return false, err
		}
		_, err = s.Transact(ctx, ms)
		var (
			conflict *contract.ConflictError
			limit    *contract.LimitError
		)
		switch {
		case err == nil:
			s.metrics.reaped(len(keys))
			return true, nil
		case errors.As(err, &limit), contract.ClassOf(err) == contract.Data:
			return false, nil
		case !errors.As(err, &conflict):
			return false, err
		}
	}
	return false, nil
}

// deletions are the mutations that delete keys, whose values are read here, as in reapSome. There
// are none if one of the keys was written meanwhile or is damaged, or their values are too long.
func (s *Engine) deletions(ctx context.Context, keys []contract.Expired,
	era contract.Era) (ms []contract.Mutation, err error) {
	if due, _ := s.due(keys, len(keys)); len(due) < len(keys) {
		return nil, nil
	}
	ids := make([]contract.RowID, len(keys))
	for i := range keys {
		ids[i] = keys[i].ID()
	}
	opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	rows, _, err := s.b.Values(opCtx, ids)
	cancel()
	switch {
	case err != nil && ofOneKey(err):
		return nil, nil
	case err != nil:
		return nil, err
	case len(rows) < len(keys):
		return nil, nil
	}
	for i := range rows {
		r := &rows[i]
		ms = append(ms, contract.Mutation{Key: r.Key, Expect: r.Revision, Era: era, Delete: true,
			HasPrev: true, PrevValue: r.Value, PrevLease: r.Lease})
	}
	slices.SortFunc(ms, func(a, b contract.Mutation) int { return cmp.Compare(a.Key, b.Key) })
	return ms, nil
}

var errReadOnlyKeys = contract.Errorf(contract.ReadOnly,
	"the keys of a lease cannot be read on a read-only server")

// detach deletes the keys of a lease that has ended in the epoch, and then the lease. It tells
// whether it could delete all. reaping is held.
func (s *Engine) detach(ctx context.Context, l contract.Lease, epoch contract.Epoch) (empty bool, err error) {
	attached := func(from contract.Key, limit int) ([]contract.Expired, error) {
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		keys, st, err := s.b.Attached(opCtx, l, from, limit)
		switch {
		case err != nil:
		case !st.Writable:
			err = errReadOnlyKeys
		case st.Head.Epoch != epoch: // see emptyAsOne
			err = ErrOtherEra
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
			n, some, err := s.reapSome(ctx, due, era)
			if err != nil {
				return false, err
			}
			s.metrics.reaped(n - len(some.left))
			due = due[n:]
		}
	}
	if left, err := attached("", 1); err != nil || len(left) > 0 {
		return false, err
	}
	maps.DeleteFunc(s.damaged, func(_ contract.Key, d damaged) bool { return d.lease == l })
	opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return true, contract.ForgetLeases(opCtx, s.b, []contract.Lease{l}, epoch)
}
