package mvcc

import (
	"context"
	"time"
)

// Key is a key of the store: any bytes, compared as bytes. It is a string because keys are immutable and serve as map keys.
type Key string

// Revision is the place of a write in the one history. Valid revisions start at 1.
type Revision int64

// Epoch counts the fences of a database. Positions of different epochs are not comparable.
type Epoch int64

// Token marks the log rows of one commit group, 16 random bytes.
type Token [16]byte

// Position names a log row beyond doubt: a revision could exist twice if a database lost its tail, a revision with its
// epoch and its group's token could not.
type Position struct {
	Epoch    Epoch
	Revision Revision
	Token    Token
}

// State is what every read of a backend returns besides its rows, taken in the same snapshot as these.
type State struct {
	// Head is the position of the newest log row.
	Head Position
	// Compacted is the boundary below which history may be gone: reads at it work, reads below it do not.
	Compacted Revision
	// Swept is the revision up to which the rows that were replaced have been removed. Swept <= Compacted.
	Swept Revision
	// Writable is false on a standby or a read-only server. What such a server says may be late and is never used.
	Writable bool
	// Now is the database's clock.
	Now time.Time
}

// Row is a row of the log.
type Row struct {
	Key      Key
	Revision Revision
	// Prev is the revision that this row replaced, 0 if it created the key.
	Prev Revision
	// Create is the revision that created the key.
	Create Revision
	// Token is the token of the row's group.
	Token Token
	// Time is the database's clock when the row was written, in microseconds' precision.
	Time    time.Time
	Deleted bool
	// Value is nil for a deletion. It is shared: nobody modifies it.
	Value []byte
	// PrevValue is the value at Prev, if HasPrev.
	PrevValue []byte
	HasPrev   bool
}

// Marker tells whether the row holds a revision only: it is no event.
func (r *Row) Marker() bool { return r.Key == "" }

// Mutation is one write of one key, subject to an expectation.
type Mutation struct {
	Key Key
	// Expect is the revision that the key must have, 0 if it must not exist.
	Expect Revision
	// Delete removes the key. Expect is not 0 then.
	Delete bool
	// Value is the new value, empty for a deletion.
	Value []byte
	// TTL is the time after which the key expires, from the commit on and by the database's clock. 0 means never.
	TTL time.Duration
	// PrevValue is the value at Expect, if the caller has it at hand (HasPrev), so that the deletion's event needs no read of it.
	PrevValue []byte
	HasPrev   bool
}

// Group is what one transaction decides and writes.
type Group struct {
	Token Token
	// Seen is the newest position that this process has delivered or committed. The backend compares it, under the
	// commit lock, with the database: the epoch must be the same, the head must not be lower, and the row at Seen.Revision, unless it
	// was removed by compaction (Seen.Revision < Compacted, or it was a replaced row and is not there), must have Seen.Token.
	Seen Position
	// Mutations are in the order of arrival. A key may occur several times.
	Mutations []*Mutation
}

// Outcome is the decision about one mutation.
type Outcome struct {
	Accepted bool
	// Revision is the mutation's own revision if it was accepted, else the key's current revision before the group (0 if absent).
	Revision Revision
	// Create is the creation revision of the key, if accepted.
	Create Revision
	// PrevValue is the value that an accepted deletion removed. Backends fill it for each accepted deletion whose mutation has not HasPrev.
	PrevValue []byte
}

// GroupResult is what a committed group did. If no mutation was accepted, nothing was written and Before is just the head.
type GroupResult struct {
	// Before is the head that the group found under the lock. The accepted mutations have the revisions
	// Before.Revision+1, +2, … in order of arrival.
	Before Position
	// State.Head is the head after the group.
	State State
	// Time is what was written to the log rows' time.
	Time time.Time
	// LockWait is how long the group waited for the commit lock, as far as the backend can tell, else 0. For metrics.
	LockWait time.Duration
	// Outcomes has one element per mutation of the group.
	Outcomes []Outcome
}

// Resolution answers what became of a group whose commit did not return.
type Resolution struct {
	// Committed: the group's rows are in the log; Rows has them, without values, in order of revision. Rows that were swept since
	// are missing.
	Committed bool
	// Aborted: the group's token is not in the log and was now recorded, so that it can never commit.
	// When neither is true, compaction has passed the place where the rows would be, and nobody can tell.
	Aborted bool
	Rows    []Row
	State   State
}

