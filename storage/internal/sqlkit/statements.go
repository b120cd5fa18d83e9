package sqlkit

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Class is a class of connections. Reads of one class cannot take the connections of another,
// unless the database says that two of them are the same pool.
type Class int

const (
	// Head reads the state. Every consistent read waits for it.
	Head Class = iota
	// Tail reads rows of the log, for which all watches wait. Stores leave connections to each
	// other, and have turns; see [Turns].
	Tail
	// Single reads single keys. It shares its connections with List, which leaves some of them, and
	// stores leave some to each other; see [Turns].
	Single
	// List reads many rows.
	List
	// Maintenance reads what expiry, compaction and metrics need. It shares the connections of
	// Tail: its reads are short, and no burst of lists can take them.
	Maintenance
)

// Read is one of the reads of a [Reader].
type Read struct {
	// What it does, for errors: "read a key" follows "cannot".
	What string
	// Class is on which connections.
	Class Class
	// SQL is the text of its statement.
	SQL string
	// Columns is how many columns its rows have besides those of the state.
	Columns int
	// OneRow: the statement returns one row, and the state is in it. Its own columns are NULL if
	// there is nothing to return.
	OneRow bool
}

// Runner runs the statements of a [Reader].
type Runner interface {
	// Query runs a read and calls each for its rows, in order, until it returns false: then it
	// gives up the rest and returns nil. Arguments are of the types int64, bool, [contract.Key],
	// []contract.Key and []contract.RowID, in the order in which the fields of [Statements] name
	// them. Entries, of type []contract.Entry, come last. Errors are of type *[contract.Error].
	Query(ctx context.Context, r *Read, each func(Cursor) bool, args ...any) error
}

// Cursor is at a row of a result. Columns are numbered from 0, after those of the state. A column
// that is NULL is zero. The values that the methods return stay valid.
type Cursor interface {
	// State sets the state to that of the row, and reports whether the row has one.
	State(*contract.State) bool
	// More reports whether the row has more than the state: its first column is not NULL then.
	More() bool
	Int(column int) int64
	Bool(column int) bool
	Token(column int) contract.Token
	Key(column int) contract.Key
	// Value returns nil for NULL, and only for NULL. It is called once for a column of a row.
	Value(column int) []byte
}

