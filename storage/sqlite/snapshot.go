package sqlite

import (
	"context"
	"errors"
	"sync"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// Snapshot implements [contract.Backend]. While it lasts, the write-ahead log cannot be begun anew,
// and grows by what is written.
func (b *backend) Snapshot(ctx context.Context,
	f func(context.Context, contract.Snapshot) error) error {
	ctx, end := b.long.begin(ctx)
	defer end()
	var callers foreign
	err := b.on(ctx, b.reads, func(c *sqlite3.Conn) error {
		if err := b.checkFence(); err != nil {
			return err
		}
		defer c.Interruptible(ctx)()
		var st contract.State
		done, err := b.snapshot(c, &st)
		if err != nil {
			return err
		}
		defer done()
		w := &working{ctx: ctx, b: b, c: c}
		return callers.keep(f(ctx, sqlkit.NewView(w, &inTransaction, st)))
	})
	return callers.or(err)
}

// operations are those whose time only their callers bound. Before the backend waits for all
// operations, it ends these.
type operations struct {
	mu   sync.Mutex
	ends map[*context.CancelCauseFunc]struct{}
}

// begin returns the context of an operation, and what to call at its end.
func (o *operations) begin(ctx context.Context) (context.Context, func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	if o.ends == nil {
		o.ends = map[*context.CancelCauseFunc]struct{}{}
	}
	o.ends[&cancel] = struct{}{}
	return ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.ends, &cancel)
		cancel(nil)
	}
}

// end ends them all.
func (o *operations) end(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for cancel := range o.ends {
		(*cancel)(cause)
	}
}

// foreign is an error that is not of the database, and must not be described as one.
type foreign struct{ error }

func (f *foreign) keep(err error) error {
	var known *contract.Error
	if err != nil && !errors.As(err, &known) {
		f.error = err
	}
	return err
}

func (f *foreign) or(err error) error {
	if f.error != nil {
		return f.error
	}
	return err
}
