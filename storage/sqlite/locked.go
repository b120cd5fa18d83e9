package sqlite

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// Locked implements [contract.Backend]. Until an unbounded transaction is committed, all that it
// writes is in the write-ahead log. Readers see what was there before.
func (b *backend) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	var end func()
	if o.Unbounded {
		ctx, end = b.long.begin(ctx)
	} else {
		ctx, end = b.timeout(ctx)
	}
	defer end()
	var callers foreign
	err := b.transact(ctx, func(c *sqlite3.Conn) (bool, error) {
		if !o.AnyServer {
			if err := b.checkFence(); err != nil {
				return false, err
			}
		}
		guard, err := b.guard(c, contract.Token{}, 0)
		if err != nil {
			return false, err
		}
		w := &working{ctx: ctx, b: b, c: c}
		err = f(sqlkit.NewTx(w, &inTransaction, guard.State, b.Limits()))
		return w.dirty, callers.keep(err)
	})
	if err == nil && o.AnyServer {
		b.fenced.Store(false)
	}
	return callers.or(err)
}

// working implements [sqlkit.Conn]: a connection in a transaction.
type working struct {
	ctx context.Context
	b   *backend
	c   *sqlite3.Conn
	// dirty tells whether anything was written.
	dirty bool
}

func (w *working) Fingerprint() string { return w.b.fingerprint() }

func (w *working) Select(r *sqlkit.Read, each func(sqlkit.Cursor) error, args ...any) error {
	s, err := w.c.Prepare(r.SQL)
	if err != nil {
		return w.b.classify(w.ctx, err)
	}
	for _, a := range args {
		bind(s, a)
	}
	var callers error
	c := &cursor{s: s}
	err = s.Each(func() error {
		callers = each(c)
		return callers
	})
	if callers != nil {
		return callers
	}
	return w.b.classify(w.ctx, err)
}

func (w *working) Group(token contract.Token, after contract.Revision,
	each func(sqlkit.Cursor)) (contract.Guard, error) {
	g, err := w.b.guard(w.c, token, after)
	if err != nil {
		return g, w.b.classify(w.ctx, err)
	}
	return g, w.Select(&sqlkit.Read{SQL: selectGroup}, func(c sqlkit.Cursor) error {
		each(c)
		return nil
	}, int64(after), token)
}

// run runs a statement that writes.
func (w *working) run(text string, bind func(*sqlite3.Stmt)) error {
	s, err := w.c.Prepare(text)
	if err == nil {
		bind(s)
		err = s.Run()
	}
	w.dirty = w.dirty || err == nil && w.c.Changes() > 0
	return w.b.classify(w.ctx, err)
}

func (w *working) Change(sql string, args ...any) error {
	return w.run(sql, func(s *sqlite3.Stmt) {
		for _, a := range args {
			bind(s, a)
		}
	})
}

func (w *working) PutLeases(rows []contract.LeaseRow) error {
	for _, r := range rows {
		if err := w.Change(insertLease, int64(r.Lease), r.TTL, r.Expiry); err != nil {
			return err
		}
	}
	return nil
}

func (w *working) Erase(limit int, _ contract.State) (n int, err error) {
	for _, text := range []string{eraseLive, eraseUsers, eraseLog, eraseEntries} {
		if err := w.Change(text, int64(limit)); err != nil {
			return 0, err
		}
		n += w.c.Changes()
	}
	if err := w.Change(eraseAborted); err != nil {
		return 0, err
	}
	return n, w.Change(eraseDirectories)
}

func (w *working) Reindex(keys []contract.Reindexed) error {
	for _, k := range keys {
		before, found, err := entriesOf(w.c, selectEntriesAt, k.Key, k.ID)
		if err == nil && found {
			err = reindex(w.c, k.Key, before, k.Entries, true)
			w.dirty = true
		}
		if err != nil {
			return w.b.classify(w.ctx, err)
		}
	}
	return nil
}

func (w *working) SetIndexes(generation int64, text string) error {
	return w.Change(updateIndexes, generation, text)
}

func (w *working) DropEntries(low, high contract.Entry, limit int) (int, error) {
	err := w.run(deleteEntries, func(s *sqlite3.Stmt) {
		s.BlobString(string(low)).BlobString(string(high)).Int(int64(limit))
	})
	return w.c.Changes(), err
}

func (w *working) Insert(token contract.Token, at contract.State, records []contract.Record) error {
	for i := range records {
		r := &records[i]
		err := w.run(insertLog, func(s *sqlite3.Stmt) {
			s.Int(int64(r.ID())).BlobString(string(r.Key)).Int(0).Int(int64(r.Create))
			s.Int(r.Version).Int(int64(r.Lease)).Blob(token[:]).Int(at.Now.UnixMicro())
			s.Bool(false).Blob(r.Value)
		})
		if err != nil {
			return err
		}
		if err := w.run(insertLive, func(s *sqlite3.Stmt) {
			s.BlobString(string(r.Key)).Int(int64(r.ID())).Int(int64(r.Create))
			s.Int(r.Version).Int(int64(r.Lease))
			bindExpiry(s, r.LiveExpiry())
		}); err != nil {
			return err
		}
	}
	return nil
}
