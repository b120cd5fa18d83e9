package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// importRows and importBytes bound what is sent in one statement.
const (
	importRows  = 1000
	importBytes = 4 << 20
)

// Locked implements [contract.Backend]. It holds the lock for some round trips. Where the lock
// excludes sweeps, too, the locks are taken in the order of a sweep: its own first.
func (b *backend) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	switch {
	case o.Unbounded:
		return b.archive(ctx, sqlBegin, "60000", func(conn *pgx.Conn) error {
			if _, err := conn.Exec(ctx, sqlSweepOut, b.store); err != nil {
				return readError(err)
			}
			return b.locked(ctx, conn, f)
		})
	case o.AnyServer:
		return b.beside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			err := b.locked(ctx, conn, f, sqlBegin, b.cfg.transactionSettings())
			if err == nil {
				g := greetingOf(conn)
				b.gate.Fenced(g.Fingerprint, g.number)
			}
			return err
		})
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.timeout)
	defer cancel()
	conn, release, err := b.takeCommit(ctx)
	if err != nil {
		return err
	}
	defer release()
	first := []string{sqlBegin}
	if !b.cfg.prepared {
		first = append(first, b.cfg.transactionSettings())
	}
	return b.locked(ctx, conn.Conn(), f, first...)
}

// locked runs f in a transaction, which begins with the statements first and then takes the commit
// lock.
func (b *backend) locked(ctx context.Context, conn *pgx.Conn, f func(contract.Tx) error,
	first ...string) (err error) {
	defer func() {
		if conn.PgConn().TxStatus() != 'I' {
			rollback(ctx, conn)
		}
	}()
	for _, sql := range first {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return readError(err)
		}
	}
	if _, err := conn.Exec(ctx, commitLock.sql, b.store); err != nil {
		if e := (*pgconn.PgError)(nil); errors.As(err, &e) && e.Code == divisionByZero {
			return errOutdated
		}
		return readError(err)
	}
	t := tx{view: view{ctx: ctx, conn: conn, store: b.store}}
	if t.state, err = b.stateOf(ctx, conn); err != nil {
		return err
	}
	if err := writable(t.state); err != nil {
		return err
	}
	if err := f(&t); err != nil || !t.dirty {
		return err
	}
	tag, err := conn.Exec(ctx, sqlCommit)
	switch {
	case err != nil:
		return contract.Errorf(contract.Unknown, "PostgreSQL did not confirm the commit: %w",
			readError(err))
	case tag.String() != "COMMIT":
		return contract.Errorf(contract.Transient,
			"PostgreSQL ended the transaction by %q instead of COMMIT", tag)
	}
	return nil
}

// rollback ends a transaction at once, so that its locks are free. If the statement cannot be sent,
// it closes the connection, and the server rolls back.
func rollback(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := conn.Exec(ctx, `ROLLBACK`); err != nil {
		conn.Close(ctx)
	}
}

// tx implements [contract.Tx].
type tx struct {
	view
	// dirty tells whether anything was written.
	dirty bool
}

// run runs a statement that writes.
func (t *tx) run(sql string, args ...any) error {
	t.dirty = true
	_, err := t.conn.Exec(t.ctx, sql, append(args, t.store)...)
	return readError(err)
}

func (t *tx) Fingerprint() string { return greetingOf(t.conn).Fingerprint }

func (t *tx) Group(token contract.Token,
	after contract.Revision) (g contract.Guard, found []contract.Row, err error) {
	rows, err := t.conn.Query(t.ctx, sqlFindGroup, token[:], int64(after), t.store)
	if err != nil {
		return g, nil, readError(err)
	}
	defer rows.Close()
	for rows.Next() {
		r := row(rows.RawValues())
		g = contract.Guard{State: r.state(), Aborted: r.bool(stateColumns),
			At: r.token(stateColumns + 1)}
		if r = r[stateColumns+2:]; r[0] != nil {
			found = append(found, contract.Row{Revision: r.revision(0), Prev: r.revision(1),
				Create: r.revision(2), Version: r.int(3), Lease: contract.Lease(r.int(4)),
				Time: r.time(5), Deleted: r.bool(6), Key: r.key(7), Token: token})
		}
	}
	return g, found, readError(rows.Err())
}