// Statements are the texts of the reads, with their parameters and columns, besides those of the
// state. The first column of a row is not NULL. Times are in microseconds since 1970. The bound
// "at" of revisions is the largest int64 if there is none.
type Statements struct {
	// State reads the state alone, in one row: no parameters, no columns.
	State string
	// Tail reads log rows in the order of revisions.
	//
	// Parameters: whether previous values of updates are wanted besides those of deletions; the
	// first revision; the limit. Columns: revision, key, prev, create, version, lease, token, time,
	// deleted, value (NULL for a deletion), whether there is a previous row, its lease, its value.
	Tail string
	// Parts reads log rows with IDs below 0, in falling order. Parameters: whether values are
	// wanted, twice; whether previous values of updates are wanted besides those of deletions; the
	// ID below which the rows are; the lowest ID; the limit. Columns as for Tail. The values are
	// NULL if they are not wanted.
	Parts string
	// Get reads a key, in one row. Parameter: the key. Columns: revision, create, version, lease,
	// prev, token, time, value. The value is NULL if the row of the log is missing, and so may be
	// those before it from prev on.
	Get string
	// GetKeys reads several keys, for a [KeysReader]. Parameter: the keys. Columns: key, revision,
	// create, version, lease, value (NULL if the row of the log is missing).
	GetKeys string
	// Page reads live rows in the order of keys. Parameters: start, end, the lowest and the
	// greatest ID, limit. Columns: key, ID, create, version, lease, value (NULL if the row of the
	// log is missing).
	Page string
	// PageKeys is Page without the value.
	PageKeys string
	// Replaced reads log rows that replaced others: rows with IDs above 0, and parts below one ID
	// and not below another. Parameters: after, upto; the two IDs; the lowest and the greatest ID
	// of what was replaced; start, end. Columns: key, prev (not 0).
	Replaced string
	// ReplacedOf is Replaced without rows whose keys had none of n entries. Parameters: those of
	// Replaced, the lowest and the greatest ID of rows whose entries do not count, and the entries,
	// [Packed].
	ReplacedOf func(n int) string
	// Values reads log rows by ID. Parameter: the IDs. Columns: key, ID, create, version, lease,
	// value.
	Values string
	// Chain reads log rows of one key, each of which replaced the next. Parameters: the ID of the
	// first, the key, the limit. Columns: ID, key, prev, create, version, time, deleted.
	Chain string
	// Changes reads log rows with IDs above 0, and parts below one ID and not below another.
	// Parameters: after, upto; the two IDs; start, end. Columns as for Chain.
	Changes string
	// Users reads users' rows by the IDs of the log's rows. Parameter: the IDs. Columns: ID, name,
	// audit ID.
	Users string
	// Count counts live rows, in one row. Parameters: start, end, the lowest and the greatest ID.
	// Column: their number.
	Count string
	// CountUpTo is Count that stops. Parameters: those of Count, and the limit.
	CountUpTo string
	// Expired reads live rows with an expiry above 0, in the order of expiry. Parameter: the limit.
	// Columns: key, revision, expiry.
	Expired string
	// Leases reads leases in the order of IDs. Parameters: the first ID, the limit. Columns: ID,
	// time to live, expiry.
	Leases string
	// Lapsing reads leases in the order of expiry. Parameters: the first expiry, the limit. Columns
	// as for Leases.
	Lapsing string
	// Attached reads live rows in the order of keys. Parameters: the expiry, the first key, the
	// limit. Columns: key, revision.
	Attached string
	// AttachedTo reads live rows in any order. Parameters: the expiries, as leases; the limit.
	// Columns: key, revision, expiry.
	AttachedTo string
	// CountLeases counts the leases, in one row. Column: their number.
	CountLeases string
	// FirstAt reads the first log row from a revision on. Parameter: the revision. Columns:
	// revision, time.
	FirstAt string
	// Sweep reads what a batch of the sweep is planned from: log rows in the order of revisions,
	// from the swept revision to the compacted one. Parameter: the limit, and what
	// [Reader.SweepableAfter] is given besides. Columns: revision, prev, deleted. One row more has
	// the revision 0, in the place of prev the lowest revision that is recorded with an aborted
	// token, 0 or NULL if there is none, and in that of deleted whether there are users' rows.
	Sweep string
	// Size reads sizes in bytes, in one row. Columns: total, live.
	Size string
	// Usage counts and measures the live rows, in one row. Columns: their number, the bytes of
	// their keys and values.
	Usage string
	// Growth counts and measures the log rows after a revision, less the rows that they replaced,
	// in one row. Parameters: the revision; the ID below which the parts after it are. Columns: as
	// those of Usage, the bytes of the keys and values that were replaced, the number of rows.
	Growth string
	// Quota reads what the store may hold, in one row. Columns: objects, bytes, the generation of
	// the indexes.
	Quota string
	// Home reads what is recorded of a move, in one row. Column: the text (NULL for none).
	Home string
	// Indexes reads the declarations of indexes, in one row. Columns: generation, text (NULL for
	// none).
	Indexes string
	// PageOf is Page for the keys that have one of n entries. Parameters: those of Page, then the
	// entries. A row more, the first, has the empty key, and the generation in the place of the ID.
	PageOf func(n int) string
	// CountOf counts the keys of a range that have one of n entries, in one row, and stops at the
	// limit for each. Parameters: start, end, limit, the entries. Column: their number.
	CountOf func(n int) string
	// IndexRows reads rows of an index in the order of entry and key. Parameters: the entry and the
	// key of the first row, the entry again, the entry that ends the walk, start, end, limit.
	// Columns: entry, key, generation. A row more, the first, has the empty entry and the
	// generation, which are not set otherwise.
	IndexRows string
	// IndexRowsBack is IndexRows backwards. The first row is not wanted itself, and the entry that
	// ends the walk is.
	IndexRowsBack string
	// Everywhere reads a key in all stores that were not dropped, where these share tables.
	// Parameter: the key. Columns: the store's name, revision, value (NULL if the row of the log is
	// missing).
	Everywhere string
}
