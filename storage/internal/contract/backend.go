package contract

import (
	"cmp"
	"context"
	"crypto/rand"
	"strings"
	"time"
)

// Key is a key of the store: any bytes, compared as bytes. It is a string because keys are
// immutable and serve as map keys.
type Key string

// Revision is the place of a write in the one history. Valid revisions start at 1. Of several rows
// that were written at one revision, each has a [RowID], which is negative but for the last one.
type Revision int64

// Epoch counts the fences of a store. Positions of different epochs are not comparable. The
// epoch of a dropped store is negative.
type Epoch int64

// Era counts how often a process could not prove that the next rows of the log belong to the
// history that it had seen: it went over to another epoch, or compaction had removed what it was to
// read next. Within an era, a revision stands for one content. Valid eras start at 1.
type Era uint64

// Any is an expectation that every state of a key meets. A deletion needs a key that exists all the
// same.
const Any Revision = -1

// Lease names a lease that keys are attached to, 0 for none.
type Lease int64

// Token marks the log rows of one commit group: 14 random bytes, and how many parts the group's
// transaction has, 0 for a group that is none.
type Token [16]byte

// NewToken makes a token that no other group has, for a group that is no transaction.
func NewToken() (t Token) {
	rand.Read(t[:sizeAt]) // never fails
	return t
}

// Position names a log row beyond doubt: a revision could exist twice if a database lost its tail,
// a revision with its epoch and its group's token could not.
type Position struct {
	Epoch    Epoch
	Revision Revision
	Token    Token
}

// State is what every read of a backend returns besides its rows, taken in the same snapshot as
// these.
type State struct {
	// Head is the position of the newest log row.
	Head Position
	// Compacted is the boundary below which history may be gone: reads at it work, reads below it
	// do not.
	Compacted Revision
	// Swept is the revision up to which the rows that were replaced have been removed. Swept <=
	// Compacted. While a sweep is under way, it may be behind what a batch has returned.
	Swept Revision
	// Writable is false on a standby or a read-only server. The answers of such a server may be
	// late and are never used.
	Writable bool
	// Now is the database's clock.
	Now time.Time
}

// Dropped tells whether the store was dropped; see drop.go.
func (st State) Dropped() bool { return st.Head.Epoch < 0 }

// Row is a row of the log.
type Row struct {
	Key      Key
	Revision Revision
	// Part is which part of its transaction the row is, 0 for the last row or the only one.
	Part int
	// Prev is the ID of the row that this one replaced, 0 if it created the key.
	Prev RowID
	// Create is the revision that created the key.
	Create Revision
	// Version counts the writes of the key since its creation, which is 1. A deletion counts, too.
	Version int64
	// Lease is the one that the key is attached to. A deletion has that of what it removed.
	Lease Lease
	// Token is the token of the row's group.
	Token Token
	// Time is the database's clock when the row was written, in microseconds' precision.
	Time    time.Time
	Deleted bool
	// Value is nil for a deletion. It is shared: nobody modifies it.
	Value []byte
	// PrevValue and PrevLease are the value and the lease at Prev, if HasPrev.
	PrevValue []byte
	PrevLease Lease
	HasPrev   bool
}

// Marker tells whether the row holds a revision only: it is no event.
func (r *Row) Marker() bool { return r.Key == "" }

// ID names the row.
func (r *Row) ID() RowID { return IDOf(r.Revision, r.Part) }

// NewestFirst orders rows from the newest to the oldest. A transaction's last row comes first, and
// then its parts in the order of their numbers.
func NewestFirst(a, b *Row) int {
	return cmp.Or(cmp.Compare(b.Revision, a.Revision), cmp.Compare(a.Part, b.Part))
}

// Parts is how many parts belong to the row, which are at the same revision.
func (r *Row) Parts() int {
	if r.Marker() || r.Part != 0 {
		return 0
	}
	return r.Token.Parts()
}

