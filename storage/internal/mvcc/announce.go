package mvcc

import (
	"context"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A busy store commits several hundred groups per second. To announce each of them took a seventh
// of the CPU time that a create needs on PostgreSQL. So announcements come once in announceInterval
// at most, on average. What was left out in the time before is made up for, up to announceBurst at
// once: a hundred writes a second are announced one by one, however unevenly they come.
const (
	announceInterval = 10 * time.Millisecond
	announceBurst    = 10
)

// announcer tells the other processes of new heads, where the backends have notifications. It is
// one for all stores that share connections. One announcement at a time is under way, and the next
// one tells the newest head of each store that has a new one. So a slow database gets few of them,
// and no commit waits for one. A head is announced at once if fewer than a hundred a second came
// before it. While stores are busier, a head waits for announceInterval at most.
//
// An announcement that fails is not repeated: the next one tells more, and whoever listens polls as
// well. The zero value has nothing to tell.
type announcer struct {
	// mu protects the fields below.
	mu sync.Mutex
	// newest is what was last to be told of each open store, heads what is not under way yet.
	newest, heads map[*Engine]contract.Revision
	// telling are the stores of the announcement that is under way, but for stores that have left.
	// cancel gives it up, and ended is closed when it, or if there is none the next one, has ended.
	telling map[*Engine]struct{}
	cancel  context.CancelFunc
	ended   chan struct{}
	// running is closed when the goroutine that announces has ended, nil if there is none.
	running chan struct{}
	// hurry ends its pause: it has the capacity 1.
	hurry chan struct{}
	// outage is the goroutine's, and due: when the next announcement would come if none had come
	// sooner than announceInterval after another.
	outage outageLog
	due    time.Time
}

// announcerOf returns the announcer of a backend's store: that of the stores which it is polled
// with, if it shares connections with them.
func announcerOf(b contract.Backend, polls *Polls) *announcer {
	if _, ok := b.(contract.Shared); ok {
		return &polls.announcer
	}
	return &announcer{}
}

// tell has the other processes told that a store has come to the revision, which is committed. It
// does not wait. A new epoch begins at a greater revision than the last one, so the greatest
// revision is the newest.
func (a *announcer) tell(s *Engine, r contract.Revision) {
	if _, ok := s.b.(contract.Notifier); !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r <= a.newest[s] {
		return
	}
	if a.newest == nil {
		a.newest, a.heads = map[*Engine]contract.Revision{}, map[*Engine]contract.Revision{}
		a.telling, a.ended = map[*Engine]struct{}{}, make(chan struct{})
		a.hurry = make(chan struct{}, 1)
		a.outage = outageLog{log: s.log,
			what: "notify the other processes of writes, which they poll for"}
	}
	a.newest[s], a.heads[s] = r, r
	if a.running == nil {
		a.running = make(chan struct{})
		go a.run()
	}
}

// run announces until there is nothing to tell.
func (a *announcer) run() {
	for {
		a.mu.Lock()
		if len(a.heads) == 0 {
			close(a.running)
			a.running = nil
			a.mu.Unlock()
			return
		}
		var (
			heads   []contract.Announced
			timeout time.Duration
			// reopened is that of all stores.
			reopened bool
		)
		for s, r := range a.heads {
			heads = append(heads, contract.Announced{Store: s.b, Revision: r})
			a.telling[s] = struct{}{}
			timeout, reopened = max(timeout, s.cfg.Timeout), s.cfg.Reopened
		}
		clear(a.heads)
		var ctx context.Context
		ctx, a.cancel = context.WithTimeout(context.Background(), timeout)
		a.mu.Unlock()

		if now := time.Now(); a.due.Before(now) {
			a.due = now
		}
		a.due = a.due.Add(announceInterval)
		err := announce(ctx, heads, reopened)
		a.mu.Lock()
		switch {
		case err == nil:
			a.outage.over()
		case len(a.telling) > 0:
			a.outage.failed(err)
		}
		a.cancel()
		clear(a.telling)
		close(a.ended)
		a.ended = make(chan struct{})
		a.mu.Unlock()
		if pause := time.Until(a.due) - (announceBurst-1)*announceInterval; pause > 0 {
			select {
			case <-time.After(pause):
			case <-a.hurry:
			}
		}
	}
}

// announce announces. Where stores are opened again, a panic is an error like others, and closes
// none of them: no more depends on an announcement than how soon others look.
func announce(ctx context.Context, heads []contract.Announced, reopened bool) error {
	do := func() error { return heads[0].Store.(contract.Notifier).Announce(ctx, heads) }
	if reopened {
		return contract.Recovered(do)
	}
	return do()
}

// close returns when what there is to tell of a store was told, or the committer has to stop. Then
// no announcement is under way for this store.
func (a *announcer) close(s *Engine) {
	for {
		a.mu.Lock()
		_, waits := a.heads[s]
		_, tells := a.telling[s]
		ended := a.ended
		a.mu.Unlock()
		if !waits && !tells {
			break
		}
		if !tells {
			a.hasten()
		}
		select {
		case <-ended:
		case <-s.commitCtx.Done():
			if a.leave(s) {
				<-ended
			}
		}
	}
	a.mu.Lock()
	delete(a.newest, s)
	last, running := len(a.newest) == 0, a.running
	a.mu.Unlock()
	if last && running != nil {
		a.hasten()
		<-running
	}
}

// hasten ends the pause between two announcements.
func (a *announcer) hasten() {
	select {
	case a.hurry <- struct{}{}:
	default:
	}
}

// leave tells nothing more of a store. It returns true if it has given up an announcement, which
// the database has not answered for long.
func (a *announcer) leave(s *Engine) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.heads, s)
	if _, tells := a.telling[s]; !tells {
		return false
	}
	delete(a.telling, s)
	a.cancel()
	return true
}
