package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

const (
	// probeTimeout is how long a notification of our own may take.
	probeTimeout = 5 * time.Second
	// probeInterval is how long nothing may be heard before the way is tried again.
	probeInterval = 30 * time.Second
)

// Announce implements [mvcc.Notifier].
func (b *backend) Announce(ctx context.Context, r mvcc.Revision) error {
	return b.announcer.tell(ctx, payload(b.store, r))
}

// payload is how a new head of a store is announced.
func payload(store int32, r mvcc.Revision) string { return fmt.Sprint(store, " ", int64(r)) }

// announcer tells of the heads of all stores of the process. One statement at a time is under way,
// and the next one tells what was to be told meanwhile.
type announcer struct {
	d *database
	// sending is held while a statement is under way.
	sending sync.Mutex

	// mu protects next and its payloads.
	mu sync.Mutex
	// next is what gathers, nil if nothing does.
	next *announcement
}

// announcement is what one statement tells.
type announcement struct {
	payloads []string
	done     chan struct{}
	err      error
}

// tell fails if the server's queue of notifications is full: then a session somewhere has been
// listening for very long without reading.
func (a *announcer) tell(ctx context.Context, payload string) error {
	a.mu.Lock()
	n := a.next
	if n == nil {
		n = &announcement{done: make(chan struct{})}
		a.next = n
		go a.send(n)
	}
	n.payloads = append(n.payloads, payload)
	a.mu.Unlock()
	select {
	case <-n.done:
		return n.err
	case <-ctx.Done():
		return readError(ctx.Err())
	}
}

func (a *announcer) send(n *announcement) {
	defer close(n.done)
	a.sending.Lock()
	defer a.sending.Unlock()
	a.mu.Lock()
	a.next = nil
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(a.d.ctx, a.d.cfg.timeout)
	defer cancel()
	_, err := a.d.tails.Exec(ctx, sqlAnnounce, n.payloads)
	n.err = readError(err)
}

// Listen implements [mvcc.Notifier].
func (b *backend) Listen(ctx context.Context, notify func(mvcc.Revision), status func(error)) {
	leave := b.listener.join(b.store, &ear{notify: notify, status: status})
	defer leave()
	<-ctx.Done()
}

// listener listens on one connection for all stores of the process.
type listener struct {
	d *database

	// mu protects the fields below. It is held while ears are told, so they are told nothing after
	// they have left.
	mu sync.Mutex
	// ears are those of each store, by its id.
	ears map[int32]map[*ear]struct{}
	// stop ends the listening, and ended is closed then.
	stop  context.CancelFunc
	ended chan struct{}
	// known tells whether notifications are known to flow, or not to: then trouble says why.
	known   bool
	trouble error
}

// ear is where a store listens.
type ear struct {
	notify func(mvcc.Revision)
	status func(error)
}

// join adds an ear, until leave is called. The first one begins the listening, and the last one
// ends it.
func (l *listener) join(store int32, e *ear) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ears) == 0 {
		ctx, stop := context.WithCancel(context.Background())
		l.stop, l.ended, l.known = stop, make(chan struct{}), false
		go l.run(ctx, l.ended)
	} else if l.known {
		e.status(l.trouble)
	}
	if l.ears[store] == nil {
		l.ears[store] = map[*ear]struct{}{}
	}
	l.ears[store][e] = struct{}{}
	return func() {
		l.mu.Lock()
		if delete(l.ears[store], e); len(l.ears[store]) == 0 {
			delete(l.ears, store)
		}
		last, ended := len(l.ears) == 0, l.ended
		if last {
			l.stop()
		}
		l.mu.Unlock()
		if last {
			<-ended
		}
	}
}

// status tells all ears whether notifications flow.
func (l *listener) status(ctx context.Context, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	l.known, l.trouble = true, err
	for _, ears := range l.ears {
		for e := range ears {
			e.status(err)
			if err == nil {
				e.notify(0) // what happened before is not told
			}
		}
	}
}

// heard tells the store that a notification is of.
func (l *listener) heard(ctx context.Context, payload string) {
	var store int32
	var r mvcc.Revision
	if _, err := fmt.Sscanf(payload, "%d %d", &store, &r); err != nil {
		return // it is another process's probe
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	for e := range l.ears[store] {
		e.notify(r)
	}
}

// run listens until ctx ends.
//
// LISTEN can be accepted and have no effect: a pooler in transaction mode gives the session to
// somebody else afterwards. And a connection can die without a trace. So notifications are taken to
// flow only while a probe, sent by another connection, comes back: after LISTEN, and whenever
// nothing was heard for a while.
func (l *listener) run(ctx context.Context, ended chan<- struct{}) {
	defer close(ended)
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval = 50 * time.Millisecond
	retry.MaxInterval = 15 * time.Second
	for {
		err := l.listen(ctx, func() {
			retry.Reset()
			l.status(ctx, nil)
		})
		if ctx.Err() != nil {
			return
		}
		l.status(ctx, err)
		timer := time.NewTimer(retry.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// listen listens until something goes wrong. It calls flowing when notifications have been seen to
// flow.
func (l *listener) listen(ctx context.Context, flowing func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := l.d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	channel := fmt.Sprint("rowkeeper_", greetingOf(conn).log)
	if err := conn.PgConn().Exec(ctx, `LISTEN `+
		pgx.Identifier{channel}.Sanitize()).Close(); err != nil {
		return fmt.Errorf("LISTEN is refused: %w", readError(err))
	}
	var (
		flows bool
		probe string       // the payload of the probe that is under way, "" if none is
		next  = time.Now() // when to send the next probe, or to give up the one that is under way
	)
	for {
		payload, err := waitFor(ctx, conn, time.Until(next))
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errSilence) && probe != "":
			return fmt.Errorf("LISTEN is without effect: a notification did not come back within "+
				"%v; connect to PostgreSQL itself, or to a pooler in session mode", probeTimeout)
		case errors.Is(err, errSilence):
			probe = "probe " + rand.Text()
			if err := l.d.announcer.tell(ctx, probe); err != nil {
				return fmt.Errorf("NOTIFY is refused: %w", err)
			}
			next = time.Now().Add(probeTimeout)
		case err != nil:
			return mvcc.Errorf(mvcc.Unavailable, "the connection that listens was lost: %w", err)
		case payload == probe:
			probe, next = "", time.Now().Add(probeInterval)
			if !flows {
				flows = true
				flowing()
			}
		default:
			if probe == "" {
				next = time.Now().Add(probeInterval)
			}
			l.heard(ctx, payload)
		}
	}
}

var errSilence = errors.New("nothing was heard")

// waitFor returns the payload of the next notification, or errSilence if none comes within the
// time. The connection stays usable.
func waitFor(ctx context.Context, conn *pgx.Conn, within time.Duration) (string, error) {
	wctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	n, err := conn.WaitForNotification(wctx)
	if err == nil {
		return n.Payload, nil
	}
	if wctx.Err() != nil && ctx.Err() == nil && !conn.IsClosed() {
		return "", errSilence
	}
	return "", err
}
