package contract

import (
	"context"
	"slices"
)

// This file does, once for all backends, what the commit lock is needed for besides commits. The
// rules decide (see rules.go), and the transaction of a backend reads and writes.

// locked runs a transaction, unless the store was dropped.
func locked(ctx context.Context, b Backend, o LockOptions, f func(Tx) error) error {
	return b.Locked(ctx, o, func(tx Tx) error {
		if tx.State().Dropped() {
			return ErrDropped
		}
		return f(tx)
	})
}

// repeatable runs a transaction that does the same if it is run twice. So nobody has to know
// whether it was committed: after an unknown outcome it may be repeated, like after a failure that
// has changed nothing.
func repeatable(ctx context.Context, b Backend, o LockOptions, f func(Tx) error) error {
	return repeat(locked(ctx, b, o, f))
}

// repeat says of an unknown outcome that the transaction may be run again.
func repeat(err error) error {
	if err != nil && ClassOf(err) == Unknown {
		return &Error{Class: Transient, Err: err}
	}
	return err
}

// ResolveGroup finds out what became of the group with this token, which was begun after a
// position, and makes sure that it stays so; see [Resolve].
//
// Rows may be visible before they are durable: in MariaDB, in MySQL without a binary log, and on a
// PostgreSQL that waits for a standby. A transaction that only reads does not wait for that. So one
// that finds the rows writes as well: its own commit is durable only if all before it is. It
// records a token that no group has, which the sweep forgets like any other.
//
// A store that was closed by a move, or dropped, is asked like any other, as long as it has rows.
// Where it has none, nobody can tell: the epoch is another one.
func ResolveGroup(ctx context.Context, b Backend, token Token,
	after Position) (*Resolution, error) {
	var r Resolution
	err := repeat(b.Locked(ctx, LockOptions{}, func(tx Tx) error {
		guard, rows, err := tx.Group(token, after.Revision)
		if err != nil {
			return err
		}
		var record bool
		switch r, record = Resolve(after, guard, rows); {
		case record:
			return tx.Abort(token, after.Revision)
		case r.Committed:
			return tx.Abort(NewToken(), after.Revision)
		}
		return nil
	}))
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// RaiseCompacted compacts up to the revision, as far as [CompactTo] says, and returns the state
// after it.
func RaiseCompacted(ctx context.Context, b Backend, revision Revision) (st State, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		var write bool
		if st, write = CompactTo(tx.State(), revision); write {
			return tx.SetCompacted(st.Compacted)
		}
		return nil
	})
	return st, err
}

// RaiseCompactedTo is RaiseCompacted that refuses what is not between compacted and the head.
func RaiseCompactedTo(ctx context.Context, b Backend, revision Revision) (st State, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		st = tx.State()
		switch {
		case revision > st.Head.Revision:
			return &FutureRevisionError{Revision: revision, Head: st.Head.Revision}
		case revision <= st.Compacted:
			return ErrCompacted
		}
		st, _ = CompactTo(st, revision)
		return tx.SetCompacted(st.Compacted)
	})
	return st, err
}

// SweepBatch plans and carries out one batch of the sweep, which looks at no more than limit rows.
// It returns how many rows it deleted, and the state after it.
func SweepBatch(ctx context.Context, b Backend, limit int) (deleted int, st State, err error) {
	from, err := b.Sweepable(ctx, limit)
	if err != nil {
		return 0, State{}, err
	}
	st = from.State
	if st.Dropped() {
		return 0, State{}, ErrDropped
	}
	if err = from.findParts(ctx, b, limit); err != nil {
		return 0, State{}, err
	}
	p := PlanSweep(from, limit)
	if err = p.Check(st); err == nil {
		deleted, err = b.Sweep(ctx, &p)
	}
	if err != nil {
		return 0, State{}, err
	}
	st.Swept = p.Swept
	return deleted, st, nil
}

// findParts reads the parts that belong to the rows. It reads more than two transactions can have,
// so that the sweep goes on if there are more. Rows never change, so it does no harm that they are
// read in another snapshot.
func (from *Sweepable) findParts(ctx context.Context, b Backend, limit int) error {
	limit = max(limit, 2*(MaxParts+1))
	t, err := b.Parts(ctx, Lowest(from.State.Swept-1), from.State.Compacted, limit, NoValues)
	if err == nil {
		// An answer of before, as a standby gives it, would lack parts.
		err = (&SweepPlan{Epoch: from.State.Head.Epoch, Compacted: from.State.Compacted}).Check(t.State)
	}
	if err != nil {
		return err
	}
	for i := range t.Rows {
		r := &t.Rows[i]
		from.Parts = append(from.Parts, SweepRow{ID: r.ID(), Prev: r.Prev, Deleted: r.Deleted})
	}
	if len(t.Rows) == limit {
		from.Cut = t.Rows[limit-1].Revision
	}
	return nil
}

// StartEpoch fences, on whatever server answers now, unless [Fence.After] says that it was done. It
// returns the state after it.
func StartEpoch(ctx context.Context, b Backend, f Fence) (st State, err error) {
	err = repeatable(ctx, b, LockOptions{AnyServer: true}, func(tx Tx) error {
		if f.Of != "" && tx.Fingerprint() != f.Of {
			return errAnotherDatabase
		}
		var write bool
		if st, write = f.After(tx.State()); write {
			return tx.Mark(st, f.Fingerprint)
		}
		return nil
	})
	return st, err
}

// errAnotherDatabase says that the address leads elsewhere than a moment ago. A process that fences
// by itself looks at the database again.
var errAnotherDatabase = Errorf(Transient,
	"the address leads to another database than the one that was to be fenced: try again")

// RecordFingerprint stores the fingerprint where none is recorded yet.
func RecordFingerprint(ctx context.Context, b Backend, fingerprint string) error {
	return repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		return tx.RecordFingerprint(fingerprint)
	})
}

// Into replaces what the store holds, and returns the state after it. An unknown outcome stays one:
// to import twice is not the same as to do it once.
func (in *Import) Into(ctx context.Context, b Backend) (st State, err error) {
	err = locked(ctx, b, LockOptions{Unbounded: true}, func(tx Tx) error {
		keys, err := tx.Keys()
		if err == nil {
			err = in.begin(tx.State(), keys)
		}
		if err == nil && !in.Beside {
			err = tx.Clear()
		}
		if err == nil {
			err = tx.Insert(in.Token, in.write)
		}
		for leases := range slices.Chunk(in.Leases, LeasePage) {
			if err == nil {
				err = tx.PutLeases(leases)
			}
		}
		if err == nil {
			err = buildAnew(tx)
		}
		if err == nil && in.Check != nil {
			err = in.Check(tx.Records)
		}
		if err != nil {
			return err
		}
		st = in.end(tx.State())
		return tx.Mark(st, in.Fingerprint)
	})
	return st, err
}
