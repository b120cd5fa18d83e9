package mysql

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
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
	conn, err := b.take(ctx, db)
	if err != nil {
		return b.failed(what, err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(setArchiveTimeouts, archiveHold)); err != nil {
		return b.failed(what, err)
	}
	return f(conn)
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
		v := &view{ctx: ctx, b: b, conn: conn}
		var err error
		if v.state, err = b.stateOf(ctx, conn, what); err != nil {
			return err
		}
		return f(ctx, v)
	})
}

// stateOf reads the state in a connection's transaction.
func (b *backend) stateOf(ctx context.Context, conn *sql.Conn,
	what string) (st contract.State, err error) {
	rows, err := conn.QueryContext(ctx, ofStore(selectState, b.store))
	if err != nil {
		return st, b.failed(what, err)
	}
	defer rows.Close()
	found := false
	err = eachRow(rows, stateColumns, func(r row) error { st, found = r.state(); return nil })
	switch {
	case err != nil:
		return st, b.failed(what, err)
	case !found:
		return st, contract.ErrEmptyStore
	}
	return st, nil
}

// view implements [contract.Snapshot]: what a connection sees in a transaction.
type view struct {
	ctx   context.Context
	b     *backend
	conn  *sql.Conn
	state contract.State
}

func (v *view) State() contract.State { return v.state }

func (v *view) Keys() (n int64, err error) {
	if err := v.conn.QueryRowContext(v.ctx, ofStore(selectAllKeys, v.b.store)).Scan(&n); err != nil {
		return 0, v.b.failed("count the keys", err)
	}
	return n, nil
}

func (v *view) AllLeases() (all []contract.LeaseRow, err error) {
	const what = "read the leases"
	rows, err := v.conn.QueryContext(v.ctx, ofStore(selectAllLeases, v.b.store))
	if err != nil {
		return nil, v.b.failed(what, err)
	}
	defer rows.Close()
	err = eachRow(rows, 3, func(r row) error { all = append(all, leaseRow(r)); return nil })
	if err != nil {
		return nil, v.b.failed(what, err)
	}
	return all, nil
}

func leaseRow(r row) contract.LeaseRow {
	return contract.LeaseRow{Lease: contract.Lease(r.int(0)), TTL: r.int(1), Expiry: r.int(2)}
}

func (v *view) Records(each func(*contract.Record) error) error {
	const what = "read the records"
	reading, stop := context.WithCancel(v.ctx)
	defer stop()
	rows, err := v.conn.QueryContext(reading, ofStore(selectRecords, v.b.store))
	if err != nil {
		return v.b.failed(what, err)
	}
	defer rows.Close()
	var callers error
	err = eachRow(rows, 7, func(r row) error {
		callers = each(&contract.Record{Revision: r.revision(0), Key: r.key(1), Create: r.revision(2),
			Version: r.int(3), Lease: contract.Lease(r.int(4)), Expiry: r.int(5), Value: r.value(6)})
		if callers != nil {
			stop() // the other rows, however many, are not waited for
		}
		return callers
	})
	switch {
	case callers != nil:
		return callers
	case err != nil:
		return v.b.failed(what, err)
	}
	return nil
}
