package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// oldestServer is the oldest major version that has everything that is used here.
const oldestServer = 13

// Time limits that the server keeps, all shorter than the caller's own limit, so that a failure is
// certain instead of an unknown outcome.
//
// A waiting group gives up after lockTimeout. The server ends a session that holds a lock and does
// nothing well before that, so the groups that wait for the lock survive. The keepalives end a
// session whose process is gone. From PostgreSQL 17 on a whole transaction is limited, too.
func (c *config) lockTimeout() time.Duration        { return c.timeout / 3 }
func (c *config) idleTimeout() time.Duration        { return c.timeout / 6 }
func (c *config) transactionTimeout() time.Duration { return c.timeout * 2 / 3 }

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(d.Milliseconds(), 1), 10)
}

// planner is what the statements rely on, see statements.go. COMMIT relies on being sent warnings,
// see [greeting.watch].
var planner = map[string]string{
	"client_min_messages":             "warning",
	"default_transaction_isolation":   "read committed",
	"enable_seqscan":                  "off",
	"enable_bitmapscan":               "off",
	"enable_hashjoin":                 "off",
	"enable_mergejoin":                "off",
	"plan_cache_mode":                 "force_generic_plan",
	"max_parallel_workers_per_gather": "0",
	"jit":                             "off",
	"row_security":                    "off", // an error in place of rows that are hidden
}

// sessionSettings is the statement that sets a session up. Settings that the URL makes are left
// alone, but for what the statements rely on.
//
// The server's time limits do not count while a commit waits for the disk or for a synchronous
// standby. A group's values pass through a few nodes of the plan, each of which may keep them in
// memory.
func (c *config) sessionSettings(conn *pgx.Conn, writes bool) string {
	settings := map[string]string{
		"lock_timeout":                        milliseconds(c.lockTimeout()),
		"idle_in_transaction_session_timeout": milliseconds(c.idleTimeout()),
		"statement_timeout":                   milliseconds(c.timeout),
		"tcp_keepalives_idle":                 "10",
		"tcp_keepalives_interval":             "5",
		"tcp_keepalives_count":                "3",
		"tcp_user_timeout":                    milliseconds(c.timeout),
	}
	maps.Copy(settings, unlimited(conn))
	if writes {
		settings["statement_timeout"] = milliseconds(c.transactionTimeout())
		settings["work_mem"] = "16MB"
		if _, ok := settings["transaction_timeout"]; ok {
			settings["transaction_timeout"] = milliseconds(c.transactionTimeout())
		}
	}
	for name := range c.pool.ConnConfig.RuntimeParams {
		delete(settings, name)
	}
	maps.Copy(settings, planner)
	return setConfig(settings, false)
}

// unlimited are the settings by which the server would end a session that waits, or one that reads
// for long, as far as its version has them. The pools close connections that are not used.
func unlimited(conn *pgx.Conn) map[string]string {
	settings := map[string]string{}
	version, _ := majorVersion(conn.PgConn().ParameterStatus("server_version"))
	for name, since := range map[string]int{"idle_session_timeout": 14, "transaction_timeout": 17} {
		if version >= since {
			settings[name] = "0"
		}
	}
	return settings
}

// transactionSettings is the statement that sets a writing transaction up, in a session that is not
// its own. Reads go without: they are planned anew each time, with the statistics of that time.
func (c *config) transactionSettings() string {
	settings := map[string]string{
		"lock_timeout":                        milliseconds(c.lockTimeout()),
		"idle_in_transaction_session_timeout": milliseconds(c.idleTimeout()),
		"statement_timeout":                   milliseconds(c.transactionTimeout()),
		"work_mem":                            "16MB",
	}
	maps.Copy(settings, planner)
	delete(settings, "default_transaction_isolation") // BEGIN names it
	// every statement is planned for its arguments
	delete(settings, "plan_cache_mode")
	return setConfig(settings, true) +
		`, set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)`
}

// setConfig is the statement that makes settings, for the session or the transaction.
func setConfig(settings map[string]string, local bool) string {
	var calls []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		calls = append(calls, fmt.Sprintf(`set_config('%s', '%s', %t)`, name, settings[name],
			local))
	}
	return `SELECT ` + strings.Join(calls, ", ")
}

// connect makes a connection beside the pools.
func (d *database) connect(ctx context.Context) (*pgx.Conn, error) {
	cc := d.cfg.pool.ConnConfig.Copy()
	if err := d.begin(ctx, cc); err != nil {
		return nil, d.cfg.connectError(err)
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, d.cfg.connectError(err)
	}
	if err := d.greet(ctx, conn, false); err != nil {
		conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// greeting is what a connection has found when it was made.
type greeting struct {
	contract.Place
	// number is that of the connection; see [contract.Gate].
	number int64
	// log is the oid of the table, by which the stores of this schema are told from others.
	log int64
	// started is when the server was started, in microseconds since 1970.
	started int64
	// replaceAt is when the connection is to be replaced, zero if never, and replacement does it.
	replaceAt   time.Time
	replacement replacement
	// warnings counts what the server has warned of, and warning is the last.
	warnings int
	warning  *pgconn.Notice
}

// watch begins to look for warnings, and returns what to ask after COMMIT was confirmed. If anybody
// cancels the wait for a synchronous standby, the server warns of it and then confirms the commit,
// although no standby may have it. Nothing else is known to make it warn there; but whatever it is,
// the outcome counts as unknown, and is resolved by a commit that waits for the standby again.
func (g *greeting) watch() (confirmed func() error) {
	before := g.warnings
	return func() error {
		if g.warnings == before {
			return nil
		}
		return contract.Errorf(contract.Unknown, "PostgreSQL confirmed the commit with a warning: %w",
			(*pgconn.PgError)(g.warning))
	}
}

// check refuses an answer of another server than the one that the connection was made to. The row
// has the header.
func (g *greeting) check(r row) error {
	if r[0] != nil && r.number(0, 6) != g.started {
		return contract.ErrAnotherServer
	}
	return nil
}

// greetingKey is where a connection keeps its greeting.
const greetingKey = "rowkeeper"

// greetingOf returns that of a connection that was greeted.
func greetingOf(conn *pgx.Conn) *greeting { return greetingFrom(conn.PgConn()) }

func greetingFrom(conn *pgconn.PgConn) *greeting {
	return conn.CustomData()[greetingKey].(*greeting)
}

// begin readies the configuration of a connection that is to be made, and numbers it: the address
// is looked up after that.
func (d *database) begin(ctx context.Context, cc *pgx.ConnConfig) (err error) {
	g := &greeting{number: d.address.Begin()}
	cc.AfterConnect = func(_ context.Context, conn *pgconn.PgConn) error {
		conn.CustomData()[greetingKey] = g
		return nil
	}
	cc.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			g.warnings, g.warning = g.warnings+1, n
		}
	}
	g.replaceAt, err = d.cfg.refresh(ctx, cc)
	return err
}

