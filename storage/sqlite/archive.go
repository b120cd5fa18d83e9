package sqlite

import (
	"context"
	"errors"
	"sync"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

var _ mvcc.Archiver = (*backend)(nil)

// Export implements [mvcc.Archiver]. While it goes on, the write-ahead log cannot be begun anew, and grows by what is written.
func (b *backend) Export(ctx context.Context, begin func(context.Context, mvcc.State, int64) error, each func(*mvcc.Record) error) error {
	ctx, end := b.long.begin(ctx)
	defer end()
	var callers foreign
	err := b.on(ctx, b.reads, func(c *conn) error {
		if err := b.checkFence(); err != nil {
			return err
		}
		defer c.interruptible(ctx)()
		var st mvcc.State
		done, err := b.snapshot(c, &st)
		if err != nil {
			return err
		}
		defer done()
		n, err := c.count()
		if err != nil {
			return err
		}
		if err := begin(ctx, st, n); err != nil {
			return callers.keep(err)
		}
		return callers.keep(b.records(ctx, c, each))
	})
	return callers.or(err)
}

// operations are those that nothing but their callers bounds. Whoever has to wait for all operations to end, ends these.
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
	var known *mvcc.Error
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

func (c *conn) count() (int64, error) {
	s, err := c.prepare(countAll)
	if err != nil {
		return 0, err
	}
	if _, err := s.step(); err != nil {
		return 0, err
	}
	defer s.reset()
	return s.colInt(0), nil
}

// records calls each for all keys. Its own errors are described, those of each are returned as they are.
func (b *backend) records(ctx context.Context, c *conn, each func(*mvcc.Record) error) error {
	s, err := c.prepare(selectRecords)
	if err != nil {
		return b.classify(ctx, err)
	}
	for {
		more, err := s.step()
		if err != nil || !more {
			return b.classify(ctx, err)
		}
		r := mvcc.Record{Revision: s.colRevision(0), Key: s.colKey(1), Create: s.colRevision(2), Expiry: s.colInt(3)}
		if !s.colNull(4) {
			r.Value = s.colBytes(4)
		}
		if err := each(&r); err != nil {
			s.reset()
			return err
		}
	}
}

// Import implements [mvcc.Archiver]. The transaction is in the write-ahead log until it is committed, which is as large as what is imported by
// then; readers go on with what was before. A sweep that was planned before it finds another swept revision, and deletes nothing.
func (b *backend) Import(ctx context.Context, in *mvcc.Import) (st mvcc.State, err error) {
	ctx, end := b.long.begin(ctx)
	defer end()
	var callers foreign
	err = b.transact(ctx, func(c *conn) (bool, error) {
		if err := b.checkFence(); err != nil {
			return false, err
		}
		done, err := b.snapshot(c, &st)
		if err != nil {
			return false, err
		}
		done()
		n, err := c.count()
		if err != nil {
			return false, err
		}
		if err := in.Begin(st, n); err != nil {
			return false, callers.keep(err)
		}
		for _, text := range []string{deleteAllLive, deleteAllLog} {
			if err := c.exec(text); err != nil {
				return false, err
			}
		}
		err = in.Write(func(r *mvcc.Record) error { return b.classify(ctx, c.insert(r, in.Token, st.Now.UnixMicro())) })
		if err != nil {
			return false, callers.keep(err)
		}
		err = in.Check(func(each func(*mvcc.Record) error) error { return b.records(ctx, c, each) })
		if err != nil {
			return false, callers.keep(err)
		}
		st = in.End(st)
		if err := mark(c, &st, in.Fingerprint); err != nil {
			return false, err
		}
		s, err := c.prepare(updateSwept)
		if err != nil {
			return false, err
		}
		return true, s.int(int64(st.Swept)).run()
	})
	return st, callers.or(err)
}

func (c *conn) insert(r *mvcc.Record, token mvcc.Token, now int64) error {
	s, err := c.prepare(insertLog)
	if err != nil {
		return err
	}
	s.int(int64(r.Revision)).key(r.Key).int(0).int(int64(r.Create)).blob(token[:]).int(now).bool(false).blob(r.Value)
	if err := s.run(); err != nil {
		return err
	}
	if s, err = c.prepare(insertLive); err != nil {
		return err
	}
	s.key(r.Key).int(int64(r.Revision)).int(int64(r.Create))
	if r.Expiry == 0 {
		s.null()
	} else {
		s.int(r.Expiry)
	}
	return s.run()
}