// Mutation is one write of one key, subject to an expectation.
type Mutation struct {
	Key Key
	// Expect is the revision that the key must have, 0 if it must not exist, or Any. A key is
	// written once at a revision, so this names one row.
	Expect Revision
	// Era is the era in which Expect was read, 0 for the one in which the mutation comes. In a
	// later one a mutation that expects a revision is refused by mvcc.ErrOtherEra.
	Era Era
	// Delete removes the key. Expect is not 0 then.
	Delete bool
	// Lease is what the key is attached to from then on, 0 for none. If there is no such lease, or
	// it has ended, the mutation is refused by [ErrNoLease]. A mutation with a lease has no TTL.
	Lease Lease
	// Value is the new value, empty for a deletion.
	Value []byte
	// TTL is the time after which the key expires, from the commit on and by the database's clock.
	// 0 means never.
	TTL time.Duration
	// PrevValue and PrevLease are the value and the lease at Expect, if the caller has them at hand
	// (HasPrev), so that the event needs no read of them. Like Value, PrevValue counts for the size
	// of the group. HasPrev is false if Expect is Any.
	PrevValue []byte
	PrevLease Lease
	HasPrev   bool
	// Ends: the write is a step on the way to the key's deletion, and so no quota refuses it.
	Ends bool
	// Indexed: the key is in a directory that has indexes, or has had some, so it may have entries.
	// Entries are those that it has afterwards, in order, none for a deletion. mvcc sets both, by
	// what the writer has Found of the value under the declarations Known, nil if it has not
	// looked; see index.go.
	Indexed bool
	Entries []Entry
	Known   *Indexes
	Found   []Entry
	// If, unless it is nil, is what the mutation demands of other keys. If that is not met, the
	// mutation is refused by [ErrCondition].
	If *Condition
	// By is who has asked for the mutation, nil if nobody is recorded, and always nil in a
	// transaction and where there is a condition. It is [User.Stored].
	By *User
}

// Group is what one transaction decides and writes.
type Group struct {
	Token Token
	// Seen is the newest position that this process has delivered, committed or read. The backend
	// compares it, under the commit lock, with the database, as [CheckGroup] says: the epoch must
	// be the same, the head must not be lower, the row at Seen.Revision must have Seen.Token, and
	// compaction must not have passed it.
	Seen Position
	// Earlier are the other positions that this process has seen and has not compared with the log
	// since then, in order of their revisions: the delivered one, and what reads have told. The
	// newest one proves nothing of them if the database has lost some in between. Their rows have
	// to be there, too. Most often there are none.
	Earlier []Position
	// Generation is that of the declarations of indexes by which the mutations have their entries.
	Generation int64
	// Mutations are in the order of arrival. A key may occur several times, but only once if one of
	// its mutations is [Mutation.Alone]. A mutation with a [Condition] is the only one, or the
	// first one of a transaction.
	Mutations []*Mutation
	// Whole: the group is a transaction. Its mutations, of different keys, are accepted together or
	// not at all, and have one revision. They are no more than 1+MaxParts, and the token is that of
	// NewTransactionToken.
	Whole bool
}

// Rises tells by how much the head rises if so many mutations of the group are accepted.
func (g *Group) Rises(accepted int) Revision {
	if g.Whole {
		return Revision(min(accepted, 1))
	}
	return Revision(accepted)
}

// Outcome is the decision about one mutation.
type Outcome struct {
	Accepted bool
	// Revision is the mutation's own revision if it was accepted, else the key's current revision
	// before the group (0 if absent).
	Revision Revision
	// Part is which part of a transaction the accepted mutation is, 0 for the last one, and where
	// the group is none.
	Part int
	// Prev is the ID of the row that an accepted mutation replaced, 0 if it created the key.
	Prev RowID
	// Create, Version and Lease are those of the row that an accepted mutation wrote.
	Create  Revision
	Version int64
	Lease   Lease
	// PrevValue is the value that an accepted deletion removed, if its mutation has not HasPrev. It
	// is nil beyond what [Returned] takes, and a caller that needs the value then reads it from the
	// log.
	PrevValue []byte
	// Err says why the mutation was not accepted although its expectation holds. It is
	// [ErrCondition] or [ErrNoLease], or of class Data: the value that a deletion would remove is
	// lost.
	Err error
}

// ID names the row of an accepted mutation.
func (o *Outcome) ID() RowID { return IDOf(o.Revision, o.Part) }

