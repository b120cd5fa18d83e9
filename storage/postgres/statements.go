package postgres

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// The statements, each whole, with the argument for its correctness and the indexes that it uses.
// The tables are those of migrations/postgres.
//
// Rules that hold for all of them:
//
//   - A statement has one snapshot in READ COMMITTED, taken when it starts. Its answer shows one
//     moment, the state included.
//   - Plans must not depend on statistics: a statement is prepared when the tables may be empty,
//     and kept while they grow. On these connections sequential and bitmap scans, hash and merge
//     joins are off (see connect.go), and a table is joined by LATERAL (… OFFSET 0), which the
//     planner does not pull up: for each row of the left side one descent into the named index. A
//     deletion or an update joins rows that bring the store along: with the store as a constant,
//     the planner takes an empty table's rows of the store for few, and reads them all.
//   - Times are microseconds since 1970 by the database's clock.
//   - $store is the id of the store, and the last parameter of each statement; see ofStore. It is
//     the first column of each key, and each statement says which rows of the store it means. So
//     the rows of other stores are neither seen nor locked, and a descent into an index finds the
//     store's part of it as it would find the whole one.

// ofStore makes $store the parameter after the last one that a statement has.
func ofStore(sql string) string {
	last := 0
	for _, found := range parameter.FindAllStringSubmatch(sql, -1) {
		n, _ := strconv.Atoi(found[1]) // they are digits
		last = max(last, n)
	}
	return strings.ReplaceAll(sql, "$store", fmt.Sprint("$", last+1))
}

var parameter = regexp.MustCompile(`\$([0-9]+)`)

// state is the part that every read has in common: the state, in the read's own snapshot. The head
// is the newest row of the log (its primary key, backwards, one row); the store row is found by its
// primary key. The role is read in the same statement, since a connection can outlive the server's
// role behind it.
//
// The header is the two columns that are returned of it, since each row of a read has them, too,
// and a column costs something even where it is NULL. Reads of many rows return the header as a row
// of its own, the others beside theirs. The rows after it come in the order of their part of the
// UNION ALL, which is appended as it is.
const state = `
state AS MATERIALIZED (
    SELECT s.epoch, s.compacted, s.swept, h.revision AS head, h.token AS head_token,
           NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AS writable,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, ` + started + ` AS started
    FROM rowkeeper_store s
    CROSS JOIN LATERAL (SELECT revision, token FROM rowkeeper_log WHERE store = $store::integer ORDER BY revision DESC LIMIT 1) h
    WHERE s.id = $store::integer
), header AS (
    SELECT ARRAY[epoch, compacted, swept, head, now, writable::int, started] AS numbers, head_token FROM state
)`

// started is when the server was started, in microseconds. It tells servers apart that a pooler may
// lead a connection to: two of them did not start in the same microsecond. (A double is exact
// there, and costs less than a numeric.)
const started = `(date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint`

// reads are the statements of the reads.
var reads = sqlkit.Statements{
	State:     sqlState,
	Tail:      sqlTail,
	Parts:     sqlParts,
	Get:       sqlGet,
	GetKeys:   sqlGetKeys,
	Page:      sqlPage,
	PageKeys:  sqlKeys,
	Replaced:  sqlReplaced,
	Values:    sqlValues,
	Chain:     sqlChain,
	Changes:   sqlChanges,
	Users:     sqlUsers,
	Count:     sqlCount,
	CountUpTo: sqlCountUpTo,
	Expired:   sqlExpired,
	Leases:    sqlLeases,
	Lapsing:   sqlLapsing,
	Attached:  sqlAttached,

	AttachedTo: sqlAttachedTo, CountLeases: sqlCountLeases,
	FirstAt: sqlFirstAt,
	Sweep:   sqlSweepRows,
	Size:    sqlSize,
	Usage:   sqlUsage,
	Growth:  sqlGrowth,
	Quota:   sqlQuota,
	Home:    sqlHome,
	Indexes: sqlIndexes,
	PageOf:  func(int) string { return sqlPageOf },
	CountOf: func(int) string { return sqlCountOf },

	ReplacedOf: func(int) string { return sqlReplacedOf },
	IndexRows:  sqlIndexRows, IndexRowsBack: sqlIndexRowsBack,

	Everywhere: sqlEverywhere,
}

// inTransaction are the statements of what is done under the commit lock, and in a snapshot.
var inTransaction = sqlkit.TxStatements{
	Keys:              sqlCountAll,
	Records:           sqlRecords,
	RecordParts:       sqlRecordParts,
	AllLeases:         sqlAllLeases,
	Leases:            sqlSomeLeases,
	DropLeases:        sqlDropLeases,
	Abort:             sqlAbort,
	SetCompacted:      sqlCompact,
	RecordFingerprint: sqlRecordFingerprint,
	Mark:              []sqlkit.Change{{SQL: sqlMark, Args: 7}},
	Remove:            []string{sqlRemove},
	Clear:             []string{sqlClear},
	Indexes:           sqlTheIndexes,
	Renew:             sqlRenew,
	SetQuota:          sqlSetQuota,
	Home:              sqlTheHome,
	SetHome:           sqlSetHome,
	SetIdentity:       sqlSetIdentity,
	Directories:       sqlDirectories,
	PutDirectory:      sqlPutDirectory,
}

// sqlState is the cheapest read.
var sqlState = ofStore(`WITH` + state + `
SELECT * FROM header`)

// sqlPoll reads what is polled of several stores: for each, its row by the primary key, the head as
// every read does, and for the first ones the expiry that comes first, by the indexes on it. The
// keys of leases have a negative expiry.
//
// $1 stores, $2 of how many of them the expiry is wanted.
const sqlPoll = `
SELECT ARRAY[s.epoch, s.compacted, s.swept, h.revision, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
             (NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off')::int, ` + started + `], h.token,
       asked.store::bigint, s.identity, s.boot, s.max_objects, s.max_bytes, coalesce(due.expiry, 9223372036854775807), s.generation
FROM unnest($1::integer[]) WITH ORDINALITY AS asked (store, place)
CROSS JOIN LATERAL (
    SELECT epoch, compacted, swept, identity, coalesce(boot, '') AS boot, max_objects, max_bytes, generation FROM rowkeeper_store WHERE id = asked.store OFFSET 0
) s
CROSS JOIN LATERAL (SELECT revision, token FROM rowkeeper_log WHERE store = asked.store ORDER BY revision DESC LIMIT 1) h
LEFT JOIN LATERAL (
    SELECT least((SELECT expiry FROM rowkeeper_live WHERE store = asked.store AND expiry > 0 ORDER BY expiry LIMIT 1),
                 (SELECT expiry FROM rowkeeper_lease WHERE store = asked.store AND expiry >= 0 ORDER BY expiry LIMIT 1)) AS expiry
    WHERE asked.place <= $2::bigint OFFSET 0
) due ON true`

// rowsOfLog begins the statements that read a piece of the log: g are its rows, and p is what each
// of them has replaced. The value of g follows.
const rowsOfLog = `WITH` + state + `
SELECT header.*, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT g.revision, g.key, g.prev_revision, g.create_revision, g.version, g.lease, g.token, g.time, g.deleted, g.value,
           p.revision IS NOT NULL AS has_prev, p.lease AS prev_lease, p.value AS prev_value
    FROM (
        SELECT revision, prev_revision, create_revision, version, lease, time, deleted, key, token,`

// sqlTail reads a piece of the log by its primary key, and previous values by the same.
//
// $1 whether previous values of updates are wanted, too, $2 first revision, $3 limit.
var sqlTail = ofStore(rowsOfLog + ` value
        FROM rowkeeper_log WHERE store = $store::integer AND revision >= $2::bigint ORDER BY revision LIMIT $3::bigint
    ) g
    LEFT JOIN LATERAL (
        SELECT revision, lease, value FROM rowkeeper_log
        WHERE store = $store::integer AND revision = g.prev_revision AND g.prev_revision <> 0 AND (g.deleted OR $1::boolean) OFFSET 0
    ) p ON true
) r`)

// sqlParts reads parts of transactions by the primary key of the log, backwards, and is sqlTail
// otherwise, but for values that nobody wants.
//
// $1 whether values are wanted, $2 whether previous ones are, $3 whether those of updates are, too,
// $4 the ID below which the rows are, $5 the lowest ID, $6 limit.
var sqlParts = ofStore(rowsOfLog + `
               CASE WHEN $1::boolean THEN value END AS value
        FROM rowkeeper_log WHERE store = $store::integer AND revision < $4::bigint AND revision >= $5::bigint ORDER BY revision DESC LIMIT $6::bigint
    ) g
    LEFT JOIN LATERAL (
        SELECT revision, lease, CASE WHEN $2::boolean THEN value END AS value FROM rowkeeper_log
        WHERE store = $store::integer AND revision = g.prev_revision AND g.prev_revision <> 0 AND (g.deleted OR $3::boolean) OFFSET 0
    ) p ON true
) r`)

