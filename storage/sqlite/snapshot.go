package sqlite

import (
	"context"
	"errors"
	"sync"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
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
		v := &view{ctx: ctx, b: b, c: c}
		done, err := b.snapshot(c, &v.state)
		if err != nil {
			return err
		}
		defer done()
		return callers.keep(f(ctx, v))
	})
	return callers.or(err)
}

// view implements [contract.Snapshot]: what a connection sees in a transaction.
type view struct {
	ctx   context.Context
	b     *backend
	c     *sqlite3.Conn
	state contract.State
}

func (v *view) State() contract.State { return v.state }

func (v *view) Keys() (n int64, err error) {
	s, err := v.c.Prepare(countAll)
	if err == nil {
		_, err = s.Row(func() { n = s.ColInt(0) })
	}
	return n, v.b.classify(v.ctx, err)
}

func (v *view) AllLeases() (all []contract.LeaseRow, err error) {
	s, err := v.c.Prepare(selectAllLeases)
	if err == nil {
		err = s.Each(func() error {
			all = append(all, contract.LeaseRow{Lease: contract.Lease(s.ColInt(0)), TTL: s.ColInt(1),
				Expiry: s.ColInt(2)})
			return nil
		})
	}
	return all, v.b.classify(v.ctx, err)
}

func (v *view) Records(each func(*contract.Record) error) error {
	s, err := v.c.Prepare(selectRecords)
	if err != nil {
		return v.b.classify(v.ctx, err)
	}
	var callers error
	err = s.Each(func() error {
		callers = each(&contract.Record{Revision: contract.Revision(s.ColInt(0)),
			Key: contract.Key(s.ColString(1)), Create: contract.Revision(s.ColInt(2)),
			Version: s.ColInt(3), Lease: contract.Lease(s.ColInt(4)), Expiry: s.ColInt(5),
			Value: s.ColBlob(6)})
		return callers
	})
	if callers != nil {
		return callers
	}
	return v.b.classify(v.ctx, err)
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
