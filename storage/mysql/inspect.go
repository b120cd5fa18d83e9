package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/inspect"
)

var _ inspect.Driver = opener{}

// Inspect implements [inspect.Driver], on one connection. Each question is a transaction of its own
// that only reads. Settings are the server's, as the session's own are made by this package.
func (opener) Inspect(ctx context.Context, url string, opts contract.DriverOptions,
	f func(*inspect.Database) error) error {
	s, err := newServer(url, opts)
	if err != nil {
		return err
	}
	d := newDatabase(s, opts.Timeout)
	defer d.Close()
	connecting, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()
	conn, err := d.admin.Conn(connecting)
	if err != nil {
		return d.failed("inspect the database", err)
	}
	defer conn.Close()
	facts, err := factsOf(conn)
	if err != nil {
		return d.failed("inspect the database", err)
	}
	i := &inspector{database: d, conn: conn, store: opts.StoreName(), mariadb: facts.mariadb,
		galera: facts.galera, tidb: facts.tidb}
	i.inspected = inspect.Database{Kind: opener{}.Name(), Where: s.cfg.String(), Store: i.store,
		Newest: migrations.MySQL.Newest(), Indexes: indexesOf(facts.mariadb),
		Analyze: "ANALYZE NO_WRITE_TO_BINLOG TABLE %s", Ask: i.ask, Repair: i.repair}
	return f(&i.inspected)
}

// inspector answers questions.
type inspector struct {
	*database
	conn      *sql.Conn
	store     string
	mariadb   bool
	galera    bool
	tidb      bool
	inspected inspect.Database
}

func (i *inspector) ask(ctx context.Context, q inspect.Question, args ...any) ([]inspect.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	if q == inspect.Rights {
		return i.rights(ctx)
	}
	texts, known := questions[q]
	if !known || i.tidb && slices.Contains(ofInnoDB, q) {
		return nil, inspect.ErrNoAnswer
	}
	switch q {
	case inspect.Store:
		args = []any{i.store}
	case inspect.EntryPiece: // two ranges, as in selectIndexRows
		args = slices.Insert(args, 2, args[0])
	case inspect.EntriesPiece: // the limit comes before the entries
		args = []any{args[0], args[1], args[4], args[2], args[3]}
	}
	var all []inspect.Row
	for _, text := range texts {
		if text.mysql && i.mariadb || text.mariadb && !i.mariadb || text.galera && !i.galera ||
			text.tidb && !i.tidb || text.innodb && i.tidb {
			continue
		}
		rows, err := i.rows(ctx, ofStore(text.sql, i.inspected.ID), args...)
		if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && q != inspect.Store {
			const noTable, noBinaryLog = 1146, 1381
			switch {
			case q == inspect.Schema && e.Number == noTable:
				return nil, nil
			case q == inspect.BinaryLogs && e.Number == noBinaryLog:
				return nil, inspect.ErrNoAnswer
			}
			return nil, contract.Errorf(contract.Denied, "the server says: %s", e.Message)
		}
		if err != nil {
			return nil, i.failed("read the "+string(q), err)
		}
		all = append(all, rows...)
	}
	return all, nil
}

// rows reads one statement. The names of columns that SHOW gives are made those of the question.
func (i *inspector) rows(ctx context.Context, text string, args ...any) ([]inspect.Row, error) {
	tx, err := i.conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: !i.tidb}) // TiDB refuses to promise it
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // it has only read
	rows, err := inspect.ReadRows(ctx, tx, text, args...)
	// MySQL cannot list a session whose running statement is not text. A later attempt finds
	// another statement.
	const cannotConvert = 3854
	for range 10 {
		if e := (*mysql.MySQLError)(nil); !errors.As(err, &e) || e.Number != cannotConvert {
			break
		}
		rows, err = inspect.ReadRows(ctx, tx, text, args...)
	}
	shown := map[string]string{"Variable_name": "name", "Value": "value", "File_size": "bytes"}
	for _, row := range rows {
		for from, to := range shown {
			if value, ok := row[from]; ok {
				row[to] = value
			}
		}
	}
	return rows, err
}

