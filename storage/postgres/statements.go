package postgres

// The statements, each whole, with the argument for its correctness and the indexes that it uses. The tables are those of
// migrations/postgres.
//
// Rules that hold for all of them:
//
//   - A statement has one snapshot in READ COMMITTED, taken when it starts. What it returns is of one moment, the state included.
//   - Plans must not depend on statistics: a statement is prepared when the tables may be empty, and kept while they grow. On these
//     connections sequential and bitmap scans, hash and merge joins are off (see session.go), and a table is joined by LATERAL (… OFFSET 0),
//     which the planner does not pull up: for each row of the left side one descent into the named index.
//   - Times are microseconds since 1970 by the database's clock.

// state is the part that every read has in common: the state, in the read's own snapshot. The head is the newest row of the log (its
// primary key, backwards, one row); the store row is found by its primary key. The role is read in the same statement, since a connection
// can outlive the server's role behind it.
//
// Reads of many rows return the state as a row of its own, the others beside theirs. The rows after it come in the order of their part of the UNION ALL, which is
// appended as it is.
const state = `
state AS MATERIALIZED (
    SELECT s.epoch, s.compacted, s.swept, h.revision AS head, h.token AS head_token,
           NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AS writable,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
    FROM rowkeeper_store s
    CROSS JOIN LATERAL (SELECT revision, token FROM rowkeeper_log ORDER BY revision DESC LIMIT 1) h
    WHERE s.id = 1
)`

// sqlState is the cheapest read.
const sqlState = `WITH` + state + `
SELECT * FROM state`

// sqlTail reads a piece of the log by its primary key, and previous values by the same.
//
// $1 first revision, $2 limit, $3 whether previous values of updates are wanted, too.
const sqlTail = `WITH` + state + `
SELECT state.*, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM state
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, r.* FROM (
    SELECT g.revision, g.prev_revision, g.create_revision, g.time, g.deleted, g.key, g.token, g.value,
           p.revision IS NOT NULL AS has_prev, p.value AS prev_value
    FROM (
        SELECT revision, prev_revision, create_revision, time, deleted, key, token, value
        FROM rowkeeper_log WHERE revision >= $1::bigint ORDER BY revision LIMIT $2::bigint
    ) g
    LEFT JOIN LATERAL (
        SELECT revision, value FROM rowkeeper_log
        WHERE revision = g.prev_revision AND g.prev_revision > 0 AND (g.deleted OR $3::boolean) OFFSET 0
    ) p ON true
) r`

// sqlGet reads a key: its live row by the primary key, then its row of the log by the primary key.
//
// $1 key.
const sqlGet = `WITH` + state + `
SELECT state.*, r.*
FROM state
LEFT JOIN LATERAL (
    SELECT l.revision, l.create_revision, g.prev_revision, g.time, g.token, g.value
    FROM rowkeeper_live l
    LEFT JOIN LATERAL (
        SELECT prev_revision, time, token, value FROM rowkeeper_log WHERE revision = l.revision OFFSET 0
    ) g ON true
    WHERE l.key = $1::bytea
) r ON true`

// sqlGetKeys reads several keys as sqlGet reads one: for each key, one descent into the primary key of live, and one into that of the log.
//
// $1 keys.
const sqlGetKeys = `WITH` + state + `
SELECT state.*, NULL, NULL, NULL, NULL FROM state
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, r.* FROM (
    SELECT asked.key, l.revision, l.create_revision, g.value
    FROM unnest($1::bytea[]) AS asked (key)
    CROSS JOIN LATERAL (SELECT revision, create_revision FROM rowkeeper_live WHERE key = asked.key OFFSET 0) l
    LEFT JOIN LATERAL (SELECT value FROM rowkeeper_log WHERE revision = l.revision OFFSET 0) g ON true
) r`

