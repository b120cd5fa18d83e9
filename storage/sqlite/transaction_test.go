package sqlite

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// TestWaitForTheLock ends a wait for another process's commit lock by a context, by the operation's
// timeout, and by busy_timeout.
func TestWaitForTheLock(t *testing.T) {
	url := fresh(t)
	other := open(t, url)
	defer other.Close()
	release := hold(t, other)
	for _, test := range []struct {
		name, query string
		timeout     time.Duration
		cancel      bool
		class       contract.Class
		cause       error
	}{
		{"context", "", time.Minute, true, contract.Unavailable, context.Canceled},
		{"timeout", "", 20 * time.Millisecond, false, contract.Unavailable, context.DeadlineExceeded},
		{"busy_timeout", "?busy_timeout=20ms", time.Minute, false, contract.Transient, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := open(t, url+test.query)
			defer store.Close()
			st, err := store.State(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			// Only now: a loaded machine may need longer to open the file.
			store.(*backend).opts.Timeout = test.timeout
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if test.cancel {
				whenLogged(store.(*backend), waiting, cancel)
			}
			_, err = store.Commit(ctx, &contract.Group{Token: newToken(), Seen: st.Head,
				Mutations: []*contract.Mutation{{Key: "a"}}})
			oneSentence(t, err, test.class, "the database "+store.(*backend).name())
			store.(*backend).opts.Timeout = time.Minute
			if test.cause != nil && !errors.Is(err, test.cause) {
				t.Errorf("the cause of %v is not %v", err, test.cause)
			}
			if n, _, err := store.Count(context.Background(), "a", "b", 0, 0); err != nil || n != 0 {
				t.Errorf("the refused commit has written %d keys, %v", n, err)
			}
		})
	}
	release()
	st, err := other.State(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if st.Head.Revision != 1 {
		t.Errorf("the head is %+v", st.Head)
	}
}

// whenLogged calls a function when the backend logs a message.
func whenLogged(b *backend, message string, call func()) {
	b.opts.Logger = slog.New(&listener{slog.DiscardHandler, message, call})
}

// listener is a handler that calls a function at a message.
type listener struct {
	slog.Handler
	message string
	call    func()
}

func (l *listener) Enabled(context.Context, slog.Level) bool { return true }

func (l *listener) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.message {
		l.call()
	}
	return nil
}

func (l *listener) WithAttrs([]slog.Attr) slog.Handler { return l }

// hold keeps the commit lock until the returned function is called.
func hold(t *testing.T, b contract.Backend) (release func()) {
	t.Helper()
	holding, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- b.(*backend).write(context.Background(), func(*sqlite3.Conn) (bool, error) {
			close(holding)
			<-end
			return false, nil
		})
	}()
	<-holding
	return func() {
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestPanicInAnOperation: an operation that panics leaves neither the commit lock nor a connection
// taken, so that the store can be closed, and another one be opened.
func TestPanicInAnOperation(t *testing.T) {
	b := open(t, fresh(t)).(*backend)
	panics := func(operation func() error) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Error("it does not panic")
			}
		}()
		_ = operation()
	}
	panics(func() error {
		return b.transact(t.Context(), func(c *sqlite3.Conn) (bool, error) { panic("a write") })
	})
	panics(func() error {
		return b.on(t.Context(), b.commits, func(*sqlite3.Conn) error { panic("a read") })
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.transact(ctx, func(*sqlite3.Conn) (bool, error) { return false, nil }); err != nil {
		t.Errorf("the next write: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
