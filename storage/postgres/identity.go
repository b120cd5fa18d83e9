package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

const (
	sqlTimeLine = `SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)`
	sqlSystem   = `SELECT system_identifier::text FROM pg_control_system()`
)

// place finds out where a connection leads. If the server does not let this role see a part of the
// fingerprint, something else stands in its place; see the package documentation.
func (d *database) place(ctx context.Context, conn *pgx.Conn, g *greeting) error {
	var recovery bool
	var db int64
	var name, schema, writer string
	if err := conn.QueryRow(ctx, sqlPlace).Scan(&recovery, &db, &g.log, &name, &schema, &writer,
		&g.Boot, &g.Relaxed, &g.started); err != nil {
		return d.cfg.connectError(err)
	}
	if recovery {
		return contract.Errorf(contract.ReadOnly, "the PostgreSQL server at %s is a standby, in "+
			"recovery: point the database URL to the primary, or name all hosts", d.cfg.where())
	}
	timeLine, err := d.part(ctx, conn, sqlTimeLine, "?")
	if err != nil {
		return err
	}
	system, err := d.part(ctx, conn, sqlSystem, "?xmin="+writer)
	if err != nil {
		return err
	}
	g.Fingerprint = fmt.Sprintf("system=%s timeline=%s database=%s(%d) schema=%s log=%d",
		system, timeLine, name, db, schema, g.log)
	return nil
}

// part reads a part of the fingerprint, or returns what stands for it where it is not allowed or
// not supported. Any other failure is one: a fingerprint that changes for a passing reason would
// fence the store.
func (d *database) part(ctx context.Context, conn *pgx.Conn, sql,
	otherwise string) (s string, err error) {
	err = conn.QueryRow(ctx, sql).Scan(&s)
	var e *pgconn.PgError
	if errors.As(err, &e) && slices.Contains([]string{"42501", "0A000", "42883"}, e.Code) {
		return otherwise, nil
	}
	if err != nil {
		return "", d.cfg.connectError(err)
	}
	return s, nil
}

// find finds the store by its name, wherever the connection leads.
func (b *backend) find(ctx context.Context, conn *pgx.Conn, name string) error {
	store, id, d, err := scan(conn, conn.QueryRow(ctx, sqlFindStore, name))
	if errors.Is(err, pgx.ErrNoRows) {
		return contract.NoStore(name)
	}
	if err != nil {
		return b.cfg.connectError(err)
	}
	b.store = store
	return b.Found(link{Conn: conn}, int64(store), id, d)
}

// row reads the row of the store, wherever the connection leads.
func (b *backend) row(ctx context.Context, l link) (contract.Identity, contract.Durability, error) {
	_, id, d, err := scan(l.Conn, l.QueryRow(ctx, sqlIdentity, b.store))
	if errors.Is(err, pgx.ErrNoRows) {
		return id, d, contract.ErrEmptyStore
	}
	if err != nil {
		return id, d, b.cfg.connectError(err)
	}
	return id, d, nil
}

// scan takes the row of the store, and what the connection knows.
func scan(conn *pgx.Conn, row pgx.Row) (store int32, id contract.Identity, d contract.Durability,
	err error) {
	g := greetingOf(conn)
	id.Actual, d.Boot, d.Relaxed = g.Fingerprint, g.Boot, g.Relaxed
	err = row.Scan(&store, &id.Store, &id.Recorded, &id.Epoch, &d.Recorded)
	return store, id, d, err
}

// Identity implements [contract.Backend].
func (b *backend) Identity(ctx context.Context) (id contract.Identity, err error) {
	err = b.beside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		id, _, err = b.row(ctx, link{Conn: conn})
		return err
	})
	return id, err
}