// sqlGet reads a key: its live row by the primary key, then its row of the log by the primary key.
//
// $1 key.
var sqlGet = ofStore(`WITH` + state + `
SELECT header.*, r.*
FROM header
LEFT JOIN LATERAL (
    SELECT l.revision, l.create_revision, l.version, l.lease, g.prev_revision, g.token, g.time, g.value
    FROM rowkeeper_live l
    LEFT JOIN LATERAL (
        SELECT prev_revision, time, token, value FROM rowkeeper_log WHERE store = $store::integer AND revision = l.revision OFFSET 0
    ) g ON true
    WHERE l.store = $store::integer AND l.key = $1::bytea
) r ON true`)

// sqlGetKeys reads several keys as sqlGet reads one: for each key, one descent into the primary key
// of live, and one into that of the log.
//
// $1 keys.
var sqlGetKeys = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT asked.key, l.revision, l.create_revision, l.version, l.lease, g.value
    FROM unnest($1::bytea[]) AS asked (key)
    CROSS JOIN LATERAL (SELECT revision, create_revision, version, lease FROM rowkeeper_live WHERE store = $store::integer AND key = asked.key OFFSET 0) l
    LEFT JOIN LATERAL (SELECT value FROM rowkeeper_log WHERE store = $store::integer AND revision = l.revision OFFSET 0) g ON true
) r`)

// sqlPage reads live rows in the order of their primary key, and the values from the log by its
// primary key. The limit is inside, so no more rows are touched than returned, but for those newer
// than the snapshot.
//
// $1 start, $2 end, $3 $4 the lowest and the greatest ID of the snapshot, $5 limit.
var sqlPage = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT l.key, l.revision, l.create_revision, l.version, l.lease, g.value
    FROM (
        SELECT key, revision, create_revision, version, lease FROM rowkeeper_live
        WHERE store = $store::integer AND key >= $1::bytea AND key < $2::bytea AND revision BETWEEN $3::bigint AND $4::bigint
        ORDER BY key LIMIT $5::bigint
    ) l
    LEFT JOIN LATERAL (SELECT value FROM rowkeeper_log WHERE store = $store::integer AND revision = l.revision OFFSET 0) g ON true
) r`)

// sqlKeys is sqlPage without the values.
var sqlKeys = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT key, revision, create_revision, version, lease FROM rowkeeper_live
    WHERE store = $store::integer AND key >= $1::bytea AND key < $2::bytea AND revision BETWEEN $3::bigint AND $4::bigint
    ORDER BY key LIMIT $5::bigint
) r`)

// sqlReplaced reads the log's range of revisions by its primary key, and that of the parts of
// transactions there; the rest is a filter.
//
// $1 after, $2 up to, $3 the ID below which the parts are, $4 the lowest one, $5 $6 the lowest and
// the greatest ID of the snapshot, $7 start, $8 end.
var sqlReplaced = ofStore(textReplaced)

const textReplaced = `WITH` + state + `
SELECT header.*, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT key, prev_revision FROM rowkeeper_log
    WHERE store = $store::integer AND revision > $1::bigint AND revision <= $2::bigint
      AND prev_revision <> 0 AND prev_revision BETWEEN $5::bigint AND $6::bigint
      AND key >= $7::bytea AND key < $8::bytea
    UNION ALL
    SELECT key, prev_revision FROM rowkeeper_log
    WHERE store = $store::integer AND revision < $3::bigint AND revision >= $4::bigint
      AND prev_revision <> 0 AND prev_revision BETWEEN $5::bigint AND $6::bigint
      AND key >= $7::bytea AND key < $8::bytea
) r`

// sqlReplacedOf is sqlReplaced without rows whose keys had none of some entries.
//
// $9 $10 the lowest and the greatest ID of rows whose entries do not count, $11 entries.
var sqlReplacedOf = ofStore(strings.ReplaceAll(textReplaced, `key < $8::bytea`, `key < $8::bytea
      AND (entries IS NULL OR revision BETWEEN $9::bigint AND $10::bigint OR entries && $11::bytea[])`))

// sqlValues reads rows of the log by the primary key, one descent per revision.
//
// $1 revisions.
var sqlValues = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT g.key, g.revision, g.create_revision, g.version, g.lease, g.value
    FROM unnest($1::bigint[]) AS asked (revision)
    CROSS JOIN LATERAL (
        SELECT key, revision, create_revision, version, lease, value FROM rowkeeper_log WHERE store = $store::integer AND revision = asked.revision OFFSET 0
    ) g
) r`)

// sqlChain reads a row of the log by the primary key, and each further one by it, as the row before
// names it. A row names the one that it replaced, of the same key, and IDs are never used twice. So
// the rows follow each other without gaps until one created the key, or the next one was swept. The
// key is compared since the caller's ID may be of another one.
//
// $1 ID, $2 key, $3 limit.
var sqlChain = ofStore(`WITH RECURSIVE` + state + `, chain AS (
    SELECT first.*, 1::bigint AS n
    FROM (
        SELECT revision, key, prev_revision, create_revision, version, time, deleted FROM rowkeeper_log
        WHERE store = $store::integer AND revision = $1::bigint AND key = $2::bytea
    ) first
    UNION ALL
    SELECT g.*, c.n + 1
    FROM chain c
    CROSS JOIN LATERAL (
        SELECT revision, key, prev_revision, create_revision, version, time, deleted FROM rowkeeper_log
        WHERE store = $store::integer AND revision = c.prev_revision AND key = c.key OFFSET 0
    ) g
    WHERE c.n < $3::bigint AND c.prev_revision <> 0
)
SELECT header.*, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, revision, key, prev_revision, create_revision, version, time, deleted FROM chain`)

// sqlChanges reads the log's range of revisions by its primary key, and that of the parts of
// transactions there; the rest is a filter.
//
// $1 after, $2 up to, $3 the ID below which the parts are, $4 the lowest one, $5 start, $6 end.
var sqlChanges = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT revision, key, prev_revision, create_revision, version, time, deleted FROM rowkeeper_log
    WHERE store = $store::integer AND revision > $1::bigint AND revision <= $2::bigint
      AND key >= $5::bytea AND key < $6::bytea
    UNION ALL
    SELECT revision, key, prev_revision, create_revision, version, time, deleted FROM rowkeeper_log
    WHERE store = $store::integer AND revision < $3::bigint AND revision >= $4::bigint
      AND key >= $5::bytea AND key < $6::bytea
) r`)

// sqlUsers reads users' rows by the primary key, one descent per revision.
//
// $1 revisions.
var sqlUsers = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT u.revision, u.name, u.audit_id
    FROM unnest($1::bigint[]) AS asked (revision)
    CROSS JOIN LATERAL (
        SELECT revision, name, audit_id FROM rowkeeper_user WHERE store = $store::integer AND revision = asked.revision OFFSET 0
    ) u
) r`)

// sqlCount counts a range of the primary key of live.
//
// $1 start, $2 end, $3 $4 the lowest and the greatest ID of the snapshot.
var sqlCount = ofStore(`WITH` + state + `
SELECT header.*, (
    SELECT count(*) FROM rowkeeper_live
    WHERE store = $store::integer AND key >= $1::bytea AND key < $2::bytea AND revision BETWEEN $3::bigint AND $4::bigint
)
FROM header`)

// sqlCountUpTo stops at the limit. The order is that of the primary key, and asks for it.
//
// $1 start, $2 end, $3 $4 the lowest and the greatest ID of the snapshot, $5 limit.
var sqlCountUpTo = ofStore(`WITH` + state + `
SELECT header.*, (
    SELECT count(*) FROM (
        SELECT FROM rowkeeper_live
        WHERE store = $store::integer AND key >= $1::bytea AND key < $2::bytea AND revision BETWEEN $3::bigint AND $4::bigint
        ORDER BY key LIMIT $5::bigint
    ) counted
)
FROM header`)

// sqlExpired reads the keys with the earliest expiry, one more than asked for, by the partial index
// on expiry. Go tells the expired ones from the next one. The keys of leases have a negative
// expiry.
//
// $1 limit + 1.
var sqlExpired = ofStore(`WITH` + state + `
SELECT header.*, r.*
FROM header
LEFT JOIN LATERAL (
    SELECT key, revision, expiry FROM rowkeeper_live WHERE store = $store::integer AND expiry > 0 ORDER BY expiry LIMIT $1::bigint
) r ON true`)

// sqlLeases reads leases in the order of their primary key.
//
// $1 first ID, $2 limit.
var sqlLeases = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT id, ttl, expiry FROM rowkeeper_lease WHERE store = $store::integer AND id >= $1::bigint ORDER BY id LIMIT $2::bigint
) r`)

// sqlLapsing reads leases in the order of their expiry, by the index on it.
//
// $1 first expiry, $2 limit.
var sqlLapsing = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT id, ttl, expiry FROM rowkeeper_lease WHERE store = $store::integer AND expiry >= $1::bigint ORDER BY expiry LIMIT $2::bigint
) r`)

