package postgres

import (
	"cmp"
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

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

// check finds out whether the database holds a store that this program can use, and with the
// privileges that it needs.
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
			return mvcc.Errorf(mvcc.Denied,
				"the role %q lacks privileges in the database: grant it %s", c.pool.ConnConfig.User,
				missing)
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
             ('rowkeeper_lease', 'SELECT'), ('rowkeeper_lease', 'INSERT'), ('rowkeeper_lease', 'UPDATE'), ('rowkeeper_lease', 'DELETE'),
             ('rowkeeper_schema', 'SELECT')) AS needed (name, privilege)
WHERE NOT has_table_privilege(name, privilege)`

func open(ctx context.Context, cfg *config) (*backend, error) {
	b := &backend{cfg: cfg}
	b.Reader = sqlread.NewReader(b, &reads, int(cfg.pool.MaxConns))
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	if b.store, err = b.storeID(ctx, conn); err == nil {
		b.opened, err = b.identify(ctx, conn)
	}
	if err == nil {
		b.durable, err = b.durability(ctx, conn)
	}
	conn.Close(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range []struct {
		pool   **pgxpool.Pool
		conns  int32
		writes bool
	}{
		{&b.commits, commitConns, true},
		{&b.tails, tailConns, false},
		{&b.reads, cfg.pool.MaxConns, false},
	} {
		pc := cfg.pool.Copy()
		pc.MaxConns = p.conns
		if p.pool != &b.reads {
			pc.MinConns, pc.MinIdleConns = 0, 0
		}
		pc.ConnConfig.ConnectTimeout = cmp.Or(pc.ConnConfig.ConnectTimeout, cfg.timeout/3)
		pc.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
			return cfg.refresh(cc)
		}
		pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			return b.greet(ctx, conn, p.writes)
		}
		if *p.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
			b.Close()
			return nil, cfg.connectError(err)
		}
	}
	return b, nil
}