// sqlPage reads live rows in the order of their primary key, and the values from the log by its primary key. The limit is inside, so no
// more rows are touched than returned, but for those newer than $3.
//
// $1 start, $2 end, $3 newest revision or 0, $4 limit.
const sqlPage = `WITH` + state + `
SELECT state.*, NULL, NULL, NULL, NULL FROM state
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, r.* FROM (
    SELECT l.key, l.revision, l.create_revision, g.value
    FROM (
        SELECT key, revision, create_revision FROM rowkeeper_live
        WHERE key >= $1::bytea AND key < $2::bytea AND ($3::bigint = 0 OR revision <= $3::bigint)
        ORDER BY key LIMIT $4::bigint
    ) l
    LEFT JOIN LATERAL (SELECT value FROM rowkeeper_log WHERE revision = l.revision OFFSET 0) g ON true
) r`

// sqlKeys is sqlPage without the values.
const sqlKeys = `WITH` + state + `
SELECT state.*, NULL, NULL, NULL FROM state
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, r.* FROM (
    SELECT key, revision, create_revision FROM rowkeeper_live
    WHERE key >= $1::bytea AND key < $2::bytea AND ($3::bigint = 0 OR revision <= $3::bigint)
    ORDER BY key LIMIT $4::bigint
) r`

// sqlReplaced reads the log's range of revisions by its primary key; the rest is a filter.
//
// $1 start, $2 end, $3 snapshot, $4 after, $5 up to.
const sqlReplaced = `WITH` + state + `
SELECT state.*, NULL, NULL FROM state
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, r.* FROM (
    SELECT key, prev_revision FROM rowkeeper_log
    WHERE revision > $4::bigint AND revision <= $5::bigint
      AND prev_revision > 0 AND prev_revision <= $3::bigint
      AND key >= $1::bytea AND key < $2::bytea
) r`

// sqlValues reads rows of the log by the primary key, one descent per revision.
//
// $1 revisions.
const sqlValues = `WITH` + state + `
SELECT state.*, NULL, NULL, NULL, NULL, NULL FROM state
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, r.* FROM (
    SELECT g.key, g.revision, g.create_revision, g.deleted, g.value
    FROM unnest($1::bigint[]) AS asked (revision)
    CROSS JOIN LATERAL (
        SELECT key, revision, create_revision, deleted, value FROM rowkeeper_log WHERE revision = asked.revision OFFSET 0
    ) g
) r`

// sqlCount counts a range of the primary key of live, and stops at the limit.
//
// $1 start, $2 end, $3 newest revision or 0, $4 limit or 0.
const sqlCount = `WITH` + state + `
SELECT state.*, (
    SELECT count(*) FROM (
        SELECT FROM rowkeeper_live
        WHERE key >= $1::bytea AND key < $2::bytea AND ($3::bigint = 0 OR revision <= $3::bigint)
        LIMIT NULLIF($4::bigint, 0)
    ) counted
)
FROM state`

// sqlExpired reads the keys with the earliest expiry, one more than asked for, by the partial index on expiry. Go tells those that have expired
// from the next one.
//
// $1 limit + 1.
const sqlExpired = `WITH` + state + `
SELECT state.*, r.*
FROM state
LEFT JOIN LATERAL (
    SELECT key, revision, expiry FROM rowkeeper_live WHERE expiry IS NOT NULL ORDER BY expiry LIMIT $1::bigint
) r ON true`

// sqlFirstAt reads one row by the primary key.
//
// $1 revision.
const sqlFirstAt = `WITH` + state + `
SELECT state.*, r.*
FROM state
LEFT JOIN LATERAL (
    SELECT revision, time FROM rowkeeper_log WHERE revision >= $1::bigint ORDER BY revision LIMIT 1
) r ON true`

// sqlSize reads sizes from the file system and the rest from statistics, no table. The bytes in use are those of the live rows as the statistics
// count and measure them: a row has 28 bytes besides its columns, an entry in the index about 20 besides the key; of a value that is stored out of
// line, a chunk of 2,000 bytes has about 40 more.
const sqlSize = `
SELECT sum(total)::bigint, sum(least(used, total))::bigint
FROM (
    SELECT pg_total_relation_size(c.oid) AS total,
           coalesce(s.n_live_tup * (48 + w.width) + coalesce(t.n_live_tup, 0) * 2040, pg_total_relation_size(c.oid)) AS used
    FROM unnest(ARRAY['rowkeeper_log', 'rowkeeper_live', 'rowkeeper_store', 'rowkeeper_aborted']) AS name
    JOIN pg_class c ON c.oid = to_regclass(name)
    LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
    LEFT JOIN pg_stat_all_tables t ON t.relid = c.reltoastrelid
    LEFT JOIN LATERAL (
        SELECT sum(avg_width) AS width FROM pg_stats p
        WHERE p.schemaname = s.schemaname AND p.tablename = s.relname
    ) w ON true
) sizes`