// sqlAttached reads the keys of a lease by the partial index on expiry, and sorts them: a walk of
// the primary key in its order would read all keys. OFFSET 0 keeps the bound of keys from leading
// there.
//
// $1 expiry, $2 first key, $3 limit.
var sqlAttached = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT key, revision
    FROM (SELECT key, revision FROM rowkeeper_live WHERE store = $store::integer AND expiry = $1::bigint OFFSET 0) attached
    WHERE key >= $2::bytea ORDER BY key LIMIT $3::bigint
) r`)

// sqlAttachedTo reads the keys of leases by the partial index on expiry.
//
// $1 expiries, $2 limit.
var sqlAttachedTo = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT l.key, l.revision, l.expiry
    FROM unnest($1::bigint[]) AS asked (expiry)
    CROSS JOIN LATERAL (
        SELECT key, revision, expiry FROM rowkeeper_live WHERE store = $store::integer AND expiry = asked.expiry OFFSET 0
    ) l
    LIMIT $2::bigint
) r`)

// sqlCountLeases walks the leases of the store by the primary key.
var sqlCountLeases = ofStore(`WITH` + state + `
SELECT header.*, n.leases
FROM header CROSS JOIN (
    SELECT count(*) AS leases FROM (SELECT id FROM rowkeeper_lease WHERE store = $store::integer ORDER BY id OFFSET 0) l
) n`)

// sqlFirstAt reads one row by the primary key.
//
// $1 revision.
var sqlFirstAt = ofStore(`WITH` + state + `
SELECT header.*, r.*
FROM header
LEFT JOIN LATERAL (
    SELECT revision, time FROM rowkeeper_log WHERE store = $store::integer AND revision >= $1::bigint ORDER BY revision LIMIT 1
) r ON true`)

// sqlSize reads sizes from the file system and the rest from statistics, and no table but for the
// state. The bytes in use are those of the live rows as the statistics count and measure them: a
// row has 28 bytes besides its columns, an entry in the index about 20 besides the key; of a value
// that is stored out of line, a chunk of 2,000 bytes has about 40 more.
var sqlSize = ofStore(`WITH` + state + `
SELECT header.*, sizes.*
FROM header CROSS JOIN (
    SELECT sum(total)::bigint, sum(least(used, total))::bigint
    FROM (` + sizesOfTables + `) tables
) sizes`)

const sizesOfTables = `
        SELECT pg_total_relation_size(c.oid) AS total,
               coalesce(s.n_live_tup * (48 + w.width) + coalesce(t.n_live_tup, 0) * 2040, pg_total_relation_size(c.oid)) AS used
        FROM unnest(ARRAY['rowkeeper_log', 'rowkeeper_live', 'rowkeeper_store', 'rowkeeper_aborted', 'rowkeeper_lease', 'rowkeeper_resource', 'rowkeeper_index', 'rowkeeper_user']) AS name
        JOIN pg_class c ON c.oid = to_regclass(name)
        LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
        LEFT JOIN pg_stat_all_tables t ON t.relid = c.reltoastrelid
        LEFT JOIN LATERAL (
            SELECT sum(avg_width) AS width FROM pg_stats p
            WHERE p.schemaname = s.schemaname AND p.tablename = s.relname
        ) w ON true
    `

// sqlUsage reads all live rows of the store, and measures the value of each by the primary key of
// the log. The length of a value that is stored out of line is known without reading it.
var sqlUsage = ofStore(`WITH` + state + `
SELECT header.*, used.*
FROM header CROSS JOIN (
    SELECT count(*), coalesce(sum(octet_length(l.key) + octet_length(g.value)), 0)::bigint
    FROM (SELECT key, revision FROM rowkeeper_live WHERE store = $store::integer ORDER BY key OFFSET 0) l
    LEFT JOIN LATERAL (SELECT value FROM rowkeeper_log WHERE store = $store::integer AND revision = l.revision OFFSET 0) g ON true
) used`)

// sqlGrowth reads the rows of the log after a revision, and the parts of transactions there, and
// for each the one that it replaced, all by the primary key of the log. Markers and deletions hold
// nothing.
//
// $1 revision, $2 the ID below which the parts are.
var sqlGrowth = ofStore(`WITH` + state + `
SELECT header.*, grown.objects, grown.written - grown.replaced, grown.replaced, grown.logged
FROM header CROSS JOIN (
    SELECT count(*) FILTER (WHERE NOT g.deleted) - count(p.bytes) AS objects,
           coalesce(sum(octet_length(g.key) + octet_length(g.value)) FILTER (WHERE NOT g.deleted), 0)::bigint AS written,
           coalesce(sum(p.bytes), 0)::bigint AS replaced, count(*) AS logged
    FROM (
        (SELECT prev_revision, deleted, key, value FROM rowkeeper_log WHERE store = $store::integer AND revision > $1::bigint ORDER BY revision OFFSET 0)
        UNION ALL
        (SELECT prev_revision, deleted, key, value FROM rowkeeper_log WHERE store = $store::integer AND revision < $2::bigint ORDER BY revision OFFSET 0)
    ) g
    LEFT JOIN LATERAL (
        SELECT octet_length(key) + octet_length(value) AS bytes FROM rowkeeper_log
        WHERE store = $store::integer AND revision = g.prev_revision AND g.prev_revision <> 0 OFFSET 0
    ) p ON true
) grown`)

// sqlIndexes finds the store's row by its primary key.
var sqlIndexes = ofStore(`WITH` + state + `
SELECT header.*, s.generation, s.indexes
FROM header CROSS JOIN rowkeeper_store s WHERE s.id = $store::integer`)

// sqlTheIndexes is sqlIndexes without the state.
var sqlTheIndexes = ofStore(`SELECT generation, indexes FROM rowkeeper_store WHERE id = $store::integer`)

// sqlPageOf walks the rows of the index of each entry, in the order of its primary key, which is
// that of the keys, and reads the live row of each by the primary key, up to the limit. Of these it
// takes the first ones, and reads their values by the primary key of the log. The generation comes
// from the store's row in the same snapshot.
//
// $1 start, $2 end, $3 $4 the lowest and the greatest ID of the snapshot, $5 limit, $6 entries.
var sqlPageOf = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT ''::bytea, s.generation, 0::bigint, 0::bigint, 0::bigint, NULL::bytea FROM rowkeeper_store s WHERE s.id = $store::integer
    UNION ALL
    SELECT k.key, k.revision, k.create_revision, k.version, k.lease, g.value
    FROM (
        SELECT found.*
        FROM unnest($6::bytea[]) AS e (entry)
        CROSS JOIN LATERAL (
            SELECT i.key, l.revision, l.create_revision, l.version, l.lease
            FROM (
                SELECT key FROM rowkeeper_index
                WHERE store = $store::integer AND entry = e.entry AND key >= $1::bytea AND key < $2::bytea
                ORDER BY key OFFSET 0
            ) i
            CROSS JOIN LATERAL (
                SELECT revision, create_revision, version, lease FROM rowkeeper_live
                WHERE store = $store::integer AND key = i.key AND revision BETWEEN $3::bigint AND $4::bigint OFFSET 0
            ) l
            LIMIT $5::bigint
        ) found
        ORDER BY found.key LIMIT $5::bigint
    ) k
    LEFT JOIN LATERAL (SELECT value FROM rowkeeper_log WHERE store = $store::integer AND revision = k.revision OFFSET 0) g ON true
) r`)

// sqlCountOf counts the rows of the index of each entry, in a range of its primary key.
//
// $1 start, $2 end, $3 limit, $4 entries.
var sqlCountOf = ofStore(`WITH` + state + `
SELECT header.*, (
    SELECT count(*)
    FROM unnest($4::bytea[]) AS e (entry)
    CROSS JOIN LATERAL (
        SELECT FROM rowkeeper_index
        WHERE store = $store::integer AND entry = e.entry AND key >= $1::bytea AND key < $2::bytea ORDER BY key LIMIT $3::bigint
    ) counted
)
FROM header`)

// sqlIndexRows and sqlIndexRowsBack walk the rows of the index from one on, by its primary key, up
// to the limit, and past keys that are not wanted. The third parameter says nothing new: MySQL
// needs it.
//
// $1 entry, $2 key, $3 the entry again, $4 the entry that ends the walk, $5 start, $6 end, $7
// limit.
var (
	sqlIndexRows     = ofStore(indexRows(">=", ">=", "<", "ASC"))
	sqlIndexRowsBack = ofStore(indexRows("<", "<=", ">=", "DESC"))
)

func indexRows(from, first, bound, order string) string {
	return `WITH` + state + `
