// Package etcd is a gRPC server of etcd's v3 API in front of a store. An unchanged kube-apiserver
// can use it, and so can other clients of etcd. The package decides what a request means:
// comparisons, expectations, and when a transaction is tried again (kv.go, txn.go). It turns
// requests into reads and mutations of storage/internal/mvcc, which commits them by the rules of
// storage/internal/contract, and delivers the events.
//
// [Open] opens a store, and [OpenStores] opens many when they are used. Both stand on
// storage/internal/database, beside package storage, which this package does not use. A program
// that serves nothing else links nothing of Kubernetes.
//
// # What is exact
//
// The log of a store is a history as etcd's is: every write has a revision, reads see one revision,
// watches see every write once and in order. So these calls answer as etcd does:
//
//   - Range and RangeStream: keys and ranges, now or at a revision, with limit, count, sort orders
//     and bounds of revisions. Every read is linearizable, also one that need not be. However many
//     reads an answer takes, it is of one revision, and its header is that of the first read: a
//     watch from there misses nothing.
//   - Put, DeleteRange of one key, and Txn. A transaction compares any keys and ranges, changes
//     several keys at one revision, deletes ranges, and may have others inside. Its changes are
//     done together, or not at all. All parts of an answer have one revision, and a Range between
//     two changes sees the first one. A transaction without a write reads one snapshot. The
//     comparisons of one with a write are those of the state that the write finds: what a lock
//     guards is not written after the lock is lost. A transaction that changes several keys, or
//     compares others, has a commit of its own.
//   - Watch of a key or any range, from the compacted revision, any later one or a future one, with
//     previous values, filters, progress, and the compacted revision when it is canceled. A
//     response may be split between two revisions, and never within one.
//   - LeaseGrant, LeaseKeepAlive, LeaseRevoke, LeaseTimeToLive and LeaseLeases. A lease is a row of
//     the database, and lasts by the database's clock. So every server of the database knows it,
//     and it outlives them. What lapsed while no server was there, or the database was away, has
//     its whole time again, as after a change of etcd's leader. Elections and locks of etcd's
//     client work across servers.
//   - Compact, Status, MemberList (this server), Defragment (there is nothing to do), and Alarm
//     (there is none). Authenticate and AuthStatus say that there are no users, so clients that
//     have one go on without it. gRPC's own service Health answers probes.
//   - The services Lock and Election, for clients that do not make locks and elections themselves.
//     Their requests have at most 4 KiB. All of these know each other.
//
// [Server.Gateway] serves the same as JSON, as etcd's gateway does; gateway.go says what differs.
//
// Of the header, the cluster is the store, the member this server, and the term the epoch of the
// store's history.
//
// # What is refused
//
// A transaction is one commit. So it changes at most 512 keys, with those that it deletes by a
// range, and no more than a commit holds: 4 MiB in MySQL, and 8 MiB elsewhere, of keys, values, and
// values that it replaces and has read. One that would change more is refused before anything is
// written. It has at most three times [ServerConfig.MaxTxnOps] comparisons and operations, with
// those of the transactions inside of it, which are at most 128 deep.
//
// A deletion of a range by itself is one commit, too, if a transaction could hold it. If it is
// larger, or others have written in the range at each of eight tries, it deletes many keys in a
// commit, each with a revision of its own. The keys of a lease that lapses or is revoked are
// deleted in the same way: at one revision, unless they are more than a transaction could delete.
// Leases that end together may share a revision. No key is attached to the lease meanwhile.
//
// What a transaction with a write compares has at most 1.5 MiB: values, and keys, which count
// twice.
//
// A transaction that writes and reads is committed before it reads, at its own revision. If it
// cannot read any more, since the database went away, compaction has passed the revision, or there
// is no room for the answer, the client gets etcd's error for a request that has timed out. This is
// the truth: the outcome may be either, and whoever needs to know reads the key. Half an answer, or
// one of a later revision, would not be.
//
// Keys have at most 1,024 bytes. A longer one is refused in a put, and does not exist in all else.
//
// Keys that begin with "rowkeeper/" hold what Rowkeeper records in the store, such as which other
// store keeps a resource. They can be read, and neither written nor deleted. A deletion of a range
// that has one deletes nothing.
//
// While the database is away, a watch waits for it. If the client requires a leader (the metadata
// hasleader), its watches end with etcd's error for that after [ServerConfig.LeaderTimeout].
//
// What clients make a server hold is bounded; limits.go says how. What is beyond is Unavailable. A
// request of another service than KV and Watch has at most 64 KiB.
//
// # Small differences
//
// No client is known to depend on one of these:
//
//   - RangeStream is in the order of the keys. With another one, or with bounds of revisions, it is
//     refused. etcd sorts by another target if no order is named.
//   - Range with KeysOnly leaves out values, as etcd's did until 3.6, and keeps leases. Vitess
//     needs those. Keys that a sort order does not tell apart are in the order of their names; a
//     limit cuts off after sorting also where no order is named.
//   - A negative revision of a read is the newest one. Values of comparisons that etcd does not
//     know are refused.
//   - Each answer inside of that of a transaction has a whole header.
//   - A transaction that may put a key and delete it is refused, wherever the two are. So it is in
//     etcd, where its check notices: not where the deletion is in another transaction inside, after
//     the put, or is one of all keys from a key on. There the key has two events at one revision.
//     Here a revision has one row for a key, by which the next write of it is decided; a second one
//     would concern every driver, for what no client can mean.
//   - That a lease is not there is found last. If something else is wrong with a put or a
//     transaction, too, the client is told that.
//   - The ID of a lease is not negative. LeaseLeases is in the order of IDs, not of expiry, and the
//     keys of LeaseTimeToLive are in the order of their names.
//   - A watch that is canceled has the reason in words, and its header a revision. Events of
//     several revisions may come in one response, and a long run of events in several. Progress is
//     told when there is something newer than what was told before.
//   - A server answers Status as the leader, with the revision as the index of the log.
//   - The metrics are others, but those of metrics.go. The gateway has no websockets, sends no
//     headers for pages of other origins, and does not serve pages; its requests are smaller, as
//     gateway.go says.
//
// Users, changes of members, snapshots, checksums, moves of the leader and downgrades are
// Unimplemented, and the error says what to do instead.
package etcd
