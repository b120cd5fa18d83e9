package memdb

import (
	"context"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
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
	_ contract.Backend    = (*Backend)(nil)
	_ contract.KeysReader = (*Backend)(nil)
	_ contract.Notifier   = (*Backend)(nil)
	_ contract.Poller     = (*Backend)(nil)
)

// groupBytes bounds a group.
const groupBytes = 8 << 20

// Limits implements [contract.Backend].
func (b *Backend) Limits() contract.Limits {
	return contract.Limits{KeyBytes: contract.MaxKeyBytes, ValueBytes: contract.MaxValueBytes,
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
		return contract.Errorf(contract.Unavailable, "the operation did not end in time: %w", err)
	}
	return nil
}

// Identity implements [contract.Backend].
func (b *Backend) Identity(ctx context.Context) (contract.Identity, error) {
	t, _, err := b.read(ctx, "Identity")
	if err != nil {
		return contract.Identity{}, err
	}
	s := &t.store
	id := contract.Identity{Store: s.identity, Recorded: s.fingerprint, Actual: b.d.name,
		Epoch: s.epoch}
	return id, nil
}

// Durability implements [contract.Backend]. Nothing undoes a commit: no boot holds it.
func (b *Backend) Durability(ctx context.Context) (contract.Durability, error) {
	t, _, err := b.read(ctx, "Durability")
	if err != nil {
		return contract.Durability{}, err
	}
	return contract.Durability{Recorded: t.store.boot}, nil
}

// RecordBoot implements [contract.Backend].
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

// Close implements [contract.Backend]. There is nothing to release.
func (b *Backend) Close() error { return nil }
