// Package contract says what a driver must do for Rowkeeper's storage, and has the rules that
// decide what is written, what is removed, and where a fence goes. The engine
// (storage/internal/mvcc) stands on it from above, the drivers from below, and every package of
// storage may use its types. It imports nothing of Rowkeeper, and it runs no goroutine.
//
// Three kinds of things are here:
//
//   - The types: a [Row] of the log, a [Mutation], a [Group] of them, the [State] that every answer
//     carries, the classes of errors ([Class]).
//   - The work of a driver. A [Driver] opens a [Database], which has a [Backend] for each store. A
//     Backend reads rows and runs transactions, and it has no rules of its own. Its optional
//     abilities are small interfaces ([Notifier], [Poller], [Shared], [Reconnector], [Volatile],
//     [Opened], [Pooled], [KeysReader]). The package backendtest checks what their comments
//     promise.
//   - The rules: pure functions, with tables of tests. They decide who may write ([CheckWriter],
//     [CheckGroup]), what is accepted of a group ([DecideGroup], [Condition.Met],
//     [Comparison.Holds]), what became of a group with an unknown outcome ([Resolve]), how far a
//     compaction may go ([CompactTo]), which rows the sweep removes ([PlanSweep], [ForgetAborted]),
//     where a fence goes ([Fence.After]; after an import export.go, after a drop drop.go), when
//     another epoch is accepted ([Adoptable]), which connection a store uses ([Gate]), what a quota
//     refuses ([Excess]), when a boot is recorded ([Durability]), and which rows of indexes a write
//     changes ([EntryChanges]; index.go).
//
// A commit is the backend's own transaction ([Backend.Commit]), since it must hold the commit lock
// for as short a time as the database allows. The backend calls the rules there. All other
// transactions are rare, and are written here once for all backends: each holds the lock
// ([Backend.Locked]) and applies a rule. These are [ResolveGroup], [RaiseCompacted], [StartEpoch],
// [RecordFingerprint], [Import.Into], [Drop], [CreateStore], [SetQuota], [RecordDirectories], what
// changes and builds indexes (index.go), and what grants, renews and ends leases (lease.go).
// [SweepBatch] plans without the lock.
//
// The tables, the invariants I1 to I7 and why they hold are in the documentation of mvcc.
package contract