// GroupResult is what a committed group did. If no mutation was accepted, nothing was written and
// Before is just the head.
type GroupResult struct {
	// Before is the head that the group found under the lock. The accepted mutations have the
	// revisions Before.Revision+1, +2, … in order of arrival; those of a transaction all have the
	// first one.
	Before Position
	// State.Head is the head after the group.
	State State
	// Time is what was written to the log rows' time.
	Time time.Time
	// LockWait is how long the group waited for the commit lock, as far as the backend can tell,
	// else 0. For metrics.
	LockWait time.Duration
	// Outcomes has one element per mutation of the group.
	Outcomes []Outcome
}

// Resolution answers what became of a group whose commit did not return.
type Resolution struct {
	// Committed: the group's rows are in the log; Rows has them, without values, in order of
	// revision, and of a transaction the last one only. Rows that were swept since are missing.
	Committed bool
	// Aborted: the group's token is not in the log and was now recorded, so that it can never
	// commit. When neither is true, compaction has passed the place where the rows would be, and
	// nobody can tell.
	Aborted bool
	Rows    []Row
	State   State
}

// Tail is a piece of the log.
type Tail struct {
	State State
	// Rows are the rows that were asked for, in order.
	Rows []Row
	// More: the read ended at ReadBytes, so rows may follow although they are fewer than the limit.
	More bool
}

// ReadBytes bounds, in bytes, the values that one call of Page, Tail or Values returns: it returns
// no more rows after the one with which its values reach the bound. Callers ask for fewer rows if
// they know their size; the bound holds where they do not. [KeysReader] says what it means there.
const ReadBytes = 8 << 20

// Prev says which previous values a read of the log brings along.
type Prev int

const (
	// PrevOfDeletions brings the values that deletions removed, which every watcher needs.
	PrevOfDeletions Prev = iota
	// PrevOfAll brings the previous values of updates as well, for watchers that select.
	PrevOfAll
	// NoValues brings no values at all. Only Parts takes it.
	NoValues
)

// PageQuery asks for live rows with their values.
type PageQuery struct {
	// Start (inclusive) and End (exclusive) bound the keys.
	Start, End Key
	// At leaves out the rows with a newer revision. 0 means all.
	At Revision
	// Limit is the number of rows wanted, > 0.
	Limit int
	// KeysOnly leaves the values out.
	KeysOnly bool
	// Entries, if there are any, leave out the keys that have none of them. They are of one index,
	// and no key has two of them. The values are read.
	Entries []Entry
}

// Page is the answer: rows in the order of keys, at most Limit. Only Key, Revision, Create,
// Version, Lease and Value are set.
type Page struct {
	State State
	Rows  []Row
	// More: the read ended at ReadBytes, so rows may follow although they are fewer than the limit.
	More bool
	// Generation is that of the declarations of indexes, if the query has entries.
	Generation int64
}

// IndexRow is a row of an index. Rows are ordered by entry, and then by key.
type IndexRow struct {
	Entry Entry
	Key   Key
}

// Compare orders rows.
func (r IndexRow) Compare(o IndexRow) int {
	return cmp.Or(strings.Compare(string(r.Entry), string(o.Entry)),
		strings.Compare(string(r.Key), string(o.Key)))
}

// IndexWalk asks for rows of an index in its order, or backwards.
type IndexWalk struct {
	// From is where to begin: the row itself is wanted, but not backwards.
	From IndexRow
	// Bound is the entry that ends the walk: it is not wanted, but backwards.
	Bound Entry
	// Start (inclusive) and End (exclusive) bound the keys. The walk goes past others.
	Start, End Key
	// Limit is the number of rows wanted, > 0.
	Limit     int
	Backwards bool
}

// IndexRows is the answer, in the order that was asked for.
type IndexRows struct {
	Rows []IndexRow
	// Generation is that of the declarations of indexes.
	Generation int64
}

// ReplacedQuery asks which rows, current at the revision At, were replaced by rows in (After,
// Upto].
type ReplacedQuery struct {
	Start, End Key
	At         Revision
	After      Revision
	Upto       Revision
	// Entries, if there are any, leave out the rows of which the log says that their keys had none
	// of these. What it says of rows that were replaced up to Known does not count.
	Entries []Entry
	Known   Revision
}

// Replaced is a key that was changed after a snapshot, and the row that the snapshot has of it.
type Replaced struct {
	Key Key
	ID  RowID
}

