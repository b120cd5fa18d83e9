-- +goose Up

-- "Rkpr" in the file's header tells file(1), and this program, whose database it is.
PRAGMA application_id = 0x526b7072;

-- The history. revision is the rowid, so rows lie in the file in the order of commits and are
-- appended. Where several keys were written at one revision r, the last row has r, and the others
-- have -(512 * r + 1), -(512 * r + 2) and so on: here, in prev_revision, and in rowkeeper_live.
-- entries are those that the key had before, as in rowkeeper_live, and NULL if nobody knows. The
-- value is the last column because SQLite reads a row from its beginning: what comes after a large
-- value costs a walk over its overflow pages.
CREATE TABLE rowkeeper_log (
    revision        INTEGER PRIMARY KEY,
    key             BLOB    NOT NULL,
    prev_revision   INTEGER NOT NULL,
    create_revision INTEGER NOT NULL,
    version         INTEGER NOT NULL,
    lease           INTEGER NOT NULL,
    token           BLOB    NOT NULL,
    time            INTEGER NOT NULL,
    deleted         INTEGER NOT NULL,
    entries         BLOB,
    value           BLOB
) STRICT;

-- Who has written a row of the log, where that is recorded. The row comes and goes with that of the
-- log.
CREATE TABLE rowkeeper_user (
    revision INTEGER PRIMARY KEY,
    name     TEXT NOT NULL,
    audit_id TEXT NOT NULL
) STRICT;

-- The keys that exist. WITHOUT ROWID makes it one B-tree in the order of keys, which are blobs and
-- so compared as bytes.
CREATE TABLE rowkeeper_live (
    key             BLOB    NOT NULL PRIMARY KEY,
    revision        INTEGER NOT NULL,
    create_revision INTEGER NOT NULL,
    version         INTEGER NOT NULL,
    lease           INTEGER NOT NULL,
    expiry          INTEGER,
    entries         BLOB
) STRICT, WITHOUT ROWID;

-- Only keys that expire are in it: for the others it costs nothing. A key that is attached to a
-- lease has the negative of the lease's ID as its expiry, so that the index finds the keys of a
-- lease, and the renewal of a lease changes no key.
CREATE INDEX rowkeeper_live_expiry ON rowkeeper_live (expiry) WHERE expiry IS NOT NULL;

-- The indexes that the store declares. An entry has the ID of the index in its first four bytes.
-- The row of rowkeeper_live has all entries of its key, each after its length in two bytes.
CREATE TABLE rowkeeper_index (
    entry BLOB NOT NULL,
    key   BLOB NOT NULL,
    PRIMARY KEY (entry, key)
) STRICT, WITHOUT ROWID;

-- The leases. An expiry of 0 says that the lease has ended and that its keys are being deleted.
CREATE TABLE rowkeeper_lease (
    id     INTEGER PRIMARY KEY,
    ttl    INTEGER NOT NULL,
    expiry INTEGER NOT NULL
) STRICT;

CREATE INDEX rowkeeper_lease_expiry ON rowkeeper_lease (expiry);

CREATE TABLE rowkeeper_store (
    id            INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    name          TEXT    NOT NULL DEFAULT 'default',
    identity      TEXT    NOT NULL,
    epoch         INTEGER NOT NULL,
    fingerprint   TEXT,
    boot          TEXT,
    compacted     INTEGER NOT NULL,
    swept         INTEGER NOT NULL,
    oldest_writer INTEGER NOT NULL,
    max_objects   INTEGER NOT NULL DEFAULT 0,
    max_bytes     INTEGER NOT NULL DEFAULT 0,
    generation    INTEGER NOT NULL DEFAULT 0,
    indexes       TEXT,
    home          TEXT
) STRICT;

