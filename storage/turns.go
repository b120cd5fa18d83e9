package storage

import (
	"context"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// turns lets the writers that have lost a race for a key try again one after the other. Without it, each of n writers of one hot object
// makes, by and large, n attempts for a write, each with a read, a decoding and an encoding that are thrown away.
//
// A turn is politeness, not a lock: correctness is the database's compare-and-set. A writer waits for a turn for a bounded time and then
// goes on without one, so a caller's function that writes the same object while its caller has the turn is late at worst.
type turns struct {
	mu   sync.Mutex
	keys map[mvcc.Key]*turn
}

type turn struct {
	taken chan struct{} // capacity 1
	users int
}

// patience is how long a writer waits for its turn.
const patience = 100 * time.Millisecond

// take waits for the key's turn and returns how to give it back.
func (t *turns) take(ctx context.Context, key mvcc.Key) (giveBack func()) {
	t.mu.Lock()
	if t.keys == nil {
		t.keys = map[mvcc.Key]*turn{}
	}
	k := t.keys[key]
	if k == nil {
		k = &turn{taken: make(chan struct{}, 1)}
		t.keys[key] = k
	}
	k.users++
	t.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	has := false
	select {
	case k.taken <- struct{}{}:
		has = true
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {
		if has {
			<-k.taken
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(t.keys, key)
		}
	}
}
