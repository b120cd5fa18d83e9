package postgres

import (
	"context"
	"database/sql"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// CreateStore implements [contract.Driver]. It needs a role that may migrate.
func (driver) CreateStore(ctx context.Context, url string,
	opts contract.DriverOptions) (created bool, err error) {
	err = withDB(ctx, url, opts, func(_ *config, db *sql.DB) error {
		if _, err := migrations.Up(ctx, db, migrations.Postgres,
			migrations.PostgresLocker{}); err != nil {
			return err
		}
		result, err := db.ExecContext(ctx, sqlCreateStore, opts.StoreName())
		if err != nil {
			return err
		}
		markers, err := result.RowsAffected()
		created = markers > 0
		return err
	})
	return created, err
}

// Stores implements [contract.Driver].
func (driver) Stores(ctx context.Context, url string,
	opts contract.DriverOptions) (stores []string, err error) {
	err = withDB(ctx, url, opts, func(_ *config, db *sql.DB) error {
		stores, err = migrations.Postgres.Stores(ctx, db, opts.Dropped)
		return err
	})
	return stores, err
}
