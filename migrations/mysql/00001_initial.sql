-- +goose Up
-- +goose NO TRANSACTION

-- Here DDL commits by itself, so a migration that was interrupted has done a part. Each statement
-- therefore does nothing if it was done before: running the file again completes it.
--
-- On TiDB, the line after lines that begin with "-- TiDB:" is replaced by what those say.
--
-- ENGINE, ROW_FORMAT and the collations are named because servers have other defaults. DYNAMIC
-- stores a value that does not fit into half a page wholly outside of it, so that the clustered
-- index of the log stays dense, and allows index keys of up to 3,072 bytes, where COMPACT ends at
-- 767. Keys are VARBINARY: compared as bytes, never padded, never converted.

-- The history. The primary key is the clustered index: the rows of a store lie in the order of its
-- commits, and are appended to them. The value is the last column. Where several keys were written
-- at one revision r, the last row has r, and the others have -(512 * r + 1), -(512 * r + 2) and so
-- on: here, in prev_revision, and in rowkeeper_live. entries are those that the key had before, as
-- in rowkeeper_live, and NULL if nobody knows.
CREATE TABLE IF NOT EXISTS rowkeeper_log (
    store           INT             NOT NULL,
    revision        BIGINT          NOT NULL,
    `key`           VARBINARY(1024) NOT NULL,
    prev_revision   BIGINT          NOT NULL,
    create_revision BIGINT          NOT NULL,
    version         BIGINT          NOT NULL,
    lease           BIGINT          NOT NULL,
    token           BINARY(16)      NOT NULL,
    time            BIGINT          NOT NULL COMMENT 'microseconds since 1970, UTC',
    deleted         BOOLEAN         NOT NULL,
    entries         BLOB,
    value           LONGBLOB,
    PRIMARY KEY (store, revision)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Who has written a row of the log, where that is recorded. The row comes and goes with that of the
-- log.
CREATE TABLE IF NOT EXISTS rowkeeper_user (
    store    INT          NOT NULL,
    revision BIGINT       NOT NULL,
    name     VARCHAR(512) NOT NULL,
    audit_id VARCHAR(64)  NOT NULL,
    PRIMARY KEY (store, revision)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The keys that exist. The index has an entry for every key, as InnoDB has no partial ones, but an
-- update that keeps the expiry does not touch it. A key that is attached to a lease has the
-- negative of the lease's ID as its expiry, so that the index finds the keys of a lease, and the
-- renewal of a lease changes no key.
CREATE TABLE IF NOT EXISTS rowkeeper_live (
    store           INT             NOT NULL,
    `key`           VARBINARY(1024) NOT NULL,
    revision        BIGINT          NOT NULL,
    create_revision BIGINT          NOT NULL,
    version         BIGINT          NOT NULL,
    lease           BIGINT          NOT NULL,
    expiry          BIGINT          COMMENT 'microseconds since 1970, UTC',
    entries         BLOB,
    PRIMARY KEY (store, `key`),
    INDEX rowkeeper_live_expiry (store, expiry)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The indexes that the store declares. An entry has the ID of the index in its first four bytes.
-- The row of rowkeeper_live has all entries of its key, each after its length in two bytes.
CREATE TABLE IF NOT EXISTS rowkeeper_index (
    store INT             NOT NULL,
    entry VARBINARY(255)  NOT NULL,
    `key` VARBINARY(1024) NOT NULL,
    PRIMARY KEY (store, entry, `key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The leases. An expiry of 0 says that the lease has ended and that its keys are being deleted.
CREATE TABLE IF NOT EXISTS rowkeeper_lease (
    store  INT    NOT NULL,
    id     BIGINT NOT NULL,
    ttl    BIGINT NOT NULL,
    expiry BIGINT NOT NULL,
    PRIMARY KEY (store, id),
    INDEX rowkeeper_lease_expiry (store, expiry)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A row for each store. To lock it is the store's commit lock. On TiDB it has the newest row of the
-- log, and the IDs would be far apart if each of its servers gave out some of its own.
CREATE TABLE IF NOT EXISTS rowkeeper_store (
    id            INT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name          VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL UNIQUE,
    identity      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch         BIGINT       NOT NULL,
    fingerprint   VARCHAR(768) CHARACTER SET ascii COLLATE ascii_bin,
    boot          VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin,
    compacted     BIGINT       NOT NULL,
    swept         BIGINT       NOT NULL,
    oldest_writer BIGINT       NOT NULL,
    max_objects   BIGINT       NOT NULL DEFAULT 0 COMMENT '0 is no bound, here and in max_bytes',
    max_bytes     BIGINT       NOT NULL DEFAULT 0,
    generation    BIGINT       NOT NULL DEFAULT 0 COMMENT 'of the indexes',
    indexes       TEXT,
    home          TEXT         COMMENT 'of a store of a directory: which move has brought or taken it',
-- TiDB:     turn BIGINT NOT NULL DEFAULT 0, head BIGINT, head_token BINARY(16), head_time BIGINT
    turn          BIGINT       NOT NULL DEFAULT 0 COMMENT 'changed by every commit on Galera, never elsewhere'
-- TiDB: ) AUTO_ID_CACHE = 1 DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The time when this table was created is a part of the database's fingerprint: no migration may
-- alter or rebuild it.
CREATE TABLE IF NOT EXISTS rowkeeper_aborted (
    store INT        NOT NULL,
    token BINARY(16) NOT NULL,
    seen  BIGINT     NOT NULL,
    PRIMARY KEY (store, token)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The first marker: an empty store is at revision 1. A UUID is used as 16 unique bytes, since
-- MariaDB has RANDOM_BYTES only from 10.10 on.
INSERT INTO rowkeeper_log (store, revision, `key`, prev_revision, create_revision, version, lease, token, time, deleted, value)
SELECT 1, 1, '', 0, 0, 0, 0, UNHEX(REPLACE(UUID(), '-', '')), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), TRUE, NULL
FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM rowkeeper_log);

-- TiDB: INSERT INTO rowkeeper_store (id, name, identity, epoch, fingerprint, compacted, swept,
-- TiDB:                              oldest_writer, head, head_token, head_time)
INSERT INTO rowkeeper_store (id, name, identity, epoch, fingerprint, compacted, swept, oldest_writer)
-- TiDB: SELECT 1, 'default', REPLACE(UUID(), '-', ''), 1, NULL, 0, 0,
-- TiDB:        1, h.revision, h.token, h.time
SELECT 1, 'default', REPLACE(UUID(), '-', ''), 1, NULL, 0, 0, 1
-- TiDB: FROM rowkeeper_log h WHERE NOT EXISTS (SELECT 1 FROM rowkeeper_store);
FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM rowkeeper_store);

-- What follows is for people who read objects by SQL: docs/reference/sql.md promises it.

-- Which directory of keys has the objects of which resource. Whoever serves the resource writes it.
-- The keys of a directory are those from first on and before beyond. Directories do not overlap.
CREATE TABLE IF NOT EXISTS rowkeeper_resource (
    store     INT            NOT NULL,
    directory VARCHAR(512)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `group`   VARCHAR(253)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    resource  VARCHAR(253)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    scope     VARCHAR(16)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    first     VARBINARY(512) NOT NULL,
    beyond    VARBINARY(512) NOT NULL,
    PRIMARY KEY (store, directory),
    UNIQUE INDEX rowkeeper_resource_first (store, first)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The log with the JSON object that each value is, NULL if it is none, or not UTF-8, or too deep
-- for the server. MariaDB finds no JSON valid that is deeper than 32. MySQL fails a query that
-- meets one deeper than 100. So there, where a value has more than 100 brackets, all strings are
-- taken out of it, and then all but the brackets, and then a hundred times each pair with nothing
-- in it: nothing is left if it is not too deep.
--
-- A view runs with the rights of whoever asks, since an account that has created it may go.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW rowkeeper_value AS
SELECT store, revision, `key`, prev_revision, time, deleted, value,
       CASE WHEN LEFT(value, 1) = '{' /*!80000 AND
           CASE WHEN 2 * LENGTH(value) - LENGTH(REPLACE(value, '{', '')) - LENGTH(REPLACE(value, '[', '')) <= 100 THEN TRUE
                ELSE LENGTH(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                   REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(REPLACE(
                       REGEXP_REPLACE(REGEXP_REPLACE(REPLACE(REPLACE(CONVERT(value USING utf8mb4), '\\\\', ''), '\\"', ''), '"[^"]*"', ''), '[^\\[\\]{}]+', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                       , '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', ''), '{}', ''), '[]', '')
                ) = 0 END */
           THEN CASE WHEN JSON_VALID(CONVERT(value USING utf8mb4)) THEN CONVERT(value USING utf8mb4) END
       END AS object
FROM rowkeeper_log;

-- The objects that exist. The recorded directories, and the ranges between them, are ranges of the
-- primary key of rowkeeper_live. With "l.store >= … AND l.store <= …" the servers look for a range
-- anew for each directory, where with "l.store = …" they would compare all keys of the store. Keys
-- that begin with so many bytes 255 are left out, and so are those of Rowkeeper's own records. In a
-- directory that is not recorded, the path tells what it can if it is as kube-apiserver makes it:
-- /registry, a group if that has a dot, the resource, a namespace if there is one, the name. rest
-- is what follows /registry, or the directory, and n how many segments it has; heads is how many of
-- them name the resource. A key that is not UTF-8 is read as Latin 1. Every column has a name,
-- since a backup by mysqldump cannot be read otherwise.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW rowkeeper_objects AS
SELECT k.store, k.`group`, k.resource, k.namespace, k.name,
       JSON_UNQUOTE(JSON_EXTRACT(g.object, '$.metadata.uid')) AS uid, k.revision,
       STR_TO_DATE(JSON_UNQUOTE(JSON_EXTRACT(g.object, '$.metadata.creationTimestamp')), '%Y-%m-%dT%H:%i:%sZ') AS created,
       TIMESTAMP('1970-01-01') + INTERVAL g.time MICROSECOND AS updated,
       JSON_EXTRACT(g.object, '$.metadata.labels') AS labels, g.object, LENGTH(g.value) AS size, k.directory, k.path
FROM (
    SELECT store_id, store, id, IF(id < 0, -id DIV 512, id) AS revision, directory, path, `group`, resource,
           IF(LOCATE('/', rest), SUBSTRING_INDEX(rest, '/', 1), NULL) AS namespace,
           SUBSTRING(rest, LOCATE('/', rest) + 1) AS name
    FROM (
        SELECT s.id AS store_id, s.name AS store, l.revision AS id, r.directory, r.`group`, r.resource,
               COALESCE(CONVERT(l.`key` USING utf8mb4), CONVERT(CONVERT(l.`key` USING latin1) USING utf8mb4)) COLLATE utf8mb4_bin AS path,
               SUBSTRING(COALESCE(CONVERT(l.`key` USING utf8mb4), CONVERT(CONVERT(l.`key` USING latin1) USING utf8mb4)) COLLATE utf8mb4_bin, LENGTH(r.directory) + 1) AS rest
        FROM rowkeeper_store s
        STRAIGHT_JOIN rowkeeper_resource r ON r.store = s.id
        STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store >= r.store AND l.store <= r.store AND l.`key` >= r.first AND l.`key` < r.beyond
        WHERE s.epoch > 0
    ) recorded
    UNION ALL
    SELECT store_id, store, id, IF(id < 0, -id DIV 512, id) AS revision, NULL AS directory, path,
           CASE WHEN n - heads NOT IN (1, 2) THEN NULL WHEN LOCATE('.', SUBSTRING_INDEX(rest, '/', 1)) THEN SUBSTRING_INDEX(rest, '/', 1)
                WHEN heads = 2 OR rest LIKE 'minions/%' THEN '' END AS `group`,
           CASE WHEN n - heads NOT IN (1, 2) THEN NULL WHEN rest LIKE 'services/specs/%' THEN 'services' WHEN rest LIKE 'minions/%' THEN 'nodes'
                ELSE SUBSTRING_INDEX(SUBSTRING_INDEX(rest, '/', heads), '/', -1) END AS resource,
           CASE WHEN n - heads = 2 THEN SUBSTRING_INDEX(SUBSTRING_INDEX(rest, '/', -2), '/', 1) END AS namespace,
           CASE WHEN n - heads IN (1, 2) THEN SUBSTRING_INDEX(rest, '/', -1) ELSE path END AS name
    FROM (
        SELECT store_id, store, id, path, rest, 1 + LENGTH(rest) - LENGTH(REPLACE(rest, '/', '')) AS n,
               IF(LOCATE('.', SUBSTRING_INDEX(rest, '/', 1)) OR rest LIKE 'services/specs/%' OR rest LIKE 'services/endpoints/%', 2, 1) AS heads
        FROM (
            SELECT s.id AS store_id, s.name AS store, l.revision AS id,
                   COALESCE(CONVERT(l.`key` USING utf8mb4), CONVERT(CONVERT(l.`key` USING latin1) USING utf8mb4)) COLLATE utf8mb4_bin AS path,
                   IF(LEFT(l.`key`, 10) = '/registry/', SUBSTRING(COALESCE(CONVERT(l.`key` USING utf8mb4), CONVERT(CONVERT(l.`key` USING latin1) USING utf8mb4)) COLLATE utf8mb4_bin, 11), NULL) AS rest
            FROM rowkeeper_store s
            STRAIGHT_JOIN (
                SELECT e.id AS store, x'' AS first,
                       COALESCE((SELECT MIN(r.first) FROM rowkeeper_resource r WHERE r.store = e.id), x'ffffffffffffffffffffffffffffffff') AS beyond
                FROM rowkeeper_store e
                UNION ALL
                SELECT d.store, d.beyond AS first, COALESCE(LEAD(d.first) OVER (PARTITION BY d.store ORDER BY d.first), x'ffffffffffffffffffffffffffffffff') AS beyond
                FROM rowkeeper_resource d
            ) x ON x.store = s.id
            STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.store >= x.store AND l.store <= x.store AND l.`key` >= x.first AND l.`key` < x.beyond
            WHERE s.epoch > 0
        ) between_them
        WHERE path NOT LIKE 'rowkeeper/%'
    ) derived
) k
LEFT JOIN rowkeeper_value g ON g.store = k.store_id AND g.revision = k.id;

-- The revisions that the log has, and which of them are deletions. The directory of a key is the
-- last one that begins before it, if it does not end before it, too. TiDB takes no subquery there.
-- As directories do not overlap, the range alone finds the same one, by reading all of the store's.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW rowkeeper_history AS
SELECT s.name AS store,
       CASE WHEN k.directory IS NOT NULL THEN k.`group` WHEN k.n - k.heads NOT IN (1, 2) THEN NULL
            WHEN LOCATE('.', SUBSTRING_INDEX(k.rest, '/', 1)) THEN SUBSTRING_INDEX(k.rest, '/', 1)
            WHEN k.heads = 2 OR k.rest LIKE 'minions/%' THEN '' END AS `group`,
       CASE WHEN k.directory IS NOT NULL THEN k.resource WHEN k.n - k.heads NOT IN (1, 2) THEN NULL
            WHEN k.rest LIKE 'services/specs/%' THEN 'services' WHEN k.rest LIKE 'minions/%' THEN 'nodes'
            ELSE SUBSTRING_INDEX(SUBSTRING_INDEX(k.rest, '/', k.heads), '/', -1) END AS resource,
       CASE WHEN k.directory IS NOT NULL THEN IF(LOCATE('/', k.rest), SUBSTRING_INDEX(k.rest, '/', 1), NULL)
            WHEN k.n - k.heads = 2 THEN SUBSTRING_INDEX(SUBSTRING_INDEX(k.rest, '/', -2), '/', 1) END AS namespace,
       CASE WHEN k.directory IS NOT NULL THEN SUBSTRING(k.rest, LOCATE('/', k.rest) + 1)
            WHEN k.n - k.heads IN (1, 2) THEN SUBSTRING_INDEX(k.rest, '/', -1) ELSE k.path END AS name,
       JSON_UNQUOTE(JSON_EXTRACT(k.object, '$.metadata.uid')) AS uid, IF(k.id < 0, -k.id DIV 512, k.id) AS revision,
       TIMESTAMP('1970-01-01') + INTERVAL k.time MICROSECOND AS time, k.verb,
       JSON_EXTRACT(k.object, '$.metadata.labels') AS labels, k.object, LENGTH(k.value) AS size, k.directory, k.path,
       NULLIF(u.name, '') AS username, NULLIF(u.audit_id, '') AS audit_id
FROM (
    SELECT f.*, 1 + LENGTH(rest) - LENGTH(REPLACE(rest, '/', '')) AS n,
           IF(LOCATE('.', SUBSTRING_INDEX(rest, '/', 1)) OR rest LIKE 'services/specs/%' OR rest LIKE 'services/endpoints/%', 2, 1) AS heads
    FROM (
        SELECT g.store, g.revision AS id, g.time, g.value, g.object, r.directory, r.`group`, r.resource,
               COALESCE(CONVERT(g.`key` USING utf8mb4), CONVERT(CONVERT(g.`key` USING latin1) USING utf8mb4)) COLLATE utf8mb4_bin AS path,
               IF(g.deleted, 'delete', IF(g.prev_revision = 0, 'create', 'update')) AS verb,
               CASE WHEN r.directory IS NOT NULL THEN SUBSTRING(COALESCE(CONVERT(g.`key` USING utf8mb4), CONVERT(CONVERT(g.`key` USING latin1) USING utf8mb4)) COLLATE utf8mb4_bin, LENGTH(r.directory) + 1)
                    WHEN LEFT(g.`key`, 10) = '/registry/' THEN SUBSTRING(COALESCE(CONVERT(g.`key` USING utf8mb4), CONVERT(CONVERT(g.`key` USING latin1) USING utf8mb4)) COLLATE utf8mb4_bin, 11) END AS rest
        FROM rowkeeper_value g LEFT JOIN rowkeeper_resource r
          ON r.store = g.store AND g.`key` < r.beyond
-- TiDB:          AND r.first <= g.`key`
         AND r.first = (SELECT MAX(d.first) FROM rowkeeper_resource d WHERE d.store = g.store AND d.first <= g.`key`)
        WHERE g.`key` > '' AND NOT (g.`key` >= 'rowkeeper/' AND g.`key` < 'rowkeeper0')
    ) f
) k
JOIN rowkeeper_store s ON s.id = k.store AND s.epoch > 0
LEFT JOIN rowkeeper_user u ON u.store = k.store AND u.revision = k.id;
