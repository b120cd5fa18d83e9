package storage

import (
	"context"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// turns lets the writers of a key that many write try one after the other. Without it, each of n
// writers of one hot object makes, by and large, n attempts for a write, each with a read, a
// decoding and an encoding that are thrown away. A writer that has had its turn leaves what it
// wrote to the next one, which then needs no read.
//
// A turn is politeness, not a lock: correctness is the database's compare-and-set. A writer waits
// for a turn for a bounded time and then goes on without one, so a caller's function that writes
// the same object while its caller has the turn is late at worst. And the value that a writer
// leaves may be outdated: it is a suggestion like any other.
type turns struct {
	mu   sync.Mutex
	keys map[contract.Key]*queuedKey
}

// queuedKey is a key that somebody has a turn at or waits for.
type queuedKey struct {
	taken chan struct{} // capacity 1
	users int
	// left is what the last one has written. The writer that has the turn may read and write it.
	left *written
}

// written is what a writer has written, and the era in which it began to.
type written struct {
	kv  mvcc.KeyValue
	era contract.Era
}

// turn is a writer's place in the line.
type turn struct {
	turns *turns
	key   contract.Key
	queue *queuedKey
	has   bool
}

// patience is how long a writer waits for its turn.
const patience = 100 * time.Millisecond

// take waits for the key's turn.
func (t *turns) take(ctx context.Context, key contract.Key) *turn {
	return t.line(ctx, key, true)
}

// join waits for the key's turn if there is a line, and returns nil otherwise.
func (t *turns) join(ctx context.Context, key contract.Key) *turn {
	return t.line(ctx, key, false)
}

func (t *turns) line(ctx context.Context, key contract.Key, begin bool) *turn {
	t.mu.Lock()
	q := t.keys[key]
	if q == nil {
		if !begin {
			t.mu.Unlock()
			return nil
		}
		if t.keys == nil {
			t.keys = map[contract.Key]*queuedKey{}
		}
		q = &queuedKey{taken: make(chan struct{}, 1)}
		t.keys[key] = q
	}
	q.users++
	t.mu.Unlock()

	one := &turn{turns: t, key: key, queue: q}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case q.taken <- struct{}{}:
		one.has = true
	case <-timer.C:
	case <-ctx.Done():
	}
	return one
}

// left returns what the one before has written, nil if that is not known.
func (t *turn) left() *written {
	if t == nil || !t.has {
		return nil
	}
	return t.queue.left
}

// leave leaves what was written to the next one; nil if there is nothing.
func (t *turn) leave(w *written) {
	if t != nil && t.has {
		t.queue.left = w
	}
}

// giveBack ends the turn.
func (t *turn) giveBack() {
	if t == nil {
		return
	}
	if t.has {
		<-t.queue.taken
	}
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	if t.queue.users--; t.queue.users == 0 {
		delete(t.turns.keys, t.key)
	}
}
