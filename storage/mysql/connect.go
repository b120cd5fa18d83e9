package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// sessionSettings make a session what the statements of this package expect, whatever the server's
// defaults are. Each has its reason:
//
//   - time_zone: UTC, for the creation time in the fingerprint (the statements use UTC_TIMESTAMP).
//   - sql_mode: data that does not fit is an error, and a backslash in a literal escapes.
//   - autocommit, completion_type: a statement outside of a transaction commits, and COMMIT begins
//     no new one.
//   - innodb_lock_wait_timeout, lock_wait_timeout: nobody waits for a row or for DDL for ever.
//   - net_read_timeout: a client that stops while it sends the statements that end a transaction
//     loses it.
//   - sql_select_limit, sql_safe_updates, sql_big_selects: reads are complete, updates by list are
//     allowed, and max_join_size forbids no join. (Proxies take the limit for a signed number.)
//   - max_sort_length: keys are sorted by all of their bytes.
const sessionSettings = `SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
	autocommit = 1, completion_type = 'NO_CHAIN', innodb_lock_wait_timeout = %[1]d, lock_wait_timeout = %[1]d,
	net_read_timeout = %[2]d, sql_select_limit = 9223372036854775807, sql_safe_updates = 0, sql_big_selects = 1,
	max_sort_length = 1024`

// sessionIsolation: each statement has a snapshot of its own, taken when it starts, so the one that
// follows the commit lock sees what was committed while waiting for it.
const sessionIsolation = `SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE`

// serverVariables asks for what differs between servers. Those that a server does not have are
// missing in the answer.
const serverVariables = `SHOW VARIABLES WHERE variable_name IN ('version', 'server_uuid', 'server_id', 'max_allowed_packet',
	'log_bin', 'binlog_format', 'innodb_flush_log_at_trx_commit', 'sync_binlog', 'innodb_flush_method', 'debug_no_sync', 'wsrep_on', 'wsrep_provider', 'group_replication_single_primary_mode', 'group_replication_consistency', 'group_replication_group_name', 'tidb_current_ts')`

// galeraStatus asks a Galera node for its cluster, and whether it takes part in it.
const galeraStatus = `SHOW STATUS WHERE variable_name IN ('wsrep_cluster_state_uuid', 'wsrep_ready')`

// facts are what a connection found out about its server.
type facts struct {
	mariadb   bool
	galera    bool
	tidb      bool
	maxPacket int
	// server is what serverID returns, "" on Galera and TiDB, where any node may answer.
	server string
	// The fingerprint identifies the database: the server, the database's name, and the creation of
	// the tables. Restarts keep it. A dump that is restored, another server that is promoted,
	// tables that are moved here from another database, and files that are copied change it. It is
	// "" if there are no tables. Then there is no boot, nor is there one on Galera.
	contract.Place
	// number is that of the connection; see [contract.Gate].
	number int64
}

// server is what all connections have in common.
type server struct {
	cfg *config
	log *slog.Logger
	// lockWait is how long the server makes a session wait for a lock, hold how long it lets a
	// client be silent in the middle of a transaction (a paused process, a host that is gone)
	// before it rolls back; in seconds. A client never sleeps while it holds the commit lock, so
	// hold is long for it, and short for those who wait.
	lockWait, hold int
	address        contract.Address
	// minPacket is the max_allowed_packet that the limits need.
	minPacket atomic.Int64
}

func newServer(url string, opts contract.DriverOptions) (*server, error) {
	cfg, err := parseURL(url)
	if err != nil {
		return nil, &contract.Error{Class: contract.Denied, Err: err}
	}
	if cfg.login = opts.Login; cfg.login == nil && cfg.user == "" {
		return nil, &contract.Error{Class: contract.Denied, Err: errNoUser}
	}
	return &server{cfg: cfg, log: opts.Logger, lockWait: seconds(opts.Timeout / 3),
		hold: seconds(opts.Timeout / 10)}, nil
}

// seconds rounds to the unit of the server's timeouts.
func seconds(d time.Duration) int { return max(1, int(d.Round(time.Second)/time.Second)) }