func (t *tx) Abort(token contract.Token, seen contract.Revision) error {
	return t.run(sqlAbort, token[:], int64(seen))
}

func (t *tx) SetCompacted(r contract.Revision) error { return t.run(sqlCompact, int64(r)) }

func (t *tx) RecordFingerprint(fingerprint string) error {
	return t.run(sqlRecordFingerprint, fingerprint)
}

func (t *tx) Mark(st contract.State, fingerprint string) error {
	return t.run(sqlMark, int64(st.Head.Revision), st.Now.UnixMicro(), st.Head.Token[:],
		int64(st.Head.Epoch), int64(st.Swept), fingerprint)
}

func (t *tx) Leases(leases []contract.Lease) ([]contract.LeaseRow, error) {
	return t.leaseRows(sqlSomeLeases, leases, t.store)
}

func (t *tx) PutLeases(rows []contract.LeaseRow) error {
	var ids, ttls, expiries []int64
	for _, r := range rows {
		ids, ttls = append(ids, int64(r.Lease)), append(ttls, r.TTL)
		expiries = append(expiries, r.Expiry)
	}
	return t.run(sqlPutLeases, ids, ttls, expiries)
}

func (t *tx) DropLeases(leases []contract.Lease) error { return t.run(sqlDropLeases, leases) }

func (t *tx) Clear() error { return t.run(sqlClear) }

func (t *tx) Erase(limit int) (n int, err error) {
	t.dirty = true
	err = t.conn.QueryRow(t.ctx, sqlErase, int64(limit), t.store).Scan(&n)
	return n, readError(err)
}

func (t *tx) Renew() error { return t.run(sqlRenew) }

func (t *tx) SetQuota(q contract.Quota) error { return t.run(sqlSetQuota, q.Objects, q.Bytes) }

func (t *tx) Insert(token contract.Token, write func(func(*contract.Record) error) error) error {
	w := importer{tx: t, token: token}
	if err := write(w.add); err != nil {
		return err
	}
	return w.flush()
}

// importer gathers records to statements.
type importer struct {
	tx    *tx
	token contract.Token

	revisions, creations, versions, leases, expiries []int64

	keys, values [][]byte
	bytes        int
}

func (w *importer) add(r *contract.Record) error {
	w.revisions = append(w.revisions, int64(r.Revision))
	w.creations = append(w.creations, int64(r.Create))
	w.versions = append(w.versions, r.Version)
	w.leases = append(w.leases, int64(r.Lease))
	w.expiries = append(w.expiries, r.LiveExpiry())
	w.keys = append(w.keys, []byte(r.Key))
	w.values = append(w.values, r.Value)
	w.bytes += len(r.Key) + len(r.Value)
	if len(w.keys) < importRows && w.bytes < importBytes {
		return nil
	}
	return w.flush()
}

func (w *importer) flush() error {
	if len(w.keys) == 0 {
		return nil
	}
	err := w.tx.run(sqlImport, w.revisions, w.creations, w.expiries, w.keys, w.values,
		w.tx.state.Now.UnixMicro(), w.token[:], w.versions, w.leases)
	if err != nil {
		if e := (*pgconn.PgError)(nil); errors.As(err, &e) && e.Code == "23505" {
			// Nobody else writes, so to try again would be of no use.
			return contract.Errorf(contract.Data, "a key is in it twice: %w", e)
		}
		return err
	}
	w.revisions, w.creations, w.expiries = w.revisions[:0], w.creations[:0], w.expiries[:0]
	w.versions, w.leases = w.versions[:0], w.leases[:0]
	clear(w.keys)
	clear(w.values)
	w.keys, w.values, w.bytes = w.keys[:0], w.values[:0], 0
	return nil
}
