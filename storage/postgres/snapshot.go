package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
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
	conn, err := b.Take(ctx, (*besides)(b.database))
	if err != nil {
		return b.cfg.connectError(err)
	}
	defer conn.Release() // which ends the transaction, too, if that was not committed
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
	return f(conn.Conn)
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
		w := &working{ctx: ctx, conn: conn, store: b.store}
		return f(ctx, sqlkit.NewView(w, &inTransaction, st))
	})
}

// stateOf reads the state in a connection's transaction.
func (b *backend) stateOf(ctx context.Context, conn *pgx.Conn) (st contract.State, err error) {
	rows, err := conn.Query(ctx, sqlState, b.store)
	if err != nil {
		return st, readError(err)
	}
	defer rows.Close()
	found := rows.Next()
	if found {
		r := row(rows.RawValues())
		if err := greetingOf(conn).check(r); err != nil {
			return st, err
		}
		st = r.state()
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
