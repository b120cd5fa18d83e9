package postgres

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/inspect"
)

var _ inspect.Driver = driver{}

// Inspect implements [inspect.Driver], on one connection whose settings are those that any program
// would have. Each question is a transaction of its own that only reads.
func (driver) Inspect(ctx context.Context, url string, opts contract.DriverOptions,
	f func(*inspect.Database) error) error {
	cfg, err := parseURL(url, opts)
	if err != nil {
		return err
	}
	cc := cfg.pool.ConnConfig.Copy()
	application := cc.RuntimeParams["application_name"]
	cc.RuntimeParams["application_name"] = application + " inspects"
	db := stdlib.OpenDB(*cc)
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return cfg.connectError(err)
	}
	defer conn.Close()
	i := &inspector{config: cfg, conn: conn, store: opts.StoreName(), application: application}
	i.database = inspect.Database{Kind: driver{}.Name(), Where: cc.Database + " at " + cfg.where(),
		Store: i.store, Newest: migrations.Postgres.Newest(), Indexes: indexes,
		Analyze: "ANALYZE %s", Application: application, Pooler: !cfg.prepared,
		Ask: i.ask, Repair: i.repair}
	return f(&i.database)
}

// inspector answers questions.
type inspector struct {
	*config
	conn               *sql.Conn
	store, application string
	database           inspect.Database
}

func (i *inspector) ask(ctx context.Context, q inspect.Question, args ...any) ([]inspect.Row, error) {
	text, known := questions[q]
	if !known {
		return nil, inspect.ErrNoAnswer
	}
	switch q {
	case inspect.Store:
		args = []any{i.store}
	case inspect.Servers:
		args = []any{i.application}
	}
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	tx, err := i.conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, i.connectError(err)
	}
	defer func() { _ = tx.Rollback() }() // it has only read
	if q != inspect.Settings {
		// The settings that are asked for are those that other programs find.
		if _, err := tx.ExecContext(ctx, inspectorSettings(i.timeout)); err != nil {
			return nil, i.connectError(err)
		}
	}
	rows, err := inspect.ReadRows(ctx, tx, strings.ReplaceAll(text, "$store", i.database.ID), args...)
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		switch {
		case q == inspect.IndexCheck && strings.HasPrefix(e.Code, "XX"):
			return []inspect.Row{{"damage": e.Message}}, nil
		case q == inspect.IndexCheck && e.Code == "42883":
			return nil, errNoAmcheck
		case q == inspect.Schema && e.Code == "42P01":
			return nil, nil
		}
		// In the server's words, which hold no more than names.
		return nil, contract.Errorf(contract.Denied, "PostgreSQL says: %s", e.Message)
	}
	if err == nil && q == inspect.Server && len(rows) == 1 {
		err = i.conn.Raw(func(c any) error {
			told := c.(*stdlib.Conn).Conn().PgConn().PID()
			rows[0]["told"] = strconv.FormatUint(uint64(told), 10)
			return nil
		})
	}
	if err != nil {
		return nil, i.connectError(err)
	}
	return rows, nil
}

var errNoAmcheck = contract.Errorf(contract.Denied, "install the extension amcheck (CREATE EXTENSION "+
	"amcheck), and let the role execute its functions")

// repair runs a statement in no transaction, as CREATE INDEX CONCURRENTLY wants it. It takes as
// long as it takes.
func (i *inspector) repair(ctx context.Context, statement string) error {
	_, err := i.conn.ExecContext(ctx, "SET statement_timeout = 0")
	if err == nil {
		_, err = i.conn.ExecContext(ctx, statement)
	}
	if err != nil {
		return i.connectError(err)
	}
	return nil
}