// ChangesQuery asks which rows of keys in [Start, End) were written in (After, Upto].
type ChangesQuery struct {
	Start, End  Key
	After, Upto Revision
}

// MaxChain is how many rows of a key every database reads in one statement, one after the other.
const MaxChain = 500

// Limits are what a backend can store. The store checks them before a mutation is queued, since one
// row that fails would fail its whole group.
type Limits struct {
	// KeyBytes is the largest length of a key.
	KeyBytes int
	// ValueBytes is the largest length of a value.
	ValueBytes int
	// GroupMutations and GroupBytes (keys, values and previous values together) bound one group.
	GroupMutations int
	GroupBytes     int
	// GetsInPlace: a read costs no round trip, and one that is given up costs no connection. So a
	// read of a key that finds no other one under way is done by its caller, and only others wait
	// for a query of several keys.
	GetsInPlace bool
}

// Reserved is how the keys begin of what Rowkeeper itself records in a store. No client writes
// them.
const Reserved = "rowkeeper/"

// MaxKeyBytes and MaxValueBytes are the limits of every backend whose database can hold as much, so
// that what one database takes another one takes, too: the greatest value is that of etcd's
// default, the greatest key fits into every database's index.
const (
	MaxKeyBytes   = 1024
	MaxValueBytes = 3 << 19
)

// Fence asks for a new epoch. [Fence.After] decides, under the commit lock, what is done; see
// [StartEpoch].
type Fence struct {
	// Seen is the newest position that this process knows.
	Seen Position
	// Replaces is the epoch that the database had when the process found that it has to be fenced.
	// If it has another one under the commit lock, somebody else has fenced, or it is another
	// database.
	Replaces Epoch
	// Token is the token of the marker row.
	Token Token
	// The marker row is put as far as Jump beyond the greater of Seen.Revision and the head, and at
	// PerSecond for each second since 1970 by the database's clock if that is farther. The head and
	// the clock are those under the commit lock. [Fence.Marker] says more.
	Jump, PerSecond Revision
	// Of is the fingerprint of the database that was found to need the fence, or empty. Another
	// database is not fenced: what was found does not hold there.
	Of string
	// Fingerprint is stored as the new fingerprint, if not empty.
	Fingerprint string
}

// Identity tells which store a database holds, and which database holds it.
type Identity struct {
	// Store is the store's identity, written by the first migration and kept by every copy.
	Store string
	// Recorded is the fingerprint that the store row holds, "" if none was recorded yet.
	Recorded string
	// Actual is the fingerprint of the database as it is now.
	Actual string
	// Epoch is the epoch of the database.
	Epoch Epoch
}

// Moved tells whether the database is another than the one in which the store was last written: it
// was restored, copied or failed over, or no fingerprint is recorded yet.
func (id Identity) Moved() bool { return id.Recorded != id.Actual }

// Expired is a live key whose time has come, or which is attached to a lease.
type Expired struct {
	Key      Key
	Revision Revision
	// Part is which part of a transaction has written it, 0 for the last row.
	Part  int
	Lease Lease
}

// ID names the row that has written it.
func (e *Expired) ID() RowID { return IDOf(e.Revision, e.Part) }

// Size is the size of the database in bytes, and how much of it the rows need: those of all stores,
// where they share tables.
type Size struct {
	// Total is what the tables and indexes occupy on disk, with free pages.
	Total int64
	// Live is the part in use, as far as the database can tell cheaply.
	Live int64
}

// Usage is what the objects of one store need.
type Usage struct {
	// Objects is the number of keys that exist, Bytes the length of these keys and their values.
	Objects, Bytes int64
}

// Growth is what rows of the log have changed.
type Growth struct {
	// Usage is by how much what the objects need has grown.
	Usage
	// Replaced is the length of the keys and values that the rows replaced or deleted. Until a
	// compaction passes the rows, this is history that the store keeps.
	Replaced int64
	// Rows is how many rows there are, parts of transactions included.
	Rows int64
}