// connector opens connections with the session settings.
type connector struct {
	*server
	// transactions: the connection is for transactions, which are sent as several statements in one
	// text.
	transactions bool
	// once: the connection is not used again, so that each use finds out anew what the server is.
	once bool
}

func (c *connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

// session is what the driver's connections implement.
type session interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// conn is a connection whose server is known.
type conn struct {
	session
	facts facts
	// state is the statement preparedState, nil until it is used. plain: the server has refused to
	// prepare or to execute it.
	state driver.Stmt
	plain bool
	// set is the statement that sets so many variables, nil until values were held. unheld: the
	// server has refused it.
	set       driver.Stmt
	variables int
	unheld    bool

	// replace, if not nil, calls leave when the connection is to be replaced.
	replace *time.Timer
	// mu protects left, which says that it is to be replaced, and unused, which says that nobody
	// uses it.
	mu           sync.Mutex
	left, unused bool
}

// leave closes the connection at once if it is unused. Otherwise package sql closes it after its
// use.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left = true; c.unused {
		_ = c.session.Close()
	}
}

// IsValid implements [driver.Validator]. Package sql calls it after each use.
func (c *conn) IsValid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unused = !c.left
	return c.unused && c.session.IsValid()
}

// ResetSession implements [driver.SessionResetter]. Package sql calls it before each use but the
// first.
func (c *conn) ResetSession(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unused = false; c.left {
		return driver.ErrBadConn
	}
	return c.session.ResetSession(ctx)
}

// QueryContext implements [driver.QueryerContext]. It prepares preparedState once, and sends all
// else as text.
func (c *conn) QueryContext(ctx context.Context, query string,
	args []driver.NamedValue) (driver.Rows, error) {
	if query != preparedState || c.plain {
		return c.session.QueryContext(ctx, query, args)
	}
	rows, err := c.queryState(ctx, args)
	if refused := (*mysql.MySQLError)(nil); errors.As(err, &refused) {
		// All sessions together may have as many prepared statements as are allowed, or a proxy has
		// lost this one. If it is something else, the text says so as well.
		if c.state != nil {
			_ = c.state.Close()
		}
		c.state, c.plain = nil, true
		return c.session.QueryContext(ctx, query, args)
	}
	return rows, err
}

func (c *conn) queryState(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if c.state == nil {
		var err error
		if c.state, err = c.session.PrepareContext(ctx, preparedState); err != nil {
			return nil, err
		}
	}
	return c.state.(driver.StmtQueryContext).QueryContext(ctx, args)
}

// Close closes the connection. That the server was first is no error.
func (c *conn) Close() error {
	if c.replace != nil {
		c.replace.Stop()
	}
	_ = c.session.Close()
	return nil
}

// Connect opens a connection. Its errors are of type *contract.Error. Package sql may call it in a
// goroutine of its own, where a panic would end the process.
func (c *connector) Connect(ctx context.Context) (opened driver.Conn, err error) {
	err = contract.Recovered(func() (err error) {
		opened, err = c.connect(ctx)
		return err
	})
	if p := (*contract.PanicError)(nil); errors.As(err, &p) {
		c.log.Error("to connect has panicked", "panic", fmt.Sprint(p.Value), "stack", p.Stack)
		return nil, contract.Errorf(contract.Unavailable, "connect: %w", p)
	}
	return opened, err
}

func (c *connector) connect(ctx context.Context) (driver.Conn, error) {
	log := &driverLog{log: c.log}
	cfg, login, err := c.cfg.dial(ctx, c.transactions, log)
	if err != nil {
		return nil, &contract.Error{Class: contract.Denied, Err: err}
	}
	d, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, &contract.Error{Class: contract.Denied,
			Err: fmt.Errorf("the database URL cannot be used: %w", err)}
	}
	number, replaceAt := c.address.Begin(), contract.ReplaceAt(login, time.Now())
	raw, err := d.Connect(ctx)
	if err != nil {
		if refused := (*mysql.MySQLError)(nil); login.Refused != nil && errors.As(err, &refused) &&
			loginRefused(refused) {
			login.Refused()
		}
		return nil, c.cfg.connectError(cfg.User, log.explain(err))
	}
	s, ok := raw.(session)
	if !ok {
		raw.Close()
		return nil, contract.Errorf(contract.Invalid, "the mysql driver's connections lack a method")
	}
	f, err := c.begin(ctx, s)
	if err != nil {
		raw.Close()
		var e *contract.Error
		if errors.As(err, &e) {
			return nil, e
		}
		return nil, c.cfg.connectError(cfg.User, log.explain(err))
	}
	f.number = number
	opened := &conn{session: s, facts: f}
	if !replaceAt.IsZero() {
		opened.replace = time.AfterFunc(time.Until(replaceAt), opened.leave)
	}
	return opened, nil
}

