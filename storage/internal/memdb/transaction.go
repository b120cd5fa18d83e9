package memdb

import "context"

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
	t := b.d.version.Load().next()
	changed, err := f(t)
	if err == nil {
		err = ended(ctx)
	}
	if err != nil || !changed {
		return err
	}
	b.d.version.Store(t)
	return nil
}
