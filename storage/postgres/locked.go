package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// Locked implements [contract.Backend]. It holds the lock for some round trips. Where the lock
// excludes sweeps, too, the locks are taken in the order of a sweep: its own first.
func (b *backend) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	return b.Heard(b.lockedBy(ctx, o, f))
}

func (b *backend) lockedBy(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
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
				b.Fenced(g.Place, g.number)
			}
			return err
		})
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.timeout)
	defer cancel()
	conn, release, err := b.TakeToWrite(ctx, (*pool)(b.commits))
	if err != nil {
		return b.cfg.connectError(err)
	}
	defer release()
	first := []string{sqlBegin}
	if !b.cfg.prepared {
		first = append(first, b.cfg.transactionSettings())
	}
	return b.locked(ctx, conn.Conn, f, first...)
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
	if _, err := conn.Exec(ctx, commitLock.sql, greetingOf(conn).started, b.store); err != nil {
		if e := (*pgconn.PgError)(nil); errors.As(err, &e) && locking[e.Code] != nil {
			return locking[e.Code]
		}
		return readError(err)
	}
	st, err := b.stateOf(ctx, conn)
	if err != nil {
		return err
	}
	if err := writable(st); err != nil {
		return err
	}
	w := &working{ctx: ctx, conn: conn, store: b.store}
	if err := f(sqlkit.NewTx(w, &inTransaction, st, b.Limits())); err != nil || !w.dirty {
		return err
	}
	confirmed := greetingOf(conn).watch()
	tag, err := conn.Exec(ctx, sqlCommit)
	switch {
	case err != nil:
		return contract.Errorf(contract.Unknown, "PostgreSQL did not confirm the commit: %w",
			readError(err))
	case tag.String() != "COMMIT":
		return contract.Errorf(contract.Transient,
			"PostgreSQL ended the transaction by %q instead of COMMIT", tag)
	}
	return confirmed()
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

// working implements [sqlkit.Conn]: a connection in a transaction.
type working struct {
	ctx   context.Context
	conn  *pgx.Conn
	store int32
	// dirty tells whether anything was written.
	dirty bool
}

func (w *working) Fingerprint() string { return greetingOf(w.conn).Fingerprint }

func (w *working) Select(r *sqlkit.Read, each func(sqlkit.Cursor) error, args ...any) error {
	reading, stop := context.WithCancel(w.ctx)
	defer stop()
	rows, err := w.conn.Query(reading, r.SQL, w.arguments(args)...)
	if err != nil {
		return readError(err)
	}
	defer rows.Close()
	c := &cursor{}
	for rows.Next() {
		c.own = rows.RawValues()
		if err := each(c); err != nil {
			stop() // the other rows, however many, are not waited for
			return err
		}
	}
	return readError(rows.Err())
}

// arguments adds the store.
func (w *working) arguments(args []any) []any {
	converted := make([]any, 0, len(args)+1)
	for _, a := range args {
		converted = append(converted, argument(a))
	}
	return append(converted, w.store)
}

func (w *working) Group(token contract.Token, after contract.Revision,
	each func(sqlkit.Cursor)) (g contract.Guard, err error) {
	err = w.Select(&sqlkit.Read{SQL: sqlFindGroup}, func(c sqlkit.Cursor) error {
		own := c.(*cursor)
		g = contract.Guard{State: own.own.state(), Aborted: c.Bool(stateColumns),
			At: c.Token(stateColumns + 1)}
		if own.own = own.own[stateColumns+2:]; c.More() {
			each(c)
		}
		return nil
	}, token, int64(after))
	return g, err
}

func (w *working) Change(sql string, args ...any) error {
	w.dirty = true
	_, err := w.conn.Exec(w.ctx, sql, w.arguments(args)...)
	return readError(err)
}

func (w *working) PutLeases(rows []contract.LeaseRow) error {
	var ids, ttls, expiries []int64
	for _, r := range rows {
		ids, ttls = append(ids, int64(r.Lease)), append(ttls, r.TTL)
		expiries = append(expiries, r.Expiry)
	}
	return w.Change(sqlPutLeases, ids, ttls, expiries)
}

func (w *working) Erase(limit int, _ contract.State) (n int, err error) {
	w.dirty = true
	err = w.conn.QueryRow(w.ctx, sqlErase, int64(limit), w.store).Scan(&n)
	return n, readError(err)
}

func (w *working) Reindex(keys []contract.Reindexed) error {
	names, ids, entries := make([][]byte, len(keys)), make([]int64, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		names[i], ids[i], entries[i] = []byte(k.Key), int64(k.ID), arrayOf(k.Entries)
	}
	return w.Change(sqlReindex, names, ids, entries)
}

func (w *working) SetIndexes(generation int64, text string) error {
	return w.Change(sqlSetIndexes, generation, text)
}

func (w *working) DropEntries(low, high contract.Entry, limit int) (n int, err error) {
	w.dirty = true
	err = w.conn.QueryRow(w.ctx, sqlDropEntries, []byte(low), []byte(high), int64(limit), w.store).Scan(&n)
	return n, readError(err)
}

func (w *working) Insert(token contract.Token, at contract.State, records []contract.Record) error {
	var (
		revisions, creations, versions, leases, expiries []int64
		keys, values                                     [][]byte
	)
	for i := range records {
		r := &records[i]
		revisions, creations = append(revisions, int64(r.ID())), append(creations, int64(r.Create))
		versions, leases = append(versions, r.Version), append(leases, int64(r.Lease))
		expiries = append(expiries, r.LiveExpiry())
		keys, values = append(keys, []byte(r.Key)), append(values, r.Value)
	}
	err := w.Change(sqlImport, revisions, creations, expiries, keys, values, at.Now.UnixMicro(),
		token, versions, leases)
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) && e.Code == "23505" {
		// Nobody else writes, so to try again would be of no use.
		return contract.Errorf(contract.Data, "a key is in it twice: %w", e)
	}
	return err
}
