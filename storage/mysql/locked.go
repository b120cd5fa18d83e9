package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

const locking = "run a transaction under the commit lock"

// Locked implements [contract.Backend]. Readers see what was there before, in their snapshots. A
// sweep may have checked its plan before an import: it finds another epoch when it records how far
// it came. A sweep that is deleting may block an import; then the server undoes one of the two.
func (b *backend) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
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
	conn, release, err := b.takeCommit(ctx)
	if err != nil {
		return b.failed(locking, err)
	}
	defer release()
	return b.locked(ctx, conn, o, f)
}

func (b *backend) locked(ctx context.Context, conn *sql.Conn, o contract.LockOptions,
	f func(contract.Tx) error) error {
	t := &tx{view: view{ctx: ctx, b: b, conn: conn}}
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
		t.state = guard.State
		t.server, err = a.server()
		return err
	})
	if err != nil {
		b.rollback(ctx, conn)
		return b.failed(locking, err)
	}
	if err := f(t); err != nil {
		b.rollback(ctx, conn)
		return err
	}
	if !t.dirty {
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
		b.gate.Fenced(t.server.Fingerprint, t.server.number)
	}
	return nil
}

// tx implements [contract.Tx].
type tx struct {
	view
	// dirty tells whether anything was written.
	dirty bool
	// server is the one in which the transaction runs.
	server facts
}

// begin begins a text that writes.
func (t *tx) begin(x *text) {
	if !t.dirty {
		t.dirty = true
		t.b.takeTurn(x)
	}
}

// send sends a text that writes.
func (t *tx) send(x *text) error {
	if _, err := t.b.send(t.ctx, t.conn, x, nil); err != nil {
		return t.b.failed(locking, err)
	}
	return nil
}

// run runs a statement that writes.
func (t *tx) run(sql string, args ...any) error {
	x := t.b.text()
	t.begin(&x)
	x.statement(sql, args...)
	return t.send(&x)
}

func (t *tx) Fingerprint() string { return t.server.Fingerprint }

func (t *tx) Group(token contract.Token,
	after contract.Revision) (g contract.Guard, rows []contract.Row, err error) {
	x := t.b.text()
	x.statement(selectGuard, int64(after), token[:])
	x.statement(selectByToken, int64(after), token[:])
	_, err = t.b.send(t.ctx, t.conn, &x, func(a *answers) (err error) {
		if g, err = t.b.readGuard(a); err != nil {
			return err
		}
		return a.each(9, func(r row) error {
			rows = append(rows, contract.Row{Revision: r.revision(0), Key: r.key(1),
				Prev: r.revision(2), Create: r.revision(3), Version: r.int(4),
				Lease: contract.Lease(r.int(5)), Token: r.token(6), Time: r.time(7),
				Deleted: r.int(8) != 0})
			return nil
		})
	})
	if err != nil {
		return g, nil, t.b.failed(locking, err)
	}
	return g, rows, nil
}

func (t *tx) Abort(token contract.Token, seen contract.Revision) error {
	return t.run(insertAborted, token[:], int64(seen))
}

func (t *tx) SetCompacted(r contract.Revision) error { return t.run(updateCompacted, int64(r)) }

func (t *tx) RecordFingerprint(fingerprint string) error {
	return t.run(updateFingerprint, literal(fingerprint))
}

func (t *tx) Mark(st contract.State, fingerprint string) error {
	recorded := "NULL"
	if fingerprint != "" {
		recorded = literal(fingerprint)
	}
	err := t.run(insertMarker, int64(st.Head.Revision), st.Head.Token[:], st.Now.UnixMicro())
	if err != nil {
		return err
	}
	return t.run(updateEpoch, int64(st.Head.Epoch), int64(st.Compacted), int64(st.Swept), recorded)
}

func literal(s string) string {
	var t text
	t.binary([]byte(s))
	return t.String()
}