// Tail is a piece of the log.
type Tail struct {
	State State
	// Rows are the rows with revision >= the asked one, in order of revision.
	Rows []Row
}

// Prev says which previous values a read of the log brings along.
type Prev int

const (
	// PrevOfDeletions brings the values that deletions removed, which every watcher needs.
	PrevOfDeletions Prev = iota
	// PrevOfAll brings the previous values of updates as well, for watchers that select.
	PrevOfAll
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
}

// Page is the answer: rows in the order of keys, at most Limit. Only Key, Revision, Create and Value are set.
type Page struct {
	State State
	Rows  []Row
}

// ReplacedQuery asks which rows, current at the revision At, were replaced by rows in (After, Upto].
type ReplacedQuery struct {
	Start, End Key
	At         Revision
	After      Revision
	Upto       Revision
}

// Replaced is a key that was changed after a snapshot, and the revision that the snapshot has of it.
type Replaced struct {
	Key      Key
	Revision Revision
}

// Limits are what a backend can store. The store checks them before a mutation is queued, since one row that fails
// would fail its whole group.
type Limits struct {
	// KeyBytes is the largest length of a key.
	KeyBytes int
	// ValueBytes is the largest length of a value.
	ValueBytes int
	// GroupMutations and GroupBytes (keys and values together) bound one group.
	GroupMutations int
	GroupBytes     int
}

// MaxKeyBytes and MaxValueBytes are the limits of every backend whose database can hold as much, so that what one database takes another one
// takes, too: the greatest value is that of etcd's default, the greatest key fits into every database's index.
const (
	MaxKeyBytes   = 1024
	MaxValueBytes = 3 << 19
)

// Fence asks for a new epoch.
type Fence struct {
	// Seen is the newest position this process knows. If the database's epoch is greater than Seen.Epoch, somebody
	// else has fenced, and nothing is done. Else the new epoch is Seen.Epoch+1, which no restored database can have reached.
	Seen Position
	// Token is the token of the marker row.
	Token Token
	// The marker row is put as far as Jump beyond the greater of Seen.Revision and the head, and at PerSecond for each second since 1970 by the database's clock
	// if that is farther. The head and the clock are those under the commit lock.
	Jump, PerSecond Revision
	// Fingerprint is stored as the new fingerprint, if not empty.
	Fingerprint string
}

// Marker returns where the fence puts the marker row in a database whose state under the commit lock is st.
func (f *Fence) Marker(st State) Revision {
	return max(max(f.Seen.Revision, st.Head.Revision)+f.Jump, Revision(st.Now.Unix())*f.PerSecond)
}

// Identity tells which store a database holds, and which database holds it.
type Identity struct {
	// Store is the store's identity, written by the first migration and kept by every copy.
	Store string
	// Recorded is the fingerprint that the store row holds, "" if none was recorded yet.
	Recorded string
	// Actual is the fingerprint of the database as it is now.
	Actual string
}

// Expired is a live key whose time has come.
type Expired struct {
	Key      Key
	Revision Revision
}

// Size is the size of the database in bytes, and how much of it the store's rows need.
type Size struct {
	// Total is what the tables and indexes occupy on disk, with free pages.
	Total int64
	// Live is the part in use, as far as the database can tell cheaply.
	Live int64
}