// Backend is a store in a database. This is its whole contract; the package backendtest checks it.
// The package storage/drivers says what a driver consists of.
//
// Each method is one statement or one short transaction, is safe for concurrent use, and ends with
// its context. It returns errors as *[Error], so that the caller knows what to do. A backend
// decides nothing: where a method says that a rule of this package decides, it calls that rule.
//
// Reads are consistent: the rows and the State of one answer come from one snapshot, which was
// taken after the method was called. So a read that begins after a commit has returned, in whatever
// process, sees it. Reads do not wait for the commit lock. The server that takes the writes answers
// them, or State.Writable is false. Expired, FirstAt and Size, which do not return the state,
// refuse such a server by [ReadOnly].
//
// Keys are any bytes and are compared as bytes. Values are any bytes: nil is NULL, and an empty
// value is not nil. A live row whose row of the log is missing is damage. Reads report it as
// [LostValue], and nothing but that key fails if it is read or written alone.
type Backend interface {
	// Limits returns what the backend can store.
	Limits() Limits

	// Identity reads the store's identity and compares nothing.
	Identity(ctx context.Context) (Identity, error)

	// Durability tells what can undo commits, and compares nothing.
	Durability(ctx context.Context) (Durability, error)

	// RecordBoot stores a boot, "" for none, if the recorded one is from. It is a no-op otherwise.
	// It returns when this and everything before it are on the disk, whatever the settings are, as
	// far as the database can do that.
	RecordBoot(ctx context.Context, from, boot string) error

	// Commit decides and writes one group in one transaction: take the commit lock; decide as
	// [CheckGroup] and then [Decide] say; write; commit. The accepted mutations get the revisions
	// after the head, without a gap, in order of arrival. A group without an accepted mutation
	// writes nothing. Commit tells nobody of the new head; see [Notifier]. It waits for the commit
	// lock as long as the database's settings and ctx let it.
	//
	// An error of class [Unknown] says that the group may have been committed, or may still be.
	// With any other class it was not and never will be.
	Commit(ctx context.Context, g *Group) (*GroupResult, error)

	// Locked runs f in a transaction that holds the commit lock, for all that is rare. It commits
	// what f has written if f returns nil. If f returns an error, nothing is changed, and the error
	// is returned as it is. Other errors are classified as those of Commit are. A read-only server
	// is refused with [ReadOnly]. f is called once at most, and must not use the backend.
	Locked(ctx context.Context, o LockOptions, f func(Tx) error) error

	// Snapshot calls f with a snapshot, which holds no lock that a writer needs. Only ctx bounds
	// its time, and f may take as long as it likes. The context that f gets ends with the snapshot;
	// if the snapshot ends before f has returned, its cause is not context.Canceled. Errors of f
	// are returned as they are.
	Snapshot(ctx context.Context, f func(context.Context, Snapshot) error) error

	// State reads the state alone: the cheapest read there is, as every consistent read does it.
	State(ctx context.Context) (State, error)

	// Tail reads the rows with revision >= from, but no parts of transactions, in order of
	// revision, at most limit (> 0), with their values and previous values as prev says. The caller
	// passes the last position it knows, so that the first row proves that the history is still the
	// same. The previous value of a row is missing (HasPrev) if compaction has removed it.
	Tail(ctx context.Context, from Revision, limit int, prev Prev) (*Tail, error)

	// Parts reads the parts of transactions at revisions up to upto, in order, at most limit (> 0),
	// as Tail reads rows: the parts whose IDs are below one. The IDs fall.
	Parts(ctx context.Context, below RowID, upto Revision, limit int, prev Prev) (*Tail, error)

	// Get reads one key: the row, or nil if it does not exist.
	Get(ctx context.Context, key Key) (*Row, State, error)

	// Page reads live rows, in order of keys.
	Page(ctx context.Context, q PageQuery) (*Page, error)

	// Replaced scans the log in (q.After, q.Upto], parts included, for rows whose key is in range
	// and which replaced one at q.At or before.
	Replaced(ctx context.Context, q ReplacedQuery) ([]Replaced, State, error)

	// Values reads log rows (Key, Revision, Part, Create, Version, Lease, Value) by their IDs, in
	// no particular order. Rows that do not exist are missing, and so are those beyond ReadBytes: a
	// row is lost only if it is missing when it is asked for alone.
	Values(ctx context.Context, ids []RowID) ([]Row, State, error)

	// Chain reads rows of the log without values, of one key, the newest first: the row with an ID,
	// the one that it replaced, the one that this replaced, and so on, at most limit (> 0, and <=
	// MaxChain). Key, Revision, Part, Prev, Create, Version, Time and Deleted are set. The rows
	// follow each other without gaps. They end with the one that created the key, or before one
	// that compaction has removed. There are none if the row with the ID is gone, or belongs to
	// another key.
	Chain(ctx context.Context, key Key, id RowID, limit int) ([]Row, State, error)

	// Changes scans the log in (q.After, q.Upto], parts included, for rows whose key is in range.
	// It sets what Chain sets, and returns the rows as [NewestFirst] orders them.
	Changes(ctx context.Context, q ChangesQuery) ([]Row, State, error)

	// Users reads who has written rows of the log, in no particular order. Rows of which nobody
	// is recorded are missing, and so are rows that are gone. There are no more IDs than MaxChain.
	Users(ctx context.Context, ids []RowID) ([]UserRow, State, error)

	// Count counts the live keys in a range with revision <= at (0: all), and stops at limit (0:
	// none).
	Count(ctx context.Context, start, end Key, at Revision, limit int64) (int64, State, error)

	// Expired returns live keys whose own expiry has passed by the database's clock, at most limit,
	// the oldest expiry first, and how long it is until the next expiry after those (0 if there is
	// none). That is a short time, and not 0, if more keys have expired than the limit.
	Expired(ctx context.Context, limit int) ([]Expired, time.Duration, error)

	// Leases returns leases with an ID from the given one on, in order of ID, at most limit (> 0).
	Leases(ctx context.Context, from Lease, limit int) ([]LeaseRow, State, error)

	// Lapsing returns the leases with an expiry from the given one on, in order of expiry, at most
	// limit (> 0).
	Lapsing(ctx context.Context, from int64, limit int) ([]LeaseRow, State, error)

	// Attached returns live keys that are attached to a lease, from a key on, in order of keys, at
	// most limit (> 0).
	Attached(ctx context.Context, l Lease, from Key, limit int) ([]Expired, State, error)

	// AttachedTo returns live keys that are attached to any of some leases (> 0), in no particular
	// order, at most limit (> 0).
	AttachedTo(ctx context.Context, leases []Lease, limit int) ([]Expired, State, error)

	// CountLeases counts the leases, in time that grows with their number.
	CountLeases(ctx context.Context) (int64, State, error)

	// FirstAt returns the first log row at or after the revision that is no part, for its time
	// (Revision and Time are set), or nil.
	FirstAt(ctx context.Context, revision Revision) (*Row, error)

	// Sweepable reads what [PlanSweep] asks for, but for the parts: the rows in (swept, compacted],
	// in order of revision, at most limit (> 0) or one more, and the row at swept if it is there.
	Sweepable(ctx context.Context, limit int) (Sweepable, error)

	// Sweep carries out a plan in one short transaction, and returns how many rows it deleted. Rows
	// that are gone are no error, and swept is never lowered. It changes nothing if
	// [SweepPlan.Check] refuses the state that the transaction finds. It takes the commit lock as
	// late as it can, and not at all for an empty plan, which is carried out, too: a backend may
	// give back the space that earlier ones have freed. Its errors do not tell that nothing was
	// done: the transaction may commit even when the caller has given up.
	Sweep(ctx context.Context, p *SweepPlan) (int, error)

	// Size reads the sizes, from statistics where counting would be expensive.
	Size(ctx context.Context) (Size, error)

	// Usage counts the live keys, and measures them and their values, in time that grows with their
	// number.
	Usage(ctx context.Context) (Usage, State, error)

	// Growth returns what the rows after a revision have changed. That is right if the revision is
	// not below compacted.
	Growth(ctx context.Context, after Revision) (Growth, State, error)

	// Quota reads what the store may hold, and the generation of its indexes.
	Quota(ctx context.Context) (Quota, int64, State, error)

	// Home reads what [Tx].SetHome has recorded, "" for nothing. It also answers for a store that
	// was dropped.
	Home(ctx context.Context) (string, State, error)

	// Indexes reads the declarations of indexes.
	Indexes(ctx context.Context) (*Indexes, State, error)

	// CountEntries counts the keys in a range that have one of some entries, as for Page, and stops
	// at limit (> 0) for each of them.
	CountEntries(ctx context.Context, entries []Entry, start, end Key, limit int64) (int64, State,
		error)

	// IndexRows reads rows of an index in its order.
	IndexRows(ctx context.Context, q IndexWalk) (*IndexRows, State, error)

	// Everywhere reads a key in all stores of the database that were not dropped. It returns the
	// values by the names of the stores that have it. The value of each store is read at a moment
	// after the call, and all are read at the same moment where the stores share tables.
	Everywhere(ctx context.Context, key Key) (map[string][]byte, State, error)

	// Close releases what the backend has for itself, and the connections if nobody else uses them.
	// No other method is called during or after it.
	Close() error
}