func checkVersion(conn *pgx.Conn) error {
	version := conn.PgConn().ParameterStatus("server_version")
	if major, err := majorVersion(version); err != nil || major < oldestServer {
		return contract.Errorf(contract.Invalid, "the server is PostgreSQL %s, and version %d or later "+
			"is needed", version, oldestServer)
	}
	return nil
}

// majorVersion reads the beginning of a version such as "15.18 (Debian 15.18-0+deb12u1)" or
// "18beta1".
func majorVersion(s string) (int, error) {
	end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(s)
	}
	return strconv.Atoi(s[:end])
}

// setUp makes a session's settings, in its first statement: until then the role's own time limits
// hold, which are not made for what follows. They are not sent as parameters of the connection,
// since poolers refuse parameters that they do not know. Behind a pooler in transaction mode a
// session is not ours to set up, and reads keep to the role's limits.
func (c *config) setUp(ctx context.Context, conn *pgx.Conn, settings string) error {
	if !c.prepared {
		return nil
	}
	if err := conn.PgConn().Exec(ctx, settings).Close(); err != nil {
		return c.connectError(err)
	}
	return nil
}

// greet makes a new connection ready, and finds out where it leads. Each store decides by that
// whether it uses the connection.
func (d *database) greet(ctx context.Context, conn *pgx.Conn, writes bool) error {
	if err := checkVersion(conn); err != nil {
		return err
	}
	if err := d.cfg.setUp(ctx, conn, d.cfg.sessionSettings(conn, writes)); err != nil {
		return err
	}
	if err := d.place(ctx, conn, greetingOf(conn)); err != nil {
		return err
	}
	if !d.cfg.prepared || !writes {
		return nil
	}
	if _, err := conn.Exec(ctx, sqlSetUpWriter); err != nil {
		return d.cfg.connectError(err)
	}
	pipeline := conn.PgConn().StartPipeline(ctx)
	for _, s := range writingStatements {
		pipeline.SendPrepare(s.name, s.sql, s.types)
	}
	err := pipeline.Sync()
	for range writingStatements {
		if err == nil {
			_, err = pipeline.GetResults()
		}
	}
	if closeErr := pipeline.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return d.cfg.connectError(err)
	}
	return nil
}

// sqlSetUpWriter makes the settings of a writing session that depend on the server, where it has
// them and they are at their defaults.
//
// A commit is confirmed when it is on the disk, whatever the server's default is; which standbys it
// has to wait for remains the operator's choice. Values are compressed by LZ4, which costs less
// than writing what it saves, while the server's default (pglz) takes longer than all the rest of a
// commit.
const sqlSetUpWriter = `
SELECT set_config(name, CASE name WHEN 'synchronous_commit' THEN 'on' ELSE 'lz4' END, false)
FROM pg_settings
WHERE name = 'synchronous_commit' AND setting = 'off'
   OR name = 'default_toast_compression' AND setting = 'pglz' AND 'lz4' = ANY (enumvals)`

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// link implements [sqlkit.Link]: a connection of a pool, or one of its own.
type link struct {
	*pgx.Conn
	pooled *pgxpool.Conn
}

func (l link) Leads() (contract.Place, int64, error) {
	g := greetingOf(l.Conn)
	return g.Place, g.number, nil
}

func (l link) Release() {
	if l.pooled != nil {
		l.pooled.Release()
	} else {
		l.Close(context.Background())
	}
}

func (l link) Discard(ctx context.Context) {
	l.Close(ctx)
	l.Release()
}

// pool and besides implement [sqlkit.Pool]: besides makes each connection anew.
type (
	pool    pgxpool.Pool
	besides database
)

func (p *pool) Get(ctx context.Context) (link, error) {
	conn, err := (*pgxpool.Pool)(p).Acquire(ctx)
	if err != nil {
		return link{}, err
	}
	return link{conn.Conn(), conn}, nil
}

func (d *besides) Get(ctx context.Context) (link, error) {
	conn, err := (*database)(d).connect(ctx)
	return link{Conn: conn}, err
}

// beside runs f on a connection of its own, which may lead to another database than the one that
// was opened: to find that out, and to fence.
func (d *database) beside(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.timeout)
	defer cancel()
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return f(ctx, conn)
}
