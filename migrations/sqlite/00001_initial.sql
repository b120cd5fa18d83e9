-- +goose Up

-- "Rkpr" in the file's header tells file(1), and this program, whose database it is.
PRAGMA application_id = 0x526b7072;

-- The history. revision is the rowid, so rows lie in the file in the order of commits and are
-- appended. Where several keys were written at one revision r, the last row has r, and the others
-- have -(512 * r + 1), -(512 * r + 2) and so on: here, in prev_revision, and in rowkeeper_live. The
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
    value           BLOB
) STRICT;

-- The keys that exist. WITHOUT ROWID makes it one B-tree in the order of keys, which are blobs and
-- so compared as bytes.
CREATE TABLE rowkeeper_live (
    key             BLOB    NOT NULL PRIMARY KEY,
    revision        INTEGER NOT NULL,
    create_revision INTEGER NOT NULL,
    version         INTEGER NOT NULL,
    lease           INTEGER NOT NULL,
    expiry          INTEGER
) STRICT, WITHOUT ROWID;

-- Only keys that expire are in it: for the others it costs nothing. A key that is attached to a
-- lease has the negative of the lease's ID as its expiry, so that the index finds the keys of a
-- lease, and the renewal of a lease changes no key.
CREATE INDEX rowkeeper_live_expiry ON rowkeeper_live (expiry) WHERE expiry IS NOT NULL;

-- The leases. An expiry of 0 says that the lease has ended and that its keys are being deleted.
CREATE TABLE rowkeeper_lease (
    id     INTEGER PRIMARY KEY,
    ttl    INTEGER NOT NULL,
    expiry INTEGER NOT NULL
) STRICT;

CREATE INDEX rowkeeper_lease_expiry ON rowkeeper_lease (expiry);

CREATE TABLE rowkeeper_store (
    id            INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    identity      TEXT    NOT NULL,
    epoch         INTEGER NOT NULL,
    fingerprint   TEXT,
    boot          TEXT,
    compacted     INTEGER NOT NULL,
    swept         INTEGER NOT NULL,
    oldest_writer INTEGER NOT NULL,
    max_objects   INTEGER NOT NULL DEFAULT 0,
    max_bytes     INTEGER NOT NULL DEFAULT 0
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
