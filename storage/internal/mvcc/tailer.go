package mvcc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// tailer brings the log's new rows to the hub: the rows that this process has not committed itself,
// or whose outcome it did not learn. One per process. It reads when it is told that there is
// something new, and it polls; how often depends on what is known. Stores that share connections
// are polled together; see polls.go.
type tailer struct {
	s *Engine
	// wake has capacity 1: there may be rows after the delivered ones.
	wake chan struct{}
	// known is the newest revision that anybody here has heard of.
	known atomic.Int64
	// begun is when the committer gave its present group to the database, in nanoseconds since
	// 1970; 0 if none is under way.
	begun atomic.Int64

	// shared polls the store together with others, nil if it is polled by itself. answers has the
	// capacity 1.
	shared  contract.Shared
	answers chan pollAnswer

	// piece is used by catchUp alone.
	piece pieceSize

	// mu protects the fields below.
	mu sync.Mutex
	// trouble is why notifications do not flow; meaningful if the backend has any.
	trouble error
	heard   bool
	// moved is when the hub was last moved or proven to be up to date.
	moved time.Time
	// lastEvent is when an event was last delivered, for the polling interval.
	lastEvent time.Time
	poll      pollState
}

func newTailer(s *Engine) *tailer {
	t := &tailer{s: s, wake: make(chan struct{}, 1), answers: make(chan pollAnswer, 1),
		lastEvent: time.Now()}
	t.shared, _ = s.b.(contract.Shared)
	return t
}

// wakeFor tells that the revision exists.
func (t *tailer) wakeFor(r contract.Revision) {
	for {
		known := t.known.Load()
		if int64(r) <= known {
			break
		}
		if t.known.CompareAndSwap(known, int64(r)) {
			break
		}
	}
	if t.s.hub.position().Revision < r {
		t.kick()
	}
}

func (t *tailer) kick() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// notified takes a notification: a hint. A notification of this process's own group tells of rows
// that the hub has by then, or that are being read.
func (t *tailer) notified(r contract.Revision) {
	t.s.metrics.notified()
	if r == 0 {
		t.kick()
	} else {
		t.wakeFor(r)
	}
}

// groupBegins and groupEnds enclose the time from giving a group to the database to its delivery.
func (t *tailer) groupBegins() { t.begun.Store(time.Now().UnixNano()) }
func (t *tailer) groupEnds()   { t.begun.Store(0) }

// committing tells whether a group of this process is under way, for not longer than d.
func (t *tailer) committing(d time.Duration) bool {
	begun := t.begun.Load()
	return begun != 0 && time.Since(time.Unix(0, begun)) < d
}

// listening takes the state of the notifications.
func (t *tailer) listening(err error) {
	t.mu.Lock()
	changed := !t.heard || (err == nil) != (t.trouble == nil)
	t.heard, t.trouble = true, err
	t.mu.Unlock()
	t.s.metrics.listening(err == nil)
	if changed {
		if err != nil {
			t.s.log.Warn("notifications do not work; other processes' writes are polled for",
				"err", err)
		} else {
			t.s.log.Info("listening for notifications")
		}
		// Something may have been missed while the connection was down.
		t.kick()
	}
}

func (t *tailer) status() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.trouble
}

// proven notes that the hub is up to date: the committer's own group followed what was delivered
// last, so no other process had written in between, and there is nothing to poll for now.
func (t *tailer) proven() {
	now := time.Now()
	t.mu.Lock()
	t.moved, t.lastEvent = now, now
	t.mu.Unlock()
}

// pause is the time until the next poll.
func (t *tailer) pause() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, pause := t.pauseLocked()
	return pause
}

// pauseLocked returns the interval of the polls as well.
func (t *tailer) pauseLocked() (interval, pause time.Duration) {
	cfg := &t.s.cfg
	interval = cfg.PollIdle
	switch {
	case t.heard && t.trouble == nil:
		interval = cfg.PollListening
	case time.Since(t.lastEvent) < cfg.QuietAfter:
		interval = cfg.PollActive
	}
	return interval, max(interval-time.Since(t.moved), 0)
}

func (t *tailer) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failing := contract.RetryPolicy()
	outage := outageLog{log: t.s.log, what: "read the new rows of the table rowkeeper_log"}
	if t.shared != nil {
		t.s.cfg.Polls.join(t)
		defer t.s.cfg.Polls.leave(t)
	}
	for {
		newer, err := true, error(nil)
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case a := <-t.answers:
			newer, err = t.takes(ctx, a)
		case <-timer.C:
			switch pause := t.pause(); {
			case pause > 0:
				timer.Reset(pause)
				continue
			case t.committing(2 * t.s.cfg.PollActive):
				newer = false // the database's answer will tell more, or the next poll
			case t.shared != nil:
				t.s.cfg.Polls.begin(t)
				continue // the answer sets the timer
			default:
				newer, err = t.ask(ctx)
			}
		}
		if err == nil && newer {
			err = t.catchUp(ctx)
		}
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			pause := failing.NextBackOff()
			t.s.metrics.tailFailed()
			outage.failed(err)
			contract.Wait(ctx, pause)
			t.kick()
		} else {
			failing.Reset()
			outage.over()
			t.s.metrics.tailWorks()
		}
		t.mu.Lock()
		t.moved = time.Now()
		t.mu.Unlock()
		timer.Reset(t.pause())
	}
}

