package memdb

import (
	"context"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// listeners are told of new heads. Each channel has the capacity 1: one that is full will be read,
// and then the newest head is told.
type listeners struct {
	// mu protects wakes. Nothing else is locked, and nothing is waited for, while it is held.
	mu    sync.Mutex
	wakes map[chan struct{}]struct{}
}

func (l *listeners) add() (wake chan struct{}, remove func()) {
	wake = make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wakes == nil {
		l.wakes = map[chan struct{}]struct{}{}
	}
	l.wakes[wake] = struct{}{}
	return wake, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.wakes, wake)
	}
}

func (l *listeners) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for wake := range l.wakes {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// Announce implements [contract.Notifier].
func (b *Backend) Announce(ctx context.Context, _ []contract.Announced) error {
	if err := b.begin(ctx, "Announce"); err != nil {
		return err
	}
	b.d.listeners.wake()
	return nil
}

// Listen implements [contract.Notifier].
func (b *Backend) Listen(ctx context.Context, notify func(contract.Revision), status func(error)) {
	wake, remove := b.d.listeners.add()
	defer remove()
	status(nil)
	for {
		select {
		case <-wake:
			notify(b.d.version.Load().state(b.d.now()).Head.Revision)
		case <-ctx.Done():
			return
		}
	}
}

// Now implements [contract.Poller].
func (b *Backend) Now() time.Time { return b.d.now() }

// Changed implements [contract.Poller].
func (b *Backend) Changed(ctx context.Context) (bool, error) {
	t, _, err := b.read(ctx, "Changed")
	if err != nil {
		return true, err
	}
	changed := t != b.polled
	b.polled = t
	return changed, nil
}
