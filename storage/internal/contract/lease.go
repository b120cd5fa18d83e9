package contract

import (
	"context"
	"errors"
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

// RenewLeases renews the leases that have not lapsed, and returns them, and the state before it.
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

// EndLeases marks the leases that have lapsed as ended, or all leases if they are revoked. It
// returns the leases that have ended now or before, and the state before it.
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

// LeasePage is how many leases, or keys of one, are read at a time.
const LeasePage = 1000
