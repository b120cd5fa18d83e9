package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

const locking = "run a transaction under the commit lock"

// Locked implements [contract.Backend]. Readers see what was there before, in their snapshots. A
// sweep may have checked its plan before an import: it finds another epoch when it records how far
// it came. A sweep that is deleting may block an import; then the server undoes one of the two.
func (b *backend) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	return b.Heard(b.lockedBy(ctx, o, f))
}

func (b *backend) lockedBy(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	if o.Unbounded {
		return b.archive(ctx, locking, func(conn *sql.Conn) error {
			return b.locked(ctx, conn, o, f)
		})
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if o.AnyServer {
		conn, err := b.admin.Conn(ctx)
		if err != nil {
			return b.failed(locking, err)
		}
		defer conn.Close()
		return b.locked(ctx, conn, o, f)
	}
	conn, release, err := b.TakeToWrite(ctx, (*pool)(b.commits))
	if err != nil {
		return b.failed(locking, err)
	}
	defer release()
	return b.locked(ctx, conn.Conn, o, f)
}

func (b *backend) locked(ctx context.Context, conn *sql.Conn, o contract.LockOptions,
	f func(contract.Tx) error) error {
	return whole(conn, func() error { return b.lockedOn(ctx, conn, o, f) })
}

func (b *backend) lockedOn(ctx context.Context, conn *sql.Conn, o contract.LockOptions,
	f func(contract.Tx) error) error {
	w := &working{ctx: ctx, b: b, conn: conn}
	var st contract.State
	first, hold := b.text(), b.server.hold
	if o.Unbounded {
		hold = archiveHold
	}
	b.askGuard(&first, hold, 0, contract.Token{})
	_, err := b.send(ctx, conn, &first, func(a *answers) error {
		guard, _, err := b.guard(a)
		if err != nil {
			return err
		}
		st = guard.State
		w.server, err = a.server()
		return err
	})
	if err != nil {
		b.rollback(ctx, conn)
		return b.failed(locking, err)
	}
	if err := f(sqlkit.NewTx(w, b.underLock(), st, b.limits)); err != nil {
		b.rollback(ctx, conn)
		return err
	}
	if !w.dirty {
		b.rollback(ctx, conn)
	} else {
		last := b.text()
		b.commit(&last)
		if reached, err := b.send(ctx, conn, &last, nil); err != nil {
			b.rollback(ctx, conn)
			if !reached {
				return b.failed(locking, err)
			}
			return b.failedCommit(locking, err)
		}
	}
	if o.AnyServer {
		b.Fenced(w.server.Place, w.server.number)
	}
	return nil
}

// working implements [sqlkit.Conn]: a connection in a transaction.
type working struct {
	ctx  context.Context
	b    *backend
	conn *sql.Conn
	// dirty tells whether anything was written.
	dirty bool
	// server is the one in which the transaction runs.
	server facts
}

func (w *working) Fingerprint() string { return w.server.Fingerprint }

func (w *working) Select(r *sqlkit.Read, each func(sqlkit.Cursor) error, args ...any) error {
	reading, stop := context.WithCancel(w.ctx)
	defer stop()
	text, args := arguments(w.b.on(r.SQL), args)
	rows, err := w.conn.QueryContext(reading, text, args...)
	if err != nil {
		return w.b.failed(r.What, err)
	}
	defer rows.Close()
	var callers error
	c := &cursor{}
	err = eachRow(rows, r.Columns, func(r row) error {
		c.own = r
		if callers = each(c); callers != nil {
			stop() // the other rows, however many, are not waited for
		}
		return callers
	})
	switch {
	case callers != nil:
		return callers
	case err != nil:
		return w.b.failed(r.What, err)
	}
	return nil
}

func (w *working) Group(token contract.Token, after contract.Revision,
	each func(sqlkit.Cursor)) (g contract.Guard, err error) {
	x := w.b.text()
	x.statement(selectGuard, int64(after), token)
	x.statement(selectByToken, int64(after), token)
	err = w.send(&x, func(a *answers) (err error) {
		if g, err = w.b.readGuard(a); err != nil {
			return err
		}
		return a.each(8, func(r row) error { each(&cursor{own: r}); return nil })
	})
	return g, err
}

// begin begins a text that writes.
func (w *working) begin() *text {
	x := w.b.text()
	if !w.dirty {
		w.dirty = true
		w.b.takeTurn(&x)
	}
	return &x
}

func (w *working) send(x *text, read func(*answers) error) error {
	if _, err := w.b.send(w.ctx, w.conn, x, read); err != nil {
		return w.b.failed(locking, err)
	}
	return nil
}

func (w *working) Change(sql string, args ...any) error {
	x := w.begin()
	for i, a := range args {
		switch a := a.(type) {
		case string:
			args[i] = literal(a)
		case []contract.Lease:
			args[i] = revisionRows(a)
		case []contract.Key:
			args[i] = keyRows(a)
		}
	}
	x.statement(sql, args...)
	return w.send(x, nil)
}

func literal(s string) string {
	var t text
	t.binary([]byte(s))
	return t.String()
}

func (w *working) PutLeases(rows []contract.LeaseRow) error {
	x := w.begin()
	x.statement(replaceLeases)
	n := 0
	for _, r := range rows {
		x.comma(&n)
		fmt.Fprintf(x, "(%s,%d,%d,%d)", x.store, r.Lease, r.TTL, r.Expiry)
	}
	return w.send(x, nil)
}

func (w *working) Erase(limit int, at contract.State) (n int, err error) {
	x := w.begin()
	x.statement(eraseLive, limit)
	x.statement(selectDeleted)
	x.statement(eraseUsers, limit)
	x.statement(selectDeleted)
	x.statement(eraseLog, int64(at.Head.Revision), limit)
	x.statement(selectDeleted)
	x.statement(eraseEntries, limit)
	x.statement(selectDeleted)
	x.statement(eraseAborted)
	x.statement(eraseDirectories)
	err = w.send(x, func(a *answers) (err error) {
		for range 4 {
			if err == nil {
				err = a.each(1, func(r row) error { n += int(r.int(0)); return nil })
			}
		}
		return err
	})
	return n, err
}

func (w *working) Reindex(keys []contract.Reindexed) error {
	names := make([]contract.Key, len(keys))
	for i, k := range keys {
		names[i] = k.Key
	}
	type found struct {
		entries []contract.Entry
		id      contract.RowID
	}
	x, before := w.begin(), map[contract.Key]found{}
	x.statement(selectEntriesOf, keyList(names))
	if err := w.send(x, func(a *answers) error {
		return a.each(3, func(r row) error {
			entries, err := contract.UnpackEntries(r.value(1))
			before[r.key(0)] = found{entries, r.revision(2)}
			return err
		})
	}); err != nil {
		return err
	}
	var gone, added, updated []entryRow // a row of updated has all entries of its key, packed
	for _, k := range keys {
		if before[k.Key].id != k.ID {
			continue
		}
		n := len(gone) + len(added)
		if gone, added = entryChanges(gone, added, k.Key, before[k.Key].entries, k.Entries); n == len(gone)+len(added) {
			continue
		}
		u := entryRow{key: k.Key}
		if len(k.Entries) > 0 {
			u.entry = contract.Entry(contract.PackEntries(k.Entries))
		}
		updated = append(updated, u)
	}
	if len(updated) == 0 {
		return nil
	}
	second := w.b.text()
	second.statement(updateEntries, entryRows(updated))
	second.writeEntries(gone, added)
	return w.send(&second, nil)
}

func (w *working) SetIndexes(generation int64, text string) error {
	return w.Change(updateIndexes, generation, text)
}

func (w *working) DropEntries(low, high contract.Entry, limit int) (n int, err error) {
	x := w.begin()
	x.statement(dropEntries, literal(string(low)), literal(string(high)), limit)
	x.statement(selectDeleted)
	err = w.send(x, func(a *answers) error {
		return a.each(1, func(r row) error { n = int(r.int(0)); return nil })
	})
	return n, err
}

func (w *working) Insert(token contract.Token, at contract.State, records []contract.Record) error {
	x, n, size := w.begin(), 0, statementBytes+len(records)*rowBytes
	for i := range records {
		r := &records[i]
		size += 2*len(r.Key) + len(r.Value) + len(r.Value)/8
	}
	x.Grow(size)
	x.statement(insertLog)
	outcome := func(r *contract.Record) *contract.Outcome {
		return &contract.Outcome{Revision: r.Revision, Part: r.Part, Create: r.Create, Version: r.Version,
			Lease: r.Lease}
	}
	for i := range records {
		r := &records[i]
		x.comma(&n)
		x.logRow(&contract.Mutation{Key: r.Key, Value: r.Value}, outcome(r), token, at.Now)
		x.WriteByte(')')
	}
	n = 0
	x.statement(insertLive)
	for i := range records {
		r := &records[i]
		x.comma(&n)
		x.liveRow(r.Key, outcome(r), r.LiveExpiry())
		x.WriteByte(')')
	}
	err := w.send(x, nil)
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && e.Number == duplicateKey {
		// Nobody else writes, so to try again would be of no use.
		return contract.Errorf(contract.Data, "a key is in it twice: %w", e)
	}
	return err
}

// duplicateKey is the server's error for it.
const duplicateKey = 1062
