package mvcc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Export calls begin with the state, the number of live keys and the leases, and then each with
// every one of the keys in the order of [contract.Snapshot], all of one snapshot; see
// [contract.Backend.Snapshot].
func (s *Engine) Export(ctx context.Context, begin func(ctx context.Context, st contract.State,
	keys int64, leases []contract.LeaseRow) error, each func(*contract.Record) error) error {
	ctx, cancel := s.whileOpen(ctx)
	defer cancel()
	for {
		seen := s.hub.newestSeen()
		var (
			keys, found int64
			suspect     contract.Position
		)
		err := s.b.Snapshot(ctx, func(ctx context.Context, snap contract.Snapshot) (err error) {
			if suspect, err = s.compare(seen, snap.State()); err != nil {
				return err
			}
			if keys, err = snap.Keys(); err != nil {
				return err
			}
			leases, err := snap.AllLeases()
			if err != nil {
				return err
			}
			if err := begin(ctx, snap.State(), keys, leases); err != nil {
				return err
			}
			return snap.Records(func(r *contract.Record) error {
				found++
				if r.Value == nil {
					return contract.Errorf(contract.Invalid, "the database is damaged: the value of the key %q at "+
						"revision %d is lost", string(r.Key), r.Revision)
				}
				return each(r)
			})
		})
		if errors.Is(err, errOtherHistory) {
			// This is looked into now, since it asks the backend, which held a snapshot for the
			// export until here.
			if err = s.refence(ctx, suspect, "an export found another history"); err == nil {
				continue
			}
		}
		if err == nil && found != keys {
			err = contract.Errorf(contract.Invalid, "the database is damaged: of %d keys, only %d have a row in "+
				"the log", keys, found)
		}
		return orClosed(ctx, err)
	}
}

// Import replaces everything by what in holds. This process and all others move to the new history.
//
// It does not keep this process from moving to another history meanwhile: a fence waits for the
// commit lock as everybody does.
func (s *Engine) Import(ctx context.Context, in *contract.Import) (contract.State, error) {
	ctx, cancel := s.whileOpen(ctx)
	defer cancel()
	id, err := s.Identity(ctx)
	if err != nil {
		return contract.State{}, orClosed(ctx, err)
	}
	if err := s.sameStore(id); err != nil {
		return contract.State{}, err
	}
	in.Target, in.Seen = id.Store, s.hub.newestSeen()
	in.Fingerprint, in.Token = id.Actual, contract.NewToken()
	s.importing.Add(1)
	defer s.importing.Add(-1)
	st, err := in.Into(ctx, s.b)
	// A deadlock with another server's maintenance, or a lock that was not to be had in time, is
	// over when it is tried again a little later.
	for try := 1; err != nil && contract.ClassOf(err) == contract.Transient && try < importTries &&
		ctx.Err() == nil; try++ {
		s.log.Warn("the import was undone by the database and is repeated", "err", err)
		contract.Wait(ctx, time.Duration(try)*importPause)
		st, err = in.Into(ctx, s.b)
	}
	if contract.ClassOf(err) == contract.Unknown {
		return contract.State{}, err // it may have been done, whatever has ended it
	}
	if err != nil {
		return contract.State{}, orClosed(ctx, err)
	}
	s.metrics.fenced()
	s.announcer.tell(s, st.Head.Revision)
	// Somebody in this process may have noticed it first, and be in the new history already, or
	// beyond it: then the next answer of the database tells. So it does if the lock cannot be had
	// in time.
	if s.fencing.acquire(ctx) != nil {
		return st, nil
	}
	defer s.fencing.release()
	if contract.Adoptable(s.hub.newestSeen().Revision, st) {
		reason := "everything was replaced by an import"
		if in.Beside {
			reason = "an import has added keys"
		}
		if err := s.adopt(ctx, st, slog.LevelInfo, reason); err != nil {
			s.log.Warn("the import was done, and this process does not go over to the new history "+
				"yet", "err", err)
		}
	}
	return st, nil
}

const (
	// importTries is how often an import is tried that the database undoes for reasons of its own.
	importTries = 5
	// importPause is how long it waits before the second try; it waits longer before each further
	// try.
	importPause = 100 * time.Millisecond
)

// whileOpen returns a context that ends with the store, too.
func (s *Engine) whileOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(contract.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// orClosed says of what was ended because the store was closed that it was.
func orClosed(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), contract.ErrClosed) {
		return contract.ErrClosed
	}
	return err
}

// Identity reads which store the database holds.
func (s *Engine) Identity(ctx context.Context) (contract.Identity, error) {
	if s.ctx.Err() != nil {
		return contract.Identity{}, contract.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.b.Identity(ctx)
}
