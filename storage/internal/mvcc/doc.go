// Package mvcc is the engine. It keeps keys, values and their history in a database that a driver
// gives, as the package of the same name does in etcd. The committer writes groups, the tailer
// reads what other processes have written, and the hub delivers both to watches. The contract below
// it (storage/internal/contract) says what a driver does and has the rules of the history, which
// decide what is written, what is removed and where a fence goes. docs/contributing.md has a table
// of all decisions and their files.
//
// Every successful write has a revision. Old states can be read until they are compacted. A watch
// from any revision that is not compacted sees every later event once and in order.
//
// The package knows neither Kubernetes nor any particular database. A [contract.Backend] is all
// that differs between databases. It reads rows and runs transactions, and it decides nothing. A
// Backend that is no [contract.Notifier] starts no goroutine.
//
// # The data
//
// Eight tables (the SQL is in the migrations of each database):
//
//   - log: append-only, primary key revision. Key, the row that this one replaced (0 for a
//     creation, also for a re-creation after a deletion), the creation revision, the version (the
//     number of writes since the creation), the lease (0 for none), the group's token, the time in
//     the database's clock, deleted or not, the entries in indexes that the key had before (NULL if
//     nobody knows), and last the value. The newest row is the head. Compaction never removes it,
//     nor the row at the compacted revision. Rows with an empty key are markers: they hold a
//     revision and no event. The migration writes the first one (revision 1), a fence writes the
//     others. Several rows may have one revision; see below.
//   - user: who has asked for a row of the log, where that is switched on, by the same primary key.
//     See below.
//   - live: one row per existing key: its newest row of the log, its creation revision, its
//     version, its lease, its expiry, and its entries in indexes.
//   - index: one row for each entry that a key has in an index, of those that the store's row
//     declares. index.go of the contract says what holds for it, and why.
//   - lease: one row per lease: its time to live, and when it lapses; see lease.go
//     of the contract. A write that
//     attaches no key to a lease does not read it.
//   - store: one row for each store: name, identity, epoch, fingerprint, boot, compacted, swept,
//     and the declarations of indexes with their generation. Locking this row is the commit lock. A
//     commit does not update it.
//   - resource: one row for each directory of keys whose resource is known. Only the views for SQL
//     read it; see directory.go of the contract.
//   - aborted: tokens of groups that were declared "not done" after an unknown outcome, each with
//     the revision that its group had seen. When compaction has passed that revision, the sweep
//     removes it.
//
// # Transactions
//
// A transaction changes several keys at one revision, as in etcd. Its rows share the revision. One
// of them, the last, is the row at that revision, like that of any other write. The others, its
// parts, have negative numbers in the place of a revision, of which the real one can be calculated
// ([contract.RowID]). The last row's token says how many there are.
//
// Why that is right: all that the invariants compare is the row at a revision, its token, and that
// there is one such row for each revision. That is as it was before. A part is committed with the
// last row of its transaction, in one transaction of the database. So whoever sees the head sees
// all parts up to it. Three things have to hold besides:
//
//   - Nobody is shown a part of a transaction. States at a revision have all its rows or none,
//     since the part's revision is compared, and no revision lies in between. A piece of the log
//     has the parts, or lacks the whole transaction (parts.go), and nothing that is delivered ends
//     within one: neither the ring, nor a batch, nor a response of etcd's API. A position, a
//     progress and a boundary are revisions, and so they lie between transactions.
//   - Nothing is lost for a reader of the log. A part is swept only when it is of no use to a state
//     or a watch from compacted on, as any row; and a reader that does not find all parts knows it,
//     and takes the revision for missing. A transaction's last row may be swept before its parts,
//     which may be live for ever. Then its revision is below compacted, where nobody reads the log.
//   - It is written as a whole. It is a group by itself, which [contract.DecideGroup] accepts or
//     refuses as a whole. If the outcome is unknown, the last row, which has its token, tells that
//     all of it was done.
//
// What a transaction demands ([contract.Condition]) is compared under the commit lock, like what a
// single write demands. Keys are compared by what they are. Ranges are not read there, since that
// would take as long as they are large, and all writers would wait: it is asked instead whether
// anything was written in them since they were read.
//
// Another layout was thought of: the rows take consecutive revisions, each with its distance to the
// last one, and clients see the last one. Then a revision that a client has calculated may lie
// within a transaction, and every read, watch and compaction would have to find out; expectations
// and creation revisions would have two meanings; every write would pay two columns; and revisions
// would rise by more than one. Numbers that no client sees need none of that.
//
// # Users
//
// A mutation may name its user ([contract.User]). Their row in the table user comes and goes with
// the row of the log:
//
//   - It is written by the same transaction, and only for mutations that are accepted. So a refused
//     mutation and an aborted group have none, and where the outcome of a group was unknown, the
//     row of the log tells of both (I2).
//   - The batch of a sweep that removes the row of the log removes it, and so do the removal of
//     keys, an import and a drop (I7). A fence changes neither, and IDs are never used twice (I6):
//     a user's row never comes to stand beside another row of the log than its own.
//   - No rule reads it, and it is delivered to no watch. A page of the past reads it at last, so it
//     may be swept by then, and is missing. It is never another one's.
//
// A store without users has an empty table. It costs one step for each batch of the sweep. Writes
// with a condition, and transactions, have no users: only clients of etcd's API make them.
//
// # Several stores in one database
//
// A database holds any number of stores, and a [contract.Backend] is one of them. Nothing above the
// backend knows of the others, so all of this documentation is about one store, and so are the
// invariants. They hold for each store since the backend keeps the stores apart:
//
//   - In SQLite each store is a file of its own, with its own lock.
//   - Elsewhere the store is the first column of each table's key, and each statement names it. So
//     a statement reads, writes and locks rows of its store only, and finds the newest row of the
//     store as the last of its part of the key. Revisions, tokens and positions of two stores are
//     never compared. A snapshot shows all stores, and a statement reads one of them (I3, I4, I5).
//   - Each store has its row, which is its commit lock, so groups of one store are in order (I1),
//     and wait for no other store. Sweeps exclude each other by store as well.
//   - A transaction writes rows of one store. An aborted token says nothing of another store (I2).
//   - Each store has its own epoch, and records the database's fingerprint and boot for itself.
//     When either has changed, each store finds that out and fences itself, when it is opened or
//     takes a connection (I6). No store trusts what another one has recorded, since that one may
//     have been fenced while this one was closed.
//   - The stores of a process share connections ([contract.Database]). Each operation names its
//     store, and leaves no transaction and no lock behind on its connection (I1, I2). Whenever a
//     store takes a connection, it checks that the connection leads to the database in which its
//     history goes on; see gate.go of the contract (I6).
//   - The processes that have opened a store compact and sweep it (I7). In a process the stores
//     take turns at that, and at expiry; see [Scheduler].
//   - [contract.Backend.Everywhere] is the only operation that reads rows of other stores. Its
//     answer is no part of any history: the caller learns what others have recorded, and no more.
//
// The stores of a process that share connections to a server are polled together, by one statement.
// Each judges its part of the answer as it would judge the answer of a read of its own; see
// polls.go. So a store that is open and idle costs no statement of its own. In SQLite it costs a
// look at its file, four times a second.
//
// A store is created and dropped while others go on. A dropped store leaves a row that keeps the
// next store of its name beyond its revisions; see drop.go of the contract.
//
// # The walk of one write
//
// [Engine.Commit] (commit.go) checks the mutation against the limits and the quota, and queues it
// (queue.go). The committer, one goroutine for each open store, takes as many queued writes as one
// group may hold (if the last group was large, it waits a moment for more), makes a
// [contract.Group] with a fresh token and gives it to [contract.Backend.Commit]: take the commit
// lock; read the head and the keys' current revisions; check the history (see
// [contract.CheckGroup]); accept, per key, the first mutation in order of arrival whose expectation
// holds and whose lease, if it has one, has not ended (see [contract.Decide]; some mutations must
// be the only one of their key in a group, and one that compares other keys, as
// [contract.Condition] says, must be the only one at all, and so must a transaction; the queue
// ensures that); number the accepted ones densely after the head; write their log and live rows,
// and the rows of indexes that they change; commit. Then it hands the events to the hub, has the
// new head announced to the other processes ([contract.Notifier]), and answers the writers. No
// commit waits for an announcement.
//
// # The walk of one event
//
// The hub holds the newest events in a ring, and the position up to which they are delivered. The
// committer appends its own group when the row before the group is the last that was delivered.
// Everything else (other replicas' writes, a group whose outcome was unknown) comes from the
// tailer, which reads the log after the delivered position when it is told that there is something
// new: by a notification, by a poll, or by a reader that saw a newer head. A [Watcher] has a
// cursor, not a queue: [Watcher.Next] collects its events from the ring, or from the log when the
// ring has moved past it.
//
// # The invariants, and why they hold
//
// I1 One history: revision order is commit order, revisions are dense, nobody sees n+1 without
// being able to see n, and nobody sees a part of n without the rest. A group reads the head after
// it has taken the commit lock, by a statement whose snapshot is younger than the lock, and holds
// the lock until its commit is visible. So the next group starts from it. log's primary key is the
// second safeguard.
//
// I2 Nothing acknowledged is lost, nothing refused is applied later. Writers are answered after the
// database's commit returned. If it did not return, the committer looks for the group's token under
// the commit lock. If nothing proves a commit, it records the token in aborted, which every group
// checks under the same lock before it writes. Then the group can never commit, and the committer
// tries the writes again in a new group. The old group may get the lock much later. While its token
// is recorded, it writes nothing. The sweep forgets the token only after compaction has passed what
// the group had seen ([contract.ForgetAborted]). Then [contract.CheckGroup] refuses the group for
// that. Compaction can overtake a process that was paused. That process reads the state again, and
// tries the mutations in a new group. If compaction has removed the evidence, the answer is
// [contract.ErrUnknownOutcome]. The same holds if the database does not answer in time. Rows that
// are found by the token may be visible and not durable yet, so the transaction that finds them
// writes a row of its own, and waits until that is durable ([contract.ResolveGroup]).
//
// I3 Every watcher sees every event after its start exactly once, in order, or an error.
//
//   - The hub appends a batch only if it starts where the delivered position ends. So the ring has
//     no gap and no overlap.
//   - Of rows that were read before the position moved, only those after it are appended, and only
//     if the row at the position is the one that was delivered.
//   - If compaction has swept the row at the position, nothing proves what follows it. Then all
//     watches end.
//   - A watcher's cursor is the revision up to which it has seen everything. It moves only over
//     events that were handed out or that do not concern the watcher.
//   - The cursor changes from log to ring under the hub's mutex, when the ring begins at or before
//     it.
//   - Every read of the log checks compacted in the same snapshot as the rows. So a swept event is
//     an error, never a gap.
//
// I4 Reads are linearizable. [Engine.Head], [Engine.Get] and [Engine.Range] at revision 0 read in a
// statement that starts after the call did. Concurrent callers of Head and Get share a query only
// if it starts after they asked (see coalescer). Every statement reads the server's role, and a
// server that may be behind (a standby, a read-only one) is refused. The memory of this process is
// used only if such a statement proves it; see reader.go. All this takes the database's word for it
// that it has one primary. A primary that was replaced and does not know it, since it is cut off,
// says that it takes writes and knows no newer rows. A process that still reaches it believes it.
// If the address leads elsewhere by then, the process finds that out by its next new connection, in
// a minute or so ([contract.PollLifetime]). If not, nothing here can tell, and the database's
// cluster has to stop its old primary; docs/operate/failover.md says how. The answer of such a
// process is old, and shows no other history: it was confirmed before, or was written to the old
// primary alone. The writes of the latter kind are lost with it, which I6 notices.
//
// I5 A range is one snapshot at the revision it says, all its pages together; see undo.go for the
// argument, and reader.go for the chain of readers that answer from memory.
//
// I6 Revisions never go backwards, and none is reused for other content. A process keeps every
// position ([contract.Position]: epoch, revision and token) that an answer has shown to it, until
// it has compared the position with the log's row. Every commit carries the positions that are not
// compared yet, and the backend compares them under the commit lock. If compaction has removed one
// of the rows, nothing proves that what was read with it belongs to this history. So a write is
// refused if it expects a revision that was read in an earlier [contract.Era]. A new epoch ends an
// era, and so does compaction that overtakes this process. A head that is lower, another epoch, or
// another token at a revision means that the database was restored or lost its tail. Then nothing
// is written, and a fence moves the head a jump beyond everything seen, with compacted at the
// marker, so that every older revision answers "compacted". Another epoch is accepted instead only
// if compacted is half a jump beyond everything seen there ([contract.Adoptable]). See fence.go for
// why that holds when several processes fence at once, and when the database is a copy that was
// fenced elsewhere.
//
// I7 Bounded growth. Compaction first commits the new boundary and then removes, in small paced
// batches, the rows that rows up to the boundary replaced. The rows that remain are the live rows
// and those newer than the boundary.
//
// # Bounded memory
//
// Memory is bounded in bytes, not only in rows. A queue, a group and the ring count keys, values
// and previous values, and so does the cache of rows, which is off by default. A backend's answer
// counts its values ([contract.ReadBytes], [contract.Limits].GroupBytes). The reaper reads what it
// deletes, in such answers, before it queues the deletions.
//
// # Lock order
//
// A lock that is held over calls of the Backend has the type lock. Callers wait for it with a
// context, so a query that hangs blocks no caller longer than its context. These locks are taken in
// this order:
//
//  1. Engine.reaping, delta.extending or Event.prev: never two of them. The holder of reaping waits
//     for a turn of the [Scheduler], and for the committer, which takes none of these. A turn is
//     waited for with a context, too, and the one that has it takes nothing else of this list but
//     fencing.
//  2. Engine.fencing. Engine.Close takes it last and keeps it. Its holder calls what
//     [Engine.BeforeAdopting] has set, which uses no other lock of this list.
//
// All others are mutexes, each named mu or after what it guards: those of hub, queue, directories,
// indexesChanged, coalescer, announcer, deltas, ahead, left, rowCache, Polls, tailer, lock, Metrics
// and Event.memoMu. They may be taken while a lock is held. No code that holds one calls a Backend,
// waits, or takes another, but for three: the hub counts, and hands its events to the cache, while
// it is locked, and so Metrics.mu and rowCache.mu come after hub.mu; and a round is made while
// Polls.mu is held, so tailer.mu comes after it.
package mvcc
