package mvcc

import (
	"context"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Scheduler gives the stores of a process turns for what they do in the background: to compact and
// sweep their history, to delete what has expired, and to measure what they hold. A turn is a batch
// of such work, without the pauses between batches. The stores get them in the order in which they
// ask, a few at a time. So a thousand stores whose passes fall together, or one that has much to
// sweep, leave connections and processors to the writers.
//
// A turn that takes longer than turnLasts does not keep the others waiting any more: perhaps it
// waits for a row that another process has locked. A nil Scheduler gives turns at once.
//
// It also gives turns to watchers that read the log, of which each store has a few at a time. The
// stores share the connections for that with those who read the head and follow the log.
type Scheduler struct{ turns, replays chan struct{} }

const (
	// schedulerTurns leaves half of the connections that write.
	schedulerTurns = contract.CommitConns / 2
	turnLasts      = time.Second
	// schedulerReplays leaves one or two of the connections that read the log.
	schedulerReplays = 2
)

// NewScheduler makes the scheduler of the stores of a process.
func NewScheduler() *Scheduler {
	return &Scheduler{make(chan struct{}, schedulerTurns), make(chan struct{}, schedulerReplays)}
}

// turn waits for a turn, which the caller ends. It takes no other turn meanwhile.
func (s *Scheduler) turn(ctx context.Context) (end func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	leave := sync.OnceFunc(func() { <-s.turns })
	late := time.AfterFunc(turnLasts, leave)
	return func() { late.Stop(); leave() }, nil
}

// replay waits until a watcher may read the log, which the caller ends.
func (s *Scheduler) replay(ctx context.Context) (end func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	select {
	case s.replays <- struct{}{}:
		return func() { <-s.replays }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