// rights finds out what the account lacks. To explain a statement needs the same rights as to run
// it, however they were granted, and changes nothing.
func (i *inspector) rights(ctx context.Context) (lacks []inspect.Row, err error) {
	for _, table := range []struct{ name, rights string }{
		{"rowkeeper_log", "SELECT INSERT DELETE"},
		{"rowkeeper_live", "SELECT INSERT UPDATE DELETE"},
		{"rowkeeper_store", "SELECT UPDATE"},
		{"rowkeeper_aborted", "SELECT INSERT DELETE"},
		{"rowkeeper_lease", "SELECT INSERT DELETE"},
		{"rowkeeper_resource", "SELECT INSERT DELETE"},
		{"rowkeeper_index", "SELECT INSERT DELETE"},
		{"rowkeeper_user", "SELECT INSERT DELETE"},
		{"rowkeeper_schema", "SELECT"},
	} {
		for right := range strings.FieldsSeq(table.rights) {
			_, err := inspect.ReadRows(ctx, i.conn, fmt.Sprintf(explained[right], table.name))
			const tableDenied, columnDenied = 1142, 1143
			e := (*mysql.MySQLError)(nil)
			switch {
			case errors.As(err, &e) && (e.Number == tableDenied || e.Number == columnDenied):
				lacks = append(lacks, inspect.Row{"privilege": right, "name": table.name})
			case err != nil && e == nil:
				return nil, i.failed("find out the rights", err)
			}
		}
	}
	return lacks, nil
}

// explained are statements that need one right each, by the table. That of INSERT says values only
// where they stand in the place of a row.
var explained = map[string]string{
	"SELECT": `EXPLAIN SELECT COUNT(*) FROM %s WHERE FALSE`,
	"INSERT": `EXPLAIN INSERT INTO %s () VALUES ()`,
	"UPDATE": `EXPLAIN UPDATE %s SET store = store WHERE FALSE`,
	"DELETE": `EXPLAIN DELETE FROM %s WHERE FALSE`,
}

// repair runs a statement. It takes as long as it takes.
func (i *inspector) repair(ctx context.Context, statement string) error {
	if _, err := i.conn.ExecContext(ctx, statement); err != nil {
		return i.failed("repair the database", err)
	}
	return nil
}

// indexesOf are those of the migrations. The servers say in different words that an index is used
// again.
func indexesOf(mariadb bool) []inspect.Index {
	used := "VISIBLE"
	if mariadb {
		used = "NOT IGNORED"
	}
	primaryKey := func(table, columns string) inspect.Index {
		return inspect.Index{Table: table, Name: "PRIMARY", Columns: columns, Unique: true}
	}
	expiry := func(table string) inspect.Index {
		name := table + "_expiry"
		return inspect.Index{Table: table, Name: name, Columns: "store,expiry",
			Create:  "CREATE INDEX " + name + " ON " + table + " (store, expiry)",
			Drop:    "DROP INDEX " + name + " ON " + table,
			Rebuild: "ALTER TABLE " + table + " ALTER INDEX " + name + " " + used}
	}
	return []inspect.Index{
		primaryKey("rowkeeper_log", "store,revision"),
		primaryKey("rowkeeper_live", "store,key"),
		expiry("rowkeeper_live"),
		primaryKey("rowkeeper_lease", "store,id"),
		expiry("rowkeeper_lease"),
		primaryKey("rowkeeper_store", "id"),
		primaryKey("rowkeeper_aborted", "store,token"),
		primaryKey("rowkeeper_resource", "store,directory"),
		primaryKey("rowkeeper_index", "store,entry,key"),
		primaryKey("rowkeeper_user", "store,revision"),
	}
}

// question is a statement that answers a question, or a part of it.
type question struct {
	sql string
	// mariadb, mysql, galera and tidb: only that server knows it. innodb: TiDB does not.
	mariadb, mysql, galera, tidb, innodb bool
}

func asked(sql string) []question { return []question{{sql: sql}} }

// storeRow is the answer to [inspect.Store], with more columns.
func storeRow(columns string) string {
	return `
SELECT s.id, s.epoch, s.compacted, s.swept, s.oldest_writer, s.max_objects, s.max_bytes,
       s.generation, s.indexes, h.revision AS head, h.time AS written` + columns + `
FROM (SELECT o.*, (SELECT MAX(m.revision) FROM rowkeeper_log m WHERE m.store = o.id) AS newest
      FROM rowkeeper_store o
      WHERE o.name = ?) s
LEFT JOIN rowkeeper_log h ON h.store = s.id AND h.revision = s.newest`
}