// The writing transactions. Each is BEGIN, a statement that takes a lock, one statement that does the work with a snapshot younger than
// the lock, and COMMIT; see transaction.go for how they are sent.

// sqlBegin names the isolation level: the work's snapshot has to be taken after the lock was granted. Whether the transaction may write is left to the
// server, so that a read-only one refuses.
const sqlBegin = `BEGIN ISOLATION LEVEL READ COMMITTED`

const sqlCommit = `COMMIT`

// sqlLock takes the commit lock, and tells when it began to wait for it. The row is not updated, so it keeps one version, however
// long some snapshot is held.
const sqlLock = `
SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
FROM rowkeeper_store WHERE id = 1 FOR UPDATE`

// sqlGroup decides and writes a commit group, under the commit lock.
//
// Why it is right: nobody else can change live, log, store or aborted while the lock is held, and the statement's snapshot is younger than
// the lock, so what it reads is what it changes.
//
//   - guard: the group's token is not recorded as aborted (primary key), and the database is the one that was seen: the same epoch, a head that
//     is not lower, and at the seen revision (primary key) the seen token, unless the row is gone and compaction may have removed it.
//   - input: each mutation with the key's current revision (primary key of live); 0 if there is none. The caller has taken out all but the first
//     of the mutations with equal key and expectation, which could only lose. So of one key's mutations at most one expects
//     the current revision, and no key is written twice.
//   - decided: accepted is who expects the current revision; the accepted are numbered densely, in order of arrival, from the head on.
//   - logged, updated, created, removed: an accepted mutation is a row of the log, whose primary key is the second guard; and an update (primary
//     key), an insertion or a deletion (primary key) of the live row.
//   - answer: in order of arrival. Previous values (primary key of log) are read for accepted deletions that ask for them.
//
// The notification is sent at COMMIT, once per group, and only if something was written.
//
// $1 token, $2 $3 $4 seen epoch, revision, token, $5 keys, $6 expectations, $7 deletions, $8 values, $9 times to live in
// microseconds or 0, $10 whether the previous value is wanted, $11 notification channel, "" for none.
const sqlGroup = `
WITH guard AS MATERIALIZED (
    SELECT s.epoch, s.compacted, s.swept, h.revision AS head, h.token AS head_token,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
           EXISTS (SELECT FROM rowkeeper_aborted WHERE token = $1::bytea) AS aborted,
           s.epoch = $2::bigint AND h.revision >= $3::bigint AND coalesce(
               (SELECT token = $4::bytea FROM rowkeeper_log WHERE revision = $3::bigint), $3::bigint <= s.compacted) AS seen
    FROM rowkeeper_store s
    CROSS JOIN LATERAL (SELECT revision, token FROM rowkeeper_log ORDER BY revision DESC LIMIT 1) h
    WHERE s.id = 1
), input AS (
    SELECT m.n, m.key, m.expected, m.deleted, m.value, m.ttl, m.wants_previous,
           coalesce(l.revision, 0) AS current, l.create_revision
    FROM unnest($5::bytea[], $6::bigint[], $7::boolean[], $8::bytea[], $9::bigint[], $10::boolean[])
         WITH ORDINALITY AS m (key, expected, deleted, value, ttl, wants_previous, n)
    LEFT JOIN LATERAL (SELECT revision, create_revision FROM rowkeeper_live WHERE key = m.key OFFSET 0) l ON true
), decided AS MATERIALIZED (
    SELECT i.n, i.key, i.expected, i.deleted, i.value, i.wants_previous, i.current, g.now,
           i.expected = i.current AND g.seen AND NOT g.aborted AS accepted,
           g.head + count(*) FILTER (WHERE i.expected = i.current) OVER (ORDER BY i.n ROWS UNBOUNDED PRECEDING) AS revision,
           i.create_revision,
           CASE WHEN i.ttl > 0 THEN g.now + i.ttl END AS expiry
    FROM guard g CROSS JOIN input i
), logged AS (
    INSERT INTO rowkeeper_log (revision, prev_revision, create_revision, time, deleted, key, token, value)
    SELECT revision, expected, coalesce(create_revision, revision), now, deleted, key, $1::bytea, CASE WHEN NOT deleted THEN value END
    FROM decided WHERE accepted
), created AS (
    INSERT INTO rowkeeper_live (key, revision, create_revision, expiry)
    SELECT key, revision, revision, expiry FROM decided WHERE accepted AND expected = 0
), updated AS (
    UPDATE rowkeeper_live l SET revision = d.revision, expiry = d.expiry
    FROM decided d WHERE l.key = d.key AND d.accepted AND NOT d.deleted AND d.expected > 0
), removed AS (
    DELETE FROM rowkeeper_live l USING decided d WHERE l.key = d.key AND d.accepted AND d.deleted
)
SELECT g.epoch, g.compacted, g.swept, g.head, g.head_token, g.now, g.aborted, g.seen,
       a.accepted, a.revisions, a.creations, a.previous,
       CASE WHEN $11::text <> '' AND a.last > g.head THEN pg_notify($11::text, a.last::text) END
FROM guard g
CROSS JOIN LATERAL (
    SELECT array_agg(accepted) AS accepted, array_agg(revision) AS revisions, array_agg(create_revision) AS creations,
           array_agg(previous) AS previous, max(revision) FILTER (WHERE accepted) AS last
    FROM (
        SELECT d.accepted, CASE WHEN d.accepted THEN d.revision ELSE d.current END AS revision,
               coalesce(d.create_revision, d.revision) AS create_revision, p.value AS previous
        FROM decided d
        LEFT JOIN LATERAL (
            SELECT value FROM rowkeeper_log
            WHERE revision = d.expected AND d.accepted AND d.deleted AND d.wants_previous OFFSET 0
        ) p ON true
        ORDER BY d.n
    ) answer
) a`