// LockOptions say how a transaction gets the commit lock and keeps it.
type LockOptions struct {
	// AnyServer accepts whatever server the address leads to now. If the transaction ends without
	// an error, the backend works with that one from then on, and only with it. It is for a fence.
	AnyServer bool
	// Unbounded: only the context bounds the time of the transaction, and f may wait for its
	// caller. It is for an import. The lock keeps sweeps out, too.
	Unbounded bool
}

// Snapshot reads a store at one moment.
type Snapshot interface {
	// State is that of the snapshot.
	State() State
	// Keys counts the live keys.
	Keys() (int64, error)
	// Records calls each for every live key: first for those that parts of transactions have
	// written and then for the others, each in ascending order of revisions. It holds no more of
	// them in memory than the one that it hands out. Errors of each are returned as they are.
	Records(each func(*Record) error) error
	// AllLeases returns all leases.
	AllLeases() ([]LeaseRow, error)
}

// Tx is a transaction that holds the commit lock. It reads what the last holder has committed, and
// what itself has written, except for State, which stays what it was at first.
type Tx interface {
	Snapshot
	// Fingerprint is that of the database in which the transaction runs; see [Identity].
	Fingerprint() string
	// Group reads what [Resolve] asks for about a group that was begun after a revision: the guard,
	// and the rows with its token and a greater revision, without parts of transactions and without
	// values, in order of revision.
	Group(token Token, after Revision) (Guard, []Row, error)
	// Abort records a token as aborted, with the revision that its group had seen.
	Abort(token Token, seen Revision) error
	// SetCompacted sets compacted.
	SetCompacted(Revision) error
	// Mark writes the marker row of a new epoch, of which st is the state, and records st's epoch,
	// compacted, swept, and the fingerprint if it is not empty.
	Mark(st State, fingerprint string) error
	// RecordFingerprint stores the fingerprint where none is recorded yet.
	RecordFingerprint(string) error
	// Leases reads those of the leases that there are, in no particular order.
	Leases([]Lease) ([]LeaseRow, error)
	// PutLeases writes leases, in the place of those with the same IDs.
	PutLeases([]LeaseRow) error
	// DropLeases removes leases.
	DropLeases([]Lease) error
	// Remove removes the live rows of keys, no more than a group may have, and their rows of the
	// log, with the users' rows. Keys that do not exist are no error. Rows of the index stay.
	Remove([]Key) error
	// Clear removes all rows of log, user, live and lease, and of the index.
	Clear() error
	// Erase removes at most limit (> 0) rows of live, and as many of the log, of which it leaves
	// the newest one, and as many of user and of the index, and all aborted tokens and
	// directories. It returns how many rows of live, log, user and index it removed.
	Erase(limit int) (int, error)
	// Renew gives the store another identity, and forgets its fingerprint, its boot, its quota and
	// the declarations of its indexes.
	Renew() error
	// SetQuota records what the store may hold.
	SetQuota(Quota) error
	// Home reads what SetHome has recorded, "" for nothing.
	Home() (string, error)
	// SetHome records where the store has come from or has gone to, as a text; see home.go.
	SetHome(string) error
	// SetIdentity gives the store the identity of another one, of whose history it is the next
	// part.
	SetIdentity(string) error
	// Directories reads the recorded directories, in no particular order.
	Directories() ([]Directory, error)
	// PutDirectories records directories, in the place of those with the same paths.
	PutDirectories([]Directory) error
	// Indexes reads the declarations of indexes, which are the caller's.
	Indexes() (*Indexes, error)
	// SetIndexes records declarations.
	SetIndexes(*Indexes) error
	// Reindex gives the keys whose live rows have these IDs their entries, in the place of those
	// that they have.
	Reindex([]Reindexed) error
	// DropEntries removes at most limit (> 0) rows of the index whose entries are from low on and
	// below high. It returns how many.
	DropEntries(low, high Entry, limit int) (int, error)
	// Insert writes a row of the log and a live row for each record that write hands to it. A key
	// that comes twice is an error of class [Data]. Errors of write are returned as they are.
	Insert(token Token, write func(each func(*Record) error) error) error
}

