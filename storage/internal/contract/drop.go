package contract

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// A store is dropped in two steps: it is marked, and then its rows are removed in batches.
//
// The mark is a fence (see fence.go) whose epoch is negative, in one transaction under the commit
// lock. Each read and each group finds the epoch in its own snapshot, so it costs nothing to look
// at it. From the mark on, all of them answer [ErrDropped]: no reader sees that rows are missing,
// and no group is written. A process that looks into the history finds the same, and its watches
// end with it. Nothing but [CreateStore] takes the mark away.
//
// The store's row and the fence's marker stay, in the store's name. They are what is left of the
// history, and a store that is created under the name begins beyond them:
//
//   - Its marker is a fence beyond the old one. So a client that resumes at a revision of the old
//     store finds it compacted, as after any other fence.
//   - It has another identity. A process that had opened the old one finds that out before it would
//     follow the fence, as it would follow any other one, and answers [ErrAnotherStore]. So it
//     never shows the objects of one store to the clients of the other.

// Drop drops the store of a backend, and removes what it holds. It returns false if the store was
// dropped before; then it removes what was left, as by an interrupted drop.
func Drop(ctx context.Context, b Backend) (dropped bool, err error) {
	var st State
	err = retried(ctx, func() error {
		return repeat(b.Locked(ctx, LockOptions{}, func(tx Tx) error {
			if st = tx.State(); st.Dropped() {
				return nil
			}
			dropped = true
			st = afterDrop(st, NewToken())
			return tx.Mark(st, "")
		}))
	})
	if err != nil {
		return false, err
	}
	if n, ok := b.(Notifier); ok {
		// A process that does not hear it polls.
		_ = n.Announce(ctx, []Announced{{Store: b, Revision: st.Head.Revision}})
	}
	return dropped, erase(ctx, b, anyHome)
}

// afterDrop is the state after a drop.
func afterDrop(st State, token Token) State {
	return marked(st, -st.Head.Epoch-1, token)
}

// afterRecreation is the state after the creation of a store in the place of a dropped one.
func afterRecreation(st State, token Token) State {
	return marked(st, -st.Head.Epoch+1, token)
}

// marked is the state after a fence that leaves nothing of what was before it.
func marked(st State, epoch Epoch, token Token) State { return markedBeyond(st, epoch, 0, token) }

// markedBeyond is marked, and beyond a revision of another history, too.
func markedBeyond(st State, epoch Epoch, seen Revision, token Token) State {
	f := Fence{Seen: Position{Revision: seen}, Token: token, Jump: slowJump, PerSecond: slowPerSecond}
	st.Head = Position{Epoch: epoch, Revision: f.Marker(st), Token: token}
	st.Compacted, st.Swept = st.Head.Revision, st.Head.Revision
	return st
}

// anyHome lets erase go on, whatever the home is.
func anyHome(Tx) (bool, error) { return true, nil }

// erase removes the rows of a dropped store but for the newest marker, in batches with pauses, so
// that other stores go on. It ends when the store is not dropped any more, or goesOn says so.
func erase(ctx context.Context, b Backend, goesOn func(Tx) (bool, error)) error {
	for {
		began := time.Now()
		var erased int
		rows, _, err := b.Leases(ctx, 1, eraseRows)
		if err != nil {
			return err
		}
		leases := make([]Lease, len(rows))
		for i, r := range rows {
			leases[i] = r.Lease
		}
		err = retried(ctx, func() error {
			return repeat(b.Locked(ctx, LockOptions{}, func(tx Tx) (err error) {
				on, err := goesOn(tx)
				if err != nil {
					return err
				}
				if erased = 0; !tx.State().Dropped() || !on {
					leases = nil
					return nil
				}
				if len(leases) > 0 {
					if err := tx.DropLeases(leases); err != nil {
						return err
					}
				}
				erased, err = tx.Erase(eraseRows)
				return err
			}))
		})
		if err != nil {
			return err
		}
		if erased == 0 && len(leases) == 0 {
			return GiveBack(ctx, b)
		}
		Wait(ctx, erasePause(time.Since(began)))
	}
}

// erasePause is how long a drop waits after a batch, by how long that took. It is bounded, since a
// process may have slept in a batch.
func erasePause(took time.Duration) time.Duration { return min(3*took, 10*time.Second) }

// eraseRows is how many rows of a table a batch of a drop removes.
const eraseRows = 500

// GiveBack gives the space that was freed back to the file system, where the database does that.
func GiveBack(ctx context.Context, b Backend) error {
	for {
		before, err := b.Size(ctx)
		if err != nil {
			return err
		}
		if _, err := b.Sweep(ctx, &SweepPlan{}); err != nil {
			return err
		}
		if after, err := b.Size(ctx); err != nil || after.Total >= before.Total {
			return err
		}
	}
}

// CreateStore creates the store that the options name, and tells whether it has. There may be a
// store of the name already. If that was dropped, a new one takes its place.
func CreateStore(ctx context.Context, d Driver, url string,
	o DriverOptions) (created bool, err error) {
	created, err = d.CreateStore(ctx, url, o)
	if err != nil || created || o.StoreName() == DefaultStore {
		return created, err // nobody drops the default store
	}
	return recreate(ctx, d, url, o)
}

// recreate creates a store in the place of a dropped one, which the options name, and removes what
// is left of that one. It returns false if the store was not dropped.
func recreate(ctx context.Context, d Driver, url string,
	o DriverOptions) (created bool, err error) {
	b, err := OpenBackend(ctx, d, url, o)
	if err != nil {
		return false, err
	}
	defer func() {
		if errors.Is(err, ErrAnotherStore) {
			err = nil // another process was faster
		}
		err = errors.Join(err, b.Close())
	}()
	if st, err := b.State(ctx); err != nil || !st.Dropped() {
		return false, err
	}
	if home, _, err := b.Home(ctx); err != nil {
		return false, err
	} else if home != "" {
		return false, ErrOfDirectory
	}
	if err := erase(ctx, b, anyHome); err != nil {
		return false, err
	}
	err = retried(ctx, func() error {
		return repeat(b.Locked(ctx, LockOptions{}, func(tx Tx) error {
			if !tx.State().Dropped() {
				return nil // here, too
			}
			created = true
			if err := errors.Join(alone(tx), tx.Renew()); err != nil {
				return err
			}
			return tx.Mark(afterRecreation(tx.State(), NewToken()), "")
		}))
	})
	return created && err == nil, err
}

// retried runs what may be tried again at once, again while the database undoes it for reasons of
// its own.
func retried(ctx context.Context, f func() error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := f()
		if err != nil && ClassOf(err) != Transient {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(RetryPolicy()))
	return err
}
