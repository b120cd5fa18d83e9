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
//   - Put, DeleteRange of one key, and Txn that changes one key at most. A transaction's
//     comparisons are of one key if it writes. All parts of an answer have one revision. A
//     transaction without a write reads one snapshot. A transaction with a write succeeds only if
//     the key is still as it was compared.
//   - Watch of a key or any range, from the compacted revision, any later one or a future one, with
//     previous values, filters, progress, and the compacted revision when it is canceled. A
//     response may be split at any event, since each revision has one event.
//   - LeaseGrant, LeaseKeepAlive, LeaseRevoke, LeaseTimeToLive and LeaseLeases. A lease is a row of
//     the database, and lasts by the database's clock. So every server of the database knows it,
//     and it outlives them. Elections and locks of etcd's client work across servers.
//   - Compact, Status, MemberList (this server), Defragment (there is nothing to do), and Alarm
//     (there is none). Authenticate and AuthStatus say that there are no users, so clients that
//     have one go on without it. gRPC's own service Health answers probes.
//
// Of the header, the cluster is the store, the member this server, and the term the epoch of the
// store's history.
//
// # What is refused
//
// A revision belongs to one key here. So a transaction that would change several keys at one
// revision is refused, and so is one inside of another. A deletion of a range deletes many keys in
// a commit, each with a revision of its own; in a transaction it is refused. The keys of a lease
// that lapses or is revoked are deleted one after the other, too. No key is attached to the lease
// meanwhile.
//
// A transaction that writes and reads is committed before it reads, at its own revision. If it
// cannot read any more, since the database went away or compaction has passed the revision, the
// client gets etcd's error for a request that has timed out. This is the truth: the outcome may be
// either, and whoever needs to know reads the key. Half an answer, or one of a later revision, would
// not be.
//
// A comparison of a range of keys is refused. In a transaction that writes, it would have to hold
// at the revision before the write, and a write expects something of its own key only.
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
// What clients make a server hold is bounded; limits.go says how. What is beyond is Unavailable.
//
// Users, changes of members, snapshots, checksums, moves of the leader and downgrades are
// Unimplemented, and the error says what to do instead.
package etcd