// ask polls the store by itself. It tells whether there may be rows in the log that are not
// delivered, which is cheaper than to read them.
func (t *tailer) ask(ctx context.Context) (newer bool, err error) {
	s := t.s
	if p, ok := s.b.(contract.Poller); ok {
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		if newer, err = p.Changed(opCtx); err == nil {
			s.served.Answered(p.Now())
		}
		return newer, err
	}
	st, err := s.read(ctx, s.b.State)
	return err == nil && t.behind(st), err
}

// catchUp delivers what there is.
func (t *tailer) catchUp(ctx context.Context) error {
	s := t.s
	for {
		from := s.hub.position()
		limit := t.piece.rows(s.cfg.TailRows)
		tail, err := s.tail(ctx, from.Revision, from.Revision, limit, contract.PrevOfDeletions)
		if err != nil {
			return err
		}
		t.piece.saw(tail.Rows)
		if s.hub.position().Epoch != from.Epoch {
			continue // the read found another history, and this process has moved to it
		}
		if !contract.Follows(from, tail) {
			if err := t.doubt(ctx, from, "delivered"); err != nil {
				return err
			}
			continue
		}
		rows := tail.Rows
		proven := len(rows) > 0 && rows[0].Revision == from.Revision
		if proven {
			rows = rows[1:]
		}
		gap := missing(from.Revision, tail, rows)
		switch {
		case !proven, gap != 0 && gap <= tail.State.Compacted:
			// Compaction has overtaken this process, as after a long pause. If a row is missing,
			// its event cannot be delivered any more. If it is the delivered one, nothing proves
			// that the others follow it: they may be of another history.
			s.log.Warn("compaction has passed the delivered revision; all watches end",
				"delivered", int64(from.Revision), "compacted", int64(tail.State.Compacted))
			s.hub.skip(tail.State)
			s.reapIn(leaseLook)
			continue
		case gap != 0:
			return contract.Damaged("the log has no row %d, though it is neither compacted nor the newest",
				gap)
		}
		if len(rows) > 0 {
			known, ok := s.hub.appendTail(from, rows)
			if known != (contract.Position{}) {
				if err := t.doubt(ctx, known, "seen"); err != nil {
					return err
				}
			}
			if !ok {
				continue // in another history by now
			}
			t.mu.Lock()
			t.lastEvent = time.Now()
			t.mu.Unlock()
			if slices.ContainsFunc(rows, func(r contract.Row) bool { return r.Lease != 0 && !r.Deleted }) {
				s.reapIn(leaseLook)
			}
			s.metrics.tailed(len(rows), tail.State.Now.Sub(rows[0].Time))
		}
		if !tail.More {
			return nil
		}
	}
}

// doubt has a position looked into that is not in the log. It returns an error if it is there after
// all.
func (t *tailer) doubt(ctx context.Context, p contract.Position, was string) error {
	err := t.s.refence(ctx, p, fmt.Sprintf("the row at revision %d of epoch %d is not the one "+
		"that was %s", p.Revision, p.Epoch, was))
	if err == nil && t.s.hub.position().Epoch == p.Epoch {
		err = contract.Errorf(contract.Unavailable, "the row at revision %d, which was %s, looked like another one "+
			"for a moment", p.Revision, was)
	}
	return err
}

// pieceSize bounds the bytes of a piece of the log that is read at a time, by the mean size of the
// rows of the last one. It begins low. Of watchers there are many, so their pieces are smaller.
type pieceSize struct {
	mean    int
	watched bool
}

const (
	pieceBytes   = 8 << 20
	firstPiece   = 64
	watchedBytes = 2 << 20
	firstWatched = 4
)

// rows is how many rows to read, at most.
func (p pieceSize) rows(most int) int {
	first, bytes := firstPiece, pieceBytes
	if p.watched {
		first, bytes = firstWatched, watchedBytes
	}
	if p.mean == 0 {
		return min(first, most)
	}
	return max(min(bytes/p.mean, most), min(2, most))
}

func (p *pieceSize) saw(rows []contract.Row) {
	if len(rows) == 0 {
		return
	}
	bytes := 0
	for i := range rows {
		bytes += len(rows[i].Key) + len(rows[i].Value) + len(rows[i].PrevValue)
	}
	p.mean = max(bytes/len(rows), 256)
}

// missing returns the first revision that a piece of the log leaves out, of which these are the
// rows after a revision; 0 if it leaves out none. Parts of a transaction come before its last row.
func missing(after contract.Revision, t *contract.Tail, rows []contract.Row) contract.Revision {
	for i := range rows {
		if rows[i].Revision != after+1 {
			return after + 1
		}
		if rows[i].Part == 0 {
			after++
		}
	}
	if !t.More && after < t.State.Head.Revision {
		return after + 1
	}
	return 0
}
