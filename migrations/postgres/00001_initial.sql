-- +goose Up

-- The history. Rows are only appended, in the order of revision, and later removed by the sweep, never updated: pages are filled
-- (fillfactor 100, the default). The columns of fixed width come first, so that they lie at fixed offsets and without padding.
CREATE TABLE rowkeeper_log (
    revision        bigint  NOT NULL PRIMARY KEY,
    prev_revision   bigint  NOT NULL,
    create_revision bigint  NOT NULL,
    version         bigint  NOT NULL,
    lease           bigint  NOT NULL,
    time            bigint  NOT NULL,
    deleted         boolean NOT NULL,
    key             bytea   NOT NULL,
    token           bytea   NOT NULL,
    value           bytea
) WITH (
    -- What the sweep deletes must be found again by later inserts before the file grows much: at 2 % instead of the default 20 %, which of a
    -- large table is gigabytes.
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_threshold = 10000,
    toast.autovacuum_vacuum_scale_factor = 0.02,
    -- The newest rows are at the end of the file, so there is nothing to cut off; but trying to needs an exclusive lock, for which
    -- writers would have to wait.
    vacuum_truncate = false,
    toast.vacuum_truncate = false
);

-- Keys and tokens stay in the row as they are: nothing is gained by compressing them or moving them out.
ALTER TABLE rowkeeper_log ALTER COLUMN key SET STORAGE MAIN, ALTER COLUMN token SET STORAGE MAIN;

-- The keys that exist, as bytes in the order of bytes. An update changes no indexed column (unless the key expires), so with room left
-- in its page it is a heap-only one: no index entry, and the dead version goes when the page is visited next, without vacuum.
CREATE TABLE rowkeeper_live (
    revision        bigint NOT NULL,
    create_revision bigint NOT NULL,
    version         bigint NOT NULL,
    lease           bigint NOT NULL,
    expiry          bigint,
    key             bytea  NOT NULL PRIMARY KEY
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05,
    vacuum_truncate = false
);

ALTER TABLE rowkeeper_live ALTER COLUMN key SET STORAGE MAIN;

-- Only keys that expire are in it: for the others it costs nothing.
CREATE INDEX rowkeeper_live_expiry ON rowkeeper_live (expiry) WHERE expiry IS NOT NULL;

-- One row. To lock it is the commit lock; commits do not update it, compaction does now and then. The room in its page is
-- for the versions of those updates.
CREATE TABLE rowkeeper_store (
    id            smallint NOT NULL PRIMARY KEY CHECK (id = 1),
    epoch         bigint   NOT NULL,
    compacted     bigint   NOT NULL,
    swept         bigint   NOT NULL,
    oldest_writer bigint   NOT NULL,
    identity      text     NOT NULL,
    fingerprint   text,
    boot          text
) WITH (fillfactor = 10);

CREATE TABLE rowkeeper_aborted (
    token bytea  NOT NULL PRIMARY KEY,
    seen  bigint NOT NULL
);

INSERT INTO rowkeeper_store (id, epoch, compacted, swept, oldest_writer, identity)
VALUES (1, 1, 0, 0, 1, replace(gen_random_uuid()::text, '-', ''));

-- The first marker: an empty store is at revision 1.
INSERT INTO rowkeeper_log (revision, prev_revision, create_revision, version, lease, time, deleted, key, token)
VALUES (1, 0, 0, 0, 0, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, true, '', uuid_send(gen_random_uuid()));