// tidbHead are the columns that tell whether the store's row has the log's head; see tidb.go.
const tidbHead = `, s.head AS row_head,
       s.head <> h.revision OR s.head_token <> h.token OR s.head_time <> h.time AS row_differs`

// ourTables are the names of the tables.
const ourTables = `('rowkeeper_log', 'rowkeeper_live', 'rowkeeper_store', 'rowkeeper_aborted', 'rowkeeper_lease', 'rowkeeper_resource', 'rowkeeper_index', 'rowkeeper_user')`

// ofInnoDB are what TiDB does not tell.
var ofInnoDB = []inspect.Question{inspect.Locks, inspect.Purge, inspect.BinaryLogs}

// questions are the statements. $store stands for the id of the store, in digits. Where only
// columns of the primary key are read, MySQL reads all of it if it believes the table to be small,
// also with FORCE INDEX. So each asks for another column, which says nothing: every key has a
// revision, and every part a version.
var questions = map[inspect.Question][]question{
	// No table is read but that of the account's rights.
	inspect.Server: asked(`
SELECT CASE WHEN VERSION() LIKE '%MariaDB%' THEN 'MariaDB' WHEN VERSION() LIKE '%TiDB%' THEN 'TiDB' ELSE 'MySQL' END AS product, VERSION() AS version, ` + now + ` AS now,
       CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''') AS role, SUBSTRING_INDEX(CURRENT_USER(), '@', 1) AS user,
       DATABASE() AS ` + "`database`" + `,
       EXISTS (SELECT 1 FROM information_schema.user_privileges p
               WHERE p.grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''') AND p.privilege_type = 'PROCESS') AS sees_others`),
	// The table has a row for each migration.
	inspect.Schema: asked(`SELECT COALESCE(MAX(v.version_id), 0) AS version FROM rowkeeper_schema v`),
	// The row of the store by the unique index on its name, and the newest row of its part of the
	// log, by the primary key.
	inspect.Store: {{innodb: true, sql: storeRow("")}, {tidb: true, sql: storeRow(tidbHead)}},
	// Only the settings that a check judges, and the states of replication.
	inspect.Settings: {
		{sql: `SHOW GLOBAL VARIABLES WHERE variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog',
	'innodb_doublewrite', 'innodb_flush_method', 'debug_no_sync', 'read_only', 'innodb_read_only', 'offline_mode', 'binlog_format',
	'max_statement_time', 'max_execution_time', 'idle_transaction_timeout', 'idle_write_transaction_timeout', 'wait_timeout',
	'expire_logs_days', 'binlog_expire_logs_seconds')`},
		{galera: true, sql: `SHOW GLOBAL STATUS WHERE variable_name = 'wsrep_cluster_status'`},
		{sql: `SHOW GLOBAL STATUS WHERE variable_name IN ('Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status')`},
	},
	// Sessions of the database but this one. Their port is not told.
	inspect.Servers: asked(`
SELECT p.user AS user, SUBSTRING_INDEX(p.host, ':', 1) AS address, COUNT(*) AS connections
FROM information_schema.processlist p
WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID() AND p.command NOT LIKE 'Binlog Dump%'
GROUP BY p.user, SUBSTRING_INDEX(p.host, ':', 1)
ORDER BY p.user, SUBSTRING_INDEX(p.host, ':', 1)`),
	// InnoDB keeps old versions for each transaction, of whatever database, and so does TiDB. That
	// tells of the transactions of the server that is asked.
	inspect.Transactions: {
		{innodb: true, sql: `
SELECT t.trx_mysql_thread_id AS id, p.user AS user, SUBSTRING_INDEX(p.host, ':', 1) AS address, t.trx_state AS state,
       TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) AS seconds, 1 AS holds
FROM information_schema.innodb_trx t
JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
WHERE t.trx_mysql_thread_id <> CONNECTION_ID()`},
		{tidb: true, sql: `
SELECT t.session_id AS id, t.user AS user, SUBSTRING_INDEX(p.host, ':', 1) AS address, t.state AS state,
       TIMESTAMPDIFF(SECOND, t.start_time, NOW()) AS seconds, 1 AS holds
FROM information_schema.tidb_trx t
JOIN information_schema.processlist p ON p.id = t.session_id
WHERE t.session_id <> CONNECTION_ID()`},
	},
	// Who holds row locks that others wait for.
	inspect.Locks: {
		{mariadb: true, sql: `
SELECT b.trx_mysql_thread_id AS id, p.user AS user, SUBSTRING_INDEX(p.host, ':', 1) AS address, 'rows' AS object, 'row lock' AS mode,
       COUNT(*) AS waiters, MAX(TIMESTAMPDIFF(SECOND, b.trx_started, NOW())) AS seconds
FROM information_schema.innodb_lock_waits w
JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id
JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
GROUP BY b.trx_mysql_thread_id, p.user, SUBSTRING_INDEX(p.host, ':', 1)`},
		{mysql: true, sql: `
SELECT b.trx_mysql_thread_id AS id, p.user AS user, SUBSTRING_INDEX(p.host, ':', 1) AS address, 'rows' AS object, 'row lock' AS mode,
       COUNT(*) AS waiters, MAX(TIMESTAMPDIFF(SECOND, b.trx_started, NOW())) AS seconds
FROM performance_schema.data_lock_waits w
JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_engine_transaction_id
JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
GROUP BY b.trx_mysql_thread_id, p.user, SUBSTRING_INDEX(p.host, ':', 1)`},
	},
	// From statistics, which InnoDB makes by itself.
	inspect.Tables: asked(`
SELECT t.table_name AS name, t.data_length + t.index_length + t.data_free AS bytes, t.table_rows AS ` + "`rows`" + `, 1 AS analyzed
FROM information_schema.tables t
WHERE t.table_schema = DATABASE() AND t.table_name IN ` + ourTables),
	// As selectSize, without a store.
	inspect.Sizes: asked(`
SELECT CAST(COALESCE(SUM(t.data_length + t.index_length + t.data_free), 0) AS SIGNED) AS total,
       CAST(COALESCE(SUM(t.data_length + t.index_length), 0) AS SIGNED) AS live
FROM information_schema.tables t
WHERE t.table_schema = DATABASE() AND t.table_name IN ` + ourTables),
	// The length of the history list.
	inspect.Purge: asked(`
SELECT m.count AS versions FROM information_schema.innodb_metrics m WHERE m.name = 'trx_rseg_history_len'`),
	// Who reads the binary log.
	inspect.Replication: asked(`
SELECT CONCAT(p.user, '@', SUBSTRING_INDEX(p.host, ':', 1)) AS name, LOWER(p.state) AS state
FROM information_schema.processlist p
WHERE p.command LIKE 'Binlog Dump%'`),
	inspect.BinaryLogs: asked(`SHOW BINARY LOGS`),
	// The columns of each index, in their order, and whether the optimizer uses it.
	inspect.Indexes: {
		{mysql: true, sql: `
SELECT i.table_name AS ` + "`table`" + `, i.index_name AS name, GROUP_CONCAT(i.column_name ORDER BY i.seq_in_index) AS ` + "`columns`" + `,
       MAX(i.non_unique) = 0 AS ` + "`unique`" + `, MIN(i.is_visible = 'YES') AS valid
FROM information_schema.statistics i
WHERE i.table_schema = DATABASE() AND i.table_name IN ` + ourTables + `
GROUP BY i.table_name, i.index_name`},
		{mariadb: true, sql: `
SELECT i.table_name AS ` + "`table`" + `, i.index_name AS name, GROUP_CONCAT(i.column_name ORDER BY i.seq_in_index) AS ` + "`columns`" + `,
       MAX(i.non_unique) = 0 AS ` + "`unique`" + `, MIN(i.ignored = 'NO') AS valid
FROM information_schema.statistics i
WHERE i.table_schema = DATABASE() AND i.table_name IN ` + ourTables + `
GROUP BY i.table_name, i.index_name`},
	},
	// The primary key of live, from an entry on: the first key.
	inspect.NextKey: asked(`
SELECT l.key AS ` + "`key`" + ` FROM rowkeeper_live l FORCE INDEX (PRIMARY)
WHERE l.store = $store AND l.key >= ? AND l.revision <> 0 ORDER BY l.key LIMIT 1`),
	// A range of the primary key of live: the first key, and the one after the last.
	inspect.CountKeys: asked(`
SELECT COUNT(*) AS n FROM rowkeeper_live l FORCE INDEX (PRIMARY) WHERE l.store = $store AND l.key >= ? AND l.key < ? AND l.revision <> 0`),
	// A range of the primary key of live, and for each row the log's primary key. The key after
	// which it begins, and the limit.
	inspect.LivePiece: asked(`
SELECT COUNT(*) AS ` + "`rows`" + `, MAX(c.key) AS last,
       COALESCE(SUM(c.lost AND NOT c.beyond), 0) AS lost, COALESCE(SUM(c.other), 0) AS other,
       COALESCE(SUM(NOT c.other AND c.differs), 0) AS differs, COALESCE(SUM(c.beyond), 0) AS beyond,
       MIN(IF(c.lost OR c.other OR c.differs OR c.beyond, ABS(c.revision), NULL)) AS example
FROM (
    SELECT STRAIGHT_JOIN l.key, l.revision, g.revision IS NULL AS lost,
           COALESCE(g.key <> l.key OR g.deleted, FALSE) AS other,
           COALESCE(g.create_revision <> l.create_revision OR g.version <> l.version OR g.lease <> l.lease, FALSE) AS differs,
           IF(l.revision < 0, (-l.revision) DIV 512, l.revision) > h.revision AS beyond
    FROM (SELECT COALESCE(MAX(m.revision), 0) AS revision FROM rowkeeper_log m WHERE m.store = $store) h
    JOIN (SELECT k.key, k.revision, k.create_revision, k.version, k.lease
          FROM rowkeeper_live k FORCE INDEX (PRIMARY)
          WHERE k.store = $store AND k.key > ? ORDER BY k.key LIMIT ?) l
    LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = l.revision
) c`),
	// Two ranges of the primary key of the indexes, and for each row that of live, whose entries
	// each follow their length. The entry and the key after which it begins, the entry again, the
	// entry beyond the last one, and the limit.
	inspect.EntryPiece: asked(`
WITH piece AS (
    SELECT STRAIGHT_JOIN p.entry, p.key, l.revision,
           COALESCE(LOCATE(CONCAT(UNHEX(LPAD(HEX(LENGTH(p.entry)), 4, '0')), p.entry), l.entries), 0) = 0 AS alone
    FROM (SELECT i.entry, i.key
          FROM rowkeeper_index i FORCE INDEX (PRIMARY)
          WHERE i.store = $store AND (i.entry = ? AND i.key > ? OR i.entry > ? AND i.entry < ?)
          ORDER BY i.entry, i.key LIMIT ?) p
    LEFT JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = p.key
)
SELECT s.generation, c.` + "`rows`" + `, c.entry, (SELECT MAX(p.key) FROM piece p WHERE p.entry = c.entry) AS ` + "`key`" + `, c.alone, c.example
FROM rowkeeper_store s
CROSS JOIN (SELECT COUNT(*) AS ` + "`rows`" + `, MAX(p.entry) AS entry, COALESCE(SUM(p.alone), 0) AS alone,
                   MIN(IF(p.alone, ABS(p.revision), NULL)) AS example
            FROM piece p) c
WHERE s.id = $store`),
	// A range of the primary key of live, and for each entry that of the indexes. The key after
	// which it begins, the key beyond the last one, the limit, the first entry, and the entry
	// beyond the last one.
	inspect.EntriesPiece: asked(`
WITH RECURSIVE piece AS (
    SELECT l.key, l.revision, l.entries
    FROM rowkeeper_live l FORCE INDEX (PRIMARY)
    WHERE l.store = $store AND l.key > ? AND l.key < ? ORDER BY l.key LIMIT ?
), unpacked (name, revision, entry, more) AS (
    SELECT p.key, p.revision, SUBSTRING(p.entries, 3, ORD(SUBSTRING(p.entries, 2, 1))),
           SUBSTRING(p.entries, 3 + ORD(SUBSTRING(p.entries, 2, 1)))
    FROM piece p WHERE p.entries IS NOT NULL
    UNION ALL
    SELECT u.name, u.revision, SUBSTRING(u.more, 3, ORD(SUBSTRING(u.more, 2, 1))),
           SUBSTRING(u.more, 3 + ORD(SUBSTRING(u.more, 2, 1)))
    FROM unpacked u WHERE LENGTH(u.more) > 2
)
SELECT s.generation, c.` + "`rows`" + `, c.last, w.lacking, w.example
FROM rowkeeper_store s
CROSS JOIN (SELECT COUNT(*) AS ` + "`rows`" + `, MAX(p.key) AS last FROM piece p) c
CROSS JOIN (SELECT COUNT(*) AS lacking, MIN(ABS(u.revision)) AS example
            FROM unpacked u
            LEFT JOIN rowkeeper_index i FORCE INDEX (PRIMARY) ON i.store = $store AND i.entry = u.entry AND i.key = u.name
            WHERE u.entry >= ? AND u.entry < ? AND i.key IS NULL) w
WHERE s.id = $store`),
	// A range of the log's primary key, and for a transaction its parts by the same one. The last
	// two bytes of a token say how many there are. The revision after which it begins, and the
	// limit.
	inspect.LogPiece: asked(`
SELECT COUNT(*) AS ` + "`rows`" + `, COALESCE(MAX(j.revision), 0) AS last, COALESCE(MAX(j.compacted), 0) AS compacted,
       COALESCE(SUM(j.kept), 0) AS kept, COUNT(*) - COUNT(DISTINCT j.revision) AS twice,
       COALESCE(SUM(j.backwards), 0) AS backwards, COALESCE(SUM(j.incomplete), 0) AS incomplete,
       MIN(IF(j.backwards OR j.incomplete, j.revision, NULL)) AS example
FROM (
    SELECT STRAIGHT_JOIN p.revision, s.compacted, p.revision > s.compacted AS kept,
           IF(p.prev_revision < 0, (-p.prev_revision) DIV 512, p.prev_revision) >= p.revision AS backwards,
           IF(p.parts > 0 AND p.marker = 0 AND p.revision > s.compacted, p.parts <> (
               SELECT COUNT(*) FROM rowkeeper_log g FORCE INDEX (PRIMARY)
               WHERE g.store = $store AND g.revision BETWEEN -(p.revision * 512 + p.parts) AND -(p.revision * 512 + 1) AND g.version > 0
           ), FALSE) AS incomplete
    FROM rowkeeper_store s
    JOIN (SELECT r.revision, r.prev_revision, r.key = '' AS marker,
                 ORD(SUBSTRING(r.token, 15, 1)) * 256 + ORD(SUBSTRING(r.token, 16, 1)) AS parts
          FROM rowkeeper_log r FORCE INDEX (PRIMARY)
          WHERE r.store = $store AND r.revision > ? ORDER BY r.revision LIMIT ?) p
    WHERE s.id = $store
) j`),
	// The log's primary key, backwards from an ID, and for each part the row of its transaction by
	// the same one. The ID below which it begins, and the limit.
	inspect.PartPiece: asked(`
SELECT COUNT(*) AS ` + "`rows`" + `, COALESCE(MIN(j.id), 0) AS last, COALESCE(SUM(j.orphan AND NOT j.beyond), 0) AS orphans,
       COALESCE(SUM(j.beyond), 0) AS beyond, MIN(IF(j.orphan OR j.beyond, j.revision, NULL)) AS example
FROM (
    SELECT STRAIGHT_JOIN p.id, p.revision, p.revision > h.revision AS beyond, p.revision > s.compacted AND NOT EXISTS (
               SELECT 1 FROM rowkeeper_log g FORCE INDEX (PRIMARY) WHERE g.store = $store AND g.revision = p.revision
           ) AS orphan
    FROM rowkeeper_store s
    JOIN (SELECT COALESCE(MAX(m.revision), 0) AS revision FROM rowkeeper_log m WHERE m.store = $store) h
    JOIN (SELECT r.revision AS id, (-r.revision) DIV 512 AS revision
          FROM rowkeeper_log r FORCE INDEX (PRIMARY)
          WHERE r.store = $store AND r.revision < ? AND r.version > 0 ORDER BY r.revision DESC LIMIT ?) p
    WHERE s.id = $store
) j`),
	// A range of the primary key of the users, and for each row that of the log. The revision after
	// which it begins, and the limit.
	inspect.UserPiece: asked(`
SELECT COUNT(*) AS ` + "`rows`" + `, COALESCE(MAX(p.revision), 0) AS last, COALESCE(SUM(g.revision IS NULL), 0) AS alone,
       MIN(IF(g.revision IS NULL, p.revision, NULL)) AS example
FROM (SELECT u.revision
      FROM rowkeeper_user u FORCE INDEX (PRIMARY)
      WHERE u.store = $store AND u.revision > ? AND u.name IS NOT NULL ORDER BY u.revision LIMIT ?) p
LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = p.revision`),
}
