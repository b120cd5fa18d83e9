package mysql

import (
	"context"
	"database/sql"
	"errors"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// selectStore finds a store by the unique index on its name, and reads what selectIdentity does.
const selectStore = `
SELECT s.id, s.identity, COALESCE(s.fingerprint, ''), s.epoch, COALESCE(s.boot, '')
FROM rowkeeper_store s
WHERE s.name = ?`

// insertStore fails if there is a store of the name: two at the same time wait for each other at
// the unique index on the name. A program that may write to the others may write to it, too.
const insertStore = `
INSERT INTO rowkeeper_store (name, identity, epoch, compacted, swept, oldest_writer)
SELECT ?, REPLACE(UUID(), '-', ''), 1, 0, 0, MAX(s.oldest_writer)
FROM rowkeeper_store s`

// insertFirstMarker puts an empty store at revision 1, as the first migration does.
const insertFirstMarker = `
INSERT INTO rowkeeper_log
       (store, revision, rowkeeper_log.key, prev_revision, create_revision, version, lease, token, time, deleted, value)
VALUES (?, 1, '', 0, 0, 0, 0, UNHEX(REPLACE(UUID(), '-', '')), ` + now + `, TRUE, NULL)`

// find finds the store by its name, wherever the connection leads.
func (b *backend) find(ctx context.Context, c *sql.Conn, name string) error {
	f, err := factsOf(c)
	if err != nil {
		return err
	}
	store, id, d, err := scan(f, c.QueryRowContext(ctx, selectStore, name))
	if errors.Is(err, sql.ErrNoRows) {
		return contract.NoStore(name)
	}
	if err != nil {
		return err
	}
	b.store = strconv.FormatInt(store, 10)
	return b.Found(link{c}, store, id, d)
}

// CreateStore implements [contract.Driver]. It needs an account that may migrate.
func (o opener) CreateStore(ctx context.Context, url string,
	opts contract.DriverOptions) (created bool, err error) {
	if _, err := o.Migrate(ctx, url, opts); err != nil {
		return false, err
	}
	err = administering(url, opts, "create the store", func(_ *server, db *sql.DB) error {
		tidb, err := isTiDB(ctx, db)
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // no more than that is left to do after an error
		result, err := tx.ExecContext(ctx, insertStore, opts.StoreName())
		if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && e.Number == duplicateKey {
			return nil
		}
		if err != nil {
			return err
		}
		id, err := result.LastInsertId()
		if err == nil {
			_, err = tx.ExecContext(ctx, insertFirstMarker, id)
		}
		if err == nil && tidb {
			_, err = tx.ExecContext(ctx, writeFirstHead, id)
		}
		if err == nil {
			err = tx.Commit()
		}
		created = err == nil
		return err
	})
	return created, err
}

// Stores implements [contract.Driver].
func (opener) Stores(ctx context.Context, url string,
	opts contract.DriverOptions) (stores []string, err error) {
	err = administering(url, opts, "list the stores", func(_ *server, db *sql.DB) error {
		stores, err = migrations.MySQL.Stores(ctx, db, opts.Dropped)
		return err
	})
	return stores, err
}
