package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
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
	return b.notify(ctx, strconv.FormatInt(int64(r), 10))
}

// notify fails if the server's queue of notifications is full: then a session somewhere has been
// listening for very long without reading.
func (b *backend) notify(ctx context.Context, payload string) error {
	_, err := b.tails.Exec(ctx, sqlAnnounce, b.channel(), payload)
	return readError(err)
}

// Listen implements [mvcc.Notifier].
//
// LISTEN can be accepted and have no effect: a pooler in transaction mode gives the session to
// somebody else afterwards. And a connection can die without a trace. So notifications are taken to
// flow only while a probe, sent by another connection, comes back: after LISTEN, and whenever
// nothing was heard for a while.
func (b *backend) Listen(ctx context.Context, notify func(mvcc.Revision), status func(error)) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval = 50 * time.Millisecond
	retry.MaxInterval = 15 * time.Second
	for {
		err := b.listen(ctx, notify, func() {
			retry.Reset()
			status(nil)
			notify(0) // what happened before is not told
		})
		if ctx.Err() != nil {
			return
		}
		status(err)
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
func (b *backend) listen(ctx context.Context, notify func(mvcc.Revision), flowing func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	channel := b.channel()
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
			probe, next = "probe "+rand.Text(), time.Now().Add(probeTimeout)
			if err := b.notify(ctx, probe); err != nil {
				return fmt.Errorf("NOTIFY is refused: %w", err)
			}
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
			if r, err := strconv.ParseInt(payload, 10, 64); err == nil {
				notify(mvcc.Revision(r))
			} // else it is another process's probe
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

// channel is where new heads are notified: one per store, since channels are the database's and
// stores may share one.
func (b *backend) channel() string { return "rowkeeper_" + b.opened.Store }