// indexes are those of the migrations.
var indexes = []inspect.Index{
	primaryKey("rowkeeper_log", "store,revision"),
	primaryKey("rowkeeper_live", "store,key"),
	{Table: "rowkeeper_live", Name: "rowkeeper_live_expiry", Columns: "store,expiry",
		Create: "CREATE INDEX CONCURRENTLY rowkeeper_live_expiry ON rowkeeper_live (store, expiry) " +
			"WHERE expiry IS NOT NULL",
		Drop:    "DROP INDEX CONCURRENTLY rowkeeper_live_expiry",
		Rebuild: "REINDEX INDEX CONCURRENTLY rowkeeper_live_expiry"},
	primaryKey("rowkeeper_lease", "store,id"),
	{Table: "rowkeeper_lease", Name: "rowkeeper_lease_expiry", Columns: "store,expiry",
		Create:  "CREATE INDEX CONCURRENTLY rowkeeper_lease_expiry ON rowkeeper_lease (store, expiry)",
		Drop:    "DROP INDEX CONCURRENTLY rowkeeper_lease_expiry",
		Rebuild: "REINDEX INDEX CONCURRENTLY rowkeeper_lease_expiry"},
	primaryKey("rowkeeper_store", "id"),
	primaryKey("rowkeeper_aborted", "store,token"),
	primaryKey("rowkeeper_resource", "store,directory"),
	primaryKey("rowkeeper_index", "store,entry,key"),
	primaryKey("rowkeeper_user", "store,revision"),
}

func primaryKey(table, columns string) inspect.Index {
	return inspect.Index{Table: table, Name: table + "_pkey", Columns: columns, Unique: true,
		Rebuild: "REINDEX INDEX CONCURRENTLY " + table + "_pkey"}
}

// inspectorSettings keep the statements below to the indexes that they name, as those of the engine
// are, whatever limits the role has. The server ends them before their callers do, which would cost
// the connection.
func inspectorSettings(timeout time.Duration) string {
	return setConfig(map[string]string{
		"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off",
		"enable_mergejoin": "off", "max_parallel_workers_per_gather": "0", "jit": "off",
		"lock_timeout": milliseconds(timeout / 3), "statement_timeout": milliseconds(timeout * 2 / 3)}, true)
}

// ourTables are the tables of the session's schema.
const ourTables = `ARRAY['rowkeeper_log', 'rowkeeper_live', 'rowkeeper_store', 'rowkeeper_aborted', 'rowkeeper_lease', 'rowkeeper_resource', 'rowkeeper_index', 'rowkeeper_user']`

