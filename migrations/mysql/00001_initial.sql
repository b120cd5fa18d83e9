-- +goose Up
-- +goose NO TRANSACTION

-- Here DDL commits by itself, so a migration that was interrupted has done a part. Each statement
-- therefore does nothing if it was done before: running the file again completes it.
--
-- ENGINE, ROW_FORMAT and the collations are named because servers have other defaults. DYNAMIC
-- stores a value that does not fit into half a page wholly outside of it, so that the clustered
-- index of the log stays dense, and allows index keys of up to 3,072 bytes, where COMPACT ends at
-- 767. Keys are VARBINARY: compared as bytes, never padded, never converted.

-- The history. The primary key is the clustered index: the rows of a store lie in the order of its
-- commits, and are appended to them. The value is the last column. Where several keys were written
-- at one revision r, the last row has r, and the others have -(512 * r + 1), -(512 * r + 2) and so
-- on: here, in prev_revision, and in rowkeeper_live.
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
    value           LONGBLOB,
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
    PRIMARY KEY (store, `key`),
    INDEX rowkeeper_live_expiry (store, expiry)
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

-- A row for each store. To lock it is the store's commit lock.
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
    turn          BIGINT       NOT NULL DEFAULT 0 COMMENT 'changed by every commit on Galera, never elsewhere'
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

INSERT INTO rowkeeper_store (id, name, identity, epoch, fingerprint, compacted, swept, oldest_writer)
SELECT 1, 'default', REPLACE(UUID(), '-', ''), 1, NULL, 0, 0, 1
FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM rowkeeper_store);