func (t *tx) Clear() error {
	for _, sql := range []string{deleteAllLeases, deleteAllLive, deleteAllLog} {
		if err := t.run(sql); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) Leases(leases []contract.Lease) (found []contract.LeaseRow, err error) {
	x := t.b.text()
	x.statement(selectSomeLeases, revisionList(leases))
	_, err = t.b.send(t.ctx, t.conn, &x, func(a *answers) error {
		return a.each(3, func(r row) error {
			found = append(found, leaseRow(r))
			return nil
		})
	})
	if err != nil {
		return nil, t.b.failed(locking, err)
	}
	return found, nil
}

func (t *tx) PutLeases(rows []contract.LeaseRow) error {
	x := t.b.text()
	t.begin(&x)
	x.statement(replaceLeases)
	n := 0
	for _, r := range rows {
		x.comma(&n)
		fmt.Fprintf(&x, "(%s,%d,%d,%d)", x.store, r.Lease, r.TTL, r.Expiry)
	}
	return t.send(&x)
}

func (t *tx) DropLeases(leases []contract.Lease) error {
	return t.run(deleteLeases, revisionRows(leases))
}

func (t *tx) Erase(limit int) (n int, err error) {
	x := t.b.text()
	t.begin(&x)
	x.statement(eraseLive, limit)
	x.statement(selectDeleted)
	x.statement(eraseLog, int64(t.state.Head.Revision), limit)
	x.statement(selectDeleted)
	x.statement(eraseAborted)
	_, err = t.b.send(t.ctx, t.conn, &x, func(a *answers) (err error) {
		for range 2 {
			if err == nil {
				err = a.each(1, func(r row) error { n += int(r.int(0)); return nil })
			}
		}
		return err
	})
	if err != nil {
		return 0, t.b.failed(locking, err)
	}
	return n, nil
}

func (t *tx) Renew() error { return t.run(renewStore) }

func (t *tx) SetQuota(q contract.Quota) error { return t.run(updateQuota, q.Objects, q.Bytes) }

func (t *tx) Insert(token contract.Token, write func(func(*contract.Record) error) error) error {
	w := importer{tx: t, token: token}
	if err := write(w.add); err != nil {
		return err
	}
	return w.flush()
}

// importer gathers records to statements as large as those of a commit group.
type importer struct {
	tx    *tx
	token contract.Token

	records []contract.Record
	bytes   int
}

func (w *importer) add(r *contract.Record) error {
	size := len(r.Key) + len(r.Value)
	if len(w.records) == w.tx.b.limits.GroupMutations || w.bytes+size > w.tx.b.limits.GroupBytes {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.records = append(w.records, *r)
	w.bytes += size
	return nil
}

func (w *importer) flush() error {
	if len(w.records) == 0 {
		return nil
	}
	t := w.tx.b.text()
	w.tx.begin(&t)
	t.Grow(statementBytes + len(w.records)*rowBytes + w.bytes + w.bytes/8)
	n := 0
	t.statement(insertLog)
	outcome := func(r *contract.Record) *contract.Outcome {
		return &contract.Outcome{Revision: r.Revision, Create: r.Create, Version: r.Version,
			Lease: r.Lease}
	}
	for _, r := range w.records {
		m := contract.Mutation{Key: r.Key, Value: r.Value}
		t.comma(&n)
		t.logRow(&m, outcome(&r), w.token, w.tx.state.Now)
	}
	n = 0
	t.statement(insertLive)
	for _, r := range w.records {
		t.comma(&n)
		t.liveRow(r.Key, outcome(&r), r.LiveExpiry())
	}
	clear(w.records)
	w.records, w.bytes = w.records[:0], 0
	err := w.tx.send(&t)
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && e.Number == duplicateKey {
		// Nobody else writes, so to try again would be of no use.
		return contract.Errorf(contract.Data, "a key is in it twice: %w", e)
	}
	return err
}

// duplicateKey is the server's error for it.
const duplicateKey = 1062
