package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/inspect"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

var _ inspect.Driver = driver{}

// Inspect implements [inspect.Driver], on one connection that cannot write and that leaves the
// write-ahead log as it is. A store in memory is another process's.
func (driver) Inspect(ctx context.Context, url string, opts contract.DriverOptions,
	f func(*inspect.Database) error) error {
	b, c, err := openToRead(ctx, url, opts)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // it has only read
	_, foreign, err := whose(c)
	switch {
	case err != nil:
		return b.classify(ctx, err)
	case foreign:
		return notOurs(b.cfg)
	}
	readOnly := c.ReadOnly()
	if err := c.Set("query_only", "ON"); err != nil {
		return b.classify(ctx, err)
	}
	i := &inspector{backend: b, conn: c, readOnly: readOnly}
	return f(&inspect.Database{Kind: driver{}.Name(), Where: b.cfg.name(), Store: b.cfg.store,
		Newest: migrations.SQLite.Newest(), Indexes: indexes, Ask: i.ask, Repair: i.repair})
}

// inspector answers questions.
type inspector struct {
	*backend
	conn     *sqlite3.Conn
	readOnly bool
}

func (i *inspector) ask(ctx context.Context, q inspect.Question, args ...any) ([]inspect.Row, error) {
	switch q {
	case inspect.Rights:
		if i.readOnly {
			return []inspect.Row{{"privilege": "write permission", "name": "the file"}}, nil
		}
		return nil, nil
	case inspect.Disk:
		free, total, err := space(filepath.Dir(i.cfg.path))
		if err != nil {
			return nil, inspect.ErrNoAnswer
		}
		return []inspect.Row{{"free": strconv.FormatInt(free, 10),
			"total": strconv.FormatInt(total, 10)}}, nil
	case inspect.IndexCheck:
		// Other than the integrity of the file, that of a table is a part, with its indexes.
		return i.rows(ctx, "SELECT integrity_check AS damage FROM pragma_integrity_check("+
			quoted(fmt.Sprint(args[0]))+") WHERE integrity_check <> 'ok' LIMIT 1")
	}
	text, known := questions[q]
	if !known {
		return nil, inspect.ErrNoAnswer
	}
	rows, err := i.rows(ctx, text, args...)
	switch {
	case err != nil && q == inspect.Schema && strings.Contains(err.Error(), "no such table"):
		return nil, nil
	case err != nil:
		return nil, i.classify(ctx, err)
	}
	switch q {
	case inspect.Server:
		rows[0]["now"] = strconv.FormatInt(i.now().UnixMicro(), 10)
		rows[0]["role"] = "the user of this process"
	case inspect.Store:
		return rows, i.findLost(rows)
	case inspect.Settings:
		rows = append(rows, inspect.Row{"name": "synchronous", "value": i.cfg.synchronous,
			"source": "client"})
	case inspect.Sizes:
		if log, err := os.Stat(i.wal); err == nil {
			rows[0]["total"] = strconv.FormatInt(rows[0].Int("total")+log.Size(), 10)
		}
	}
	return rows, nil
}

// findLost tells whether the write-ahead log was removed. Of a file that was copied here, its mark
// tells nothing.
func (i *inspector) findLost(rows []inspect.Row) error {
	if len(rows) == 0 {
		return nil
	}
	err := i.settle()
	var id contract.Identity
	if err == nil {
		id, err = i.identity(i.conn)
	}
	var lost bool
	if err == nil {
		lost, err = i.lostLog(i.conn)
	}
	rows[0]["log_lost"] = strconv.FormatBool(lost && !i.isMoved(id.Recorded))
	return err
}

func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", "''") + "'" }

// rows reads one statement, which the context interrupts.
func (i *inspector) rows(ctx context.Context, text string, args ...any) (all []inspect.Row,
	err error) {
	defer i.conn.Interruptible(ctx)()
	s, err := i.conn.Prepare(text)
	if err != nil {
		return nil, err
	}
	for _, arg := range args {
		switch v := arg.(type) {
		case []byte:
			s.Blob(v)
		case int64:
			s.Int(v)
		default:
			return nil, errors.New("sqlite: an argument that is neither bytes nor a number")
		}
	}
	err = s.Each(func() error {
		row := inspect.Row{}
		for c, name := range s.Columns() {
			if !s.ColNull(c) {
				row[name] = s.ColString(c)
			}
		}
		all = append(all, row)
		return nil
	})
	return all, err
}

