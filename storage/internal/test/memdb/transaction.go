package memdb

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// transact runs a transaction under the commit lock. f works on a version of its own, and says
// whether it has changed it: only then, and without an error, it is committed. The context may end
// the wait for the lock, and f; it never ends a commit.
func (b *Backend) transact(ctx context.Context, method string,
	f func(*tables) (changed bool, err error)) error {
	if err := b.begin(ctx, method); err != nil {
		return err
	}
	select {
	case b.d.lock <- struct{}{}:
		defer func() { <-b.d.lock }()
	case <-ctx.Done():
		return ended(ctx)
	}
	if err := b.held(ctx, method, false); err != nil {
		return err
	}
	newest := b.d.version.Load()
	t := newest.next()
	changed, err := f(t)
	if err == nil {
		err = ended(ctx)
	}
	if err == nil && changed {
		err = b.held(ctx, method, true)
	}
	if err != nil || !changed {
		return err
	}
	if !b.d.version.CompareAndSwap(newest, t) {
		return contract.Errorf(contract.Unavailable, "the database has gone back to an earlier version")
	}
	return nil
}

// held calls the test's function.
func (b *Backend) held(ctx context.Context, method string, commits bool) error {
	if b.Held == nil {
		return nil
	}
	return b.Held(ctx, method, commits)
}
