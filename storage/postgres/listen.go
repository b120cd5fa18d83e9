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

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A notification is a transaction of its own. A store with a few writes a second would pay for one
// with each of them, though most databases have one process, which hears of its own writes without
// the server. So a process announces nothing while it is alone: while no other one listens.
//
// A process that listens holds a shared advisory lock in its session, and each process asks the
// server whether its own session could have the lock for itself. The server knows which sessions
// live, so the answer is true. A process that begins to listen takes the lock first, then notifies,
// and holds that notifications flow when it hears itself. So a process that was alone hears of the
// new one. Then it tells what it did not announce, and announces from then on.
//
// There is one gap. A process whose session is dead may not know it yet, and think that it is alone
// while another one begins. It finds out within probeInterval and probeTimeout. Until then the
// other one polls, each [mvcc.Config].PollListening.

const (
	// probeTimeout is how long a notification of our own may take.
	probeTimeout = 5 * time.Second
	// probeInterval is how often the way is tried, and a process asks whether it is alone.
	probeInterval = 30 * time.Second
)

// Announce implements [contract.Notifier].
func (d *database) Announce(ctx context.Context, heads []contract.Announced) error {
	return d.sender.tell(ctx, d.sender.audible(heads)...)
}

// sender tells the other processes of new heads, by notifications, for all stores of the process.
type sender struct {
	d *database
	// process is how the process knows its own notifications.
	process string

	// mu protects the fields below.
	mu sync.Mutex
	// alone says that nobody else listens. Then untold has the newest heads, by store.
	alone  bool
	untold map[int32]contract.Revision
}

// payload is how a new head of a store is announced.
func (s *sender) payload(store int32, r contract.Revision) string {
	return fmt.Sprintf("%s %d %d", s.process, store, r)
}

// audible returns the payloads for the heads. While the process is alone, it keeps the heads and
// returns none.
func (s *sender) audible(heads []contract.Announced) (payloads []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range heads {
		store := h.Store.(*backend).store
		if s.alone {
			s.untold[store] = max(s.untold[store], h.Revision)
		} else {
			payloads = append(payloads, s.payload(store, h.Revision))
		}
	}
	return payloads
}

// setAlone says whether somebody else listens. Then it tells what was not told, and does not wait.
func (s *sender) setAlone(alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alone = alone; alone || len(s.untold) == 0 {
		return
	}
	var payloads []string
	for store, r := range s.untold {
		payloads = append(payloads, s.payload(store, r))
	}
	clear(s.untold)
	go func() { // who does not hear it polls
		_ = s.d.recovered("to tell the other processes of writes", func() error {
			return s.tell(s.d.ctx, payloads...)
		})
	}()
}

// tell fails if the server's queue of notifications is full: then a session somewhere has been
// listening for very long without reading.
func (s *sender) tell(ctx context.Context, payloads ...string) error {
	if len(payloads) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.d.cfg.timeout)
	defer cancel()
	_, err := s.d.tails.Exec(ctx, sqlAnnounce, payloads)
	return readError(err)
}

// Listen implements [contract.Notifier].
func (b *backend) Listen(ctx context.Context, notify func(contract.Revision), status func(error)) {
	leave := b.listener.join(b.store, &ear{notify: notify, status: status})
	defer leave()
	<-ctx.Done()
}

// listener listens on one connection for all stores of the process.
type listener struct {
	d *database
	// interval is probeInterval, but for a test.
	interval time.Duration

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
	notify func(contract.Revision)
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

// heard tells the store that a notification names. Any word of another process tells that there is
// one.
func (l *listener) heard(ctx context.Context, payload string) {
	var (
		process string
		store   int32
		r       contract.Revision
	)
	_, err := fmt.Sscan(payload, &process, &store, &r)
	if process != l.d.sender.process {
		l.d.sender.setAlone(false)
	}
	if err != nil {
		return // it is a probe
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
// flow only while a probe, sent by another connection, comes back: after LISTEN, and now and then.
func (l *listener) run(ctx context.Context, ended chan<- struct{}) {
	defer close(ended)
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval = 50 * time.Millisecond
	retry.MaxInterval = 15 * time.Second
	for {
		// All stores of the process would end with it, and none needs it: they are polled.
		err := l.d.recovered("to listen to the other processes", func() error {
			return l.listen(ctx, func() {
				retry.Reset()
				l.status(ctx, nil)
			})
		})
		// A process that does not listen does not hear whether it is alone.
		l.d.sender.setAlone(false)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errReplaced) { // the next one begins at once
			l.status(ctx, err)
		}
		timer := time.NewTimer(retry.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// recovered is [contract.Recovered], and logs the panic.
func (d *database) recovered(what string, f func() error) error {
	err := contract.Recovered(f)
	if p := (*contract.PanicError)(nil); errors.As(err, &p) {
		d.cfg.log.Error(what+" has panicked", "panic", fmt.Sprint(p.Value), "stack", p.Stack)
	}
	return err
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
		locked, flows bool
		probe         string       // the payload of the probe that is under way, "" if none is
		next          = time.Now() // when to send the next probe, or to give up on this one
	)
	for {
		until, replaceAt := next, greetingOf(conn).replaceAt
		if !replaceAt.IsZero() && replaceAt.Before(until) {
			until = replaceAt
		}
		payload, err := waitFor(ctx, conn, time.Until(until))
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errSilence) && contract.Passed(replaceAt, time.Now()):
			return errReplaced
		case errors.Is(err, errSilence) && probe != "":
			return fmt.Errorf("LISTEN is without effect: a notification did not come back within "+
				"%v; connect to PostgreSQL itself, or to a pooler in session mode", probeTimeout)
		case errors.Is(err, errSilence):
			probe = l.d.sender.process + " probe " + rand.Text()
			if err := l.d.sender.tell(ctx, probe); err != nil {
				return fmt.Errorf("NOTIFY is refused: %w", err)
			}
			next = time.Now().Add(probeTimeout)
		case err != nil:
			return contract.Errorf(contract.Unavailable, "the connection that listens was lost: %w", err)
		case payload != probe:
			l.heard(ctx, payload)
		case !locked:
			// The session is ours, so it may hold the lock. The next probe tells the others of it.
			if err := l.ask(ctx, conn, sqlListens, nil); err != nil {
				return err
			}
			locked, probe, next = true, "", time.Now()
		default:
			if !flows {
				flows = true
				flowing()
			}
			var alone bool
			if err := l.ask(ctx, conn, sqlAlone, &alone); err != nil {
				return err
			}
			l.d.sender.setAlone(alone)
			probe, next = "", time.Now().Add(l.interval)
		}
	}
}

// ask makes a query of one column on the connection that listens.
func (l *listener) ask(ctx context.Context, conn *pgx.Conn, query string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return readError(conn.QueryRow(ctx, query).Scan(answer))
}

// errReplaced is for a connection whose user is about to end.
var errReplaced = errors.New("the connection is replaced")

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
