package memdb

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Backend is one process's way to a [Database].
type Backend struct {
	// Hook, if not nil, is called when an operation begins, with the name of its method. If it
	// returns an error, that is the operation's, and nothing is done. By it a test makes a database
	// that hangs or fails. It is set before the first use. Several goroutines may call it at the
	// same time.
	Hook func(ctx context.Context, method string) error
	// Held, if not nil, is called by each transaction that holds the commit lock: before it reads,
	// and again, with commits, before it commits what it has written. If it returns an error, the
	// transaction is undone. It is set before the first use.
	Held func(ctx context.Context, method string, commits bool) error

	d *Database
	// timeout bounds every operation, 0 for none.
	timeout time.Duration
	// polled is the version that Changed has seen.
	polled *tables
}

var (
	_ mvcc.Backend    = (*Backend)(nil)
	_ mvcc.KeysReader = (*Backend)(nil)
	_ mvcc.Notifier   = (*Backend)(nil)
	_ mvcc.Poller     = (*Backend)(nil)
)

// groupBytes bounds a group.
const groupBytes = 8 << 20

// Limits implements [mvcc.Backend].
func (b *Backend) Limits() mvcc.Limits {
	return mvcc.Limits{KeyBytes: mvcc.MaxKeyBytes, ValueBytes: mvcc.MaxValueBytes,
		GroupMutations: 1024, GroupBytes: groupBytes}
}

// bounded returns the context of an operation.
func (b *Backend) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, b.timeout)
}

// begin begins an operation.
func (b *Backend) begin(ctx context.Context, method string) error {
	if b.Hook != nil {
		if err := b.Hook(ctx, method); err != nil {
			return err
		}
	}
	return ended(ctx)
}

// ended is the error of an operation whose context has ended. Nothing was changed.
func ended(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return mvcc.Errorf(mvcc.Unavailable, "the operation did not end in time: %w", err)
	}
	return nil
}

// Identity implements [mvcc.Backend].
func (b *Backend) Identity(ctx context.Context) (mvcc.Identity, error) {
	t, _, err := b.read(ctx, "Identity")
	if err != nil {
		return mvcc.Identity{}, err
	}
	s := &t.store
	id := mvcc.Identity{Store: s.identity, Recorded: s.fingerprint, Actual: b.d.name,
		Epoch: s.epoch}
	return id, nil
}

// Durability implements [mvcc.Backend]. Nothing undoes a commit: no boot holds it.
func (b *Backend) Durability(ctx context.Context) (mvcc.Durability, error) {
	t, _, err := b.read(ctx, "Durability")
	if err != nil {
		return mvcc.Durability{}, err
	}
	return mvcc.Durability{Recorded: t.store.boot}, nil
}

// RecordBoot implements [mvcc.Backend].
func (b *Backend) RecordBoot(ctx context.Context, from, boot string) error {
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	return b.transact(ctx, "RecordBoot", func(t *tables) (bool, error) {
		if t.store.boot != from {
			return false, nil
		}
		t.store.boot = boot
		return true, nil
	})
}

// Close implements [mvcc.Backend]. There is nothing to release.
func (b *Backend) Close() error { return nil }