// repair makes an index, on a connection of its own that writes.
func (i *inspector) repair(ctx context.Context, statement string) error {
	c, err := sqlite3.Open(i.dbName)
	if err != nil {
		return i.classify(ctx, err)
	}
	c.KeepLog()
	defer func() { _ = c.Close() }() // what it has done is committed
	c.BusyTimeout(int32(i.cfg.busyTimeout.Milliseconds()))
	return i.classify(ctx, c.Exec(statement))
}

// indexes are those of the migrations. The primary keys are the tables themselves.
var indexes = []inspect.Index{
	{Table: "rowkeeper_live", Name: "rowkeeper_live_expiry", Columns: "expiry",
		Create:  "CREATE INDEX rowkeeper_live_expiry ON rowkeeper_live (expiry) WHERE expiry IS NOT NULL",
		Drop:    "DROP INDEX rowkeeper_live_expiry",
		Rebuild: "REINDEX rowkeeper_live_expiry"},
	{Table: "rowkeeper_lease", Name: "rowkeeper_lease_expiry", Columns: "expiry",
		Create:  "CREATE INDEX rowkeeper_lease_expiry ON rowkeeper_lease (expiry)",
		Drop:    "DROP INDEX rowkeeper_lease_expiry",
		Rebuild: "REINDEX rowkeeper_lease_expiry"},
}

