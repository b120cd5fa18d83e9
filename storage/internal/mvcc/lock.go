package mvcc

import (
	"context"
	"sync"
)

// lock is a mutex that is waited for with a context. Locks that are held over calls of the
// [contract.Backend] have this type: a query that hangs must not block callers whose time is over.
// The zero value is free. See "Lock order" in the package documentation.
type lock struct {
	// mu protects the fields, and is held for no longer than it takes to look at them.
	mu   sync.Mutex
	held bool
	// freed is made by whoever waits first, and closed when the lock is free.
	freed chan struct{}
}

// acquire takes the lock. Its error is the cause of the context's end. A lock that is free is taken
// even if the context has ended.
func (l *lock) acquire(ctx context.Context) error {
	for {
		l.mu.Lock()
		if !l.held {
			l.held = true
			l.mu.Unlock()
			return nil
		}
		if l.freed == nil {
			l.freed = make(chan struct{})
		}
		freed := l.freed
		l.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *lock) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
	if l.freed != nil {
		close(l.freed)
		l.freed = nil
	}
}