// sqlResolve finds out, under the commit lock, what became of a group that was begun when the head was at or after a position. The rows with its
// token can only be after that revision: a scan of the log's primary key from there to the head. If none is there, and the token is not recorded yet, it
// is recorded now, and then no statement can write this group any more (see sqlGroup), however long it waits for the lock. But that is
// only an answer if the rows cannot have been there and gone: swept, or lost with another history.
//
// It returns the state in each row, whether the token is recorded, and the rows.
//
// $1 token, $2 $3 the position's epoch and revision.
const sqlResolve = `WITH` + state + `, found AS MATERIALIZED (
    SELECT revision, prev_revision, create_revision, time, deleted, key
    FROM rowkeeper_log WHERE revision > $3::bigint AND token = $1::bytea ORDER BY revision
), known AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM rowkeeper_aborted WHERE token = $1::bytea) AS aborted
), recorded AS (
    INSERT INTO rowkeeper_aborted (token, time)
    SELECT $1::bytea, state.now
    FROM state CROSS JOIN known
    WHERE NOT known.aborted AND NOT EXISTS (SELECT FROM found)
      AND state.epoch = $2::bigint AND state.head >= $3::bigint AND state.swept <= $3::bigint
    RETURNING true
)
SELECT state.*, known.aborted OR EXISTS (SELECT FROM recorded), f.*
FROM state CROSS JOIN known LEFT JOIN found f ON true`

// sqlCompact raises the boundary, under the commit lock, to the head at most. The store row is updated where it was locked.
//
// $1 revision.
const sqlCompact = `WITH` + state + `, moved AS (
    UPDATE rowkeeper_store s SET compacted = least($1::bigint, state.head)
    FROM state WHERE s.id = 1 AND s.compacted < least($1::bigint, state.head)
    RETURNING s.compacted
)
SELECT state.epoch, coalesce((SELECT compacted FROM moved), state.compacted), state.swept, state.head, state.head_token,
       state.writable, state.now
FROM state`

// sqlSweepLock lets one sweep at a time work on this log: two would wait for each other's rows, in different order. It is not the commit lock, and
// ends with the transaction. The sweep's commit need not wait for the disk, with the commit lock held: what a crash brings back is swept again.
const sqlSweepLock = `
SELECT pg_advisory_xact_lock('rowkeeper_log'::regclass::oid::int, 1), set_config('synchronous_commit', 'off', true)`

