package postgres

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// storeID finds the id of the store.
func (b *backend) storeID(ctx context.Context, conn *pgx.Conn) (id int32, err error) {
	err = conn.QueryRow(ctx, sqlStoreID, b.cfg.store).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, mvcc.NoStore(b.cfg.store)
	}
	if err != nil {
		return 0, b.cfg.connectError(err)
	}
	return id, nil
}

// CreateStore implements [mvcc.Driver]. It needs a role that may migrate.
func (d driver) CreateStore(ctx context.Context, url string,
	opts mvcc.DriverOptions) (created bool, err error) {
	err = withDB(ctx, url, opts, func(c *config, db *sql.DB) error {
		if _, err := migrations.Up(ctx, db, migrations.Postgres,
			migrations.PostgresLocker{}); err != nil {
			return err
		}
		result, err := db.ExecContext(ctx, sqlCreateStore, c.store)
		if err != nil {
			return err
		}
		markers, err := result.RowsAffected()
		created = markers > 0
		return err
	})
	if err == nil && !created && opts.StoreName() != mvcc.DefaultStore {
		created, err = mvcc.Recreate(ctx, d, url, opts)
	}
	return created, err
}

// Stores implements [mvcc.Driver].
func (driver) Stores(ctx context.Context, url string,
	opts mvcc.DriverOptions) (stores []string, err error) {
	err = withDB(ctx, url, opts, func(_ *config, db *sql.DB) error {
		stores, err = migrations.Postgres.Stores(ctx, db)
		return err
	})
	return stores, err
}
