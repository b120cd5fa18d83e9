package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// recognize refuses a connection that leads to another database than the one that this backend has
// opened; see [mvcc.Identity.Continues].
func (b *backend) recognize(id mvcc.Identity) error {
	if id.Store != b.opened.Store {
		return mvcc.AnotherStore(id.Store, b.opened.Store)
	}
	if id.Continues(b.opened) {
		return nil
	}
	return mvcc.Errorf(mvcc.Fenced, "the database is not the one in which this store was last "+
		"written (it was restored, copied or failed over): recorded %q, now %q",
		id.Recorded, id.Actual)
}

const (
	sqlTimeLine = `SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)`
	sqlSystem   = `SELECT system_identifier::text FROM pg_control_system()`
)

// identify reads the identity, and the fingerprint of the database behind a connection. If the
// server does not let this role see a part of it, something else stands in its place; see the
// package documentation.
func (b *backend) identify(ctx context.Context, conn *pgx.Conn) (id mvcc.Identity, err error) {
	var recovery bool
	var database, log int64
	var name, schema, writer string
	err = conn.QueryRow(ctx, sqlIdentity, b.store).
		Scan(&id.Store, &id.Recorded, &id.Epoch, &recovery, &database, &log, &name,
			&schema, &writer)
	if errors.Is(err, pgx.ErrNoRows) {
		return id, mvcc.ErrEmptyStore
	}
	if err != nil {
		return id, b.cfg.connectError(err)
	}
	if recovery {
		return id, mvcc.Errorf(mvcc.ReadOnly, "the PostgreSQL server at %s is a standby, in "+
			"recovery: point the database URL to the primary, or name all hosts", b.cfg.where())
	}
	timeLine, err := b.part(ctx, conn, sqlTimeLine, "?")
	if err != nil {
		return id, err
	}
	system, err := b.part(ctx, conn, sqlSystem, "?xmin="+writer)
	if err != nil {
		return id, err
	}
	id.Actual = fmt.Sprintf("system=%s timeline=%s database=%s(%d) schema=%s log=%d",
		system, timeLine, name, database, schema, log)
	return id, nil
}

// part reads a part of the fingerprint, or returns what stands for it where it is not allowed or
// not supported. Any other failure is one: a fingerprint that changes for a passing reason would
// fence the store.
func (b *backend) part(ctx context.Context, conn *pgx.Conn, sql,
	otherwise string) (s string, err error) {
	err = conn.QueryRow(ctx, sql).Scan(&s)
	var e *pgconn.PgError
	if errors.As(err, &e) && slices.Contains([]string{"42501", "0A000", "42883"}, e.Code) {
		return otherwise, nil
	}
	if err != nil {
		return "", b.cfg.connectError(err)
	}
	return s, nil
}

// Identity implements [mvcc.Backend].
func (b *backend) Identity(ctx context.Context) (id mvcc.Identity, err error) {
	err = b.beside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		id, err = b.identify(ctx, conn)
		return err
	})
	return id, err
}