SELECT header.*, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT ''::bytea AS entry, NULL::bytea AS key, s.generation FROM rowkeeper_store s WHERE s.id = $store::integer
    UNION ALL
    SELECT i.entry, i.key, NULL
    FROM (
        SELECT entry, key FROM rowkeeper_index
        WHERE store = $store::integer AND (entry, key) ` + from + ` ($1::bytea, $2::bytea)
          AND entry ` + first + ` $3::bytea AND entry ` + bound + ` $4::bytea AND key >= $5::bytea AND key < $6::bytea
        ORDER BY entry ` + order + `, key ` + order + ` LIMIT $7::bigint
    ) i
) r`
}

// sqlSetIndexes finds the store's row by its primary key. $1 generation, $2 text.
var sqlSetIndexes = ofStore(`UPDATE rowkeeper_store SET generation = $1::bigint, indexes = $2::text WHERE id = $store::integer`)

// sqlReindex gives keys other entries, under the commit lock. Each live row is found by the primary
// key, and left out if it is another one by now. What it has before and not after is deleted from
// the index by its primary key, and the other way round.
//
// $1 keys, $2 IDs, $3 entries, as the text of an array for each key.
var sqlReindex = ofStore(`
WITH decided AS MATERIALIZED (
    SELECT $store::integer AS store, k.key, coalesce(k.entries::bytea[], '{}') AS after, coalesce(l.entries, '{}') AS before
    FROM unnest($1::bytea[], $2::bigint[], $3::text[]) AS k (key, revision, entries)
    CROSS JOIN LATERAL (SELECT entries FROM rowkeeper_live WHERE store = $store::integer AND key = k.key AND revision = k.revision OFFSET 0) l
), noted AS (
    UPDATE rowkeeper_live l SET entries = nullif(d.after, '{}')
    FROM decided d WHERE l.store = d.store AND l.key = d.key AND d.before <> d.after
), gone AS (
    DELETE FROM rowkeeper_index i
    USING (SELECT d.store, e.entry, d.key FROM decided d CROSS JOIN LATERAL unnest(d.before) AS e (entry) WHERE e.entry <> ALL (d.after) OFFSET 0) g
    WHERE i.store = g.store AND i.entry = g.entry AND i.key = g.key
)
INSERT INTO rowkeeper_index (store, entry, key)
SELECT d.store, e.entry, d.key FROM decided d CROSS JOIN LATERAL unnest(d.after) AS e (entry) WHERE e.entry <> ALL (d.before)
ON CONFLICT DO NOTHING`)

// sqlDropEntries removes the first rows of a range of the index's primary key. $1 first entry, $2
// first entry beyond, $3 limit.
var sqlDropEntries = ofStore(`
WITH doomed AS MATERIALIZED (
    SELECT store, entry, key FROM rowkeeper_index
    WHERE store = $store::integer AND entry >= $1::bytea AND entry < $2::bytea ORDER BY entry, key LIMIT $3::bigint
), gone AS (
    DELETE FROM rowkeeper_index i USING doomed d WHERE i.store = d.store AND i.entry = d.entry AND i.key = d.key RETURNING 1
)
SELECT count(*) FROM gone`)

// sqlQuota finds the store's row by its primary key.
var sqlQuota = ofStore(`WITH` + state + `
SELECT header.*, s.max_objects, s.max_bytes, s.generation
FROM header CROSS JOIN rowkeeper_store s WHERE s.id = $store::integer`)

// sqlHome finds the store's row by its primary key.
var sqlHome = ofStore(`WITH` + state + `
SELECT header.*, s.home
FROM header CROSS JOIN rowkeeper_store s WHERE s.id = $store::integer`)

// sqlEverywhere reads a key in all stores that were not dropped: the stores' rows in the order of
// their primary key, and for each of them the live row of the key and its row of the log by theirs.
//
// $1 key.
var sqlEverywhere = ofStore(`WITH` + state + `
SELECT header.*, NULL, NULL, NULL FROM header
UNION ALL
SELECT NULL, NULL, r.* FROM (
    SELECT s.name, l.revision, g.value
    FROM (SELECT id, name FROM rowkeeper_store WHERE epoch > 0 ORDER BY id OFFSET 0) s
    CROSS JOIN LATERAL (SELECT revision FROM rowkeeper_live WHERE store = s.id AND key = $1::bytea OFFSET 0) l
    LEFT JOIN LATERAL (SELECT value FROM rowkeeper_log WHERE store = s.id AND revision = l.revision OFFSET 0) g ON true
) r`)

// The writing transactions. Each is BEGIN, a statement that takes a lock, one statement that does
// the work with a snapshot younger than the lock, and COMMIT; see transaction.go for how they are
// sent.

// sqlBegin names the isolation level: the work's snapshot has to be taken after the lock was
// granted. Whether the transaction may write is left to the server, so that a read-only one
// refuses.
const sqlBegin = `BEGIN ISOLATION LEVEL READ COMMITTED`

const sqlCommit = `COMMIT`

// sameServer fails if the server was not started at $1.
const sameServer = `sqrt(CASE WHEN ` + started + ` = $1::bigint THEN 1 ELSE -1 END)`

// sqlLock takes the commit lock, and tells when it began to wait for it, and the generation of the
// indexes, which cannot change from then on. The row is not updated, so
// it keeps one version, however long some snapshot is held.
//
// It fails, by a division by zero, if a migration has ended the time of this program's schema
// version (%d): the row is read as it is when the lock is granted, and the migration had to lock
// it, too. The work, which is on its way already, is skipped then. So it is if the server is not
// the one that the connection was made to: the square root of a negative number is another error.
//
// $1 when that was started.
var sqlLock = ofStore(`
SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint, 1 / (oldest_writer <= %d)::int, ` + sameServer + `, generation
FROM rowkeeper_store WHERE id = $store::integer FOR UPDATE`)

// sqlGroup decides and writes a commit group, under the commit lock.
//
// Why it is right: nobody else can change live, log, store or aborted while the lock is held, and
// the statement's snapshot is younger than the lock, so what it reads is what it changes.
//
//   - guard: the group's token is not recorded as aborted (primary key), and the database is the
//     one that was seen: the same epoch, a head that is not lower, and at each seen revision
//     (primary key) the seen token. holds also allows a row to be gone if compaction may have
//     removed it; then nothing is accepted, but the reason is another one. Where compaction has
//     passed the newest seen revision, nothing is accepted in any case, nor where the group was
//     made by other declarations of indexes (known).
//   - input: each mutation with the key's current row (primary key of live); 0 if there is none. A
//     part of a transaction has the revision that contract.RowID says. The caller has taken out all
//     but the first of the mutations with equal key and expectation, which could only lose. So of
//     one key's mutations at most one expects the current revision, and no key is written twice: a
//     mutation that expects any state is the only one of its key. fits says that the expectation
//     holds and that the previous value, if it is wanted, is in the log (primary key): a deletion
//     that cannot return the value is refused alone.
//   - decided: accepted is who fits; the accepted are numbered densely, in order of arrival, from
//     the head on.
//   - logged, updated, created, removed: an accepted mutation is a row of the log, whose primary
//     key is the second safeguard; and an update (primary key), an insertion or a deletion (primary
//     key) of the live row.
//   - answer: in order of arrival. An accepted deletion has the lease of what it removed.
//   - removed: the previous values (primary key of log) of the accepted deletions that ask for
//     them, in order of arrival, until their sizes, which are known without reading them, come to
//     the bound of contract.Returned. A group without such deletions does not pay for that.
//
// $1 token, $2 seen epoch and the generation of the indexes, $3 $4 seen revisions and tokens, the
// newest first, $5 keys, $6 expectations, -1 for any, $7 deletions, $8 values, $9 times to live in
// microseconds, or 0, or the negative of a lease, $10 whether the previous value is wanted, $11
// leases.
var sqlGroup = ofStore(boundedGroup)

var boundedGroup = strings.Replace(textGroup, "$bound", strconv.Itoa(groupBytes), 1)

const textGroup = `
WITH guard AS MATERIALIZED (
    SELECT s.epoch, s.compacted, s.swept, h.revision AS head, h.token AS head_token,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
           EXISTS (SELECT FROM rowkeeper_aborted WHERE store = $store::integer AND token = $1::bytea) AS aborted,
           s.epoch = ($2::bigint[])[1] AND h.revision >= ($3::bigint[])[1] AND p.holds AS holds, p.gone,
           s.generation = ($2::bigint[])[2] AS known
    FROM rowkeeper_store s
    CROSS JOIN LATERAL (SELECT revision, token FROM rowkeeper_log WHERE store = $store::integer ORDER BY revision DESC LIMIT 1) h
    CROSS JOIN LATERAL (
        SELECT bool_and(coalesce(l.token = p.token, p.revision < s.compacted)) AS holds, bool_or(l.token IS NULL) AS gone
        FROM unnest($3::bigint[], $4::bytea[]) AS p (revision, token)
        LEFT JOIN LATERAL (SELECT token FROM rowkeeper_log WHERE store = $store::integer AND revision = p.revision OFFSET 0) l ON true
    ) p
    WHERE s.id = $store::integer
), input AS (
    SELECT m.n, m.key, m.deleted, m.value, m.ttl, m.wants_previous,
           coalesce(l.revision, 0) AS current, l.create_revision, coalesce(l.version, 0) + 1 AS version,
           CASE WHEN m.deleted THEN coalesce(l.lease, 0) ELSE m.lease END AS lease,
           (m.expected = CASE WHEN l.revision < 0 THEN -(l.revision / 512) ELSE coalesce(l.revision, 0) END OR m.expected = -1 AND (l.revision IS NOT NULL OR NOT m.deleted))
           AND (NOT m.wants_previous OR (
               SELECT revision FROM rowkeeper_log WHERE store = $store::integer AND revision = l.revision
           ) IS NOT NULL) AS fits
    FROM unnest($5::bytea[], $6::bigint[], $7::boolean[], $8::bytea[], $9::bigint[], $10::boolean[], $11::bigint[])
         WITH ORDINALITY AS m (key, expected, deleted, value, ttl, wants_previous, lease, n)
    LEFT JOIN LATERAL (
        SELECT revision, create_revision, version, lease FROM rowkeeper_live WHERE store = $store::integer AND key = m.key OFFSET 0
    ) l ON true
), decided AS MATERIALIZED (
    SELECT i.n, $store::integer AS store, i.key, i.deleted, i.value, i.wants_previous, i.current, i.version, i.lease, g.now,
           i.fits AND g.holds AND g.known AND NOT g.gone AND NOT g.aborted AND g.compacted <= ($3::bigint[])[1] AS accepted,
           g.head + count(*) FILTER (WHERE i.fits) OVER (ORDER BY i.n ROWS UNBOUNDED PRECEDING) AS revision,
           i.create_revision,
           CASE WHEN i.ttl > 0 THEN g.now + i.ttl WHEN i.ttl < 0 THEN i.ttl END AS expiry
    FROM guard g CROSS JOIN input i
), logged AS (
    INSERT INTO rowkeeper_log (store, revision, prev_revision, create_revision, version, lease, time, deleted, key, token, value)
    SELECT store, revision, current, coalesce(create_revision, revision), version, lease, now, deleted, key, $1::bytea,
           CASE WHEN NOT deleted THEN value END
    FROM decided WHERE accepted
), created AS (
    INSERT INTO rowkeeper_live (store, key, revision, create_revision, version, lease, expiry)
    SELECT store, key, revision, revision, version, lease, expiry FROM decided WHERE accepted AND current = 0
), updated AS (
    UPDATE rowkeeper_live l SET revision = d.revision, version = d.version, lease = d.lease, expiry = d.expiry
    FROM decided d WHERE l.store = d.store AND l.key = d.key AND d.accepted AND NOT d.deleted AND d.current <> 0
), removed AS (
    DELETE FROM rowkeeper_live l USING decided d WHERE l.store = d.store AND l.key = d.key AND d.accepted AND d.deleted
)
SELECT g.epoch, g.compacted, g.swept, g.head, g.head_token, g.now, g.aborted, g.holds, g.gone,
       a.accepted, a.currents, a.creations, a.versions, a.leases, p.previous