// begin finds out what the server is, refuses it or makes the session ready.
func (c *connector) begin(ctx context.Context, s session) (facts, error) {
	f, vars := facts{}, map[string]string{}
	// First of all, since a server's sql_select_limit would cut short the answer to what follows.
	if err := run(ctx, s, fmt.Sprintf(sessionSettings, c.lockWait, c.hold), sessionIsolation,
		"SET NAMES utf8mb4"); err != nil {
		return f, err
	}
	if err := c.pairs(ctx, s, serverVariables, vars); err != nil {
		return f, err
	}
	f.mariadb = isMariaDB(vars)
	_, f.tidb = vars["tidb_current_ts"] // its version may be any that its configuration says
	if err := checkVersion(vars["version"], f.mariadb); err != nil {
		return f, err
	}
	if isOn(vars["log_bin"]) && vars["binlog_format"] == "STATEMENT" {
		return f, contract.Errorf(contract.Invalid,
			"the server writes its binary log with binlog_format=STATEMENT, which InnoDB does "+
				"not allow at READ COMMITTED: set binlog_format=ROW")
	}
	if mode, ok := vars["group_replication_single_primary_mode"]; ok && !isOn(mode) {
		return f, contract.Errorf(contract.Invalid,
			"group replication with several primaries cannot be used: its members do not see "+
				"each other's locks; set group_replication_single_primary_mode=ON")
	}
	var err error
	if f.maxPacket, err = strconv.Atoi(vars["max_allowed_packet"]); err != nil {
		return f, contract.Errorf(contract.Invalid, "the server's max_allowed_packet is %q",
			vars["max_allowed_packet"])
	}
	if need := int(c.minPacket.Load()); f.maxPacket < need {
		return f, contract.Errorf(contract.Invalid,
			"the server's max_allowed_packet was lowered to %d bytes: raise it to %d or more, or "+
				"restart this program", f.maxPacket, need)
	}

	var settings []string
	// The server's own limits are not made for backups and large deletions. How long a transaction
	// may take, and its client be silent, is the business of this package, and so is how much is
	// read at a time.
	switch {
	case f.tidb:
		if err := c.pairs(ctx, s, tidbVariables, vars); err != nil {
			return f, err
		}
		set, err := tidbSession(vars)
		if err != nil {
			return f, err
		}
		settings = append(settings, set)
	case f.mariadb:
		// Lists of more than 1,000 values stay lists, and are not made a join.
		settings = append(settings, "SET SESSION in_predicate_conversion_threshold = 0, "+
			"max_statement_time = 0, idle_transaction_timeout = 0, "+
			"idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0, "+
			"max_session_mem_used = 9223372036854775807")
	default:
		// Sizes are those of now, and not of yesterday.
		settings = append(settings, "SET SESSION information_schema_stats_expiry = 0, "+
			"max_execution_time = 0")
	}
	if c.transactions && !f.tidb {
		// What is sent is ASCII but for values that are arguments. So the server need not look for
		// characters of several bytes.
		settings = append(settings, "SET SESSION character_set_client = binary")
	}
	if _, ok := vars["group_replication_consistency"]; ok {
		// A new primary answers after it has applied what it had received.
		settings = append(settings, "SET SESSION group_replication_consistency = "+
			"'BEFORE_ON_PRIMARY_FAILOVER'")
	}
	if f.galera, err = inGalera(vars); err != nil {
		return f, err
	}
	switch {
	case f.mariadb && !f.galera:
		f.server = vars["server_id"]
	case !f.mariadb && !f.tidb:
		f.server = vars["server_uuid"]
	}
	if f.galera {
		if err := c.pairs(ctx, s, galeraStatus, vars); err != nil {
			return f, err
		}
		if !isOn(vars["wsrep_ready"]) {
			return f, contract.Errorf(contract.ReadOnly, "cannot use %s: %s", c.cfg, advice[1047])
		}
		// Reads, and the beginning of transactions, wait until the node has applied what the
		// cluster had committed before. The server must not repeat what it takes for single
		// statements: in a text of several it has been seen (10.11) to do that after another node's
		// commit had rolled back the transaction, and then to answer COMMIT with success. A node
		// without quorum must not answer reads, and a transaction is sent as one. A migration is
		// made on all nodes.
		settings = append(settings, "SET SESSION wsrep_sync_wait = 1, wsrep_retry_autocommit = 0, "+
			"wsrep_dirty_reads = 0, wsrep_trx_fragment_size = 0, wsrep_OSU_method = 'TOI'")
	}
	if err := run(ctx, s, settings...); err != nil {
		return f, err
	}
	if f.Fingerprint, err = c.fingerprintOf(ctx, s, f, vars); err != nil {
		return f, err
	}
	f.Boot, f.Relaxed, err = c.bootOf(ctx, s, f, vars)
	return f, err
}

