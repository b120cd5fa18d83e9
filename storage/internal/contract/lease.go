package contract

import (
	"context"
	"errors"
	"math"
	"time"
)

// A lease is a row of its own, and keys are attached to it. It lapses at a time of the database's
// clock, unless it is renewed before. When it lapses or is revoked it ends: it is marked so, and
// then its keys are deleted, each at a revision of its own, and then the row.
//
// A key is attached to no lease that has ended. A group attaches keys, and a lease ends, under the
// commit lock. So a group is before the end, and a process that looks for the lease's keys after
// the end finds them; or it is after the end, and is refused. So no key is left behind when the row
// goes, whatever process has written it. And no lease ends that was renewed in time, since it is
// renewed under the lock, too, and what lapses is decided there.
//
// Any process goes on with what another one has left. A row that is marked as ended is looked for
// like one that has lapsed.
//
// Leases outlive an outage. While the database is away, or no process runs, nobody can renew a
// lease, and its holder may well be alive. So a process ends a lease only if it has itself served
// the store, without a gap, for as long as the lease was granted for; see [Served]. Whoever has
// held the lease could have renewed it in all that time, by that process. After an outage every
// lease has its whole time again, as etcd gives it to leases when a new leader begins. So has each
// lease that a restore brings: in its history nobody could renew it before.
//
// Nothing of that is written, and processes need not agree on it:
//
//   - A process that has served for long ends at once what has lapsed, also beside one that has
//     begun a moment ago. So leases do not last longer because one of several processes is
//     restarted, again and again.
//   - A process that has begun a moment ago renews a lease that has lapsed, unless another one has
//     ended it. Both are decided under the commit lock. So no lease ends that was renewed, and none
//     is renewed that has ended.
//   - All times are those of the database's clock, which a process learns with each answer. A
//     process's own clock tells no more than how long it has waited. If the database's clock jumps,
//     that is a gap, and leases get their time again.
//
// The price: a lease whose holder is gone lasts up to its time longer after an outage; and if all
// processes are restarted more often than a lease's time, it lasts until that ends.
//
// No lease lasts longer from now on than it was granted for. When the database's clock goes back,
// as that of a machine does which was ahead, the expiries that were written before lie too far in
// the future. A process that finds such a lease renews it, under the lock, as its holder would do:
// see [LeaseRow.Beyond]. So it lapses by the clock as it goes now. It does not end early, since
// whoever holds it was told no more than that time, and at the latest now.

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
	left := r.Expiry - now.UnixMicro()
	return time.Duration(min(left, math.MaxInt64/1000)) * time.Microsecond
}

// whole is for how long it was granted.
func (r *LeaseRow) whole() time.Duration { return time.Duration(r.TTL) * time.Second }

// LapsesIn is Left in a process that has served the store since a time: there, a lease has as long
// as it was granted for, from that time on, and never longer. It is not positive if the lease has
// lapsed or ended.
func (r *LeaseRow) LapsesIn(now, since time.Time) time.Duration {
	left := r.Left(now)
	if r.Expiry == 0 {
		return left
	}
	return min(max(left, r.whole()-now.Sub(since)), r.whole())
}

// clockSlack is how far an expiry may lie beyond what it could be. Clocks are set by less all the
// time, and an answer may be older than a row that it brings. It is not worth a write.
const clockSlack = time.Second

// Beyond tells whether the lease lapses later than if it had been renewed just now. So it was
// renewed when the database's clock was ahead of what it is now.
func (r *LeaseRow) Beyond(now time.Time) bool { return r.Left(now)-clockSlack > r.whole() }

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

// GrantLeases stores leases, but for those whose ID another one has. It tells which of them it has
// stored, and returns the state before it.
func GrantLeases(ctx context.Context, b Backend,
	asked []*LeaseRow) (granted []bool, st State, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		st = tx.State()
		ids := make([]Lease, len(asked))
		for i, r := range asked {
			ids[i] = r.Lease
		}
		found, err := tx.Leases(ids)
		if err != nil {
			return err
		}
		var rows []LeaseRow
		if granted, rows = grants(asked, found, st.Now); len(rows) == 0 {
			return nil
		}
		return tx.PutLeases(rows)
	})
	return granted, st, err
}

// grants decides which leases are granted where some are found to be there: of those with one ID
// the first, and none if there is one. All of them wait at the same time, so any order would do.
func grants(asked []*LeaseRow, found []LeaseRow, now time.Time) (granted []bool, rows []LeaseRow) {
	taken := make(map[Lease]bool, len(asked)+len(found))
	for _, r := range found {
		taken[r.Lease] = true
	}
	granted = make([]bool, len(asked))
	for i, r := range asked {
		if granted[i] = !taken[r.Lease]; granted[i] {
			taken[r.Lease] = true
			r.Renew(now)
			rows = append(rows, *r)
		}
	}
	return granted, rows
}

// RenewLeases renews the leases that have not lapsed, and returns them, and the state before it.
func RenewLeases(ctx context.Context, b Backend, leases []Lease,
	served *Served) (renewed []LeaseRow, st State, err error) {
	began := time.Now()
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		served.Waited(time.Since(began))
		st, renewed = tx.State(), nil
		since := served.Told(st)
		found, err := tx.Leases(leases)
		for _, r := range found {
			if r.LapsesIn(st.Now, since) > 0 {
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

// BoundLeases renews those of the leases that lapse too late, and returns how many these are, and
// the state before it.
func BoundLeases(ctx context.Context, b Backend, leases []Lease) (bounded int, st State, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		st = tx.State()
		found, err := tx.Leases(leases)
		var rows []LeaseRow
		for _, r := range found {
			if r.Beyond(st.Now) {
				r.Renew(st.Now)
				rows = append(rows, r)
			}
		}
		if bounded = len(rows); err != nil || bounded == 0 {
			return err
		}
		return tx.PutLeases(rows)
	})
	return bounded, st, err
}

// Ended are the leases that have ended: now, by the caller, or before.
type Ended struct{ Now, Before []Lease }

// EndLeases marks the leases that have lapsed as ended, or all leases if they are revoked. It
// returns those that have ended, and the state before it.
func EndLeases(ctx context.Context, b Backend, leases []Lease, revoked bool,
	served *Served) (ended Ended, st State, err error) {
	began := time.Now()
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		served.Waited(time.Since(began))
		st, ended = tx.State(), Ended{}
		since := served.Told(st)
		found, err := tx.Leases(leases)
		var rows []LeaseRow
		for _, r := range found {
			switch {
			case r.Expiry == 0:
				ended.Before = append(ended.Before, r.Lease)
			case revoked || r.LapsesIn(st.Now, since) <= 0:
				ended.Now = append(ended.Now, r.Lease)
				r.Expiry = 0
				rows = append(rows, r)
			}
		}
		if err != nil || len(rows) == 0 {
			return err
		}
		return tx.PutLeases(rows)
	})
	return ended, st, err
}

// ForgetLeases removes those of the leases that have ended. They ended in the epoch, and no key is
// attached to them. In another epoch an import may have stored leases with the same IDs, and keys
// of them.
func ForgetLeases(ctx context.Context, b Backend, leases []Lease, epoch Epoch) error {
	return repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		if tx.State().Head.Epoch != epoch {
			return nil
		}
		found, err := tx.Leases(leases)
		var ended []Lease
		for _, r := range found {
			if r.Expiry == 0 {
				ended = append(ended, r.Lease)
			}
		}
		if err != nil || len(ended) == 0 {
			return err
		}
		return tx.DropLeases(ended)
	})
}

// LeasePage is how many leases, or keys of one, are read at a time.
const LeasePage = 1000