// Backend is a database. Each method is one statement or one short transaction, safe for concurrent use, and
// returns errors as *[Error] so that the caller knows what to do. All tables are those of the migrations.
//
// Reads are consistent: the rows and the State of one answer are of one snapshot, which was taken after the
// method was called. A read must be answered by the server that takes the writes.
type Backend interface {
	// Limits returns what the backend can store.
	Limits() Limits

	// Identity reads the store's identity and compares nothing.
	Identity(ctx context.Context) (Identity, error)

	// RecordFingerprint stores the fingerprint where none is recorded yet. It is a no-op otherwise.
	RecordFingerprint(ctx context.Context, fingerprint string) error

	// Commit decides and writes one group in one transaction: take the commit lock; refuse the group if its token is
	// recorded in aborted ([Aborted]) or if g.Seen does not hold ([Fenced]); decide as [Decide] does; write; commit.
	// A group without an accepted mutation writes nothing. It notifies the other processes, once, of the new head.
	Commit(ctx context.Context, g *Group) (*GroupResult, error)

	// Resolve finds out, under the commit lock, what became of the group with this token, which was begun when the head was
	// at or after the given position; see Resolution.
	Resolve(ctx context.Context, token Token, after Position) (*Resolution, error)

	// State reads the state alone: the cheapest read there is, as every consistent read does it.
	State(ctx context.Context) (State, error)

	// Tail reads the rows with revision >= from, at most limit (> 0), with their values and previous values as prev says. The caller
	// passes the last position it knows, so that the first row proves that the history is still the same.
	Tail(ctx context.Context, from Revision, limit int, prev Prev) (*Tail, error)

	// Get reads one key: the row, or nil if it does not exist.
	Get(ctx context.Context, key Key) (*Row, State, error)

	// Page reads live rows.
	Page(ctx context.Context, q PageQuery) (*Page, error)

	// Replaced scans the log in (q.After, q.Upto] for rows whose key is in range and whose Prev is in [1, q.At].
	Replaced(ctx context.Context, q ReplacedQuery) ([]Replaced, State, error)

	// Values reads log rows (Key, Revision, Create, Value) by their revisions, in no particular order. Rows that do not exist are missing.
	Values(ctx context.Context, revisions []Revision) ([]Row, State, error)

	// Count counts the live keys in a range with revision <= at (0: all), and stops at limit (0: none).
	Count(ctx context.Context, start, end Key, at Revision, limit int64) (int64, State, error)

	// Expired returns live keys whose expiry has passed by the database's clock, at most limit, the oldest expiry first, and how long it is until
	// the next expiry after those (0 if there is none).
	Expired(ctx context.Context, limit int) ([]Expired, time.Duration, error)

	// FirstAt returns the first log row at or after the revision, for its time (Revision and Time are set), or nil.
	FirstAt(ctx context.Context, revision Revision) (*Row, error)

	// Compact raises compacted to the revision, under the commit lock, and returns the state after it. It never lowers it, and never
	// passes the head.
	Compact(ctx context.Context, revision Revision) (State, error)

	// Sweep removes one batch, in one transaction: of the log rows in (swept, compacted], at most limit, it deletes those that
	// they replaced and those that are tombstones or markers (never the head), and moves swept past them.
	// It returns how many rows it deleted, and the state. It also forgets aborted tokens that are older than an hour.
	Sweep(ctx context.Context, limit int) (int, State, error)

	// Fence starts a new epoch under the commit lock on a writable server: it writes a marker row at the jump, raises epoch and
	// sets compacted to the jump.
	Fence(ctx context.Context, f Fence) (State, error)

	// Size reads the sizes, from statistics where counting would be expensive.
	Size(ctx context.Context) (Size, error)

	// Close releases all connections. No other method is called during or after it.
	Close() error
}

// KeysReader is a Backend whose every read costs a round trip, so that reads of keys that wait at the same time had better be one.
type KeysReader interface {
	// GetKeys reads several different keys: Key, Revision, Create and Value of those that exist, in no particular order. The Value of a row
	// whose value is lost is nil, and Get says what is wrong with it.
	GetKeys(ctx context.Context, keys []Key) ([]Row, State, error)
}

// Notifier is a Backend that can tell that another process has committed.
type Notifier interface {
	// Listen calls notify with the newest revision that it heard of (0 if it cannot tell; then the log has to be asked) until ctx ends.
	// It keeps a connection of its own and reconnects; status is called with nil whenever notifications flow, and with the
	// reason whenever they do not, so that the caller polls meanwhile. A notification is a hint: it may be late or missing.
	Listen(ctx context.Context, notify func(Revision), status func(error))
}

// Poller is a Backend that can tell more cheaply than by State that nothing has changed since the last call.
type Poller interface {
	// Changed returns false if no other process has committed since the last call. Only the tailer calls it.
	Changed(ctx context.Context) (bool, error)
}

// Reconnector is a Backend whose connections could outlive the server's role behind them unnoticed.
type Reconnector interface {
	// Reconnect makes all operations that begin from now on use new connections.
	Reconnect()
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