FROM guard g
CROSS JOIN LATERAL (
    SELECT array_agg(accepted) AS accepted, array_agg(current) AS currents, array_agg(create_revision) AS creations,
           array_agg(version) AS versions, array_agg(lease) AS leases
    FROM (
        SELECT accepted, current, coalesce(create_revision, revision) AS create_revision, version, lease FROM decided ORDER BY n
    ) answer
) a
CROSS JOIN LATERAL (
    SELECT array_agg(CASE WHEN bytes <= $bound THEN value END) AS previous
    FROM (
        SELECT g.value, sum(octet_length(g.value)) OVER (ORDER BY d.n ROWS UNBOUNDED PRECEDING) AS bytes
        FROM (SELECT n, current FROM decided WHERE accepted AND deleted AND wants_previous) d
        LEFT JOIN LATERAL (SELECT value FROM rowkeeper_log WHERE store = $store::integer AND revision = d.current OFFSET 0) g ON true
        ORDER BY d.n
    ) removed
) p`

// sqlLeasedGroup is sqlGroup for a group that attaches keys to leases. Such a mutation fits only if
// its lease is there and has not ended (primary key of lease). A group without leases does not pay
// for that.
var sqlLeasedGroup = ofStore(leasedText)

var leasedText = strings.Replace(boundedGroup, ` AS fits`, `
           AND (m.ttl >= 0 OR EXISTS (
               SELECT FROM rowkeeper_lease WHERE store = $store::integer AND id = m.lease AND expiry <> 0 OFFSET 0
           )) AS fits`, 1)

// sqlComparedGroup is sqlLeasedGroup for a group of one mutation that has a condition. It fits only
// if this is met.
//
// The keys of each comparison are a range of the primary key of live, and their values, if these
// are compared, are found by the primary key of the log. If there is no key in the range, all its
// numbers are 0, and it has no value. NULL compares as nothing. So holds is what
// contract.Comparison says, and met what contract.Condition says.
//
// The keys that were written since a revision are two ranges of the primary key of the log, one of
// them of parts of transactions. Each is compared with the ranges that have to be untouched. Of the
// comparisons that are changed, the live rows of these keys are looked at only, by the primary key,
// and whether there is any row.
//
// $12 to $17 are the beginnings and ends of the ranges, the properties and operators, the numbers
// and values, and $18 whether the comparisons have to hold; $19 and $20 the beginnings and ends of
// the ranges that have to be untouched, $21 since when, or 0, and $22 the ID below which the parts
// are; $23 which comparisons are changed.
var sqlComparedGroup = ofStore(comparedText)

var comparedText = strings.NewReplacer(
	`
), input AS (`, `
), written AS MATERIALIZED (
    SELECT key FROM (
        (SELECT key FROM rowkeeper_log WHERE store = $store::integer AND revision > $21::bigint AND $21::bigint > 0 ORDER BY revision OFFSET 0)
        UNION ALL
        (SELECT key FROM rowkeeper_log WHERE store = $store::integer AND revision < $22::bigint AND $21::bigint > 0 ORDER BY revision OFFSET 0)
    ) w
), compared AS MATERIALIZED (
    SELECT coalesce(bool_and(
               m.changed AND l.revision IS NULL AND EXISTS (SELECT FROM rowkeeper_live WHERE store = $store::integer AND key >= m.low AND key < m.high OFFSET 0)
               OR coalesce(CASE m.op WHEN 0 THEN o.sign = 0 WHEN 1 THEN o.sign > 0 WHEN 2 THEN o.sign < 0 ELSE o.sign <> 0 END, false)
           ), true) = $18::boolean
           AND (SELECT g.compacted <= $21::bigint OR $21::bigint = 0 FROM guard g)
           AND NOT EXISTS (
               SELECT FROM written w CROSS JOIN unnest($19::bytea[], $20::bytea[]) AS s (low, high) WHERE w.key >= s.low AND w.key < s.high
           ) AS met
    FROM unnest($12::bytea[], $13::bytea[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bytea[], $23::boolean[])
         AS m (low, high, property, op, number, value, changed)
    LEFT JOIN LATERAL (
        (SELECT revision, create_revision, version, lease FROM rowkeeper_live
         WHERE store = $store::integer AND key >= m.low AND key < m.high AND NOT m.changed OFFSET 0)
        UNION ALL
        (SELECT c.revision, c.create_revision, c.version, c.lease
         FROM written w
         CROSS JOIN LATERAL (SELECT revision, create_revision, version, lease FROM rowkeeper_live WHERE store = $store::integer AND key = w.key OFFSET 0) c
         WHERE m.changed AND w.key >= m.low AND w.key < m.high)
    ) l ON true
    LEFT JOIN LATERAL (SELECT value FROM rowkeeper_log WHERE store = $store::integer AND revision = l.revision AND m.property = 3 OFFSET 0) v ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(CASE m.property WHEN 0 THEN l.version WHEN 1 THEN l.create_revision WHEN 2 THEN CASE WHEN l.revision < 0 THEN -(l.revision / 512) ELSE l.revision END ELSE l.lease END, 0) AS number
    ) n
    CROSS JOIN LATERAL (
        SELECT CASE WHEN m.property = 3 THEN CASE WHEN v.value < m.value THEN -1 WHEN v.value > m.value THEN 1 WHEN v.value = m.value THEN 0 END
                    WHEN n.number < m.number THEN -1 WHEN n.number > m.number THEN 1 ELSE 0 END AS sign
    ) o
), input AS (`,
	` AS fits`, `
           AND (SELECT met FROM compared) AS fits`,
	`, p.previous
FROM`, `, p.previous, (SELECT met FROM compared)
FROM`).Replace(leasedText)

// sqlWholeGroup is sqlComparedGroup for a transaction. All its mutations are accepted if each fits,
// the condition is met and there is room for parts, and else none; the answer tells which fit. They
// have the revision after the head. The last one is the row at it, and each of the others a part;
// see contract.RowID, and contract.Group.Full for the last revision at which there may be some.
var sqlWholeGroup = ofStore(wholeText)

var wholeText = strings.NewReplacer(
	`
           AND (SELECT met FROM compared) AS fits`, ` AS fits`,
	`i.fits AND g.holds`, `bool_and(i.fits) OVER () AND (SELECT met FROM compared) AND g.head < 9223372036854775807 / 512 AND g.holds`,
	`
           g.head + count(*) FILTER (WHERE i.fits) OVER (ORDER BY i.n ROWS UNBOUNDED PRECEDING) AS revision,`, `
           CASE WHEN i.n = count(*) OVER () THEN g.head + 1 WHEN g.head < 9223372036854775807 / 512 THEN -((g.head + 1) * 512 + i.n) END AS revision, g.head + 1 AS written, i.fits,`,
	`SELECT accepted, current, coalesce(create_revision, revision)`, `SELECT fits AS accepted, current, coalesce(create_revision, written)`,
	`coalesce(create_revision, revision)`, `coalesce(create_revision, written)`,
	`SELECT store, key, revision, revision, version, lease, expiry FROM decided`,
	`SELECT store, key, revision, written, version, lease, expiry FROM decided`).Replace(comparedText)

// indexed makes the statement of a group one that changes the index, too. A mutation brings the
// text of an array of the entries that its key has afterwards, or "" if its directory has no index.
// Of these, and of what the live row has, equal ones touch no row of the index: what is there
// before and not after is deleted by the primary key, and what is there after and not before is
// inserted. A key is written once in a group, so nothing is deleted and inserted by the same
// statement. The row of the log has the entries of what it replaces.
//
// OFFSET 0 has the planner find the entries first. With statistics of an empty index it would join
// the index by the key alone, and walk through all of it for each key.
//
// The entries are the parameter n.
func indexed(text string, n int) string {
	return strings.NewReplacer(
		`SELECT m.n, m.key, m.deleted, m.value, m.ttl, m.wants_previous,`,
		`SELECT m.n, m.key, m.deleted, m.value, m.ttl, m.wants_previous, m.entries <> '' AS covered, coalesce(nullif(m.entries, '')::bytea[], '{}') AS after, coalesce(l.entries, '{}') AS before,`,
		`$11::bigint[])
         WITH ORDINALITY AS m (key, expected, deleted, value, ttl, wants_previous, lease, n)`,
		fmt.Sprintf(`$11::bigint[], $%d::text[])
         WITH ORDINALITY AS m (key, expected, deleted, value, ttl, wants_previous, lease, entries, n)`, n),
		`SELECT revision, create_revision, version, lease FROM rowkeeper_live WHERE store = $store::integer AND key = m.key OFFSET 0`,
		`SELECT revision, create_revision, version, lease, entries FROM rowkeeper_live WHERE store = $store::integer AND key = m.key OFFSET 0`,
		`i.current, i.version, i.lease, g.now,`, `i.current, i.version, i.lease, g.now, i.covered, i.before, i.after,`,
		`key, token, value)
    SELECT`, `key, token, entries, value)
    SELECT`,
		`CASE WHEN NOT deleted THEN value END`, `CASE WHEN covered AND current <> 0 THEN before END, CASE WHEN NOT deleted THEN value END`,
		`version, lease, expiry)
    SELECT store,`, `version, lease, entries, expiry)
    SELECT store,`,
		`version, lease, expiry FROM decided WHERE accepted AND current = 0`,
		`version, lease, nullif(after, '{}'), expiry FROM decided WHERE accepted AND current = 0`,
		`lease = d.lease, expiry = d.expiry