// questions are the statements. Parameters are bound in their order.
var questions = map[inspect.Question]string{
	inspect.Server: `SELECT 'SQLite' AS product, sqlite_version() AS version, 0 AS standby`,
	// The table has a row for each migration.
	inspect.Schema: `SELECT coalesce(max(version_id), 0) AS version FROM rowkeeper_schema`,
	// The one row, and the newest row of the log.
	inspect.Store: `
SELECT s.id, s.epoch, s.compacted, s.swept, s.oldest_writer, s.max_objects, s.max_bytes, s.generation, s.indexes, h.revision AS head, h.time AS written
FROM rowkeeper_store s LEFT JOIN rowkeeper_log h ON h.revision = (SELECT max(revision) FROM rowkeeper_log)
WHERE s.id = 1`,
	inspect.Settings: `SELECT 'journal_mode' AS name, journal_mode AS value, '' AS source FROM pragma_journal_mode`,
	// From the file's header.
	inspect.Tables: `
SELECT 'the file' AS name, page_size * page_count AS bytes, page_size * freelist_count AS free
FROM pragma_page_size CROSS JOIN pragma_page_count CROSS JOIN pragma_freelist_count`,
	inspect.Sizes: `
SELECT page_size * page_count AS total, page_size * (page_count - freelist_count) AS live
FROM pragma_page_size CROSS JOIN pragma_page_count CROSS JOIN pragma_freelist_count`,
	// The columns of each index, in their order.
	inspect.Indexes: `
SELECT t.name AS "table", i.name AS name, i."unique" AS "unique", 1 AS valid,
       (SELECT group_concat(name, ',') FROM (SELECT c.name FROM pragma_index_info(i.name) c ORDER BY c.seqno)) AS columns
FROM sqlite_schema t CROSS JOIN pragma_index_list(t.name) i
WHERE t.type = 'table' AND t.name LIKE 'rowkeeper\_%' ESCAPE '\'`,
	// The primary key of live, from an entry on. ?1 key.
	inspect.NextKey: `SELECT key FROM rowkeeper_live WHERE key >= ?1 ORDER BY key LIMIT 1`,
	// A range of the primary key of live. ?1 first key, ?2 the key after the last one.
	inspect.CountKeys: `SELECT count(*) AS n FROM rowkeeper_live WHERE key >= ?1 AND key < ?2`,
	// A range of the primary key of live, and for each row the log's primary key. ?1 key, ?2 limit.
	inspect.LivePiece: `
WITH piece AS MATERIALIZED (
    SELECT key, revision, create_revision, version, lease FROM rowkeeper_live WHERE key > ?1 ORDER BY key LIMIT ?2
), compared AS MATERIALIZED (
    SELECT l.key, l.revision, g.revision IS NULL AS lost, coalesce(g.key <> l.key OR g.deleted, 0) AS other,
           coalesce(g.create_revision <> l.create_revision OR g.version <> l.version OR g.lease <> l.lease, 0) AS differs,
           CASE WHEN l.revision < 0 THEN (-l.revision) / 512 ELSE l.revision END
               > (SELECT coalesce(max(revision), 0) FROM rowkeeper_log) AS beyond
    FROM piece l LEFT JOIN rowkeeper_log g ON g.revision = l.revision
)
SELECT count(*) AS rows, max(key) AS last, count(*) FILTER (WHERE lost AND NOT beyond) AS lost,
       count(*) FILTER (WHERE other) AS other, count(*) FILTER (WHERE NOT other AND differs) AS differs,
       count(*) FILTER (WHERE beyond) AS beyond,
       min(abs(revision)) FILTER (WHERE lost OR other OR differs OR beyond) AS example
FROM compared`,
	// A range of the primary key of the indexes, and for each row that of live, whose entries each
	// follow their length. ?1 entry, ?2 key, ?3 the entry beyond the last one, ?4 limit.
	inspect.EntryPiece: `
WITH piece AS MATERIALIZED (
    SELECT entry, key FROM rowkeeper_index WHERE (entry, key) > (?1, ?2) AND entry < ?3 ORDER BY entry, key LIMIT ?4
), compared AS MATERIALIZED (
    SELECT l.revision, coalesce(instr(l.entries, CAST(unhex(printf('%04X', length(p.entry))) || p.entry AS BLOB)), 0) = 0 AS alone
    FROM piece p LEFT JOIN rowkeeper_live l ON l.key = p.key
)
SELECT s.generation, (SELECT count(*) FROM piece) AS rows, (SELECT max(entry) FROM piece) AS entry,
       (SELECT max(key) FROM piece WHERE entry = (SELECT max(entry) FROM piece)) AS key,
       (SELECT count(*) FROM compared WHERE alone) AS alone, (SELECT min(abs(revision)) FROM compared WHERE alone) AS example
FROM rowkeeper_store s
WHERE s.id = 1`,
	// A range of the primary key of live, and for each entry that of the indexes. An entry has less
	// than 256 bytes: n is the second byte of what is left, which is the length of the next one. ?1
	// key, ?2 the key beyond the last one, ?3 entry, ?4 the entry beyond the last one, ?5 limit.
	inspect.EntriesPiece: `
WITH RECURSIVE piece AS MATERIALIZED (
    SELECT key, revision, entries FROM rowkeeper_live WHERE key > ?1 AND key < ?2 ORDER BY key LIMIT ?5
), unpacked (key, revision, entry, more, n) AS (
    SELECT key, revision, NULL, entries,
           instr('123456789ABCDEF', substr(hex(substr(entries, 2, 1)), 1, 1)) * 16 + instr('123456789ABCDEF', substr(hex(substr(entries, 2, 1)), 2, 1))
    FROM piece WHERE entries IS NOT NULL
    UNION ALL
    SELECT key, revision, substr(more, 3, n), substr(more, 3 + n),
           instr('123456789ABCDEF', substr(hex(substr(more, 4 + n, 1)), 1, 1)) * 16 + instr('123456789ABCDEF', substr(hex(substr(more, 4 + n, 1)), 2, 1))
    FROM unpacked WHERE length(more) > 2
), lacking AS MATERIALIZED (
    SELECT u.revision FROM unpacked u
    WHERE u.entry >= ?3 AND u.entry < ?4 AND NOT EXISTS (SELECT 1 FROM rowkeeper_index i WHERE i.entry = u.entry AND i.key = u.key)
)
SELECT s.generation, (SELECT count(*) FROM piece) AS rows, (SELECT max(key) FROM piece) AS last,
       (SELECT count(*) FROM lacking) AS lacking, (SELECT min(abs(revision)) FROM lacking) AS example
FROM rowkeeper_store s
WHERE s.id = 1`,
	// A range of the log's primary key, and for a transaction its parts by the same one. The last
	// four hexadecimal digits of a token say how many there are. ?1 revision, ?2 limit.
	inspect.LogPiece: `
WITH piece AS MATERIALIZED (
    SELECT g.revision, g.prev_revision, g.key = x'' AS marker, hex(substr(g.token, 15)) AS digits, s.compacted
    FROM rowkeeper_store s CROSS JOIN rowkeeper_log g
    WHERE s.id = 1 AND g.revision > ?1 ORDER BY g.revision LIMIT ?2
), counted AS MATERIALIZED (
    SELECT *, (instr('123456789ABCDEF', substr(digits, 1, 1)) * 16 + instr('123456789ABCDEF', substr(digits, 2, 1))) * 256
            + instr('123456789ABCDEF', substr(digits, 3, 1)) * 16 + instr('123456789ABCDEF', substr(digits, 4, 1)) AS parts
    FROM piece
), judged AS MATERIALIZED (
    SELECT p.revision, p.compacted, p.revision > p.compacted AS kept,
           CASE WHEN p.prev_revision < 0 THEN (-p.prev_revision) / 512 ELSE p.prev_revision END >= p.revision AS backwards,
           CASE WHEN p.parts > 0 AND NOT p.marker AND p.revision > p.compacted THEN p.parts <> (
               SELECT count(*) FROM rowkeeper_log g
               WHERE g.revision BETWEEN -(p.revision * 512 + p.parts) AND -(p.revision * 512 + 1)
           ) ELSE 0 END AS incomplete
    FROM counted p
)
SELECT count(*) AS rows, coalesce(max(revision), 0) AS last, coalesce(max(compacted), 0) AS compacted,
       count(*) FILTER (WHERE kept) AS kept, count(*) - count(DISTINCT revision) AS twice,
       count(*) FILTER (WHERE backwards) AS backwards, count(*) FILTER (WHERE incomplete) AS incomplete,
       min(revision) FILTER (WHERE backwards OR incomplete) AS example
FROM judged`,
	// The log's primary key, backwards from an ID, and for each part the row of its transaction by
	// the same one. ?1 ID, ?2 limit.
	inspect.PartPiece: `
WITH piece AS MATERIALIZED (
    SELECT g.revision AS id, (-g.revision) / 512 AS revision FROM rowkeeper_log g WHERE g.revision < ?1 ORDER BY g.revision DESC LIMIT ?2
), judged AS MATERIALIZED (
    SELECT p.id, p.revision, p.revision > (SELECT coalesce(max(revision), 0) FROM rowkeeper_log) AS beyond,
           p.revision > s.compacted AND NOT EXISTS (SELECT 1 FROM rowkeeper_log g WHERE g.revision = p.revision) AS orphan
    FROM rowkeeper_store s CROSS JOIN piece p
    WHERE s.id = 1
)
SELECT count(*) AS rows, coalesce(min(id), 0) AS last, count(*) FILTER (WHERE orphan AND NOT beyond) AS orphans,
       count(*) FILTER (WHERE beyond) AS beyond, min(revision) FILTER (WHERE orphan OR beyond) AS example
FROM judged`,
	// A range of the primary key of the users, and for each row that of the log. ?1 revision, ?2
	// limit.
	inspect.UserPiece: `
WITH piece AS MATERIALIZED (
    SELECT revision FROM rowkeeper_user WHERE revision > ?1 ORDER BY revision LIMIT ?2
)
SELECT count(*) AS rows, coalesce(max(p.revision), 0) AS last, count(*) FILTER (WHERE g.revision IS NULL) AS alone,
       min(p.revision) FILTER (WHERE g.revision IS NULL) AS example
FROM piece p LEFT JOIN rowkeeper_log g ON g.revision = p.revision`,
}