// questions are the statements. $store stands for the id of the store, in digits.
var questions = map[inspect.Question]string{
	// No table is read.
	inspect.Server: `
SELECT 'PostgreSQL' AS product, current_setting('server_version') AS version,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
       quote_ident(current_user) AS role, quote_ident(current_database()) AS database,
       pg_is_in_recovery() AS standby, pg_backend_pid() AS backend,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_others`,
	// The table has a row for each migration.
	inspect.Schema: `SELECT coalesce(max(version_id), 0) AS version FROM rowkeeper_schema`,
	// The row of the store by the unique index on its name, and the newest row of its part of the
	// log, by the primary key.
	inspect.Store: `
SELECT s.id, s.epoch, s.compacted, s.swept, s.oldest_writer, s.max_objects, s.max_bytes,
       s.generation, s.indexes, h.revision AS head, h.time AS written
FROM rowkeeper_store s
LEFT JOIN LATERAL (SELECT g.revision, g.time FROM rowkeeper_log g WHERE g.store = s.id ORDER BY g.revision DESC LIMIT 1) h ON true
WHERE s.name = $1::text`,
	// Only the settings that a check judges.
	inspect.Settings: `
SELECT name, setting AS value, source
FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'autovacuum', 'track_counts',
               'default_transaction_read_only', 'default_transaction_isolation', 'statement_timeout', 'lock_timeout',
               'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')`,
	// As sqlPrivileges, one in a row. A table that is not there is the business of the schema.
	inspect.Rights: `
SELECT privilege, name
FROM` + neededPrivileges + `
WHERE to_regclass(name) IS NOT NULL AND NOT has_table_privilege(name, privilege)`,
	// Sessions of the database by the name that servers give them, and the ones that hold the lock
	// of those who listen for announcements (sqlListens): one for each server process.
	inspect.Servers: `
SELECT a.usename AS user, a.application_name AS application, coalesce(host(a.client_addr), 'local') AS address,
       count(*) AS connections, count(l.pid) AS processes,
       coalesce(extract(epoch FROM max(clock_timestamp() - a.backend_start))::bigint, 0) AS since
FROM pg_stat_activity a
LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.granted
      AND l.classid = 'rowkeeper_log'::regclass::oid AND l.objid = 0 AND l.objsubid = 2
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND (a.application_name = $1::text OR l.pid IS NOT NULL)
GROUP BY a.usename, a.application_name, a.client_addr
ORDER BY a.usename, a.application_name, a.client_addr`,
	// Whoever has a snapshot or a transaction number keeps the rows that are younger.
	inspect.Transactions: `
SELECT a.pid::text AS id, a.usename AS user, a.application_name AS application, coalesce(host(a.client_addr), 'local') AS address,
       a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::bigint AS seconds,
       a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL AS holds
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
UNION ALL
SELECT p.gid, p.owner, '', '', 'prepared', extract(epoch FROM clock_timestamp() - p.prepared)::bigint, true
FROM pg_prepared_xacts p
WHERE p.database = current_database()`,
	// Locks on our tables, with how many sessions wait for who has them. The strong ones are those
	// that writers wait for.
	inspect.Locks: `
SELECT l.pid AS id, a.usename AS user, a.application_name AS application, coalesce(host(a.client_addr), 'local') AS address,
       string_agg(DISTINCT c.relname, ', ') AS object, string_agg(DISTINCT l.mode, ', ') AS mode,
       bool_or(l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) AS strong,
       (SELECT count(*) FROM pg_stat_activity w WHERE w.wait_event_type = 'Lock' AND l.pid = ANY (pg_blocking_pids(w.pid))) AS waiters,
       coalesce(extract(epoch FROM clock_timestamp() - max(a.xact_start))::bigint, 0) AS seconds
FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid
JOIN pg_class c ON c.oid = l.relation
WHERE l.locktype = 'relation' AND l.granted AND a.datname = current_database() AND a.backend_type = 'client backend'
      AND l.pid <> pg_backend_pid() AND c.oid IN (SELECT to_regclass(name) FROM unnest(` + ourTables + `) AS name)
GROUP BY l.pid, a.usename, a.application_name, a.client_addr`,
	// From statistics, and the file system.
	inspect.Tables: `
SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes, s.n_live_tup AS rows, s.n_dead_tup AS dead,
       age(c.relfrozenxid) AS age, array_to_string(c.reloptions, ',') AS options,
       s.last_analyze IS NOT NULL OR s.last_autoanalyze IS NOT NULL AS analyzed
FROM unnest(` + ourTables + `) AS name
JOIN pg_class c ON c.oid = to_regclass(name)
LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid`,
	// As sqlSize, without a store.
	inspect.Sizes: `
SELECT sum(total)::bigint AS total, sum(least(used, total))::bigint AS live
FROM (` + sizesOfTables + `) tables`,
	// Standbys, and slots.
	inspect.Replication: `
SELECT r.application_name AS name, r.state, r.sync_state AS sync, false AS slot,
       coalesce(pg_wal_lsn_diff(e.lsn, r.replay_lsn)::bigint, 0) AS behind
FROM pg_stat_replication r
CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END AS lsn) e
UNION ALL
SELECT s.slot_name, CASE WHEN s.active THEN 'active' ELSE 'inactive' END, '', true,
       coalesce(pg_wal_lsn_diff(e.lsn, s.restart_lsn)::bigint, 0)
FROM pg_replication_slots s
CROSS JOIN (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END AS lsn) e`,
	// The columns of each index, in their order.
	inspect.Indexes: `
SELECT t.relname AS table, i.relname AS name, string_agg(a.attname, ',' ORDER BY k.n) AS columns,
       x.indisunique AS unique, x.indisvalid AND x.indisready AS valid
FROM pg_index x
JOIN pg_class i ON i.oid = x.indexrelid
JOIN pg_class t ON t.oid = x.indrelid
CROSS JOIN LATERAL unnest(x.indkey::smallint[]) WITH ORDINALITY AS k (attribute, n)
JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.attribute
WHERE t.oid IN (SELECT to_regclass(name) FROM unnest(` + ourTables + `) AS name)
GROUP BY t.relname, i.relname, x.indisunique, x.indisvalid, x.indisready`,
	// The primary key of live, from an entry on. $1 key.
	inspect.NextKey: `
SELECT key FROM rowkeeper_live WHERE store = $store AND key >= $1::bytea ORDER BY key LIMIT 1`,
	// A range of the primary key of live. $1 first key, $2 the key after the last one.
	inspect.CountKeys: `
SELECT count(*) AS n FROM rowkeeper_live WHERE store = $store AND key >= $1::bytea AND key < $2::bytea`,
	// A range of the primary key of live, and for each row the log's primary key. $1 key, $2 limit.
	inspect.LivePiece: `
WITH piece AS MATERIALIZED (
    SELECT key, revision, create_revision, version, lease
    FROM rowkeeper_live WHERE store = $store AND key > $1::bytea ORDER BY key LIMIT $2::bigint
), head AS MATERIALIZED (
    SELECT coalesce(max(revision), 0) AS revision FROM rowkeeper_log WHERE store = $store
), compared AS MATERIALIZED (
    SELECT l.key, l.revision, g.revision IS NULL AS lost, g.key <> l.key OR g.deleted AS other,
           g.create_revision <> l.create_revision OR g.version <> l.version OR g.lease <> l.lease AS differs,
           CASE WHEN l.revision < 0 THEN (-l.revision) / 512 ELSE l.revision END > h.revision AS beyond
    FROM piece l
    CROSS JOIN head h
    LEFT JOIN rowkeeper_log g ON g.store = $store AND g.revision = l.revision
)
SELECT count(*) AS rows, (SELECT key FROM piece ORDER BY key DESC LIMIT 1) AS last,
       count(*) FILTER (WHERE lost AND NOT beyond) AS lost, count(*) FILTER (WHERE other) AS other,
       count(*) FILTER (WHERE NOT other AND differs) AS differs, count(*) FILTER (WHERE beyond) AS beyond,
       min(abs(revision)) FILTER (WHERE lost OR other OR differs OR beyond) AS example
FROM compared`,
	// A range of the primary key of the indexes, and for each row that of live. $1 entry, $2 key,
	// $3 the entry beyond the last one, $4 limit.
	inspect.EntryPiece: `
WITH piece AS MATERIALIZED (
    SELECT entry, key FROM rowkeeper_index
    WHERE store = $store AND (entry, key) > ($1::bytea, $2::bytea) AND entry < $3::bytea
    ORDER BY entry, key LIMIT $4::bigint
), alone AS MATERIALIZED (
    SELECT abs(l.revision) AS revision
    FROM piece p
    LEFT JOIN rowkeeper_live l ON l.store = $store AND l.key = p.key
    WHERE NOT coalesce(p.entry = ANY (l.entries), false)
)
SELECT s.generation, (SELECT count(*) FROM piece) AS rows, z.entry, z.key,
       (SELECT count(*) FROM alone) AS alone, (SELECT min(revision) FROM alone) AS example
FROM rowkeeper_store s
LEFT JOIN (SELECT entry, key FROM piece ORDER BY entry DESC, key DESC LIMIT 1) z ON true
WHERE s.id = $store`,
	// A range of the primary key of live, and for each entry that of the indexes. $1 key, $2 the
	// key beyond the last one, $3 entry, $4 the entry beyond the last one, $5 limit.
	inspect.EntriesPiece: `
WITH piece AS MATERIALIZED (
    SELECT key, revision, entries
    FROM rowkeeper_live WHERE store = $store AND key > $1::bytea AND key < $2::bytea ORDER BY key LIMIT $5::bigint
), lacking AS MATERIALIZED (
    SELECT abs(p.revision) AS revision
    FROM piece p CROSS JOIN LATERAL unnest(p.entries) e (entry)
    WHERE e.entry >= $3::bytea AND e.entry < $4::bytea AND NOT EXISTS (
              SELECT FROM rowkeeper_index i WHERE i.store = $store AND i.entry = e.entry AND i.key = p.key)
)
SELECT s.generation, (SELECT count(*) FROM piece) AS rows, (SELECT key FROM piece ORDER BY key DESC LIMIT 1) AS last,
       (SELECT count(*) FROM lacking) AS lacking, (SELECT min(revision) FROM lacking) AS example
FROM rowkeeper_store s
WHERE s.id = $store`,
	// A range of the log's primary key, and for a transaction its parts by the same one. The last
	// two bytes of a token say how many there are. $1 revision, $2 limit.
	inspect.LogPiece: `
WITH piece AS MATERIALIZED (
    SELECT revision, prev_revision, key = '' AS marker, get_byte(token, 14) * 256 + get_byte(token, 15) AS parts
    FROM rowkeeper_log WHERE store = $store AND revision > $1::bigint ORDER BY revision LIMIT $2::bigint
), store AS MATERIALIZED (
    SELECT compacted FROM rowkeeper_store WHERE id = $store
), judged AS MATERIALIZED (
    SELECT p.revision, p.revision > s.compacted AS kept,
           CASE WHEN p.prev_revision < 0 THEN (-p.prev_revision) / 512 ELSE p.prev_revision END >= p.revision AS backwards,
           CASE WHEN p.parts > 0 AND NOT p.marker AND p.revision > s.compacted THEN p.parts <> (
               SELECT count(*) FROM rowkeeper_log g
               WHERE g.store = $store AND g.revision BETWEEN -(p.revision * 512 + p.parts) AND -(p.revision * 512 + 1)
           ) ELSE false END AS incomplete
    FROM piece p CROSS JOIN store s
)
SELECT count(*) AS rows, coalesce(max(revision), 0) AS last, (SELECT compacted FROM store) AS compacted,
       count(*) FILTER (WHERE kept) AS kept, count(*) - count(DISTINCT revision) AS twice,
       count(*) FILTER (WHERE backwards) AS backwards, count(*) FILTER (WHERE incomplete) AS incomplete,
       min(revision) FILTER (WHERE backwards OR incomplete) AS example
FROM judged`,
	// The log's primary key, backwards from an ID, and for each part the row of its transaction by
	// the same one. $1 ID, $2 limit.
	inspect.PartPiece: `
WITH piece AS MATERIALIZED (
    SELECT g.revision AS id, (-g.revision) / 512 AS revision
    FROM rowkeeper_log g WHERE g.store = $store AND g.revision < $1::bigint ORDER BY g.revision DESC LIMIT $2::bigint
), store AS MATERIALIZED (
    SELECT s.compacted, (SELECT coalesce(max(revision), 0) FROM rowkeeper_log WHERE store = $store) AS head
    FROM rowkeeper_store s WHERE s.id = $store
), judged AS MATERIALIZED (
    SELECT p.id, p.revision, p.revision > s.head AS beyond, p.revision > s.compacted AND NOT EXISTS (
               SELECT FROM rowkeeper_log g WHERE g.store = $store AND g.revision = p.revision
           ) AS orphan
    FROM piece p CROSS JOIN store s
)
SELECT count(*) AS rows, coalesce(min(id), 0) AS last, count(*) FILTER (WHERE orphan AND NOT beyond) AS orphans,
       count(*) FILTER (WHERE beyond) AS beyond, min(revision) FILTER (WHERE orphan OR beyond) AS example
FROM judged`,
	// A range of the primary key of the users, and for each row that of the log. $1 revision, $2
	// limit.
	inspect.UserPiece: `
WITH piece AS MATERIALIZED (
    SELECT revision FROM rowkeeper_user WHERE store = $store AND revision > $1::bigint ORDER BY revision LIMIT $2::bigint
)
SELECT count(*) AS rows, coalesce(max(p.revision), 0) AS last, count(*) FILTER (WHERE g.revision IS NULL) AS alone,
       min(p.revision) FILTER (WHERE g.revision IS NULL) AS example
FROM piece p
LEFT JOIN rowkeeper_log g ON g.store = $store AND g.revision = p.revision`,
	// The function takes the lock of a reader. $1 is not used, $2 index.
	inspect.IndexCheck: `SELECT bt_index_check(to_regclass($2::text))::text AS damage WHERE $1::text IS NOT NULL`,
}
