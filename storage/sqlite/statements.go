package sqlite

import (
	"fmt"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// The statements. A read's state and rows come from one snapshot: the state is in the statement's
// one row, or the state's statement is stepped first and reset last, and SQLite ends a connection's
// read transaction when its last statement is reset. Parameters are numbered in the order in which
// they are bound.
//
// SQLite has no statistics of these tables, so plans depend on the statements alone. CROSS JOIN
// keeps the order of the tables as written. A test reads the plan of each statement on a large
// table.

// reads are the statements of the reads.
var reads = sqlkit.Statements{
	State:     selectState,
	Tail:      selectTail,
	Parts:     selectParts,
	Get:       selectGet,
	GetKeys:   selectKeys,
	Page:      selectPage,
	PageKeys:  selectPageOfKeys,
	Replaced:  selectReplaced,
	Values:    selectValues,
	Chain:     selectChain,
	Changes:   selectChanges,
	Users:     selectUsers,
	Count:     countLive,
	CountUpTo: countLiveUpTo,
	Expired:   selectExpiring,
	Leases:    selectLeases,
	Lapsing:   selectLapsing,
	Attached:  selectAttached,

	AttachedTo: selectAttachedTo, CountLeases: countLeases,
	FirstAt: selectFirstAt,
	Sweep:   selectSweep,
	Size:    selectSize,
	Usage:   selectUsage,
	Growth:  selectGrowth,
	Quota:   selectQuota,
	Home:    selectHome,
	Indexes: selectIndexes,
	PageOf:  selectPageOf,
	CountOf: countOf,

	ReplacedOf:    selectReplacedOf,
	IndexRows:     selectIndexRows,
	IndexRowsBack: selectIndexRowsBack,
}

// inTransaction are the statements of what is done under the commit lock, and in a snapshot.
var inTransaction = sqlkit.TxStatements{
	Keys:              countAll,
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
	Remove:   []string{removeUsers, removeRecords, removeKeys},
	Clear:    []string{deleteAllLeases, deleteAllLive, deleteAllUsers, deleteAllLog, deleteAllEntries},
	Indexes:  selectTheIndexes,
	Renew:    renewStore,
	SetQuota: updateQuota,

	Home:        selectTheHome,
	SetHome:     updateHome,
	SetIdentity: updateIdentity,

	Directories:  selectDirectories,
	PutDirectory: insertDirectory,
}

// state are the columns of the state without the clock. They come from the store row and the newest
// row of the log, by their primary keys; SQLite takes the greatest one from the end of the B-tree.
const (
	state        = `s.epoch, s.compacted, s.swept, h.revision, h.token`
	storeAndHead = `rowkeeper_store s CROSS JOIN rowkeeper_log h`
	theStore     = `s.id = 1 AND h.revision = (SELECT max(revision) FROM rowkeeper_log)`
)

// selectState is the state alone.
const selectState = `
SELECT ` + state + `
FROM ` + storeAndHead + `
WHERE ` + theStore

// selectGuard is what a group checks under the commit lock: the state, the token of the row that
// its process has seen (NULL if it is not there), and whether its own token is aborted. All by
// primary key.
const selectGuard = `
SELECT ` + state + `,
       (SELECT token FROM rowkeeper_log WHERE revision = ?1),
       EXISTS (SELECT 1 FROM rowkeeper_aborted WHERE token = ?2), s.generation
FROM ` + storeAndHead + `
WHERE ` + theStore

// selectToken reads, by primary key, the token of another row that the process of a group has seen.
const selectToken = `
SELECT token FROM rowkeeper_log WHERE revision = ?1`

// selectOldestWriter finds the store row by its primary key.
const selectOldestWriter = `
SELECT oldest_writer FROM rowkeeper_store WHERE id = 1`

// selectGet is a state and the row of one key, in one statement since it is the most frequent read.
// The live row is found by its primary key and names the log's row, which therefore exists in a
// whole file: no sweep removes the newest row of a live key.
const selectGet = `
SELECT ` + state + `,
       l.revision, l.create_revision, l.version, l.lease, g.prev_revision, g.token, g.time, g.value
FROM ` + storeAndHead + `
LEFT JOIN rowkeeper_live l ON l.key = ?1
LEFT JOIN rowkeeper_log g ON g.revision = l.revision
WHERE ` + theStore

// selectKeys reads several keys, as selectGet reads one. ?1 is an array of keys in hexadecimal,
// since JSON has no bytes. The live rows are found by their primary key, in the order of the array.
const selectKeys = `
SELECT l.key, l.revision, l.create_revision, l.version, l.lease, g.value
FROM json_each(?1) a CROSS JOIN rowkeeper_live l ON l.key = unhex(a.value)
LEFT JOIN rowkeeper_log g ON g.revision = l.revision`

// selectPage walks the live rows of a range by their primary key, which is the order that is asked
// for, and reads each one's value by the log's primary key. A live row without a row of the log is
// damage, and is read, too.
const selectPage = `
SELECT l.key, l.revision, l.create_revision, l.version, l.lease, g.value
FROM rowkeeper_live l LEFT JOIN rowkeeper_log g ON g.revision = l.revision
WHERE l.key >= ?1 AND l.key < ?2 AND l.revision BETWEEN ?3 AND ?4
ORDER BY l.key LIMIT ?5`

const selectPageOfKeys = `
SELECT key, revision, create_revision, version, lease
FROM rowkeeper_live
WHERE key >= ?1 AND key < ?2 AND revision BETWEEN ?3 AND ?4
ORDER BY key LIMIT ?5`

// countLive counts a range of the live rows' primary key.
const countLive = `
SELECT ` + state + `,
       (SELECT count(*) FROM rowkeeper_live WHERE key >= ?1 AND key < ?2 AND revision BETWEEN ?3 AND ?4)
FROM ` + storeAndHead + `
WHERE ` + theStore

// countLiveUpTo stops at a limit.
const countLiveUpTo = `
SELECT ` + state + `,
       (SELECT count(*) FROM (SELECT 1 FROM rowkeeper_live WHERE key >= ?1 AND key < ?2 AND revision BETWEEN ?3 AND ?4 LIMIT ?5))
FROM ` + storeAndHead + `
WHERE ` + theStore

// selectReplaced walks two ranges of the log's primary key: rows, and parts of transactions. Each
// key of the snapshot was replaced by one row after it.
const selectReplaced = `
SELECT key, prev_revision
FROM rowkeeper_log
WHERE revision > ?1 AND revision <= ?2 AND prev_revision <> 0 AND prev_revision BETWEEN ?5 AND ?6 AND key >= ?7 AND key < ?8
UNION ALL
SELECT key, prev_revision
FROM rowkeeper_log
WHERE revision < ?3 AND revision >= ?4 AND prev_revision <> 0 AND prev_revision BETWEEN ?5 AND ?6 AND key >= ?7 AND key < ?8`

// selectReplacedOf is selectReplaced without rows whose keys had none of n entries.
func selectReplacedOf(n int) string {
	said := "\n  AND (entries IS NULL OR revision BETWEEN ?9 AND ?10"
	for i := range n {
		said += fmt.Sprintf(" OR instr(entries, ?%d)", 11+i)
	}
	const last = "key < ?8"
	return strings.ReplaceAll(selectReplaced, last, last+said+")")
}

// selectValues finds rows of the log by primary key; the revisions are a JSON array, since SQLite
// has no array parameters.
const selectValues = `
SELECT key, revision, create_revision, version, lease, value
FROM rowkeeper_log
WHERE revision IN (SELECT value FROM json_each(?1))`

// selectChain finds the first row by the log's primary key, and each further one by it, as the row
// before names it. A row names the one that it replaced, of the same key, and IDs are never used
// twice. So the rows follow each other without gaps until one created the key, or the next one was
// swept. The key is compared since the caller's ID may be of another one.
const selectChain = `
WITH RECURSIVE chain (revision, key, prev_revision, create_revision, version, time, deleted, n) AS (
    SELECT revision, key, prev_revision, create_revision, version, time, deleted, 1
    FROM rowkeeper_log
    WHERE revision = ?1 AND key = ?2
    UNION ALL
    SELECT g.revision, g.key, g.prev_revision, g.create_revision, g.version, g.time, g.deleted, c.n + 1
    FROM chain c CROSS JOIN rowkeeper_log g ON g.revision = c.prev_revision
    WHERE c.n < ?3 AND c.prev_revision <> 0 AND g.key = c.key
)
SELECT revision, key, prev_revision, create_revision, version, time, deleted FROM chain`

// selectChanges walks two ranges of the log's primary key, as selectReplaced does: rows, and parts
// of transactions. It reads no values.
const selectChanges = `
SELECT revision, key, prev_revision, create_revision, version, time, deleted
FROM rowkeeper_log
WHERE revision > ?1 AND revision <= ?2 AND key >= ?5 AND key < ?6
UNION ALL
SELECT revision, key, prev_revision, create_revision, version, time, deleted
FROM rowkeeper_log
WHERE revision < ?3 AND revision >= ?4 AND key >= ?5 AND key < ?6`

// selectUsers finds users' rows by primary key, of the IDs in a JSON array.
const selectUsers = `
SELECT revision, name, audit_id FROM rowkeeper_user WHERE revision IN (SELECT value FROM json_each(?1))`

// selectTail walks the log by primary key and finds the previous rows by it: those of deletions, or
// all if ?1.
const selectTail = `
SELECT r.revision, r.key, r.prev_revision, r.create_revision, r.version, r.lease, r.token, r.time, r.deleted, r.value,
       p.revision IS NOT NULL, p.lease, p.value
FROM rowkeeper_log r LEFT JOIN rowkeeper_log p ON p.revision = r.prev_revision AND (r.deleted OR ?1)
WHERE r.revision >= ?2
ORDER BY r.revision LIMIT ?3`

// selectParts walks the log backwards, and is selectTail otherwise, but for values that nobody
// wants.
const selectParts = `
SELECT r.revision, r.key, r.prev_revision, r.create_revision, r.version, r.lease, r.token, r.time, r.deleted, iif(?1, r.value, NULL),
       p.revision IS NOT NULL, p.lease, iif(?2, p.value, NULL)
FROM rowkeeper_log r LEFT JOIN rowkeeper_log p ON p.revision = r.prev_revision AND (r.deleted OR ?3)
WHERE r.revision < ?4 AND r.revision >= ?5
ORDER BY r.revision DESC LIMIT ?6`

// selectFirstAt is one step in the log's primary key.
const selectFirstAt = `
SELECT revision, time FROM rowkeeper_log WHERE revision >= ?1 ORDER BY revision LIMIT 1`

// selectExpiring walks the index of expiries, which has only the keys that expire. Those of leases
// have a negative one.
const selectExpiring = `
SELECT key, revision, expiry FROM rowkeeper_live WHERE expiry > 0 ORDER BY expiry LIMIT ?1`

// selectLeases walks the leases by their primary key.
const selectLeases = `
SELECT id, ttl, expiry FROM rowkeeper_lease WHERE id >= ?1 ORDER BY id LIMIT ?2`

// selectLapsing walks the index of the leases' expiries.
const selectLapsing = `
SELECT id, ttl, expiry FROM rowkeeper_lease WHERE expiry >= ?1 ORDER BY expiry LIMIT ?2`

// selectAttached walks the keys of a lease in the index of expiries, whose entries end with the
// key.
const selectAttached = `
SELECT key, revision FROM rowkeeper_live WHERE expiry = ?1 AND key >= ?2 ORDER BY key LIMIT ?3`

// selectAttachedTo finds the keys of each lease in an array in the index of expiries.
const selectAttachedTo = `
SELECT key, revision, expiry FROM rowkeeper_live WHERE expiry IN (SELECT value FROM json_each(?1)) LIMIT ?2`

// countLeases walks the index of the leases' expiries, the smallest one there is.
const countLeases = `
SELECT ` + state + `, n.leases
FROM ` + storeAndHead + `
CROSS JOIN (SELECT count(*) AS leases FROM rowkeeper_lease) n
WHERE ` + theStore

// selectLease and insertLease find a lease by its primary key, and so do selectSomeLeases and
// deleteLeases each of those in an array.
const selectLease = `
SELECT ttl, expiry FROM rowkeeper_lease WHERE id = ?1`

const insertLease = `
INSERT OR REPLACE INTO rowkeeper_lease (id, ttl, expiry) VALUES (?1, ?2, ?3)`

const selectSomeLeases = `
SELECT id, ttl, expiry FROM rowkeeper_lease WHERE id IN (SELECT value FROM json_each(?1))`

const deleteLeases = `
DELETE FROM rowkeeper_lease WHERE id IN (SELECT value FROM json_each(?1))`

// selectLive reads a key's state before a group, by primary key.
const selectLive = `
SELECT revision, create_revision, version, lease FROM rowkeeper_live WHERE key = ?1`

// selectCompared walks the live rows of a range by their primary key, and reads each one's value by
// the log's primary key if ?3.
const selectCompared = `
SELECT l.revision, l.create_revision, l.version, l.lease, g.value
FROM rowkeeper_live l LEFT JOIN rowkeeper_log g ON g.revision = l.revision AND ?3
WHERE l.key >= ?1 AND l.key < ?2`

// selectAny finds the first key of a range by the live rows' primary key.
const selectAny = `
SELECT key FROM rowkeeper_live WHERE key >= ?1 AND key < ?2 LIMIT 1`

// selectWritten walks what was written since a revision, by the primary key of the log: rows, and
// parts of transactions. It reads no values.
const selectWritten = `
SELECT key FROM rowkeeper_log WHERE revision > ?1
UNION ALL
SELECT key FROM rowkeeper_log WHERE revision < ?2`

// selectValue reads what a deletion removes, by primary key.
const selectValue = `
SELECT value FROM rowkeeper_log WHERE revision = ?1`

// insertLog appends to the log. The primary key is the second safeguard of revisions, after the
// commit lock.
const insertLog = `
INSERT INTO rowkeeper_log (revision, key, prev_revision, create_revision, version, lease, token, time, deleted, value)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`

// insertIndexedLog is insertLog for a key of an indexed directory.
const insertIndexedLog = `
INSERT INTO rowkeeper_log (revision, key, prev_revision, create_revision, version, lease, token, time, deleted, value, entries)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)`

// insertUser adds the user's row to that of the log, whose primary key it has.
const insertUser = `
INSERT INTO rowkeeper_user (revision, name, audit_id) VALUES (?1, ?2, ?3)`

const insertMarker = `
INSERT INTO rowkeeper_log (revision, key, prev_revision, create_revision, version, lease, token, time, deleted, value)
VALUES (?1, x'', 0, 0, 0, 0, ?2, ?3, 1, NULL)`

const insertLive = `
INSERT INTO rowkeeper_live (key, revision, create_revision, version, lease, expiry) VALUES (?1, ?2, ?3, ?4, ?5, ?6)`

// updateLive and deleteLive find the row by primary key. Its revision was compared under the commit
// lock.
const updateLive = `
UPDATE rowkeeper_live SET revision = ?2, version = ?3, lease = ?4, expiry = ?5 WHERE key = ?1`

const deleteLive = `
DELETE FROM rowkeeper_live WHERE key = ?1`

// selectEntries reads which entries a key has, by primary key.
const selectEntries = `
SELECT entries FROM rowkeeper_live WHERE key = ?1`

// selectEntriesAt is selectEntries for a live row that may be another one by now.
const selectEntriesAt = `
SELECT entries FROM rowkeeper_live WHERE key = ?1 AND revision = ?2`

// updateEntries finds a live row by primary key.
const updateEntries = `
UPDATE rowkeeper_live SET entries = ?2 WHERE key = ?1`

// insertEntry and deleteEntry find a row of the index by its primary key. A row of an index that
// was dropped may be gone already.
const insertEntry = `
INSERT OR IGNORE INTO rowkeeper_index (entry, key) VALUES (?1, ?2)`

const deleteEntry = `
DELETE FROM rowkeeper_index WHERE entry = ?1 AND key = ?2`

// deleteEntries removes the first rows of a range of the index's primary key.
const deleteEntries = `
DELETE FROM rowkeeper_index
WHERE (entry, key) IN (
    SELECT entry, key FROM rowkeeper_index WHERE entry >= ?1 AND entry < ?2 LIMIT ?3
)`

// selectIndexes and selectTheIndexes find the store row by its primary key, and updateIndexes too.
const selectIndexes = `
SELECT ` + state + `, s.generation, s.indexes
FROM ` + storeAndHead + `
WHERE ` + theStore

const selectTheIndexes = `
SELECT generation, indexes FROM rowkeeper_store WHERE id = 1`

const updateIndexes = `
UPDATE rowkeeper_store SET generation = ?1, indexes = ?2 WHERE id = 1`

// selectPageOf walks the rows of the index of each entry, in the order of its primary key, which is
// that of the keys, and reads the live row of each by its primary key, up to the limit. Of these it
// takes the first ones, and reads their values by the primary key of the log.
func selectPageOf(n int) string {
	var parts []string
	for i := range n {
		parts = append(parts, fmt.Sprintf(`
    SELECT * FROM (
        SELECT l.key, l.revision, l.create_revision, l.version, l.lease
        FROM rowkeeper_index i CROSS JOIN rowkeeper_live l ON l.key = i.key
        WHERE i.entry = ?%d AND i.key >= ?1 AND i.key < ?2 AND l.revision BETWEEN ?3 AND ?4
        ORDER BY i.key LIMIT ?5
    )`, 6+i))
	}
	return `
SELECT x'', generation, 0, 0, 0, NULL FROM rowkeeper_store WHERE id = 1
UNION ALL
SELECT k.key, k.revision, k.create_revision, k.version, k.lease, g.value
FROM (` + strings.Join(parts, "\n    UNION ALL") + `
    ORDER BY 1 LIMIT ?5
) k LEFT JOIN rowkeeper_log g ON g.revision = k.revision`
}

// countOf counts the rows of the index of each entry, in a range of its primary key.
func countOf(n int) string {
	var parts []string
	for i := range n {
		parts = append(parts, fmt.Sprintf(`(
           SELECT count(*) FROM (SELECT 1 FROM rowkeeper_index WHERE entry = ?%d AND key >= ?1 AND key < ?2 LIMIT ?3)
       )`, 4+i))
	}
	return `
SELECT ` + state + `,
       ` + strings.Join(parts, " + ") + `
FROM ` + storeAndHead + `
WHERE ` + theStore
}

// selectIndexRows and selectIndexRowsBack walk the rows of the index from one on, by its primary
// key, up to the limit, and past keys that are not wanted. The third parameter says nothing new:
// MySQL needs it.
const selectIndexRows = `
SELECT x'' AS entry, NULL AS key, generation FROM rowkeeper_store WHERE id = 1
UNION ALL
SELECT * FROM (
    SELECT entry, key, NULL FROM rowkeeper_index
    WHERE (entry, key) >= (?1, ?2) AND entry >= ?3 AND entry < ?4 AND key >= ?5 AND key < ?6
    ORDER BY entry ASC, key ASC LIMIT ?7
)`

const selectIndexRowsBack = `
SELECT x'' AS entry, NULL AS key, generation FROM rowkeeper_store WHERE id = 1
UNION ALL
SELECT * FROM (
    SELECT entry, key, NULL FROM rowkeeper_index
    WHERE (entry, key) < (?1, ?2) AND entry <= ?3 AND entry >= ?4 AND key >= ?5 AND key < ?6
    ORDER BY entry DESC, key DESC LIMIT ?7
)`

// selectGroup finds the rows of a group in the newest revisions, by the log's primary key: none of
// it can be older than the head was when the group was begun. It reads no values. It walks the rows
// that were written since.
const selectGroup = `
SELECT revision, key, prev_revision, create_revision, version, lease, time, deleted
FROM rowkeeper_log
WHERE revision > ?1 AND token = ?2
ORDER BY revision`

const insertAborted = `
INSERT INTO rowkeeper_aborted (token, seen) VALUES (?1, ?2)`

// updateCompacted and the updates below find the store row by its primary key.
const updateCompacted = `
UPDATE rowkeeper_store SET compacted = ?1 WHERE id = 1`

const updateSwept = `
UPDATE rowkeeper_store SET swept = ?1 WHERE id = 1`

// selectSweep is what a batch of the sweep looks at, by the log's primary key, from the row at the
// swept revision on. The first row has the lowest revision of the aborted tokens, which are almost
// always none, and the revision of the last user's row, NULL if there is none: one step in their
// primary key.
const selectSweep = `
SELECT 0, min(seen), (SELECT max(revision) FROM rowkeeper_user) FROM rowkeeper_aborted
UNION ALL
SELECT * FROM (
    SELECT revision, prev_revision, deleted
    FROM rowkeeper_log
    WHERE revision >= (SELECT swept FROM rowkeeper_store WHERE id = 1)
      AND revision <= (SELECT compacted FROM rowkeeper_store WHERE id = 1)
    ORDER BY revision LIMIT ?1
)`

const deleteLog = `
DELETE FROM rowkeeper_log WHERE revision = ?1`

// deleteUser finds a user's row by primary key.
const deleteUser = `
DELETE FROM rowkeeper_user WHERE revision = ?1`

const deleteAborted = `
DELETE FROM rowkeeper_aborted WHERE seen < ?1`

const updateEpoch = `
UPDATE rowkeeper_store
SET epoch = ?1, compacted = ?2, swept = ?3, fingerprint = coalesce(nullif(?4, ''), fingerprint)
WHERE id = 1`

const selectIdentity = `
SELECT identity, coalesce(fingerprint, ''), epoch FROM rowkeeper_store WHERE id = 1`

const updateFingerprint = `
UPDATE rowkeeper_store SET fingerprint = ?1 WHERE id = 1 AND fingerprint IS NULL`

const selectBoot = `
SELECT coalesce(boot, '') FROM rowkeeper_store WHERE id = 1`

// updateBoot finds the store row by its primary key.
const updateBoot = `
UPDATE rowkeeper_store SET boot = nullif(?2, '') WHERE id = 1 AND coalesce(boot, '') = ?1`

// selectSize is the size of the file and what of it is in use, by the file's header.
const selectSize = `
SELECT ` + state + `,
       page_size * page_count, page_size * (page_count - freelist_count)
FROM ` + storeAndHead + `
CROSS JOIN pragma_page_size CROSS JOIN pragma_page_count CROSS JOIN pragma_freelist_count
WHERE ` + theStore

// selectUsage walks all live rows, and measures the value of each by the primary key of the log,
// without reading it.
const selectUsage = `
SELECT ` + state + `, u.objects, u.bytes
FROM ` + storeAndHead + `
CROSS JOIN (
    SELECT count(*) AS objects, coalesce(sum(length(l.key) + length(g.value)), 0) AS bytes
    FROM rowkeeper_live l LEFT JOIN rowkeeper_log g ON g.revision = l.revision
) u
WHERE ` + theStore

// selectGrowth walks the log from a revision on, and the parts after it, by the primary key, and
// finds by it what each row replaced. Markers and deletions hold nothing. Values are measured where
// they are found, for which SQLite does not read them.
const selectGrowth = `
SELECT ` + state + `, u.objects, u.written - u.replaced, u.replaced, u.logged
FROM ` + storeAndHead + `
CROSS JOIN (
    SELECT coalesce(sum(NOT g.deleted), 0) - count(p.revision) AS objects,
           coalesce(sum(iif(g.deleted, 0, g.bytes)), 0) AS written,
           coalesce(sum(length(p.key) + length(p.value)), 0) AS replaced, count(*) AS logged
    FROM (
        SELECT prev_revision, deleted, length(key) + length(value) AS bytes FROM rowkeeper_log WHERE revision > ?1
        UNION ALL
        SELECT prev_revision, deleted, length(key) + length(value) AS bytes FROM rowkeeper_log WHERE revision < ?2
    ) g LEFT JOIN rowkeeper_log p ON p.revision = nullif(g.prev_revision, 0)
) u
WHERE ` + theStore

// selectQuota finds the store row by its primary key.
const selectQuota = `
SELECT ` + state + `, s.max_objects, s.max_bytes, s.generation
FROM ` + storeAndHead + `
WHERE ` + theStore

// selectPages reads the file's header.
const selectPages = `
SELECT page_count, freelist_count FROM pragma_page_count, pragma_freelist_count`

// selectDamage looks for a live row whose log row is missing or another key's: a walk over all
// rows, only done when a small file is opened.
const selectDamage = `
SELECT EXISTS (
    SELECT 1 FROM rowkeeper_live l LEFT JOIN rowkeeper_log g ON g.revision = l.revision
    WHERE g.revision IS NULL OR g.key <> l.key OR g.deleted)`

// selectOwner reads the file's header and its list of tables.
const selectOwner = `
SELECT application_id = ?1,
       EXISTS (SELECT 1 FROM sqlite_master) AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'rowkeeper_schema')
FROM pragma_application_id`

// selectRecords walks the log by its primary key, which is the order that is asked for and that of
// the rows in the file, and finds by the primary key of the live rows which of them are live.
// Values of the others are not read. selectRecordParts does the same backwards.
const (
	selectRecords = `
SELECT g.revision, l.key, l.create_revision, l.version, l.lease, max(coalesce(l.expiry, 0), 0), g.value
FROM rowkeeper_log g CROSS JOIN rowkeeper_live l ON l.key = g.key AND l.revision = g.revision
WHERE g.revision > 0
ORDER BY g.revision`
	selectRecordParts = `
SELECT g.revision, l.key, l.create_revision, l.version, l.lease, max(coalesce(l.expiry, 0), 0), g.value
FROM rowkeeper_log g CROSS JOIN rowkeeper_live l ON l.key = g.key AND l.revision = g.revision
WHERE g.revision < 0
ORDER BY g.revision DESC`
)

// selectAllLeases walks all leases.
const selectAllLeases = `
SELECT id, ttl, expiry FROM rowkeeper_lease`

// countAll walks all live rows.
const countAll = `
SELECT count(*) FROM rowkeeper_live`

// removeRecords deletes the log rows of some keys, which the live rows name, removeUsers the users'
// rows beside them, and removeKeys the live rows. All are found by primary keys. ?1 is an array of
// keys in hexadecimal.
const removeUsers = `
DELETE FROM rowkeeper_user WHERE revision IN (
    SELECT l.revision FROM json_each(?1) a CROSS JOIN rowkeeper_live l ON l.key = unhex(a.value))`

const removeRecords = `
DELETE FROM rowkeeper_log WHERE revision IN (
    SELECT l.revision FROM json_each(?1) a CROSS JOIN rowkeeper_live l ON l.key = unhex(a.value))`

const removeKeys = `
DELETE FROM rowkeeper_live WHERE key IN (SELECT unhex(value) FROM json_each(?1))`

// deleteAllLeases, deleteAllLive, deleteAllUsers and deleteAllLog delete without looking at rows.
const deleteAllLeases = `
DELETE FROM rowkeeper_lease`

const deleteAllLive = `
DELETE FROM rowkeeper_live`

const deleteAllUsers = `
DELETE FROM rowkeeper_user`

const deleteAllLog = `
DELETE FROM rowkeeper_log`

// eraseLive and eraseLog delete the first rows in the order of their primary keys. Of the log, the
// newest row stays.
const eraseLive = `
DELETE FROM rowkeeper_live
WHERE key IN (SELECT key FROM rowkeeper_live ORDER BY key LIMIT ?1)`

const eraseLog = `
DELETE FROM rowkeeper_log
WHERE revision IN (
    SELECT revision FROM rowkeeper_log
    WHERE revision < (SELECT max(revision) FROM rowkeeper_log)
    ORDER BY revision LIMIT ?1
)`

// eraseUsers deletes the first rows in the order of the primary key. It deletes as many as eraseLog
// does, and before it, so none is left without its row of the log.
const eraseUsers = `
DELETE FROM rowkeeper_user
WHERE revision IN (SELECT revision FROM rowkeeper_user ORDER BY revision LIMIT ?1)`

// eraseEntries removes the first rows of the index in the order of its primary key.
const eraseEntries = `
DELETE FROM rowkeeper_index
WHERE (entry, key) IN (SELECT entry, key FROM rowkeeper_index LIMIT ?1)`

// deleteAllEntries deletes without looking at rows.
const deleteAllEntries = `
DELETE FROM rowkeeper_index`

// eraseAborted deletes without looking at rows.
const eraseAborted = `
DELETE FROM rowkeeper_aborted`

// eraseDirectories deletes without looking at rows.
const eraseDirectories = `
DELETE FROM rowkeeper_resource`

// selectDirectories walks the recorded directories, of which there is one for each resource.
const selectDirectories = `
SELECT directory, "group", resource, scope FROM rowkeeper_resource`

// insertDirectory finds a directory by its primary key.
const insertDirectory = `
INSERT OR REPLACE INTO rowkeeper_resource (directory, "group", resource, scope, first, beyond)
VALUES (?1, ?2, ?3, ?4, CAST(?5 AS BLOB), CAST(?6 AS BLOB))`

// renewStore finds the store row by its primary key.
const renewStore = `
UPDATE rowkeeper_store
SET identity = lower(hex(randomblob(16))), fingerprint = NULL, boot = NULL, max_objects = 0, max_bytes = 0,
    generation = 0, indexes = NULL
WHERE id = 1`

// updateName finds the store row by its primary key, and writes nothing if the name is right.
const updateName = `
UPDATE rowkeeper_store SET name = ?1 WHERE id = 1 AND name <> ?1`

// selectHome and selectTheHome find the store row by its primary key, and so do the statements that
// change it.
const selectHome = `
SELECT ` + state + `, s.home
FROM ` + storeAndHead + `
WHERE ` + theStore

const selectTheHome = `
SELECT home FROM rowkeeper_store WHERE id = 1`

const updateHome = `
UPDATE rowkeeper_store SET home = ?1 WHERE id = 1`

const updateIdentity = `
UPDATE rowkeeper_store SET identity = ?1 WHERE id = 1`

const updateQuota = `
UPDATE rowkeeper_store SET max_objects = ?1, max_bytes = ?2 WHERE id = 1`

const (
	beginImmediate = "BEGIN IMMEDIATE"
	commit         = "COMMIT"
	rollback       = "ROLLBACK"
	// selectMark and those below are about the mark of the file; see mark.go. SQLite keeps it in
	// the first page, which is always in memory.
	selectMark        = "PRAGMA user_version"
	updateMarkClosed  = "PRAGMA user_version = 0"
	updateMarkOpening = "PRAGMA user_version = 1"
	updateMarkOpen    = "PRAGMA user_version = 2"
	updateMarkLost    = "PRAGMA user_version = 3"
	// dataVersion changes when another connection has committed.
	dataVersion = "PRAGMA data_version"
	// giveBack moves pages from the file's end to its free pages, so that the file shrinks: at most
	// as many as it names.
	giveBack = "PRAGMA incremental_vacuum(256)"
)
