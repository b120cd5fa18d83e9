package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// Connect implements [contract.Driver].
func (driver) Connect(ctx context.Context, url string,
	opts contract.DriverOptions) (contract.Database, error) {
	cfg, err := parseURL(url, opts)
	if err != nil {
		return nil, err
	}
	if err := cfg.check(ctx); err != nil {
		return nil, err
	}
	return connect(ctx, cfg)
}

// check finds out whether the database has a schema that this program can use, and with the
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
			return contract.Errorf(contract.Denied,
				"the role %q lacks privileges in the database: grant it %s", c.pool.ConnConfig.User,
				missing)
		}
		return nil
	})
}

// neededPrivileges are the rights of a server's role, as rows.
const neededPrivileges = `
      (VALUES ('rowkeeper_log', 'SELECT'), ('rowkeeper_log', 'INSERT'), ('rowkeeper_log', 'DELETE'),
             ('rowkeeper_live', 'SELECT'), ('rowkeeper_live', 'INSERT'), ('rowkeeper_live', 'UPDATE'), ('rowkeeper_live', 'DELETE'),
             ('rowkeeper_store', 'SELECT'), ('rowkeeper_store', 'UPDATE'),
             ('rowkeeper_aborted', 'SELECT'), ('rowkeeper_aborted', 'INSERT'), ('rowkeeper_aborted', 'DELETE'),
             ('rowkeeper_lease', 'SELECT'), ('rowkeeper_lease', 'INSERT'), ('rowkeeper_lease', 'UPDATE'), ('rowkeeper_lease', 'DELETE'),
             ('rowkeeper_resource', 'SELECT'), ('rowkeeper_resource', 'INSERT'), ('rowkeeper_resource', 'UPDATE'), ('rowkeeper_resource', 'DELETE'),
             ('rowkeeper_index', 'SELECT'), ('rowkeeper_index', 'INSERT'), ('rowkeeper_index', 'DELETE'),
             ('rowkeeper_user', 'SELECT'), ('rowkeeper_user', 'INSERT'), ('rowkeeper_user', 'DELETE'),
             ('rowkeeper_schema', 'SELECT')) AS needed (name, privilege)`

// sqlPrivileges lists the privileges that are missing, as a GRANT names them.
const sqlPrivileges = `
SELECT coalesce(string_agg(privilege || ' ON ' || name, ', ' ORDER BY name, privilege), '')
FROM` + neededPrivileges + `
WHERE NOT has_table_privilege(name, privilege)`

// connect makes the pools. Nothing connects yet.
func connect(ctx context.Context, cfg *config) (*database, error) {
	d := &database{cfg: cfg, readTurns: sqlkit.NewTurns(int(cfg.pool.MaxConns)),
		tailTurns: sqlkit.NewTurns(tailConns)}
	d.listener = listener{d: d, interval: probeInterval, ears: map[int32]map[*ear]struct{}{}}
	d.sender = sender{d: d, process: rand.Text(), untold: map[int32]contract.Revision{}}
	d.ctx, d.stop = context.WithCancel(context.Background())
	for _, p := range []struct {
		pool   **pgxpool.Pool
		conns  int32
		writes bool
	}{
		{&d.commits, contract.CommitConns, true},
		{&d.tails, tailConns, false},
		{&d.reads, cfg.pool.MaxConns, false},
	} {
		pc := cfg.pool.Copy()
		pc.MaxConns = p.conns
		if p.pool != &d.reads {
			pc.MinConns, pc.MinIdleConns = 0, 0
		}
		if p.pool == &d.tails && pc.MaxConnLifetime > contract.PollLifetime {
			pc.MaxConnLifetime, pc.MaxConnLifetimeJitter = contract.PollLifetime, 0
		}
		pc.ConnConfig.ConnectTimeout = cmp.Or(pc.ConnConfig.ConnectTimeout, cfg.timeout/3)
		// The pool calls them in goroutines of its own, where a panic would end the process.
		pc.BeforeConnect = func(ctx context.Context, cc *pgx.ConnConfig) error {
			return d.recovered("to connect", func() error { return d.begin(ctx, cc) })
		}
		pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			return d.recovered("to connect", func() error { return d.greet(ctx, conn, p.writes) })
		}
		made := func(*pgxpool.Pool) {}
		if cfg.login != nil {
			made = replaceInTime(pc)
		}
		var err error
		if *p.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
			d.closePools()
			return nil, cfg.connectError(err)
		}
		made(*p.pool)
	}
	d.holders.Hold()
	return d, nil
}

// replaceInTime makes a pool close each connection when it is to be replaced: at once if it is
// unused, otherwise within a second after its use. The pool is told when it is made.
//
// AfterRelease could look at a connection after each use. But with it, a connection comes back to
// the pool in a goroutine of its own, and whoever needs one in the meantime makes another.
func replaceInTime(pc *pgxpool.Config) (made func(*pgxpool.Pool)) {
	var pool atomic.Pointer[pgxpool.Pool]
	greet := pc.AfterConnect
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := greet(ctx, conn); err != nil {
			return err
		}
		if g := greetingOf(conn); !g.replaceAt.IsZero() {
			g.replacement.after(time.Until(g.replaceAt), func() {
				if p := pool.Load(); p != nil {
					// PrepareConn closes those that are due. The others come back.
					for _, c := range p.AcquireAllIdle(context.Background()) {
						c.Release()
					}
				}
			})
		}
		return nil
	}
	pc.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		return !contract.Passed(greetingOf(conn).replaceAt, time.Now()), nil
	}
	pc.BeforeClose = func(conn *pgx.Conn) { greetingOf(conn).replacement.end() }
	return pool.Store
}

// replacement tries to close a connection until it is closed.
type replacement struct {
	mu    sync.Mutex
	timer *time.Timer
	ended bool
}

// after calls a function after a time, and each second from then on, until the end.
func (r *replacement) after(d time.Duration, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.timer = time.AfterFunc(d, func() {
			f()
			r.after(time.Second, f)
		})
	}
}

func (r *replacement) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended = true; r.timer != nil {
		r.timer.Stop()
	}
}

// Store implements [contract.Database].
func (d *database) Store(ctx context.Context, name string) (contract.Backend, error) {
	b := &backend{database: d}
	b.Member = sqlkit.NewMember(&d.address, b.row)
	// A store that has seen nothing yet has nothing to compare a database with but what it finds
	// now, so that comes from a connection that is begun now. Those of the pools may lead to where
	// the address led long ago.
	if err := d.beside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return b.find(ctx, conn, name)
	}); err != nil {
		return nil, err
	}
	b.KeysReader.Reader = sqlkit.NewReader(b, &reads, d.readTurns, d.tailTurns)
	d.holders.Hold()
	return b, nil
}
