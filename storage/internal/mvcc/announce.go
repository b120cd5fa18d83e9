package mvcc

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// announceInterval is the shortest time from the end of an announcement to the beginning of the
// next one. A busy store commits several hundred groups per second. To announce each of them took a
// seventh of the CPU time that a create needs on PostgreSQL.
const announceInterval = 10 * time.Millisecond

// announcer tells the other processes of new heads, where the backend has notifications. One
// announcement at a time is under way, and the next one is of the newest head. So a slow database
// gets few of them, and no commit waits for one. A head after an idle time is announced at once.
// While the store is busy, a head waits for announceInterval at most.
//
// An announcement that fails is not repeated: the next one tells more, and whoever listens polls as
// well.
type announcer struct {
	s *Store
	// head is the newest revision to tell of.
	head atomic.Int64
	// wake has the capacity 1: there is something to tell.
	wake chan struct{}
	// closed ends it when it has told what there is; ended is closed then.
	closed, ended chan struct{}
}

func newAnnouncer(s *Store) *announcer {
	return &announcer{s: s, wake: make(chan struct{}, 1), closed: make(chan struct{}),
		ended: make(chan struct{})}
}

// tell has the other processes told of the revision, which is committed. It does not wait. A new
// epoch begins at a greater revision than the last one, so the greatest revision is the newest.
func (a *announcer) tell(r contract.Revision) {
	for {
		head := a.head.Load()
		if int64(r) <= head {
			return
		}
		if a.head.CompareAndSwap(head, int64(r)) {
			break
		}
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run announces until the announcer is closed.
func (a *announcer) run(n contract.Notifier) {
	defer close(a.ended)
	outage := outageLog{log: a.s.log, what: "notify the other processes of writes, which they poll for"}
	for {
		select {
		case <-a.wake:
			a.announce(n, &outage)
		case <-a.closed:
			select {
			case <-a.wake:
				a.announce(n, &outage)
			default:
			}
			return
		}
		select {
		case <-time.After(announceInterval):
		case <-a.closed:
		}
	}
}

func (a *announcer) announce(n contract.Notifier, o *outageLog) {
	ctx, cancel := context.WithTimeout(a.s.commitCtx, a.s.cfg.Timeout)
	defer cancel()
	if err := n.Announce(ctx, contract.Revision(a.head.Load())); err == nil {
		o.over()
	} else if a.s.commitCtx.Err() == nil {
		o.failed(err)
	}
}

// close ends it, after what there is to tell was told, for as long as the committer may take.
func (a *announcer) close() {
	close(a.closed)
	if _, ok := a.s.b.(contract.Notifier); ok {
		<-a.ended
	}
}
