package mvcc

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// write is a mutation on its way: queued, then taken into a group, then answered.
type write struct {
	m contract.Mutation
	// rest are the other mutations of a transaction.
	rest  []contract.Mutation
	bytes int
	// arrived is when it came.
	arrived time.Time
	done    chan struct{}
	outcome contract.Outcome
	err     error
	// dropped is set when the caller gave up in the queue, or was refused there. Protected by
	// queue.mu until the write is taken.
	dropped, taken bool
}

// single tells whether the write is a group by itself.
func (w *write) single() bool { return w.m.If != nil || len(w.rest) > 0 }

func (w *write) answer(o contract.Outcome, err error) {
	w.outcome, w.err = o, err
	close(w.done)
}

// pending tells whether the write has no answer yet.
func (w *write) pending() bool {
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

// queue holds the writes in the order of arrival, bounded in number and bytes: when it is full,
// writers wait for room.
type queue struct {
	maxCount, maxBytes int
	limits             contract.Limits

	// mu protects the fields below but for the channel filled.
	mu     sync.Mutex
	writes []*write
	count  int // without the dropped ones
	alone  int // those that have to be the only one of their key, with the dropped ones
	bytes  int
	closed bool
	// taken is how many writes the last group had, and want how many take waits for.
	taken, want int
	// filled has capacity 1: there may be as much to take as is wanted. room is closed and replaced
	// when writes were taken.
	filled chan struct{}
	room   chan struct{}
}

func newQueue(maxCount, maxBytes int, limits contract.Limits) *queue {
	return &queue{maxCount: maxCount, maxBytes: maxBytes, limits: limits,
		filled: make(chan struct{}, 1), room: make(chan struct{})}
}

// put appends a write, after waiting for room. A write larger than the whole queue fits when it is
// empty.
func (q *queue) put(ctx context.Context, w *write) error {
	for {
		q.mu.Lock()
		if q.closed {
			q.mu.Unlock()
			return contract.ErrClosed
		}
		if q.count == 0 || (q.count < q.maxCount && q.bytes+w.bytes <= q.maxBytes) {
			q.writes = append(q.writes, w)
			if w.m.Alone() {
				q.alone++
			}
			q.count++
			q.bytes += w.bytes
			enough := q.enoughLocked()
			q.mu.Unlock()
			if enough {
				q.signal()
			}
			return nil
		}
		room := q.room
		q.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (q *queue) signal() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// drop removes a write whose caller gave up, unless its group has begun.
func (q *queue) drop(w *write) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.taken {
		return false
	}
	if !w.dropped {
		w.dropped = true
		q.count--
		q.bytes -= w.bytes
		w.m.Value, w.m.PrevValue, w.rest = nil, nil, nil
		q.roomLocked()
	}
	return true
}

// refuse answers the queued writes that came at or before a time, and returns when the oldest of
// the others came, zero if there are none.
func (q *queue) refuse(came time.Time, err error) (oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writes = slices.DeleteFunc(q.writes, func(w *write) bool {
		switch {
		case w.dropped:
			q.forgetLocked(w)
			return true
		case w.arrived.After(came):
			if oldest.IsZero() || w.arrived.Before(oldest) {
				oldest = w.arrived
			}
			return false
		}
		w.dropped = true
		q.forgetLocked(w)
		q.count--
		q.bytes -= w.bytes
		w.answer(contract.Outcome{}, err)
		return true
	})
	q.roomLocked()
	return oldest
}

// take waits for writes and returns as many as a group may have, in the order of arrival; nil when
// the queue is closed and empty. A write that must not be in a group with another one of its key
// stays, before all that came later. So does one with a condition, or a transaction, until it is
// the first: it is a group of its own. Take waits until nearly as many are there as the last group
// had; see [expected]. It does so no longer than the patience.
func (q *queue) take(patience time.Duration) []*write {
	for {
		q.await(1, nil)
		q.mu.Lock()
		want := expected(q.taken)
		q.mu.Unlock()
		if want > 1 {
			timer := time.NewTimer(patience)
			q.await(want, timer.C)
			timer.Stop()
		}
		q.mu.Lock()
		group, bytes, i := []*write(nil), 0, 0
		var left []*write
		var keys groupKeys
		if q.alone > 0 {
			keys = groupKeys{}
		}
		for ; i < len(q.writes); i++ {
			w := q.writes[i]
			if w.dropped {
				q.forgetLocked(w)
				continue
			}
			if keys.apart(w) || w.single() && len(group) > 0 {
				left = append(left, w)
				continue
			}
			if len(group) > 0 && (len(group) == q.limits.GroupMutations ||
				bytes+w.bytes > q.limits.GroupBytes) {
				break
			}
			if group == nil {
				group = make([]*write, 0, min(q.count, q.limits.GroupMutations))
			}
			w.taken = true
			q.forgetLocked(w)
			keys.add(w)
			bytes += w.bytes
			group = append(group, w)
			if w.single() {
				i++
				break
			}
		}
		clear(q.writes[:i])
		i -= copy(q.writes[i-len(left):], left)
		if q.writes = q.writes[i:]; len(q.writes) == 0 {
			q.writes = nil
		}
		q.count -= len(group)
		q.bytes -= bytes
		closed := q.closed
		if len(group) > 0 {
			q.taken = len(group)
			q.roomLocked()
		}
		q.mu.Unlock()
		if len(group) > 0 || closed {
			return group
		}
	}
}

// await waits until as many writes are queued as are wanted, or as many bytes as a group may have,
// until the queue is closed, or until the time is over.
func (q *queue) await(want int, over <-chan time.Time) {
	for {
		q.mu.Lock()
		q.want = want
		enough := q.enoughLocked()
		q.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-q.filled:
		case <-over:
			return
		}
	}
}

// enoughLocked tells whether await is over.
func (q *queue) enoughLocked() bool {
	return q.closed || q.count >= q.want || q.count > 0 && q.bytes >= q.limits.GroupBytes
}

// forgetLocked takes out of account a write that leaves the queue.
func (q *queue) forgetLocked(w *write) {
	if w.m.Alone() {
		q.alone--
	}
}

// groupKeys has the keys of a group that is being taken, and tells of each whether its mutation has
// to be the only one. It is nil if no mutation in the queue has to be.
type groupKeys map[contract.Key]bool

// apart tells whether the write has to wait for the next group; see [contract.Mutation.Alone].
func (k groupKeys) apart(w *write) bool {
	alone, found := k[w.m.Key]
	return found && (alone || w.m.Alone())
}

func (k groupKeys) add(w *write) {
	if k != nil {
		k[w.m.Key] = w.m.Alone()
	}
}

// close refuses further writes. Queued writes are still taken.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
	q.mu.Lock()
	q.roomLocked()
	q.mu.Unlock()
}

// roomLocked tells the waiting writers that there may be room.
func (q *queue) roomLocked() {
	close(q.room)
	q.room = make(chan struct{})
}
