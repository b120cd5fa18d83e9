package postgres

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Driver opens stores in PostgreSQL, by the URL schemes postgres and postgresql.
var Driver mvcc.Driver = driver{}

type driver struct{}

// Name returns "postgres".
func (driver) Name() string { return "postgres" }

// Schemes returns the URL schemes "postgres" and "postgresql".
func (driver) Schemes() []string { return []string{"postgres", "postgresql"} }

// Open implements [mvcc.Driver].
func (driver) Open(ctx context.Context, url string, opts mvcc.DriverOptions) (mvcc.Backend, error) {
	cfg, err := parseURL(url, opts)
	if err != nil {
		return nil, err
	}
	if err := cfg.check(ctx); err != nil {
		return nil, err
	}
	return open(ctx, cfg)
}

// Migrate implements [mvcc.Driver]. It needs a role that may create tables, and a session of its own: no pooler in transaction mode.
func (driver) Migrate(ctx context.Context, url string, opts mvcc.DriverOptions) ([]mvcc.Migration, error) {
	var done []migrations.Migration
	err := withDB(ctx, url, opts, func(_ *config, db *sql.DB) (err error) {
		done, err = migrations.Up(ctx, db, migrations.Postgres, migrations.PostgresLocker{})
		return err
	})
	return steps(done), err
}

// Status implements [mvcc.Driver].
func (driver) Status(ctx context.Context, url string, opts mvcc.DriverOptions) ([]mvcc.Migration, error) {
	var list []migrations.Migration
	err := withDB(ctx, url, opts, func(_ *config, db *sql.DB) (err error) {
		list, err = migrations.Status(ctx, db, migrations.Postgres)
		return err
	})
	return steps(list), err
}

func steps(list []migrations.Migration) []mvcc.Migration {
	out := make([]mvcc.Migration, len(list))
	for i, m := range list {
		out[i] = mvcc.Migration(m)
	}
	return out
}

// withDB opens the database as migrations want it.
func withDB(ctx context.Context, url string, opts mvcc.DriverOptions, f func(*config, *sql.DB) error) error {
	cfg, err := parseURL(url, opts)
	if err != nil {
		return err
	}
	return cfg.withDB(ctx, f)
}

func (c *config) withDB(ctx context.Context, f func(*config, *sql.DB) error) error {
	cc := c.pool.ConnConfig.Copy()
	// Migrations wait for each other as long as their caller allows, whatever the URL and the role say.
	unlimited := map[string]string{}
	for _, limit := range []string{"lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"} {
		delete(cc.RuntimeParams, limit)
		unlimited[limit] = "0"
	}
	db := stdlib.OpenDB(*cc, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		err := checkVersion(conn)
		if err == nil {
			err = c.setUp(ctx, conn, setConfig(unlimited, false))
		}
		if err != nil {
			conn.Close(ctx) // stdlib forgets it
		}
		return err
	}))
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err == nil {
		conn.Close()
		err = f(c, db)
	}
	var version *migrations.VersionError
	if errors.As(err, &version) {
		return &mvcc.Error{Class: mvcc.Invalid, Err: err}
	}
	if err != nil {
		return c.connectError(err)
	}
	return nil
}

// check finds out whether the database holds a store that this program can use, and with the privileges that it needs.
func (c *config) check(ctx context.Context) error {
	return c.withDB(ctx, func(_ *config, db *sql.DB) error {
		if err := migrations.Postgres.Check(ctx, db); err != nil {
			return err
		}
		var missing string
		if err := db.QueryRowContext(ctx, sqlPrivileges).Scan(&missing); err != nil {
			return err
		}
		if missing != "" {
			return mvcc.Errorf(mvcc.Denied, "the role %q lacks privileges in the database: grant it %s", c.pool.ConnConfig.User, missing)
		}
		return nil
	})
}

// sqlPrivileges lists the privileges that are missing, as a GRANT names them.
const sqlPrivileges = `
SELECT coalesce(string_agg(privilege || ' ON ' || name, ', ' ORDER BY name, privilege), '')
FROM (VALUES ('rowkeeper_log', 'SELECT'), ('rowkeeper_log', 'INSERT'), ('rowkeeper_log', 'DELETE'),
             ('rowkeeper_live', 'SELECT'), ('rowkeeper_live', 'INSERT'), ('rowkeeper_live', 'UPDATE'), ('rowkeeper_live', 'DELETE'),
             ('rowkeeper_store', 'SELECT'), ('rowkeeper_store', 'UPDATE'),
             ('rowkeeper_aborted', 'SELECT'), ('rowkeeper_aborted', 'INSERT'), ('rowkeeper_aborted', 'DELETE'),
             ('rowkeeper_schema', 'SELECT')) AS needed (name, privilege)
WHERE NOT has_table_privilege(name, privilege)`
