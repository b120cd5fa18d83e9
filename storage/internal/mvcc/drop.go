package mvcc

import (
	"context"
	"errors"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// CreateStore creates the store that the options name, and tells whether it has. There may be a
// store of the name already. If that was dropped, a new one takes its place.
func CreateStore(ctx context.Context, d contract.Driver, url string,
	o contract.DriverOptions) (created bool, err error) {
	created, err = d.CreateStore(ctx, url, o)
	if err != nil || created || o.StoreName() == contract.DefaultStore {
		return created, err // nobody drops the default store
	}
	return recreate(ctx, d, url, o)
}

// recreate creates a store in the place of a dropped one, which the options name, and removes what
// is left of that one. It returns false if the store was not dropped.
func recreate(ctx context.Context, d contract.Driver, url string,
	o contract.DriverOptions) (created bool, err error) {
	b, err := contract.OpenBackend(ctx, d, url, o)
	if err != nil {
		return false, err
	}
	defer func() {
		if errors.Is(err, contract.ErrAnotherStore) {
			err = nil // another process was faster
		}
		err = errors.Join(err, b.Close())
	}()
	if st, err := b.State(ctx); err != nil || !st.Dropped() {
		return false, err
	}
	if err := contract.Erase(ctx, b); err != nil {
		return false, err
	}
	err = contract.Retried(ctx, func() error {
		return contract.Repeat(b.Locked(ctx, contract.LockOptions{}, func(tx contract.Tx) error {
			if !tx.State().Dropped() {
				return nil // here, too
			}
			created = true
			if err := tx.Renew(); err != nil {
				return err
			}
			return tx.Mark(contract.AfterRecreation(tx.State(), contract.NewToken()), "")
		}))
	})
	return created && err == nil, err
}

// sameStore returns an error if the store was dropped, or another one is in its place.
func (s *Store) sameStore(id contract.Identity) error {
	switch {
	case id.Epoch < 0:
		return s.gone(contract.ErrDropped)
	case id.Store != s.identity:
		return s.gone(contract.AnotherStore(id.Store, s.identity))
	}
	return nil
}

// gone ends the watches of a store that is not there any more, and returns the error that says so.
func (s *Store) gone(err error) error {
	if s.hub.close(err) {
		s.log.Error("all watches end", "err", err)
		if errors.Is(err, contract.ErrDropped) {
			close(s.dropped)
		}
	}
	return err
}

// Dropped is closed when this process has learnt that the store was dropped.
func (s *Store) Dropped() <-chan struct{} { return s.dropped }