`, `lease = d.lease, expiry = d.expiry, entries = nullif(d.after, '{}')
`,
		`), removed AS (
    DELETE`, `), entered AS (
    INSERT INTO rowkeeper_index (store, entry, key)
    SELECT d.store, e.entry, d.key FROM decided d CROSS JOIN LATERAL unnest(d.after) AS e (entry)
    WHERE d.accepted AND e.entry <> ALL (d.before)
    ON CONFLICT DO NOTHING
), left_out AS (
    DELETE FROM rowkeeper_index i
    USING (
        SELECT d.store, e.entry, d.key FROM decided d CROSS JOIN LATERAL unnest(d.before) AS e (entry)
        WHERE d.accepted AND e.entry <> ALL (d.after)
        OFFSET 0
    ) g
    WHERE i.store = g.store AND i.entry = g.entry AND i.key = g.key
), removed AS (
    DELETE`).Replace(text)
}

// These are the statements of a group that has keys of indexed directories; see indexed.
var (
	sqlIndexedGroup         = ofStore(indexed(boundedGroup, 12))
	sqlLeasedIndexedGroup   = ofStore(indexed(leasedText, 12))
	sqlComparedIndexedGroup = ofStore(indexed(comparedText, 24))
	sqlWholeIndexedGroup    = ofStore(indexed(wholeText, 24))
)

// byUsers makes the statement of a group one that records users, too. A mutation brings the user's
// name and the audit ID, or "" if there is none. An accepted one of a user has a row beside that of
// the log, whose primary key it has.
//
// The names are the parameter n, and the audit IDs the one after it.
func byUsers(text string, n int) string {
	return strings.NewReplacer(
		`SELECT m.n, m.key,`, `SELECT m.n, m.username, m.audit_id, m.key,`,
		`)
         WITH ORDINALITY AS m (`, fmt.Sprintf(`, $%d::text[], $%d::text[])
         WITH ORDINALITY AS m (`, n, n+1),
		`, n)
    LEFT JOIN LATERAL (`, `, username, audit_id, n)
    LEFT JOIN LATERAL (`,
		`SELECT i.n, $store::integer AS store,`,
		`SELECT i.n, i.username, i.audit_id, $store::integer AS store,`,
		`), created AS (`, `), noted AS (
    INSERT INTO rowkeeper_user (store, revision, name, audit_id)
    SELECT store, revision, username, audit_id FROM decided WHERE accepted AND (username <> '' OR audit_id <> '')
), created AS (`).Replace(text)
}

// These are the statements of a group that has mutations of users; see byUsers. Such a group may
// attach keys to leases, too: a mutation that does not pays nothing for that. It has no condition,
// and is no transaction.
var (
	sqlUsersGroup        = ofStore(byUsers(leasedText, 12))
	sqlUsersIndexedGroup = ofStore(byUsers(indexed(leasedText, 12), 13))
)

// sqlSomeLeases finds leases by the primary key. $1 IDs.
var sqlSomeLeases = ofStore(`
SELECT e.id, e.ttl, e.expiry
FROM unnest($1::bigint[]) AS asked (id)
CROSS JOIN LATERAL (SELECT id, ttl, expiry FROM rowkeeper_lease WHERE store = $store::integer AND id = asked.id OFFSET 0) e`)

// sqlPutLeases writes leases, in the place of those with the same primary key. $1 IDs, $2 times to
// live, $3 expiries.
var sqlPutLeases = ofStore(`
INSERT INTO rowkeeper_lease (store, id, ttl, expiry)
SELECT $store::integer, id, ttl, expiry FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS put (id, ttl, expiry)
ON CONFLICT (store, id) DO UPDATE SET ttl = excluded.ttl, expiry = excluded.expiry`)

// sqlDropLeases deletes leases by the primary key. $1 IDs.
var sqlDropLeases = ofStore(`
DELETE FROM rowkeeper_lease e USING (SELECT $store::integer AS store, unnest($1::bigint[]) AS id) d
WHERE e.store = d.store AND e.id = d.id`)

// sqlSweepLock lets one sweep at a time work on this log: two would wait for each other's rows, in
// different order. It is not the commit lock, and ends with the transaction. The sweep's commit
// need not wait for the disk, with the commit lock held: what a crash brings back is swept again.
//
// It fails like sqlLock if this program's schema version (%d) must not write any more, or the
// server is another one.
//
// $1 when the connection's server was started.
var sqlSweepLock = ofStore(`
SELECT pg_advisory_xact_lock('rowkeeper_log'::regclass::oid::int, $store::integer), set_config('synchronous_commit', 'off', true),
       1 / (SELECT oldest_writer <= %d FROM rowkeeper_store WHERE id = $store::integer)::int, ` + sameServer)

// sqlSweepRows reads what a batch of the sweep looks at: the rows from the swept revision to
// compacted, by the primary key of the log; the lowest revision that is recorded with an aborted
// token, of which there are a few at most; and whether there is a user's row, by one step into
// their primary key. That is a step to the last one: before the first one there are those that were
// swept, until vacuum removes them, which a snapshot that somebody holds prevents. The swept
// revision is where this process has come to, if that is farther than what is recorded.
//
// $1 limit, $2 $3 an epoch and the revision up to which this process has swept in it.
var sqlSweepRows = ofStore(`WITH` + state + `, start AS MATERIALIZED (
    SELECT CASE WHEN state.epoch = $2::bigint AND $3::bigint <= state.compacted
                THEN greatest(state.swept, $3::bigint) ELSE state.swept END AS swept
    FROM state
)
SELECT ARRAY[state.epoch, state.compacted, start.swept, state.head, state.now, state.writable::int, state.started], state.head_token,
       0::bigint, (SELECT min(seen) FROM rowkeeper_aborted WHERE store = $store::integer),
       (SELECT true FROM rowkeeper_user WHERE store = $store::integer ORDER BY revision DESC LIMIT 1)
FROM state CROSS JOIN start
UNION ALL
SELECT NULL, NULL, g.*
FROM state CROSS JOIN start CROSS JOIN LATERAL (
    SELECT revision, prev_revision, deleted FROM rowkeeper_log
    WHERE store = $store::integer AND revision >= start.swept AND revision <= state.compacted ORDER BY revision LIMIT $1::bigint
) g`)

// sqlSweep carries out a plan of contract.PlanSweep, under the sweep lock: it deletes rows by the
// primary key of the log, the users' rows beside them by theirs if there may be some, and forgets
// aborted tokens.
//
// Why it is right: the plan holds in this state (good says what SweepPlan.Check says), whatever was
// swept since. An import, after which it does not, holds the sweep lock, too, until it is
// committed; and this statement's snapshot is younger than the lock.
//
// The store row, and with it the commit lock, is taken last and for the time of the commit only:
// the update reads how many rows were deleted. Most batches do not update it; see
// contract.SweptSoFar.
//
// $1 epoch, $2 revisions of the rows to delete, $3 the new swept revision, $4 the revision below
// which aborted tokens are forgotten, $5 whether to record swept, $6 the plan's compacted,
// $7 whether there may be users' rows.
var sqlSweep = ofStore(`WITH` + state + `, good AS MATERIALIZED (
    SELECT FROM state WHERE state.epoch = $1::bigint AND state.compacted >= $6::bigint
), doomed AS MATERIALIZED (
    SELECT $store::integer AS store, revision FROM good CROSS JOIN unnest($2::bigint[]) AS revisions (revision)
), gone AS (
    DELETE FROM rowkeeper_log g USING doomed d WHERE g.store = d.store AND g.revision = d.revision RETURNING 1
), unnamed AS (
    DELETE FROM rowkeeper_user u USING doomed d WHERE u.store = d.store AND u.revision = d.revision AND $7::boolean
), done AS MATERIALIZED (
    SELECT count(*) AS deleted FROM gone
), forgotten AS (
    DELETE FROM rowkeeper_aborted a USING good WHERE a.store = $store::integer AND a.seen < $4::bigint
), moved AS (
    UPDATE rowkeeper_store s SET swept = $3::bigint
    FROM good CROSS JOIN done
    WHERE s.id = $store::integer AND done.deleted >= 0 AND s.epoch = $1::bigint AND s.swept < $3::bigint AND $5::boolean
)
SELECT header.*, done.deleted
FROM header CROSS JOIN done`)

// sqlFindStore finds a store by the unique index on its name, and sqlIdentity by the primary key.
//
// $1 name.
const (
	sqlFindStore = `SELECT id, identity, coalesce(fingerprint, ''), epoch, coalesce(boot, '') FROM rowkeeper_store WHERE name = $1::text`
	sqlIdentity  = `SELECT id, identity, coalesce(fingerprint, ''), epoch, coalesce(boot, '') FROM rowkeeper_store WHERE id = $1::integer`
)

// sqlCreateStore creates a store with its first marker, unless there is one of the name: two at the
// same time wait for each other at the unique index on the name. A program that may write to the
// others may write to it, too.
//
// $1 name.
const sqlCreateStore = `
WITH created AS (
    INSERT INTO rowkeeper_store (name, epoch, compacted, swept, oldest_writer, identity)
    SELECT $1::text, 1, 0, 0, max(oldest_writer), replace(gen_random_uuid()::text, '-', '') FROM rowkeeper_store
    ON CONFLICT (name) DO NOTHING
    RETURNING id
)
INSERT INTO rowkeeper_log (store, revision, prev_revision, create_revision, version, lease, time, deleted, key, token)
SELECT id, 1, 0, 0, 0, 0, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, true, '', uuid_send(gen_random_uuid())
FROM created`

// sqlRecordBoot records the boot that holds commits, if the recorded one is still the one that was
// read.
//
// $1 the recorded boot, $2 the new one; "" for none.
var sqlRecordBoot = ofStore(`
UPDATE rowkeeper_store SET boot = nullif($2::text, '') WHERE id = $store::integer AND coalesce(boot, '') = $1::text`)

// sqlRecordFingerprint records the first fingerprint.
//
// $1 fingerprint.
var sqlRecordFingerprint = ofStore(`UPDATE rowkeeper_store SET fingerprint = $1 WHERE id = $store::integer AND fingerprint IS NULL`)

// sqlPlace reads what tells one database from another.
//
//   - The oids of the database and of the log's table change when a dump is restored.
//   - The names of the database and of the schema change when a copy that was served under another
//     name, and fenced there, is renamed to take this one's place: it keeps the oids that it had.
//   - The time line changes when a standby is promoted, at once (the control file shows it only
//     after the next checkpoint).
//   - The transaction that wrote the version table's first row stands in for the system identifier
//     where that may not be read.
//
// It also reads what holds commits: with fsync=off they are in the memory of the server's operating
// system, of which the server's start is the only sign. A session's own synchronous_commit=off does
// not count, since sessions that write switch it on.
const sqlPlace = `
SELECT pg_is_in_recovery(), (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
       c.oid::bigint, quote_ident(current_database()), c.relnamespace::regnamespace::text,
       (SELECT xmin::text FROM rowkeeper_schema ORDER BY id LIMIT 1),
       to_char(pg_postmaster_start_time() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), current_setting('fsync') = 'off',
       ` + started + `
FROM pg_class c WHERE c.oid = 'rowkeeper_log'::regclass`

// sqlFindGroup reads what is known of a group that was begun after a revision: whether its token is
// recorded as aborted and the token of the row at the revision, both by primary key; and the rows
// with the group's token, which can only be after that revision, by a scan of the log's primary key
// from there on. It returns the state in each row.
//
// $1 token, $2 revision.
var sqlFindGroup = ofStore(`WITH` + state + `, found AS MATERIALIZED (
    SELECT revision, key, prev_revision, create_revision, version, lease, time, deleted
    FROM rowkeeper_log WHERE store = $store::integer AND revision > $2::bigint AND token = $1::bytea ORDER BY revision
)
SELECT header.*, EXISTS (SELECT FROM rowkeeper_aborted WHERE store = $store::integer AND token = $1::bytea),
       (SELECT token FROM rowkeeper_log WHERE store = $store::integer AND revision = $2::bigint), f.*
FROM header LEFT JOIN found f ON true`)

// sqlAbort records a token as aborted. $1 token, $2 the revision that its group had seen.
var sqlAbort = ofStore(`INSERT INTO rowkeeper_aborted (store, token, seen) VALUES ($store::integer, $1::bytea, $2::bigint)`)

// sqlCompact raises the boundary. The store row is updated where it was locked. $1 revision.
var sqlCompact = ofStore(`UPDATE rowkeeper_store SET compacted = $1::bigint WHERE id = $store::integer`)

// sqlSweepOut waits for the sweep that is under way, and keeps others from beginning: it would be
// in the way of the deletions.
var sqlSweepOut = ofStore(`SELECT pg_advisory_xact_lock('rowkeeper_log'::regclass::oid::int, $store::integer)`)

// sqlClear deletes everything.
var sqlClear = ofStore(`
WITH keys AS (DELETE FROM rowkeeper_live WHERE store = $store::integer),
leases AS (DELETE FROM rowkeeper_lease WHERE store = $store::integer),
entries AS (DELETE FROM rowkeeper_index WHERE store = $store::integer),
users AS (DELETE FROM rowkeeper_user WHERE store = $store::integer)
DELETE FROM rowkeeper_log WHERE store = $store::integer`)

// sqlErase removes the first keys in the order of their primary key, and the oldest rows of the log
// but for the newest one, in the order of its primary key, and the first rows of the index, and all
// aborted tokens and directories. As many users' rows are removed as rows of the log, the first
// ones in the same order, so none is left without its row of the log. It runs under the commit
// lock, and a dropped store has no other writer. It returns how many rows it has removed.
//
// $1 limit for each of the four tables.
var sqlErase = ofStore(`
WITH keys AS MATERIALIZED (
    SELECT store, key FROM rowkeeper_live WHERE store = $store::integer ORDER BY key LIMIT $1::bigint
), revisions AS MATERIALIZED (
    SELECT g.store, g.revision
    FROM (SELECT revision FROM rowkeeper_log WHERE store = $store::integer ORDER BY revision DESC LIMIT 1) h
    CROSS JOIN LATERAL (
        SELECT store, revision FROM rowkeeper_log WHERE store = $store::integer AND revision < h.revision ORDER BY revision LIMIT $1::bigint
    ) g
), entries AS MATERIALIZED (
    SELECT store, entry, key FROM rowkeeper_index WHERE store = $store::integer ORDER BY entry, key LIMIT $1::bigint
), named AS MATERIALIZED (
    SELECT store, revision FROM rowkeeper_user WHERE store = $store::integer ORDER BY revision LIMIT $1::bigint
), unnamed AS (
    DELETE FROM rowkeeper_user u USING named n WHERE u.store = n.store AND u.revision = n.revision RETURNING 1
), left_out AS (
    DELETE FROM rowkeeper_index i USING entries e WHERE i.store = e.store AND i.entry = e.entry AND i.key = e.key RETURNING 1
), dead AS (
    DELETE FROM rowkeeper_live l USING keys k WHERE l.store = k.store AND l.key = k.key RETURNING 1
), gone AS (
    DELETE FROM rowkeeper_log g USING revisions r WHERE g.store = r.store AND g.revision = r.revision RETURNING 1
), forgotten AS (
    DELETE FROM rowkeeper_aborted WHERE store = $store::integer
), directories AS (
    DELETE FROM rowkeeper_resource WHERE store = $store::integer
)
SELECT (SELECT count(*) FROM dead) + (SELECT count(*) FROM gone) + (SELECT count(*) FROM left_out) + (SELECT count(*) FROM unnamed)`)

// sqlRemove deletes the live rows of some keys, by their primary key, and the log rows that these
// name, and the users' rows beside them, by theirs. It runs under the commit lock.
//
// $1 keys.
var sqlRemove = ofStore(`
WITH dead AS (
    DELETE FROM rowkeeper_live l USING (SELECT $store::integer AS store, unnest($1::bytea[]) AS key) k
    WHERE l.store = k.store AND l.key = k.key
    RETURNING l.store, l.revision
), unnamed AS (
    DELETE FROM rowkeeper_user u USING dead d WHERE u.store = d.store AND u.revision = d.revision
)
DELETE FROM rowkeeper_log g USING dead d WHERE g.store = d.store AND g.revision = d.revision`)

// sqlRenew makes the store's row that of another store.
var sqlRenew = ofStore(`
UPDATE rowkeeper_store
SET identity = replace(gen_random_uuid()::text, '-', ''), fingerprint = NULL, boot = NULL, max_objects = 0, max_bytes = 0,
    generation = 0, indexes = NULL
WHERE id = $store::integer`)

// sqlSetQuota records what the store may hold. $1 objects, $2 bytes.
var sqlSetQuota = ofStore(`UPDATE rowkeeper_store SET max_objects = $1::bigint, max_bytes = $2::bigint WHERE id = $store::integer`)

// sqlTheHome is sqlHome without the state.
var sqlTheHome = ofStore(`SELECT home FROM rowkeeper_store WHERE id = $store::integer`)

// sqlSetHome and sqlSetIdentity find the store's row by its primary key. $1 the text.
var sqlSetHome = ofStore(`UPDATE rowkeeper_store SET home = $1::text WHERE id = $store::integer`)

var sqlSetIdentity = ofStore(`UPDATE rowkeeper_store SET identity = $1::text WHERE id = $store::integer`)

// sqlDirectories walks the recorded directories of the store by the primary key. There is one for
// each resource.
var sqlDirectories = ofStore(`SELECT directory, "group", resource, scope FROM rowkeeper_resource WHERE store = $store::integer`)

// sqlPutDirectory finds a directory by the primary key. $1 path, $2 group, $3 resource, $4 scope,
// $5 the first key, $6 the first key beyond.
var sqlPutDirectory = ofStore(`
INSERT INTO rowkeeper_resource (store, directory, "group", resource, scope, first, beyond)
VALUES ($store::integer, $1::text, $2::text, $3::text, $4::text, convert_to($5::text, 'UTF8'), convert_to($6::text, 'UTF8'))
ON CONFLICT (store, directory) DO UPDATE SET "group" = excluded."group", resource = excluded.resource, scope = excluded.scope`)

// sqlImport writes records: each is a row of the log and a live one. The primary keys of both
// refuse what was there before.
//
// $1 revisions, $2 creation revisions, $3 expiries or 0, $4 keys, $5 values, $6 time, $7 token, $8
// versions, $9 leases.
var sqlImport = ofStore(`
WITH records AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[], $8::bigint[], $9::bigint[])
        AS r (revision, create_revision, expiry, key, value, version, lease)
), keys AS (
    INSERT INTO rowkeeper_live (store, key, revision, create_revision, version, lease, expiry)
    SELECT $store::integer, key, revision, create_revision, version, lease, nullif(expiry, 0) FROM records
)
INSERT INTO rowkeeper_log (store, revision, prev_revision, create_revision, version, lease, time, deleted, key, token, value)
SELECT $store::integer, revision, 0, create_revision, version, lease, $6::bigint, false, key, $7::bytea, value FROM records`)

// sqlMark begins a new epoch, under the commit lock, with a marker row.
//
// $1 revision, $2 token, $3 time, $4 epoch, $5 compacted, $6 swept, $7 fingerprint or "".
var sqlMark = ofStore(`
WITH marker AS (
    INSERT INTO rowkeeper_log (store, revision, prev_revision, create_revision, version, lease, time, deleted, key, token)
    VALUES ($store::integer, $1::bigint, 0, 0, 0, 0, $3::bigint, true, '', $2::bytea)
)
UPDATE rowkeeper_store s
SET epoch = $4::bigint, compacted = $5::bigint, swept = $6::bigint,
    fingerprint = coalesce(nullif($7::text, ''), s.fingerprint)