// sqlSweep sweeps one batch, under the sweep lock: of the rows in (swept, compacted] by the primary key of the log, it deletes the rows that
// they replaced and those that are tombstones or markers, each by the primary key.
//
// Why it is right: a state at or after compacted is made of each key's newest row up to there. A row that was replaced at or below compacted is
// none of them, and a tombstone stands for nothing. What they replaced has a lower revision, so rows above compacted stay.
// The head stays, too. If it is a tombstone at the end of the range, swept ends there, and the row at swept is looked at again by the
// next batch, when it may no longer be the head.
//
// The store row, and with it the commit lock, is taken last and for the time of the commit only: the update reads how many rows
// were deleted.
//
// $1 limit of rows to look at.
const sqlSweep = `WITH` + state + `, batch AS MATERIALIZED (
    SELECT g.revision, g.prev_revision, g.deleted
    FROM state CROSS JOIN LATERAL (
        SELECT revision, prev_revision, deleted FROM rowkeeper_log
        WHERE revision > state.swept AND revision <= state.compacted ORDER BY revision LIMIT $1::bigint
    ) g
), doomed AS MATERIALIZED (
    SELECT prev_revision AS revision FROM batch WHERE prev_revision > 0
    UNION ALL
    SELECT batch.revision FROM batch CROSS JOIN state WHERE batch.deleted AND batch.revision < state.head
    UNION ALL
    SELECT g.revision FROM state CROSS JOIN LATERAL (
        SELECT revision FROM rowkeeper_log WHERE revision = state.swept AND deleted AND revision < state.head OFFSET 0
    ) g
), gone AS (
    DELETE FROM rowkeeper_log g USING doomed d WHERE g.revision = d.revision RETURNING 1
), done AS MATERIALIZED (
    SELECT (SELECT count(*) FROM gone) AS deleted,
           CASE WHEN (SELECT count(*) FROM batch) < $1::bigint THEN state.compacted ELSE (SELECT max(revision) FROM batch) END AS swept
    FROM state
), forgotten AS (
    DELETE FROM rowkeeper_aborted a USING state WHERE a.time < state.now - 3600000000
), moved AS (
    UPDATE rowkeeper_store s SET swept = done.swept FROM done WHERE s.id = 1 AND s.swept < done.swept RETURNING s.swept
)
SELECT state.epoch, state.compacted, coalesce((SELECT swept FROM moved), state.swept), state.head, state.head_token,
       state.writable, state.now, done.deleted
FROM state CROSS JOIN done`

// sqlFence starts a new epoch, under the commit lock, unless the database's is newer than the one that was seen. The marker row goes
// beyond the head and what was seen, as [mvcc.Fence.Marker] says.
//
// $1 $2 seen epoch and revision, $3 token, $4 jump, $5 fingerprint or "", $6 revisions per second.
const sqlFence = `WITH` + state + `, marker AS (
    INSERT INTO rowkeeper_log (revision, prev_revision, create_revision, time, deleted, key, token)
    SELECT greatest(greatest(state.head, $2::bigint) + $4::bigint, state.now / 1000000 * $6::bigint), 0, 0, state.now, true, '', $3::bytea
    FROM state WHERE state.epoch <= $1::bigint
    RETURNING revision
), moved AS (
    UPDATE rowkeeper_store s
    SET epoch = $1::bigint + 1, compacted = marker.revision, fingerprint = coalesce(nullif($5::text, ''), s.fingerprint)
    FROM marker WHERE s.id = 1
    RETURNING s.epoch, s.compacted
)
SELECT coalesce(moved.epoch, state.epoch), coalesce(moved.compacted, state.compacted), state.swept,
       coalesce(moved.compacted, state.head), CASE WHEN moved.epoch IS NULL THEN state.head_token ELSE $3::bytea END,
       state.writable, state.now
FROM state LEFT JOIN moved ON true`

// sqlRecordFingerprint records the first fingerprint.
//
// $1 fingerprint.
const sqlRecordFingerprint = `UPDATE rowkeeper_store SET fingerprint = $1 WHERE id = 1 AND fingerprint IS NULL`
