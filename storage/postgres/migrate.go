package postgres

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Migrate implements [contract.Driver]. It needs a role that may create tables, and a session of
// its own: no pooler in transaction mode.
func (driver) Migrate(ctx context.Context, url string,
	opts contract.DriverOptions) ([]contract.Migration, error) {
	var done []migrations.Migration
	err := withDB(ctx, url, opts, func(_ *config, db *sql.DB) (err error) {
		done, err = migrations.Up(ctx, db, migrations.Postgres, migrations.PostgresLocker{})
		return err
	})
	return steps(done), err
}

// Status implements [contract.Driver].
func (driver) Status(ctx context.Context, url string,
	opts contract.DriverOptions) ([]contract.Migration, error) {
	var list []migrations.Migration
	err := withDB(ctx, url, opts, func(_ *config, db *sql.DB) (err error) {
		list, err = migrations.Status(ctx, db, migrations.Postgres)
		return err
	})
	return steps(list), err
}

func steps(list []migrations.Migration) []contract.Migration {
	out := make([]contract.Migration, len(list))
	for i, m := range list {
		out[i] = contract.Migration(m)
	}
	return out
}

// withDB opens the database as migrations want it.
func withDB(ctx context.Context, url string, opts contract.DriverOptions,
	f func(*config, *sql.DB) error) error {
	cfg, err := parseURL(url, opts)
	if err != nil {
		return err
	}
	return cfg.withDB(ctx, f)
}

func (c *config) withDB(ctx context.Context, f func(*config, *sql.DB) error) error {
	cc := c.pool.ConnConfig.Copy()
	// Migrations wait for each other as long as their caller allows, whatever the URL and the role
	// say.
	limits := []string{"lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout",
		"idle_session_timeout", "transaction_timeout"}
	for _, limit := range limits {
		delete(cc.RuntimeParams, limit)
	}
	delete(cc.RuntimeParams, "client_min_messages")
	var warning atomic.Pointer[pgconn.Notice] // see greeting.watch
	cc.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			warning.Store(n)
		}
	}
	db := stdlib.OpenDB(*cc, stdlib.OptionBeforeConnect(func(ctx context.Context,
		cc *pgx.ConnConfig) error {
		_, err := c.refresh(ctx, cc) // it is soon closed
		return err
	}), stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		err := checkVersion(conn)
		if err == nil {
			settings := unlimited(conn)
			for _, limit := range limits[:3] {
				settings[limit] = "0"
			}
			settings["client_min_messages"] = "warning"
			settings["row_security"] = planner["row_security"]
			err = c.setUp(ctx, conn, setConfig(settings, false))
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
		if err = f(c, db); err != nil {
			err = c.hidden(ctx, db, err)
		} else if n := warning.Load(); n != nil {
			err = contract.Errorf(contract.Unknown, "PostgreSQL did what it was asked, with a warning, "+
				"and a standby may lack it: see that the standbys follow before you go on (%w)",
				(*pgconn.PgError)(n))
		}
	}
	var version *migrations.VersionError
	if errors.As(err, &version) {
		return &contract.Error{Class: contract.Invalid, Err: err}
	}
	if err != nil {
		return c.connectError(err)
	}
	return nil
}

// hidden says of an error that there are no tables, or is no schema for them, whether the role may
// not look into the schema that has them. It returns every other error as it is.
func (c *config) hidden(ctx context.Context, db *sql.DB, err error) error {
	var version *migrations.VersionError
	var server *pgconn.PgError
	if !(errors.As(err, &version) && version.Have == 0) &&
		!(errors.As(err, &server) && server.Code == "3F000") {
		return err
	}
	var schema string
	if db.QueryRowContext(ctx, sqlHidden).Scan(&schema) != nil || schema == "" {
		return err
	}
	return contract.Errorf(contract.Denied, "the role %q may not use the schema that holds the tables: "+
		"grant it USAGE ON SCHEMA %s, or correct search_path in the database URL",
		c.pool.ConnConfig.User, schema)
}

// sqlHidden names a schema with tables of ours that the role may not use, ” if there is none.
const sqlHidden = `
SELECT coalesce(min(quote_ident(n.nspname)), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = '` + migrations.VersionTable + `' AND NOT has_schema_privilege(n.oid, 'USAGE')`