// KeysReader is a Backend in which reads of keys that wait at the same time had better be one: each
// costs a round trip, or a transaction.
type KeysReader interface {
	// GetKeys reads several different keys: Key, Revision, Create, Version, Lease and Value of the
	// keys that exist, in no particular order. The Value of a row is nil if it is lost, and after
	// the one with which the values reach ReadBytes. Get reads such a row, or says what is wrong
	// with it. Without keys, it is State, over the connections of Get.
	GetKeys(ctx context.Context, keys []Key) ([]Row, State, error)
}

// Notifier is a Backend by which processes can tell each other that they have committed.
//
// They do so after the commit, in a statement of its own. It can be lost, as when the process ends
// in between, so it must not be needed: a process that listens also polls, rarely. In return the
// commit does not wait for what the database does to notify. PostgreSQL, for one, lets one
// transaction at a time notify, of all databases of the server, until its commit is on the disk.
type Notifier interface {
	// Announce tells the processes that listen to which revisions logs have come, which are
	// committed. The stores are those of one [Database], and each is there once. It may return
	// before it is sure that they will hear of it, and need not tell it to the server while nobody
	// else listens. Only one announcement at a time is under way.
	Announce(ctx context.Context, heads []Announced) error
	// Listen calls notify with the newest revision that it heard of (0 if it cannot tell; then the
	// log has to be asked) until ctx ends. It keeps a connection of its own and reconnects; status
	// is called with nil whenever notifications flow, and with the reason whenever they do not, so
	// that the caller polls meanwhile. A notification is a hint: it may be late or missing, and
	// this process may hear its own ones, too.
	Listen(ctx context.Context, notify func(Revision), status func(error))
}