CREATE TABLE rowkeeper_aborted (
    token BLOB    NOT NULL PRIMARY KEY,
    seen  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO rowkeeper_store (id, identity, epoch, fingerprint, compacted, swept, oldest_writer)
VALUES (1, lower(hex(randomblob(16))), 1, NULL, 0, 0, 1);

-- The first marker: an empty store is at revision 1.
INSERT INTO rowkeeper_log (revision, key, prev_revision, create_revision, version, lease, token, time, deleted, value)
VALUES (1, x'', 0, 0, 0, 0, randomblob(16), CAST(unixepoch('subsec') * 1000000 AS INTEGER), 1, NULL);

-- What follows is for people who read objects by SQL: docs/reference/sql.md promises it.

-- Which directory of keys has the objects of which resource. Whoever serves the resource writes it.
-- The keys of a directory are those from first on and before beyond. Directories do not overlap.
CREATE TABLE rowkeeper_resource (
    directory TEXT NOT NULL PRIMARY KEY,
    "group"   TEXT NOT NULL,
    resource  TEXT NOT NULL,
    scope     TEXT NOT NULL,
    first     BLOB NOT NULL UNIQUE,
    beyond    BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- The objects that exist. The recorded directories, and the ranges between them, are ranges of the
-- primary key of rowkeeper_live. Keys that begin with so many bytes 255 are left out, and so are
-- those of Rowkeeper's own records. In a directory that is not recorded, the path tells what it can
-- if it is as kube-apiserver makes it: /registry, a group if that has a dot, the resource, a
-- namespace if there is one, the name. seg is an array of what follows /registry, and n its length;
-- lead is how many of that name the resource.
CREATE VIEW rowkeeper_objects AS
SELECT s.name AS store, k."group", k.resource, k.namespace, k.name, g.object ->> '$.metadata.uid' AS uid,
       k.revision, strftime('%Y-%m-%d %H:%M:%f', g.object ->> '$.metadata.creationTimestamp') AS created,
       strftime('%Y-%m-%d %H:%M:%f', g.time / 1000000.0, 'unixepoch') AS updated,
       g.object -> '$.metadata.labels' AS labels, g.object, length(g.value) AS size, k.directory, k.path
FROM (
    SELECT id, iif(id < 0, -id >> 9, id) AS revision, directory, path, "group", resource,
           iif(instr(rest, '/'), substr(rest, 1, instr(rest, '/') - 1), NULL) AS namespace,
           substr(rest, instr(rest, '/') + 1) AS name
    FROM (
        SELECT l.revision AS id, r.directory, r."group", r.resource, CAST(l.key AS TEXT) AS path,
               substr(CAST(l.key AS TEXT), length(r.directory) + 1) AS rest
        FROM rowkeeper_resource r CROSS JOIN rowkeeper_live l
        WHERE l.key >= r.first AND l.key < r.beyond
    )
    UNION ALL
    SELECT id, iif(id < 0, -id >> 9, id), NULL, path,
           CASE WHEN n - lead NOT IN (1, 2) THEN NULL WHEN instr(seg ->> 0, '.') THEN seg ->> 0
                WHEN lead = 2 OR seg ->> 0 = 'minions' THEN '' END,
           CASE WHEN n - lead NOT IN (1, 2) THEN NULL WHEN instr(seg ->> 0, '.') THEN seg ->> 1
                WHEN lead = 2 THEN replace(seg ->> 1, 'specs', 'services')
                WHEN seg ->> 0 = 'minions' THEN 'nodes' ELSE seg ->> 0 END,
           CASE WHEN n - lead = 2 THEN seg ->> lead END,
           CASE WHEN n - lead IN (1, 2) THEN seg ->> (n - 1) ELSE path END
    FROM (
        SELECT id, path, seg, json_array_length(seg) AS n,
               CASE WHEN instr(seg ->> 0, '.') OR seg ->> 0 = 'services' AND seg ->> 1 IN ('specs', 'endpoints')
                    THEN 2 ELSE 1 END AS lead
        FROM (
            SELECT id, path, CASE WHEN substr(path, 1, 10) = '/registry/'
                                  THEN '[' || replace(json_quote(substr(path, 11)), '/', '","') || ']' END AS seg
            FROM (
                SELECT l.revision AS id, CAST(l.key AS TEXT) AS path
                FROM (
                    SELECT x'' AS first, coalesce((SELECT min(first) FROM rowkeeper_resource), x'ffffffffffffffffffffffffffffffff') AS beyond
                    UNION ALL
                    SELECT beyond, lead(first, 1, x'ffffffffffffffffffffffffffffffff') OVER (ORDER BY first) FROM rowkeeper_resource
                ) x CROSS JOIN rowkeeper_live l
                WHERE l.key >= x.first AND l.key < x.beyond
                  AND NOT (l.key >= x'726f776b65657065722f' AND l.key < x'726f776b656570657230')
            )
        )
    )
) k CROSS JOIN rowkeeper_store s LEFT JOIN (
    SELECT revision, time, value,
           CASE WHEN substr(value, 1, 1) = x'7b' THEN
               CASE WHEN json_valid(CAST(value AS TEXT)) THEN CAST(value AS TEXT) END
           END AS object
    FROM rowkeeper_log
) g ON g.revision = k.id;

-- The revisions that the log has, and which of them are deletions. The directory of a key is the
-- last one that begins before it, if it does not end before it, too.
CREATE VIEW rowkeeper_history AS
SELECT s.name AS store, k."group", k.resource, k.namespace, k.name, k.object ->> '$.metadata.uid' AS uid,
       k.revision, strftime('%Y-%m-%d %H:%M:%f', k.time / 1000000.0, 'unixepoch') AS time, k.verb,
       k.object -> '$.metadata.labels' AS labels, k.object, length(k.value) AS size, k.directory, k.path,
       nullif(u.name, '') AS username, nullif(u.audit_id, '') AS audit_id
FROM (
    SELECT id, iif(id < 0, -id >> 9, id) AS revision, time, verb, value, directory, path,
           CASE WHEN directory IS NOT NULL THEN "group" WHEN n - lead NOT IN (1, 2) THEN NULL
                WHEN instr(seg ->> 0, '.') THEN seg ->> 0
                WHEN lead = 2 OR seg ->> 0 = 'minions' THEN '' END AS "group",
           CASE WHEN directory IS NOT NULL THEN resource WHEN n - lead NOT IN (1, 2) THEN NULL
                WHEN instr(seg ->> 0, '.') THEN seg ->> 1
                WHEN lead = 2 THEN replace(seg ->> 1, 'specs', 'services')
                WHEN seg ->> 0 = 'minions' THEN 'nodes' WHEN n IS NOT NULL THEN seg ->> 0 END AS resource,
           CASE WHEN directory IS NOT NULL THEN iif(instr(rest, '/'), substr(rest, 1, instr(rest, '/') - 1), NULL)
                WHEN n - lead = 2 THEN seg ->> lead END AS namespace,
           CASE WHEN directory IS NOT NULL THEN substr(rest, instr(rest, '/') + 1)
                WHEN n - lead IN (1, 2) THEN seg ->> (n - 1) ELSE path END AS name,
           CASE WHEN substr(value, 1, 1) = x'7b' THEN
               CASE WHEN json_valid(CAST(value AS TEXT)) THEN CAST(value AS TEXT) END
           END AS object
    FROM (
        SELECT *, json_array_length(seg) AS n,
               CASE WHEN instr(seg ->> 0, '.') OR seg ->> 0 = 'services' AND seg ->> 1 IN ('specs', 'endpoints')
                    THEN 2 ELSE 1 END AS lead
        FROM (
            SELECT g.revision AS id, g.time, g.value, r.directory, r."group", r.resource, CAST(g.key AS TEXT) AS path,
                   CASE WHEN g.deleted THEN 'delete' WHEN g.prev_revision = 0 THEN 'create' ELSE 'update' END AS verb,
                   substr(CAST(g.key AS TEXT), length(r.directory) + 1) AS rest,
                   CASE WHEN r.directory IS NULL AND substr(CAST(g.key AS TEXT), 1, 10) = '/registry/'
                        THEN '[' || replace(json_quote(substr(CAST(g.key AS TEXT), 11)), '/', '","') || ']' END AS seg
            FROM rowkeeper_log g LEFT JOIN rowkeeper_resource r
              ON r.first = (SELECT max(first) FROM rowkeeper_resource WHERE first <= g.key) AND g.key < r.beyond
            WHERE g.key > x'' AND NOT (g.key >= x'726f776b65657065722f' AND g.key < x'726f776b656570657230')
        )
    )
) k CROSS JOIN rowkeeper_store s LEFT JOIN rowkeeper_user u ON u.revision = k.id;
