package mysql

import (
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// The statements. Three things hold of all of them:
//
// A read is one statement, so that its rows and its state come from one snapshot. The state is
// eight columns: epoch, revision and token of the head, compacted, swept, whether the server is
// read-only, the time in microseconds, and which server it is. s is the store row and h the head,
// both found by primary key: The state of a read of many rows is its first row, put before the
// others by UNION ALL, which needs no temporary table. (Joined to the rows, it costs one: an outer
// join's rows cannot be had in the order of an index.) A read that returns no state found no head
// or no store row: the store is damaged.
//
// The optimizer has no choice: FORCE INDEX, at each of the two large tables, and LEFT JOIN or
// STRAIGHT_JOIN name the index and the order of the join. It would decide by statistics of
// yesterday's table, which may have been empty: what it believes to have two rows, MySQL reads
// wholly, once for each row that it is joined to. In a deletion, MySQL heeds FORCE INDEX in a join
// only, and not beside a list for IN: so what is to be deleted is joined as rows of a table.
//
// $store stands for the id of the store, in digits; see text and readsOf. It is the first column of
// each key, and each statement says which rows of the store it means: so the rows of other stores
// are neither seen nor locked. MAX(revision) of a store is the last entry of its part of the index.
//
// The time is UTC_TIMESTAMP, which does not depend on the session's time zone.

// readsOf are the statements of the reads of a store.
func readsOf(store string, tidb bool) sqlkit.Statements {
	ofStore := func(sql, store string) string { return ofStore(onServer(sql, tidb), store) }
	stateOf := preparedState
	if tidb {
		stateOf = ofStore(selectState, store)
	}
	return sqlkit.Statements{
		State:     stateOf,
		Tail:      ofStore(selectTail, store),
		Parts:     ofStore(selectParts, store),
		Get:       ofStore(selectKey, store),
		GetKeys:   ofStore(selectKeys, store),
		Page:      ofStore(selectPage, store),
		PageKeys:  ofStore(selectPageKeys, store),
		Replaced:  ofStore(selectReplaced, store),
		Values:    ofStore(selectValues, store),
		Chain:     ofStore(selectChain, store),
		Changes:   ofStore(selectChanges, store),
		Users:     ofStore(selectUsers, store),
		Count:     ofStore(selectCount, store),
		CountUpTo: ofStore(selectCountUpTo, store),
		Expired:   ofStore(selectExpiring, store),
		Leases:    ofStore(selectLeases, store),
		Lapsing:   ofStore(selectLapsing, store),
		Attached:  ofStore(selectAttached, store),

		AttachedTo: ofStore(selectAttachedTo, store), CountLeases: ofStore(countLeases, store),

		FirstAt: ofStore(selectFirstAt, store),
		Sweep:   ofStore(selectSweep, store),
		Size:    ofStore(selectSize, store),
		Usage:   ofStore(selectUsage, store),
		Growth:  ofStore(selectGrowth, store),
		Quota:   ofStore(selectQuota, store),
		Home:    ofStore(selectHome, store),
		Indexes: ofStore(selectIndexes, store),
		PageOf:  func(n int) string { return ofStore(selectPageOf(n), store) },
		CountOf: func(n int) string { return ofStore(countOf(n), store) },

		ReplacedOf:    func(n int) string { return ofStore(selectReplacedOf(n), store) },
		IndexRows:     ofStore(selectIndexRows, store),
		IndexRowsBack: ofStore(selectIndexRowsBack, store),

		Everywhere: ofStore(selectEverywhere, store),
	}
}

// inTransaction are the statements of what is done under the commit lock, and in a snapshot.
var inTransaction = sqlkit.TxStatements{
	Keys:              selectAllKeys,
	Records:           selectRecords,
	RecordParts:       selectRecordParts,
	AllLeases:         selectAllLeases,
	Leases:            selectSomeLeases,
	DropLeases:        deleteLeases,
	Abort:             insertAborted,
	SetCompacted:      updateCompacted,
	RecordFingerprint: updateFingerprint,
	Mark: []sqlkit.Change{{SQL: insertMarker, Args: 3},
		{SQL: updateEpoch, First: 3, Args: 4}},
	Remove:   []string{removeUsers, removeRecords, deleteLive},
	Clear:    []string{deleteAllLeases, deleteAllLive, deleteAllUsers, deleteAllLog, deleteAllEntries},
	Indexes:  selectTheIndexes,
	Renew:    renewStore,
	SetQuota: updateQuota,

	Home:        selectTheHome,
	SetHome:     updateHome,
	SetIdentity: updateIdentity,

	Directories:  selectDirectories,
	PutDirectory: replaceDirectory,
}

// state are the columns of the state, and noState stands in their place in a row without one.
const (
	state   = `s.epoch, h.revision, h.token, s.compacted, s.swept, ` + readOnly + `, ` + now + `, ` + serverID
	noState = `NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL`
	// readOnly is where Aurora's readers, too, say so: these have no read_only.
	readOnly = `IF(@@GLOBAL.innodb_read_only, 1, @@GLOBAL.read_only)`
	// serverID tells servers apart to which a proxy may lead a connection. Of the two comments
	// MySQL executes the first, and MariaDB, which has no server_uuid, the second.
	serverID = `CONCAT('' /*!80000 , @@GLOBAL.server_uuid */ /*M! , @@GLOBAL.server_id */)`
	now      = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`
)

// storeAndHead are the rows that the state is read from. The store row has to be named besides.
const storeAndHead = `rowkeeper_store s
JOIN rowkeeper_log h ON h.store = $store AND h.revision = (SELECT MAX(m.revision) FROM rowkeeper_log m WHERE m.store = $store)`

// stateAndRows is a read of many rows, after the state in a row of its own. They have so many
// columns besides those of the state.
func stateAndRows(columns int, rows string) string {
	return stateAnd("NULL"+strings.Repeat(", NULL", columns-1), rows)
}

// stateAnd is stateAndRows with something in the other columns of the state's row.
func stateAnd(columns, rows string) string {
	return `
(SELECT ` + state + `, ` + columns + `
 FROM ` + storeAndHead + `
 WHERE s.id = $store)
UNION ALL
(SELECT ` + noState + `,` + rows + `)`
}

// selectState reads the state alone.
const selectState = `
SELECT ` + state + `
FROM ` + storeAndHead + `
WHERE s.id = $store`

// preparedState is selectState of any store, whose id is each argument. It is read more often than
// all else, and takes the servers so little work that a seventh of its time is that of parsing it.
var preparedState = ofStore(selectState, "?")

// polledState is state where several stores are read.
const polledState = `s.epoch,
        (SELECT h.revision FROM rowkeeper_log h FORCE INDEX (PRIMARY) WHERE h.store = s.id ORDER BY h.store DESC, h.revision DESC LIMIT 1),
        (SELECT h.token FROM rowkeeper_log h FORCE INDEX (PRIMARY) WHERE h.store = s.id ORDER BY h.store DESC, h.revision DESC LIMIT 1),
        s.compacted, s.swept, ` + readOnly + `, ` + now + `, ` + serverID

// selectPoll reads what is polled of several stores, whose ids stand for %s: for each, its row by
// primary key, and the head by the primary key of the log, backwards, one row. That the order names
// the store, too, makes MySQL see that the index has it. Revision and token are read one by one, as
// the servers know no join that would read one row of the log for each store.
const selectPoll = `
(SELECT ` + polledState + `,
        s.id, s.identity, COALESCE(s.boot, ''), s.max_objects, s.max_bytes, 9223372036854775807, s.generation
 FROM rowkeeper_store s FORCE INDEX (PRIMARY)
 WHERE s.id IN (%s))`

// selectPollDue reads the same of one store, and the first expiry of its keys and leases, each by
// the index on it, the largest number if there is none. The keys of leases have a negative one.
// Those of several stores, and those of selectPoll, are put together by UNION ALL: only a store
// that the text names lets the servers begin in the index behind the keys that do not expire.
const selectPollDue = `
(SELECT ` + state + `,
        s.id, s.identity, COALESCE(s.boot, ''), s.max_objects, s.max_bytes,
        LEAST(COALESCE((SELECT MIN(l.expiry) FROM rowkeeper_live l FORCE INDEX (rowkeeper_live_expiry) WHERE l.store = $store AND l.expiry > 0), 9223372036854775807),
              COALESCE((SELECT MIN(e.expiry) FROM rowkeeper_lease e FORCE INDEX (rowkeeper_lease_expiry) WHERE e.store = $store AND e.expiry >= 0), 9223372036854775807)),
        s.generation
 FROM ` + storeAndHead + `
 WHERE s.id = $store)`

// selectTail reads log rows in order. Primary key range on g; the previous row p by primary key,
// and only where it is asked for: for deletions, or for all if the first argument is 1. No row has
// the revision NULL.
var selectTail = stateAndRows(13, `
        g.revision, g.key, g.prev_revision, g.create_revision, g.version, g.lease, g.token, g.time, g.deleted, g.value,
        p.revision IS NOT NULL, p.lease, p.value
 FROM rowkeeper_log g FORCE INDEX (PRIMARY)
 LEFT JOIN rowkeeper_log p FORCE INDEX (PRIMARY) ON p.store = $store AND p.revision = IF(g.deleted OR ?, g.prev_revision, NULL)
 WHERE g.store = $store AND g.revision >= ?
 ORDER BY g.revision
 LIMIT ?`)

// selectParts reads parts of transactions backwards, and is selectTail otherwise. Values are read
// only if the first two arguments are 1.
var selectParts = stateAndRows(13, `
        g.revision, g.key, g.prev_revision, g.create_revision, g.version, g.lease, g.token, g.time, g.deleted, IF(?, g.value, NULL),
        p.revision IS NOT NULL, p.lease, IF(?, p.value, NULL)
 FROM rowkeeper_log g FORCE INDEX (PRIMARY)
 LEFT JOIN rowkeeper_log p FORCE INDEX (PRIMARY) ON p.store = $store AND p.revision = IF(g.deleted OR ?, g.prev_revision, NULL)
 WHERE g.store = $store AND g.revision < ? AND g.revision >= ?
 ORDER BY g.revision DESC
 LIMIT ?`)

// selectKey reads one key: live and its log row by primary key. It returns one row, so the state is
// in it.
const selectKey = `
SELECT ` + state + `,
       l.revision, l.create_revision, l.version, l.lease, g.prev_revision, g.token, g.time, g.value
FROM ` + storeAndHead + `
LEFT JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = ?
LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = l.revision
WHERE s.id = $store`

// selectKeys reads several keys in the same way. The list of keys stands for %s.
var selectKeys = stateAndRows(6, `
        l.key, l.revision, l.create_revision, l.version, l.lease, g.value
 FROM rowkeeper_live l FORCE INDEX (PRIMARY)
 LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = l.revision
 WHERE l.store = $store AND l.key IN (%s)`)

// selectPage reads live keys in order, each with its log row by primary key. Primary key range on
// live, which the limit ends early.
var selectPage = stateAndRows(6, `
        l.key, l.revision, l.create_revision, l.version, l.lease, g.value
 FROM rowkeeper_live l FORCE INDEX (PRIMARY)
 LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = l.revision
 WHERE l.store = $store AND l.key >= ? AND l.key < ? AND l.revision BETWEEN ? AND ?
 ORDER BY l.key
 LIMIT ?`)

// selectPageKeys reads the same without values.
var selectPageKeys = stateAndRows(5, `
        l.key, l.revision, l.create_revision, l.version, l.lease
 FROM rowkeeper_live l FORCE INDEX (PRIMARY)
 WHERE l.store = $store AND l.key >= ? AND l.key < ? AND l.revision BETWEEN ? AND ?
 ORDER BY l.key
 LIMIT ?`)

// selectReplaced reads the rows in (after, upto], and the parts of transactions there, that
// replaced one at or before a revision. Two ranges of the primary key.
var selectReplaced = stateAndRows(2, `
        g.key, g.prev_revision
 FROM rowkeeper_log g FORCE INDEX (PRIMARY)
 WHERE g.store = $store AND (g.revision > ? AND g.revision <= ? OR g.revision < ? AND g.revision >= ?)
   AND g.prev_revision <> 0 AND g.prev_revision BETWEEN ? AND ? AND g.key >= ? AND g.key < ?`)

// selectReplacedOf is selectReplaced without rows whose keys had none of n entries. The bounds are
// those of IDs of rows whose entries do not count.
func selectReplacedOf(n int) string {
	const last = "g.key < ?"
	return strings.Replace(selectReplaced, last, last+"\n   AND (g.entries IS NULL OR g.revision BETWEEN ? AND ?"+
		strings.Repeat(" OR LOCATE(?, g.entries)", n)+")", 1)
}

// selectValues reads log rows by primary key. The list of revisions stands for %s; it is not empty.
var selectValues = stateAndRows(6, `
        g.key, g.revision, g.create_revision, g.version, g.lease, g.value
 FROM rowkeeper_log g FORCE INDEX (PRIMARY)
 WHERE g.store = $store AND g.revision IN (%s)`)

// selectChain reads a log row, and each further one that the row before names as the one that it
// replaced, all by primary key. That is a row of the same key, and IDs are never used twice. So the
// rows follow each other without gaps until one created the key, or the next one was swept. The key
// is compared since the caller's ID may be of another one. The servers end a recursion after 1,000
// rows, which is beyond every limit.
var selectChain = stateAndRows(7, `
        c.revision, c.key, c.prev_revision, c.create_revision, c.version, c.time, c.deleted
 FROM (WITH RECURSIVE chain AS (
           SELECT g.revision, g.key, g.prev_revision, g.create_revision, g.version, g.time, g.deleted, 1 AS n
           FROM rowkeeper_log g FORCE INDEX (PRIMARY)
           WHERE g.store = $store AND g.revision = ? AND g.key = ?
           UNION ALL
           SELECT g.revision, g.key, g.prev_revision, g.create_revision, g.version, g.time, g.deleted, p.n + 1
           FROM chain p
           STRAIGHT_JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = p.prev_revision
           WHERE p.n < ? AND p.prev_revision <> 0 AND g.key = p.key
       ) SELECT * FROM chain) c`)

// selectChanges reads the rows in (after, upto], and the parts of transactions there. Two ranges of
// the primary key.
var selectChanges = stateAndRows(7, `
        g.revision, g.key, g.prev_revision, g.create_revision, g.version, g.time, g.deleted
 FROM rowkeeper_log g FORCE INDEX (PRIMARY)
 WHERE g.store = $store AND (g.revision > ? AND g.revision <= ? OR g.revision < ? AND g.revision >= ?)
   AND g.key >= ? AND g.key < ?`)

// selectUsers reads users' rows by primary key. The list of revisions stands for %s; it is not
// empty.
var selectUsers = stateAndRows(3, `
        u.revision, u.name, u.audit_id
 FROM rowkeeper_user u FORCE INDEX (PRIMARY)
 WHERE u.store = $store AND u.revision IN (%s)`)

// selectCount counts live keys: primary key range. Counts are one row, so the state is in it.
const selectCount = `
SELECT ` + state + `,
       (SELECT COUNT(*) FROM rowkeeper_live l FORCE INDEX (PRIMARY) WHERE l.store = $store AND l.key >= ? AND l.key < ? AND l.revision BETWEEN ? AND ?)
FROM ` + storeAndHead + `
WHERE s.id = $store`

// selectCountUpTo stops at a limit: it counts the rows of a table that is made of that many.
const selectCountUpTo = `
SELECT ` + state + `,
       (SELECT COUNT(*)
        FROM (SELECT 1 FROM rowkeeper_live l FORCE INDEX (PRIMARY) WHERE l.store = $store AND l.key >= ? AND l.key < ? AND l.revision BETWEEN ? AND ? LIMIT ?) c)
FROM ` + storeAndHead + `
WHERE s.id = $store`

// selectExpiring reads the keys that expire soonest: range of the index on expiry, in its order.
// The keys of leases have a negative one.
var selectExpiring = stateAndRows(3, `
        l.key, l.revision, l.expiry
 FROM rowkeeper_live l FORCE INDEX (rowkeeper_live_expiry)
 WHERE l.store = $store AND l.expiry > 0
 ORDER BY l.expiry
 LIMIT ?`)

// selectLeases reads leases in order: primary key range.
var selectLeases = stateAndRows(3, `
        e.id, e.ttl, e.expiry
 FROM rowkeeper_lease e FORCE INDEX (PRIMARY)
 WHERE e.store = $store AND e.id >= ?
 ORDER BY e.id
 LIMIT ?`)

// selectLapsing reads leases in the order of their expiry: range of the index on it.
var selectLapsing = stateAndRows(3, `
        e.id, e.ttl, e.expiry
 FROM rowkeeper_lease e FORCE INDEX (rowkeeper_lease_expiry)
 WHERE e.store = $store AND e.expiry >= ?
 ORDER BY e.expiry
 LIMIT ?`)

// selectAttached reads the keys of a lease: range of the index on expiry, whose entries of one
// expiry are in the order of keys.
var selectAttached = stateAndRows(2, `
        l.key, l.revision
 FROM rowkeeper_live l FORCE INDEX (rowkeeper_live_expiry)
 WHERE l.store = $store AND l.expiry = ? AND l.key >= ?
 ORDER BY l.key
 LIMIT ?`)

// selectAttachedTo reads the keys of leases: ranges of the index on expiry.
var selectAttachedTo = stateAndRows(3, `
        l.key, l.revision, l.expiry
 FROM rowkeeper_live l FORCE INDEX (rowkeeper_live_expiry)
 WHERE l.store = $store AND l.expiry IN (%s)
 LIMIT %d`)

// countLeases walks the leases of the store.
const countLeases = `
SELECT ` + state + `,
       z.leases
FROM ` + storeAndHead + `
JOIN (SELECT COUNT(*) AS leases FROM rowkeeper_lease e WHERE e.store = $store) z
WHERE s.id = $store`

// selectFirstAt reads the first log row at or after a revision: primary key range.
var selectFirstAt = stateAndRows(2, `
        g.revision, g.time
 FROM rowkeeper_log g FORCE INDEX (PRIMARY)
 WHERE g.store = $store AND g.revision >= ?
 ORDER BY g.revision
 LIMIT 1`)

// selectIdentity reads the row of the store: the identity, the epoch, and what was recorded.
const selectIdentity = `
SELECT s.id, s.identity, COALESCE(s.fingerprint, ''), s.epoch, COALESCE(s.boot, '')
FROM rowkeeper_store s
WHERE s.id = $store`

// selectSize reads the sizes of the tables from their statistics.
const selectSize = `
SELECT ` + state + `,
       z.total, z.live
FROM ` + storeAndHead + `
JOIN (SELECT CAST(COALESCE(SUM(t.data_length + t.index_length + t.data_free), 0) AS SIGNED) AS total,
             CAST(COALESCE(SUM(t.data_length + t.index_length), 0) AS SIGNED) AS live
      FROM information_schema.tables t
      WHERE t.table_schema = DATABASE()
        AND t.table_name IN ('rowkeeper_log', 'rowkeeper_live', 'rowkeeper_store', 'rowkeeper_aborted', 'rowkeeper_lease', 'rowkeeper_resource', 'rowkeeper_index', 'rowkeeper_user')) z
WHERE s.id = $store`

// selectUsage reads all live rows of the store, and measures the value of each by the primary key
// of the log.
const selectUsage = `
SELECT ` + state + `,
       z.objects, z.bytes
FROM ` + storeAndHead + `
JOIN (SELECT COUNT(*) AS objects, CAST(COALESCE(SUM(LENGTH(l.key) + LENGTH(g.value)), 0) AS SIGNED) AS bytes
      FROM rowkeeper_live l FORCE INDEX (PRIMARY)
      LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = l.revision
      WHERE l.store = $store) z
WHERE s.id = $store`

// selectGrowth reads the rows of the log after a revision, and the parts of transactions there, by
// two ranges of the primary key, and for each the one that it replaced by primary key. Markers and
// deletions hold nothing.
const selectGrowth = `
SELECT ` + state + `,
       z.objects, z.written - z.replaced, z.replaced, z.logged
FROM ` + storeAndHead + `
JOIN (SELECT CAST(COALESCE(SUM(NOT g.deleted), 0) AS SIGNED) - COUNT(p.revision) AS objects,
             CAST(COALESCE(SUM(IF(g.deleted, 0, LENGTH(g.key) + LENGTH(g.value))), 0) AS SIGNED) AS written,
             CAST(COALESCE(SUM(LENGTH(p.key) + LENGTH(p.value)), 0) AS SIGNED) AS replaced,
             COUNT(*) AS logged
      FROM rowkeeper_log g FORCE INDEX (PRIMARY)
      LEFT JOIN rowkeeper_log p FORCE INDEX (PRIMARY) ON p.store = $store AND p.revision = NULLIF(g.prev_revision, 0)
      WHERE g.store = $store AND (g.revision > ? OR g.revision < ?)) z
WHERE s.id = $store`

// selectQuota reads what the store may hold.
const selectQuota = `
SELECT ` + state + `,
       s.max_objects, s.max_bytes, s.generation
FROM ` + storeAndHead + `
WHERE s.id = $store`

// selectHome reads what is recorded of a move, and selectTheHome without the state.
const selectHome = `
SELECT ` + state + `,
       s.home
FROM ` + storeAndHead + `
WHERE s.id = $store`

const selectTheHome = `
SELECT s.home
FROM rowkeeper_store s
WHERE s.id = $store`

// selectEverywhere reads a key in all stores that were not dropped: the stores' rows by their
// primary key, and for each of them the live row of the key and its row of the log by theirs.
var selectEverywhere = stateAndRows(3, `
        s.name, l.revision, g.value
 FROM rowkeeper_store s FORCE INDEX (PRIMARY)
 STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = s.id AND l.key = ?
 LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = s.id AND g.revision = l.revision
 WHERE s.id > 0 AND s.epoch > 0`)

// selectSweep reads the rows from swept to compacted: primary key range, whose bounds are in the
// store row of the same snapshot. With the state comes the lowest revision of the aborted tokens,
// of which there are a few at most, and whether there is a user's row, by one step into their
// primary key: that of the last row is the revision, which is not 0.
var selectSweep = stateAnd(`0, (SELECT MIN(a.seen) FROM rowkeeper_aborted a WHERE a.store = $store),
        (SELECT MAX(u.revision) FROM rowkeeper_user u WHERE u.store = $store)`, `
        g.revision, g.prev_revision, g.deleted OR g.key = ''
 FROM rowkeeper_log g FORCE INDEX (PRIMARY)
 WHERE g.store = $store AND g.revision >= (SELECT s.swept FROM rowkeeper_store s WHERE s.id = $store)
   AND g.revision <= (SELECT s.compacted FROM rowkeeper_store s WHERE s.id = $store)
 ORDER BY g.revision
 LIMIT ?`)

// The statements below are sent in transactions; see transaction.

// setWaitTimeout makes the server close the connection, and roll back, if this client is silent for
// so many seconds before the transaction ends. It is the one timeout of this kind that both MySQL
// and MariaDB have.
const setWaitTimeout = `SET SESSION wait_timeout = %d`

// resetWaitTimeout: a pooled connection may be idle for longer.
const resetWaitTimeout = `SET SESSION wait_timeout = DEFAULT`

const (
	startTransaction = `START TRANSACTION`
	commit           = `COMMIT`
	rollback         = `ROLLBACK`
)

// joinQueue waits until this session is the one that may take the commit lock next, for so many
// seconds at most, and keeps the time at which the waiting began. It is a lock of the server
// without a table, named after the database, and decides nothing: the row decides, also for a
// session that waited here in vain. It is there because who waits for a row has a table open and
// holds the server's intention to write. FLUSH TABLES WITH READ LOCK waits for both, while the
// owner of the row waits, with its next write, for the flush: nobody would go on before the lock
// wait timeout. A session that waits here holds nothing that a flush, LOCK TABLES or DDL waits for.
// Galera nodes do not have such locks.
//
// It is setWaitTimeout as well, since each statement has its cost, however little it does.
const joinQueue = `
SET @rowkeeper_asked = ` + now + `,
    @rowkeeper_turn = GET_LOCK(CONCAT('rowkeeper commit ', LEFT(SHA2(CONCAT($store, '/', DATABASE()), 256), 40)), %d),
    SESSION wait_timeout = %d`

// leaveQueue lets the next session wait for the row while this one commits: of two sessions, the
// one that waits for the row may be in the way of a flush, but the other, in COMMIT, is not in the
// way of the first, as a flush stops commits only after it has waited for all statements. It is
// resetWaitTimeout as well.
const leaveQueue = `SET @rowkeeper_turn = RELEASE_ALL_LOCKS(), SESSION wait_timeout = DEFAULT`

// lockStore takes the commit lock: a lock of the row by primary key. It returns the time at which
// the waiting began, which stands for %s: askedInQueue, or askedHere where there is no queue.
const (
	lockStore = `
SELECT %s
FROM rowkeeper_store s
WHERE s.id = $store
FOR UPDATE`
	askedInQueue = `@rowkeeper_asked`
	askedHere    = now
)

// selectGuard reads, after the lock, the state, the token of the row at a revision, whether a token
// was aborted, and the oldest schema version whose programs may still write; all by primary key.
const selectGuard = `
SELECT ` + state + `,
       (SELECT g.token FROM rowkeeper_log g WHERE g.store = $store AND g.revision = %d),
       EXISTS (SELECT 1 FROM rowkeeper_aborted a WHERE a.store = $store AND a.token = x'%x'), s.oldest_writer,
       s.generation
FROM ` + storeAndHead + `
WHERE s.id = $store`

// selectTokens reads the tokens of other rows that the process of a group has seen, by primary key.
const selectTokens = `
SELECT g.revision, g.token
FROM rowkeeper_log g FORCE INDEX (PRIMARY)
WHERE g.store = $store AND g.revision IN (%s)`

// selectLive reads the current revisions of keys, by primary key.
const selectLive = `
SELECT l.key, l.revision, l.create_revision, l.version, l.lease
FROM rowkeeper_live l FORCE INDEX (PRIMARY)
WHERE l.store = $store AND l.key IN (%s)`

// selectLost finds the keys whose newest value is not in the log, all by primary key.
const selectLost = `
SELECT l.key
FROM rowkeeper_live l FORCE INDEX (PRIMARY)
LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = l.revision
WHERE l.store = $store AND l.key IN (%s) AND g.revision IS NULL`

// selectRemoved reads the values that deletions remove, by primary key.
const selectRemoved = `
SELECT g.revision, g.value
FROM rowkeeper_log g FORCE INDEX (PRIMARY)
WHERE g.store = $store AND g.revision IN (%s)`

// selectHeld finds those of the leases that have not ended, by primary key.
const selectHeld = `
SELECT e.id
FROM rowkeeper_lease e FORCE INDEX (PRIMARY)
WHERE e.store = $store AND e.id IN (%s) AND e.expiry <> 0`

// selectCompared finds whether there is a key in a range, and whether there is one of which a
// condition does not hold: primary key range, which the first such key ends. selectComparedValues
// reads the values as well, by the primary key of the log. No condition holds of a value that is
// lost. The revision is read so that the index does not have all that is asked for: MySQL would
// read it from its very beginning then. The bounds stand for %[1]s and %[2]s, and the condition for
// %[3]s.
const (
	selectCompared = `
SELECT EXISTS (SELECT 1 FROM rowkeeper_live l FORCE INDEX (PRIMARY) WHERE l.store = $store AND l.key >= %[1]s AND l.key < %[2]s AND l.revision <> 0),
       EXISTS (SELECT 1
               FROM rowkeeper_live l FORCE INDEX (PRIMARY)
               WHERE l.store = $store AND l.key >= %[1]s AND l.key < %[2]s AND NOT (%[3]s))`
	selectComparedValues = `
SELECT EXISTS (SELECT 1 FROM rowkeeper_live l FORCE INDEX (PRIMARY) WHERE l.store = $store AND l.key >= %[1]s AND l.key < %[2]s AND l.revision <> 0),
       EXISTS (SELECT 1
               FROM rowkeeper_live l FORCE INDEX (PRIMARY)
               LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = l.revision
               WHERE l.store = $store AND l.key >= %[1]s AND l.key < %[2]s AND NOT COALESCE(%[3]s, 0))`
)

// onlyChanged makes selectCompared, or selectComparedValues, look for a key that does not fit among
// those only that were written since a revision: two ranges of the primary key of the log, for rows
// and for parts of transactions, and for each its live row by primary key.
func onlyChanged(sql string) string {
	return strings.NewReplacer(
		"FROM rowkeeper_live l FORCE INDEX (PRIMARY)\n", "FROM rowkeeper_log w FORCE INDEX (PRIMARY)\n"+
			"               STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = w.key\n",
		"WHERE l.store = $store AND l.key >= %[1]s AND l.key < %[2]s AND NOT",
		"WHERE w.store = $store AND (w.revision > %[4]d OR w.revision < %[5]d) AND w.key >= %[1]s AND w.key < %[2]s AND NOT",
	).Replace(sql)
}

// selectWritten reads the keys that were written since a revision: two ranges of the primary key of
// the log, for rows and for parts of transactions.
const selectWritten = `
SELECT g.key
FROM rowkeeper_log g FORCE INDEX (PRIMARY)
WHERE g.store = $store AND (g.revision > %d OR g.revision < %d)`

// selectSomeLeases finds leases by primary key.
const selectSomeLeases = `
SELECT e.id, e.ttl, e.expiry
FROM rowkeeper_lease e FORCE INDEX (PRIMARY)
WHERE e.store = $store AND e.id IN (%s)`

// replaceLeases is followed by rows.
const replaceLeases = `
REPLACE INTO rowkeeper_lease (store, id, ttl, expiry)
VALUES `

// deleteLeases deletes leases by primary key. The rows of IDs stand for %s.
const deleteLeases = `
DELETE e
FROM (%s) d
STRAIGHT_JOIN rowkeeper_lease e FORCE INDEX (PRIMARY) ON e.store = $store AND e.id = d.value`

// insertLog is followed by rows.
const insertLog = `
INSERT INTO rowkeeper_log
       (store, revision, rowkeeper_log.key, prev_revision, create_revision, version, lease, token, time, deleted, value)
VALUES `

// insertIndexedLog is insertLog for a group that has keys of indexed directories.
const insertIndexedLog = `
INSERT INTO rowkeeper_log
       (store, revision, rowkeeper_log.key, prev_revision, create_revision, version, lease, token, time, deleted, value, entries)
VALUES `

// insertUsers is followed by rows: those of users, beside their rows of the log.
const insertUsers = `
INSERT INTO rowkeeper_user
       (store, revision, name, audit_id)
VALUES `

// replaceLive is followed by rows. InnoDB updates a row that is there in place, and leaves the
// index on expiry alone where expiry stays the same.
const replaceLive = `
REPLACE INTO rowkeeper_live
       (store, rowkeeper_live.key, revision, create_revision, version, lease, expiry)
VALUES `

// replaceIndexedLive is replaceLive for a group that has keys of indexed directories.
const replaceIndexedLive = `
REPLACE INTO rowkeeper_live
       (store, rowkeeper_live.key, revision, create_revision, version, lease, expiry, entries)
VALUES `

// selectEntries reads which entries keys have, by primary key. selectEntriesOf reads those of live
// rows that may be others by now.
const selectEntries = `
SELECT l.key, l.entries
FROM rowkeeper_live l FORCE INDEX (PRIMARY)
WHERE l.store = $store AND l.key IN (%s)`

const selectEntriesOf = `
SELECT l.key, l.entries, l.revision
FROM rowkeeper_live l FORCE INDEX (PRIMARY)
WHERE l.store = $store AND l.key IN (%s)`

// updateEntries finds live rows by primary key. The rows of entries and keys stand for %s.
const updateEntries = `
UPDATE (%s) d
STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = d.value
SET l.entries = d.entry`

// insertEntries is followed by rows. Those that are there stay as they are.
const insertEntries = `
INSERT IGNORE INTO rowkeeper_index (store, entry, rowkeeper_index.key)
VALUES `

// deleteEntries deletes rows of the index by primary key. The rows of entries and keys stand for
// %s.
const deleteEntries = `
DELETE i
FROM (%s) d
STRAIGHT_JOIN rowkeeper_index i FORCE INDEX (PRIMARY) ON i.store = $store AND i.entry = d.entry AND i.key = d.value`

// dropEntries removes the first rows of a range of the index's primary key, and eraseEntries those
// of the store.
const dropEntries = `
DELETE FROM rowkeeper_index
WHERE store = $store AND entry >= %s AND entry < %s
ORDER BY store, entry, rowkeeper_index.key
LIMIT %d`

const eraseEntries = `
DELETE FROM rowkeeper_index
WHERE store = $store
ORDER BY store, entry, rowkeeper_index.key
LIMIT %d`

const deleteAllEntries = `
DELETE FROM rowkeeper_index
WHERE store = $store`

// selectIndexes reads the declarations of the store's indexes, and selectTheIndexes without the
// state.
const selectIndexes = `
SELECT ` + state + `,
       s.generation, s.indexes
FROM ` + storeAndHead + `
WHERE s.id = $store`

const selectTheIndexes = `
SELECT s.generation, s.indexes
FROM rowkeeper_store s
WHERE s.id = $store`

const updateIndexes = `
UPDATE rowkeeper_store s
SET s.generation = %d, s.indexes = %s
WHERE s.id = $store`

// selectPageOf walks the rows of the index of each entry, in the order of its primary key, which is
// that of the keys, and reads the live row of each by primary key, up to the limit. Of these it
// takes the first ones, and reads their values by the primary key of the log.
//
// For each entry: the entry, start, end, the lowest and the greatest ID, the limit. Then the limit.
func selectPageOf(n int) string {
	part := `
       (SELECT l.key, l.revision, l.create_revision, l.version, l.lease
        FROM rowkeeper_index i FORCE INDEX (PRIMARY)
        STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = i.key
        WHERE i.store = $store AND i.entry = ? AND i.key >= ? AND i.key < ? AND l.revision BETWEEN ? AND ?
        ORDER BY i.key
        LIMIT ?)`
	return `
(SELECT ` + state + `, NULL, NULL, NULL, NULL, NULL, NULL
 FROM ` + storeAndHead + `
 WHERE s.id = $store)
UNION ALL
(SELECT ` + noState + `, '', s.generation, 0, 0, 0, NULL
 FROM rowkeeper_store s
 WHERE s.id = $store)
UNION ALL
(SELECT ` + noState + `, k.key, k.revision, k.create_revision, k.version, k.lease, g.value
 FROM (` + strings.Repeat(part+"\n        UNION ALL", n-1) + part + `
        ORDER BY 1
        LIMIT ?) k
 LEFT JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = k.revision)`
}

// countOf counts the rows of the index of each entry, in a range of its primary key: for each, the
// entry, start, end, the limit.
func countOf(n int) string {
	part := `
       (SELECT COUNT(*)
        FROM (SELECT 1 FROM rowkeeper_index i FORCE INDEX (PRIMARY) WHERE i.store = $store AND i.entry = ? AND i.key >= ? AND i.key < ? LIMIT ?) c)`
	return `
SELECT ` + state + `,` + strings.Repeat(part+" +", n-1) + part + `
FROM ` + storeAndHead + `
WHERE s.id = $store`
}

// selectIndexRows and selectIndexRowsBack walk the rows of the index from one on, up to the limit,
// and past keys that are not wanted. The first row is told in a way that makes two ranges of the
// primary key: MySQL makes none of a comparison of rows.
//
// Parameters: the entry and the key of the first row, the entry again, the entry that ends the
// walk, start, end, limit.
var (
	selectIndexRows = indexRows("(i.entry = ? AND i.key >= ? OR i.entry > ?) AND i.entry < ?", "ASC")

	selectIndexRowsBack = indexRows("(i.entry = ? AND i.key < ? OR i.entry < ?) AND i.entry >= ?", "DESC")
)

func indexRows(where, order string) string {
	return `
(SELECT ` + state + `, NULL, NULL, NULL
 FROM ` + storeAndHead + `
 WHERE s.id = $store)
UNION ALL
(SELECT ` + noState + `, '', NULL, s.generation
 FROM rowkeeper_store s
 WHERE s.id = $store)
UNION ALL
(SELECT ` + noState + `, i.entry, i.key, NULL
 FROM rowkeeper_index i FORCE INDEX (PRIMARY)
 WHERE i.store = $store AND ` + where + ` AND i.key >= ? AND i.key < ?
 ORDER BY i.entry ` + order + `, i.key ` + order + `
 LIMIT ?)`
}

// deleteLive deletes keys by primary key. The rows of keys stand for %s.
const deleteLive = `
DELETE l
FROM (%s) d
STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = d.value`

// updateTurn changes the row that is the commit lock; see backend.takeTurn.
const updateTurn = `
UPDATE rowkeeper_store s
SET s.turn = s.turn + 1
WHERE s.id = $store`

// selectByToken reads a group's rows without their values, by primary key range from where the
// group began.
const selectByToken = `
SELECT g.revision, g.key, g.prev_revision, g.create_revision, g.version, g.lease, g.time, g.deleted
FROM rowkeeper_log g FORCE INDEX (PRIMARY)
WHERE g.store = $store AND g.revision > %d AND g.token = x'%x'
ORDER BY g.revision`

const insertAborted = `
INSERT INTO rowkeeper_aborted (store, token, seen)
VALUES ($store, x'%x', %d)`

const updateCompacted = `
UPDATE rowkeeper_store s
SET s.compacted = %d
WHERE s.id = $store`

// deleteSwept deletes log rows by primary key. The rows of revisions stand for %s: a subquery in
// their place is run for each row of the log.
const deleteSwept = `
DELETE g
FROM (%s) d
STRAIGHT_JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = d.value`

// deleteSweptUsers deletes users' rows like deleteSwept.
const deleteSweptUsers = `
DELETE u
FROM (%s) d
STRAIGHT_JOIN rowkeeper_user u FORCE INDEX (PRIMARY) ON u.store = $store AND u.revision = d.value`

// selectDeleted returns how many rows the statement before it has deleted.
const selectDeleted = `SELECT ROW_COUNT()`

// updateSwept fails, and with it the whole sweep, if the epoch is another one than when its list
// was read: swept cannot be NULL. By then other rows may have the revisions that are in the list;
// see Locked. It fails, too, if a migration has ended the time of this program's schema version.
const updateSwept = `
UPDATE rowkeeper_store s
SET s.swept = IF(s.epoch = %d AND s.oldest_writer <= %d, GREATEST(s.swept, %d), NULL)
WHERE s.id = $store`

// deleteAborted forgets the aborted tokens below a revision. There are a few in the table at most.
const deleteAborted = `
DELETE FROM rowkeeper_aborted
WHERE store = $store AND seen < %d`

const insertMarker = `
INSERT INTO rowkeeper_log
       (store, revision, rowkeeper_log.key, prev_revision, create_revision, version, lease, token, time, deleted, value)
VALUES ($store, %d, '', 0, 0, 0, 0, x'%x', %d, 1, NULL)`

const updateEpoch = `
UPDATE rowkeeper_store s
SET s.epoch = %d, s.compacted = %d, s.swept = %d, s.fingerprint = COALESCE(NULLIF(%s, ''), s.fingerprint)
WHERE s.id = $store`

// updateBoot records a boot, if the recorded one is still the one that was read.
const updateBoot = `
UPDATE rowkeeper_store s
SET s.boot = NULLIF(?, '')
WHERE s.id = $store AND COALESCE(s.boot, '') = ?`

const updateFingerprint = `
UPDATE rowkeeper_store s
SET s.fingerprint = %s
WHERE s.id = $store AND s.fingerprint IS NULL`

// removeRecords deletes the log rows of some keys, which the live rows name, and removeUsers the
// users' rows beside them. All are found by primary keys. The rows of keys stand for %s. deleteLive
// then deletes the live rows.
const removeUsers = `
DELETE u
FROM (%s) d
STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = d.value
STRAIGHT_JOIN rowkeeper_user u FORCE INDEX (PRIMARY) ON u.store = $store AND u.revision = l.revision`

const removeRecords = `
DELETE g
FROM (%s) d
STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = d.value
STRAIGHT_JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = l.revision`

// deleteAllLeases, deleteAllLive, deleteAllUsers and deleteAllLog walk the tables.
const deleteAllLeases = `
DELETE FROM rowkeeper_lease
WHERE store = $store`

const deleteAllLive = `
DELETE FROM rowkeeper_live
WHERE store = $store`

const deleteAllUsers = `
DELETE FROM rowkeeper_user
WHERE store = $store`

const deleteAllLog = `
DELETE FROM rowkeeper_log
WHERE store = $store`

// eraseLive and eraseLog remove the first rows of a range of their primary keys: of the log, some
// before a revision. The token is read so that the index does not have all that is asked for: MySQL
// would read it from its very beginning then.
const eraseLive = `
DELETE l
FROM (SELECT d.key FROM rowkeeper_live d FORCE INDEX (PRIMARY) WHERE d.store = $store LIMIT %d) d
STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = d.key`

const eraseLog = `
DELETE g
FROM (SELECT d.revision, d.token FROM rowkeeper_log d FORCE INDEX (PRIMARY) WHERE d.store = $store AND d.revision < %d LIMIT %d) d
STRAIGHT_JOIN rowkeeper_log g FORCE INDEX (PRIMARY) ON g.store = $store AND g.revision = d.revision`

// eraseUsers removes the first rows of the store. It removes as many as eraseLog does, and before
// it, so none is left without its row of the log.
const eraseUsers = `
DELETE FROM rowkeeper_user
WHERE store = $store
ORDER BY store, revision
LIMIT %d`

// eraseAborted removes all aborted tokens of the store, by primary key.
const eraseAborted = `
DELETE FROM rowkeeper_aborted
WHERE store = $store`

// eraseDirectories removes the recorded directories of the store, by primary key.
const eraseDirectories = `
DELETE FROM rowkeeper_resource
WHERE store = $store`

// selectDirectories walks the recorded directories of the store, of which there is one for each
// resource, by primary key.
const selectDirectories = `
SELECT r.directory, r.group, r.resource, r.scope
FROM rowkeeper_resource r FORCE INDEX (PRIMARY)
WHERE r.store = $store`

// replaceDirectory finds a directory by its primary key.
const replaceDirectory = `
REPLACE INTO rowkeeper_resource
        (store, directory, rowkeeper_resource.group, resource, scope, first, beyond)
VALUES ($store, %s, %s, %s, %s, %s, %s)`

// renewStore makes the store's row that of another store.
const renewStore = `
UPDATE rowkeeper_store s
SET s.identity = REPLACE(UUID(), '-', ''), s.fingerprint = NULL, s.boot = NULL, s.max_objects = 0, s.max_bytes = 0,
    s.generation = 0, s.indexes = NULL
WHERE s.id = $store`

const updateHome = `
UPDATE rowkeeper_store s
SET s.home = %s
WHERE s.id = $store`

const updateIdentity = `
UPDATE rowkeeper_store s
SET s.identity = %s
WHERE s.id = $store`

const updateQuota = `
UPDATE rowkeeper_store s
SET s.max_objects = %d, s.max_bytes = %d
WHERE s.id = $store`

// insertLive is followed by rows. Unlike replaceLive, it refuses a key that is there.
const insertLive = `
INSERT INTO rowkeeper_live
       (store, rowkeeper_live.key, revision, create_revision, version, lease, expiry)
VALUES `

// setExportIsolation and startSnapshot begin a transaction whose reads are all of one snapshot,
// which is taken at once.
const setExportIsolation = `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`

const startSnapshot = `START TRANSACTION WITH CONSISTENT SNAPSHOT`

// selectAllKeys counts all live keys.
const selectAllKeys = `
SELECT COUNT(*)
FROM rowkeeper_live l
WHERE l.store = $store`

// selectAllLeases walks the leases of the store.
const selectAllLeases = `
SELECT e.id, e.ttl, e.expiry
FROM rowkeeper_lease e FORCE INDEX (PRIMARY)
WHERE e.store = $store`

// selectRecords walks the log by its primary key, which is the order that is asked for, and finds
// by the primary key of live which of its rows are live. selectRecordParts does the same backwards.
const selectRecords = `
SELECT g.revision, l.key, l.create_revision, l.version, l.lease, GREATEST(COALESCE(l.expiry, 0), 0), g.value
FROM rowkeeper_log g FORCE INDEX (PRIMARY)
STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = g.key AND l.revision = g.revision
WHERE g.store = $store AND g.revision > 0
ORDER BY g.revision`

const selectRecordParts = `
SELECT g.revision, l.key, l.create_revision, l.version, l.lease, GREATEST(COALESCE(l.expiry, 0), 0), g.value
FROM rowkeeper_log g FORCE INDEX (PRIMARY)
STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store = $store AND l.key = g.key AND l.revision = g.revision
WHERE g.store = $store AND g.revision < 0
ORDER BY g.revision DESC`