// Announced is the newest revision of a store.
type Announced struct {
	Store    Backend
	Revision Revision
}

// Poller is a Backend that can tell more cheaply than by State that nothing has changed since the
// last call.
type Poller interface {
	// Changed returns false if no other process has committed since the last call. Only the tailer
	// calls it.
	Changed(ctx context.Context) (bool, error)
	// Now is the database's clock, which the process has itself.
	Now() time.Time
}

// Shared is a Backend that shares connections to a server with those of other stores, so that one
// statement can poll them all.
type Shared interface {
	// Poll polls stores, whose backends belong to the same Database, in one statement: an answer
	// for each of them, in their order. The first ones, due in number, are asked for [Polled.Due].
	// The connection passes the [Gate] of each store. An error that concerns one store is in its
	// answer, and the others have theirs.
	Poll(ctx context.Context, stores []Backend, due int) ([]Polled, error)
}

// Reconnector is a Backend whose connections could outlive the server's role behind them unnoticed.
// Where a server says that it is read-only, the backend tells its [Address].
type Reconnector interface {
	// Reconnect makes all operations that begin from now on use new connections; see [Gate].
	Reconnect()
}

// Volatile is a Backend whose store is perhaps gone when it is closed.
type Volatile interface {
	// Volatile tells whether it is.
	Volatile() bool
}

// Opened is a Backend that tells what it found when it was opened, so that its store need not ask.
type Opened interface {
	Opened() (Identity, Durability)
}

// Pooled is a Backend that keeps connection pools.
type Pooled interface {
	// Pools tells how they are used, for metrics.
	Pools() []Pool
}

// Pool is the state of a pool of connections.
type Pool struct {
	// Name is what the pool is for: "commit", "tail", "read".
	Name string
	// InUse, Idle and Max are numbers of connections.
	InUse, Idle, Max int
}
