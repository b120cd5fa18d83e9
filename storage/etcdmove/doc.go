// Package etcdmove moves what an etcd holds into a store, and what a store holds into an etcd. It
// works on keys and values, by package etcd and by the format of backups.
// Leases go along, with the time that they have left. History does not: every revision from before
// a move answers "compacted" after it. So every client lists again, and no client mixes two
// histories.
//
// # Into a store
//
// [Import] reads a running etcd by its API at one revision, makes a backup of it, and restores
// that, as "rowkeeper restore" does: everything is written or nothing, and the store is fenced. An
// etcd that is stopped has to be started for that. Its file of keys alone does not do: what it has
// acknowledged last may be only in its write-ahead log.
//
// Keys keep their revisions, so a client that knows an object from before can change it. An etcd
// may have several keys of one revision, and a store may not. If an etcd has such keys, all keys
// are numbered anew, beyond its revisions.
//
// # Into an etcd
//
// [Export] writes a snapshot file, of which etcd's own "etcdutl snapshot restore" makes the data of
// a new etcd. This is the one way into an etcd in which keys keep their revisions. After the keys
// comes an entry without a key, far beyond the store's head, and a compaction up to it is
// scheduled. etcdutl writes the same when it is told to bump the revision and to mark it compacted.
package etcdmove
