package mvcc

import (
	"context"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A busy store commits several hundred groups per second. To announce each of them took a seventh
// of the CPU time that a create needs on PostgreSQL. So announcements come once in announceInterval
// on average, and announceBurst at once: a store with fewer than a hundred groups a second
// announces each of them, if they do not come all together.
const (
	announceInterval = 10 * time.Millisecond
	announceBurst    = 10
)

// announcer tells the other processes of new heads, where the backends have notifications. It is
// one for all stores that share connections. One announcement at a time is under way, and the next
// one tells the newest head of each store that has a new one. So a slow database gets few of them,
// and no commit waits for one. A head waits for the announcement that is under way, and after
// announceBurst of them for announceInterval at most.
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
	// outage and pace are the goroutine's.
	outage outageLog
	pace   pace
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

		a.pace.begins(time.Now())
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
		if pause := a.pace.pause(time.Now()); pause > 0 {
			select {
			case <-time.After(pause):
			case <-a.hurry:
			}
		}
	}
}

// pace says when the next announcement may begin. due is when it would if each had come
// announceInterval after another.
type pace struct{ due time.Time }

// begins notes that an announcement begins. Those that were hastened have not waited for their
// turn, and the next ones do not pay for that.
func (p *pace) begins(now time.Time) {
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(announceInterval)
	if latest := now.Add(announceBurst * announceInterval); p.due.After(latest) {
		p.due = latest
	}
}

// pause is how long the next announcement waits, not at all if that is negative.
func (p *pace) pause(now time.Time) time.Duration {
	return p.due.Sub(now) - (announceBurst-1)*announceInterval
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
