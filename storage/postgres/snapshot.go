package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// sqlArchiveSettings are made for the transaction, where the server has them: it may take as long
// as it needs to, and values are compressed as those of commits are.
const sqlArchiveSettings = `
SELECT set_config(name, CASE name WHEN 'default_toast_compression' THEN 'lz4' ELSE '0' END, true)
FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout')
   OR name = 'default_toast_compression' AND setting = 'pglz' AND 'lz4' = ANY (enumvals)`

// archive runs f in a transaction on a connection of its own, whose time only the context bounds.
func (b *backend) archive(ctx context.Context, begin, idle string, f func(*pgx.Conn) error) error {
	conn, err := b.takeBeside(ctx)
	if err != nil {
		return err
	}
	// It ends the transaction, too, if that was not committed.
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range []string{
		begin,
		b.cfg.transactionSettings(),
		sqlArchiveSettings,
		// How long this process may be silent, in milliseconds, before the server takes it for
		// dead.
		setConfig(map[string]string{"idle_in_transaction_session_timeout": idle}, true),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return readError(err)
		}
	}
	return f(conn)
}

// Snapshot implements [contract.Backend].
func (b *backend) Snapshot(ctx context.Context,
	f func(context.Context, contract.Snapshot) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The caller may take the rows slowly: the snapshot is in nobody's way but vacuum's.
	return b.archive(ctx, sqlBeginExport, "0", func(conn *pgx.Conn) error {
		st, err := b.stateOf(ctx, conn)
		if err != nil {
			return err
		}
		return f(ctx, &view{ctx: ctx, conn: conn, store: b.store, state: st})
	})
}

// view implements [contract.Snapshot]: what a connection sees in a transaction.
type view struct {
	ctx   context.Context
	conn  *pgx.Conn
	store int32
	state contract.State
}

func (v *view) State() contract.State { return v.state }

func (v *view) Keys() (n int64, err error) {
	err = v.conn.QueryRow(v.ctx, sqlCountAll, v.store).Scan(&n)
	return n, readError(err)
}

func (v *view) AllLeases() ([]contract.LeaseRow, error) { return v.leaseRows(sqlAllLeases, v.store) }

// leaseRows runs a statement that returns leases.
func (v *view) leaseRows(sql string, args ...any) (found []contract.LeaseRow, err error) {
	rows, err := v.conn.Query(v.ctx, sql, args...)
	if err != nil {
		return nil, readError(err)
	}
	defer rows.Close()
	for rows.Next() {
		r := row(rows.RawValues())
		found = append(found, contract.LeaseRow{Lease: contract.Lease(r.int(0)), TTL: r.int(1),
			Expiry: r.int(2)})
	}
	return found, readError(rows.Err())
}

func (v *view) Records(each func(*contract.Record) error) error {
	reading, stop := context.WithCancel(v.ctx)
	defer stop()
	rows, err := v.conn.Query(reading, sqlRecords, v.store)
	if err != nil {
		return readError(err)
	}
	defer rows.Close()
	for rows.Next() {
		r := row(rows.RawValues())
		if err := each(&contract.Record{Revision: r.revision(0), Create: r.revision(1),
			Version: r.int(2), Lease: contract.Lease(r.int(3)), Expiry: r.int(4), Key: r.key(5),
			Value: r.value(6)}); err != nil {
			stop() // the other rows, however many, are not waited for
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return readError(err)
	}
	return nil
}

func (b *backend) stateOf(ctx context.Context, conn *pgx.Conn) (st contract.State, err error) {
	rows, err := conn.Query(ctx, sqlState, b.store)
	if err != nil {
		return st, readError(err)
	}
	defer rows.Close()
	found := rows.Next()
	if found {
		st = row(rows.RawValues()).state()
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return st, readError(err)
	}
	if !found {
		return st, contract.ErrEmptyStore
	}
	return st, nil
}