// inGalera tells whether the server's commits are a Galera cluster's, and refuses one of MySQL.
// Servers that are built for it have wsrep_on set also where they are alone and name no provider.
func inGalera(vars map[string]string) (bool, error) {
	provider := vars["wsrep_provider"]
	if !isOn(vars["wsrep_on"]) || provider == "" || provider == "none" {
		return false, nil
	}
	if !isMariaDB(vars) {
		return false, contract.Errorf(contract.Invalid, "the server is a node of a Galera cluster of "+
			"MySQL, such as Percona XtraDB Cluster, which is not supported: use Galera with "+
			"MariaDB, or MySQL's group replication with one primary")
	}
	return true, nil
}

func isMariaDB(vars map[string]string) bool { return strings.Contains(vars["version"], "MariaDB") }

func run(ctx context.Context, s session, statements ...string) error {
	for _, q := range statements {
		if _, err := s.ExecContext(ctx, q, nil); err != nil {
			return err
		}
	}
	return nil
}

// pairs reads the rows of a SHOW statement. Names are in lower case.
func (c *connector) pairs(ctx context.Context, s session, query string,
	into map[string]string) error {
	rows, err := c.strings(ctx, s, query, 2)
	for _, r := range rows {
		into[strings.ToLower(r[0])] = r[1]
	}
	return err
}

// strings reads the first n columns of a statement's rows as text.
func (c *connector) strings(ctx context.Context, s session, query string,
	n int) ([][]string, error) {
	rows, err := s.QueryContext(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all [][]string
	values := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(values); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		row := make([]string, n)
		for i := range row {
			if b, ok := values[i].([]byte); ok {
				row[i] = string(b)
			} else {
				row[i] = fmt.Sprint(values[i])
			}
		}
		all = append(all, row)
	}
}

func isOn(v string) bool { return strings.EqualFold(v, "ON") || v == "1" }

// The oldest servers that can be used.
const (
	oldestMySQL   = "8.0"
	oldestMariaDB = "10.6"
)

// checkVersion reads versions such as 9.7.4-2, 8.0.36-0ubuntu0.22.04.1 and
// 10.11.19-MariaDB-0+deb12u1.
func checkVersion(version string, mariadb bool) error {
	name, oldest := "MySQL", oldestMySQL
	if mariadb {
		name, oldest = "MariaDB", oldestMariaDB
		// Replication clients of MySQL 5 once had to be told so.
		version = strings.TrimPrefix(version, "5.5.5-")
	}
	var major, minor, needMajor, needMinor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return contract.Errorf(contract.Invalid,
			"the server's version %q is not that of a MySQL or MariaDB", version)
	}
	if _, err := fmt.Sscanf(oldest, "%d.%d", &needMajor, &needMinor); err != nil {
		return err
	}
	if major < needMajor || major == needMajor && minor < needMinor {
		return contract.Errorf(contract.Invalid, "the server is %s %s: %s or newer is needed", name,
			version, oldest)
	}
	return nil
}
