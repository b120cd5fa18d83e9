package mysql

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// archiveHold is for how many seconds a process that exports or restores may be silent before the
// server takes it for dead.
const archiveHold = 60

// setArchiveTimeouts lets a caller take the rows slowly.
const setArchiveTimeouts = `SET SESSION net_write_timeout = 3600, wait_timeout = %d`

// archive runs f on a connection of its own, whose time only the context bounds.
func (b *backend) archive(ctx context.Context, what string, f func(*sql.Conn) error) error {
	db := b.server.pool(connector{server: b.server, transactions: true}, 1)
	defer db.Close() // which ends the transaction, too, if that was not committed
	conn, err := b.Take(ctx, (*pool)(db))
	if err != nil {
		return b.failed(what, err)
	}
	defer conn.Release()
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(setArchiveTimeouts, archiveHold)); err != nil {
		return b.failed(what, err)
	}
	return f(conn.Conn)
}

// Snapshot implements [contract.Backend].
func (b *backend) Snapshot(ctx context.Context,
	f func(context.Context, contract.Snapshot) error) error {
	const what = "read a snapshot of the store"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return b.archive(ctx, what, func(conn *sql.Conn) error {
		for _, statement := range []string{setExportIsolation, startSnapshot} {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return b.failed(what, err)
			}
		}
		st, err := b.stateOf(ctx, conn, what)
		if err != nil {
			return err
		}
		w := &working{ctx: ctx, b: b, conn: conn}
		return f(ctx, sqlkit.NewView(w, b.underLock(), st))
	})
}

// stateOf reads the state in a connection's transaction.
func (b *backend) stateOf(ctx context.Context, conn *sql.Conn,
	what string) (st contract.State, err error) {
	f, err := factsOf(conn)
	if err != nil {
		return st, b.failed(what, err)
	}
	rows, err := conn.QueryContext(ctx, b.on(selectState))
	if err != nil {
		return st, b.failed(what, err)
	}
	defer rows.Close()
	found := false
	err = eachRow(rows, stateColumns, func(r row) error {
		st, found = r.state()
		return f.check(r)
	})
	switch {
	case err != nil:
		return st, b.failed(what, err)
	case !found:
		return st, contract.ErrEmptyStore
	}
	return st, nil
}