WHERE s.id = $store::integer`)

// sqlAnnounce notifies the processes that listen. The server sends notifications in the order of
// commits, and to be sure of it lets one transaction at a time, of all its databases, go from
// before its commit to the end of it. So this transaction has no other work, and does not wait for
// the disk or a standby: a notification that a crash takes with it is missed by nobody.
//
// The channel is named after the table, since a database may have several, in schemas of their own.
//
// $1 payloads.
const sqlAnnounce = `
SELECT set_config('synchronous_commit', 'off', true), pg_notify('rowkeeper_' || to_regclass('rowkeeper_log')::oid, payload)
FROM unnest($1::text[]) payload`

// sqlListens takes the lock of the sessions that listen, until the session ends. Nobody has it for
// itself for longer than sqlAlone takes. No store has the id 0, whose sweep would have this lock.
const sqlListens = `SELECT pg_advisory_lock_shared('rowkeeper_log'::regclass::oid::int, 0)`

// sqlAlone tells whether no other session has the lock of listening sessions. A session's own lock
// is not in its way, and what it tries ends with the statement.
const sqlAlone = `SELECT pg_try_advisory_xact_lock('rowkeeper_log'::regclass::oid::int, 0)`

// sqlCountAll counts all live rows.
var sqlCountAll = ofStore(`SELECT count(*) FROM rowkeeper_live WHERE store = $store::integer`)

// sqlAllLeases walks the leases of the store by the primary key.
var sqlAllLeases = ofStore(`SELECT id, ttl, expiry FROM rowkeeper_lease WHERE store = $store::integer`)

// sqlRecords walks the log by its primary key, which is the order that is asked for, and finds by
// the primary key of live which of its rows are live. Values of the others that are stored out of
// line are not read. sqlRecordParts does the same backwards.
var sqlRecordParts = ofStore(strings.NewReplacer(`revision > 0`, `revision < 0`,
	`ORDER BY g.revision`, `ORDER BY g.revision DESC`).Replace(textRecords))

var sqlRecords = ofStore(textRecords)

const textRecords = `
SELECT g.revision, g.key, l.create_revision, l.version, l.lease, greatest(coalesce(l.expiry, 0), 0), g.value
FROM rowkeeper_log g
CROSS JOIN LATERAL (
    SELECT create_revision, version, lease, expiry FROM rowkeeper_live WHERE store = $store::integer AND key = g.key AND revision = g.revision OFFSET 0
) l
WHERE g.store = $store::integer AND g.revision > 0
ORDER BY g.revision`

// sqlBeginExport begins a transaction whose statements read one snapshot. It is not READ ONLY,
// since the state tells by that whether the server takes writes.
const sqlBeginExport = `BEGIN ISOLATION LEVEL REPEATABLE READ`
