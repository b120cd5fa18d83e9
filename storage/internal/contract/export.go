package contract

import (
	"errors"
	"fmt"
)

// Everything that a store holds can be read at one revision, and be put into the place of
// everything that another one holds, which may be in a database of another kind. Leases and
// expiries stay what they are. History is not taken along: rows that were replaced, and deletions.
//
// To put it back is one transaction under the commit lock, so nobody ever reads a half of it:
// neither a server that runs meanwhile, nor one that starts after the process that did it was
// killed. In the same transaction the history is fenced (see fence.go), as after a restore by the
// database's own tools: the revisions that were read or watched in the database before it stand for
// nothing any more.
//
// Revisions stay what they are, too, if they can: in the store that the records come from, or one
// that has never been written, a revision stands for the same content before and after. In a store
// with a history of its own the same revisions have stood for other content, and a client that
// remembers one would update or leave alone what it has never seen. There the records are numbered
// anew, in the order in which they come, beyond all revisions of both stores.

// Record is a key that exists, with all that is kept of it.
type Record struct {
	Key              Key
	Revision, Create Revision
	// Part is which part of a transaction has written it, 0 for the last row.
	Part int
	// Version is how often it was written since its creation.
	Version int64
	// Lease is what it is attached to.
	Lease Lease
	// Expiry is when it expires, in microseconds since 1970 by the database's clock, 0 for never,
	// or with its lease.
	Expiry int64
	// Value is nil only if the database has lost it.
	Value []byte
}

// ID names the row that has written it.
func (r *Record) ID() RowID { return IDOf(r.Revision, r.Part) }

// LiveExpiry is the expiry of the record's live row, as that of [Mutation.Expiry].
func (r *Record) LiveExpiry() int64 {
	if r.Lease != 0 {
		return -int64(r.Lease)
	}
	return r.Expiry
}

// Import is what replaces a store's content, or is put beside it. An import that has failed may be
// begun again.
type Import struct {
	// Store is the identity of the store that the records come from, and Head its newest revision
	// at that time.
	Store string
	Head  Revision
	// Replace removes the keys that exist. Otherwise a database that has some is refused with
	// ErrNotEmpty.
	Replace bool
	// Beside keeps the keys that exist. A key that comes as well is an error of class [Data].
	Beside bool
	// Records calls each for the records, in the order of [Snapshot]. It may be called again,
	// after an error. each may give the record other revisions, and the record is stored with
	// these. The record and what it points to are each's to keep until Records returns.
	Records func(each func(*Record) error) error
	// Leases are the leases that the records are attached to, and others. They lapse when they say.
	Leases []LeaseRow
	// Check reads before the commit what the database holds then, in the same order.
	// Nothing is changed if it returns an error.
	Check func(records func(each func(*Record) error) error) error

	// Token is the token of the marker and of all rows, Fingerprint is stored as the new
	// fingerprint, if not empty. Engine.Import sets both.
	Token       Token
	Fingerprint string
	// Renumbered tells whether the records get new revisions.
	Renumbered bool

	// Target is the identity of the store that they are put into, and Seen what this process has
	// seen of it. Engine.Import sets both.
	Target string
	Seen   Position
	// last is the newest revision that is taken: at first one beyond those of both stores.
	last Revision
}

// emptyHead is the head of a store that has never been written: the marker that the first migration
// wrote.
const emptyHead Revision = 1

// begin decides, by the state and the number of keys under the commit lock, whether the import may
// be, and with which revisions.
func (in *Import) begin(st State, keys int64) error {
	if keys > 0 && !in.Replace && !in.Beside {
		return ErrNotEmpty
	}
	in.Renumbered = in.Store != in.Target && st.Head.Revision > emptyHead
	f := Fence{Seen: Position{Revision: max(in.Head, in.Seen.Revision)}, Token: in.Token,
		Jump: slowJump, PerSecond: slowPerSecond}
	in.last = f.Marker(st)
	return nil
}

// write calls each for the records, with the revisions that they are stored with.
func (in *Import) write(each func(*Record) error) error {
	if !in.Renumbered {
		return in.Records(each)
	}
	return in.Records(func(r *Record) error {
		in.last++
		r.Revision, r.Part, r.Create = in.last, 0, in.last
		return each(r)
	})
}

// end returns the state after the import of which st was the state before: the marker of the new
// epoch is the head, and nothing is left to compact. Rows that were kept are left to sweep.
func (in *Import) end(st State) State {
	st.Head = Position{Epoch: max(st.Head.Epoch, in.Seen.Epoch) + 1, Revision: in.last + 1,
		Token: in.Token}
	if st.Compacted = st.Head.Revision; !in.Beside {
		st.Swept = st.Head.Revision
	}
	return st
}

// ErrNotEmpty refuses to import into a store that has keys.
var ErrNotEmpty = errors.New("the store is not empty")

// Follows tells whether the record may come after the one with an ID, 0 for none: parts first, then
// the others, each with rising revisions.
func (r *Record) Follows(after RowID) bool {
	switch id := r.ID(); {
	case id < 0:
		return after == 0 || after < 0 && id < after
	default:
		return id > after
	}
}

// Valid returns what is wrong with a record that follows the one with an ID, 0 for none, if it
// could not have been written by a store whose head was at head.
func (r *Record) Valid(after RowID, head Revision, limits Limits) error {
	switch {
	case r.Key == "":
		return errors.New("a key is empty")
	case len(r.Key) > limits.KeyBytes:
		return &LimitError{What: "key", Bytes: len(r.Key), Limit: limits.KeyBytes}
	case len(r.Value) > limits.ValueBytes:
		return fmt.Errorf("key %q: %w", string(r.Key),
			&LimitError{What: "value", Bytes: len(r.Value), Limit: limits.ValueBytes})
	case r.Part < 0 || r.Part > MaxParts || r.Part > 0 && r.Revision > lastOfParts ||
		!r.Follows(after) || r.Revision > head || r.Create < 1 || r.Create > r.Revision ||
		r.Version < 1 || r.Lease < 0 || r.Expiry < 0:
		return fmt.Errorf("key %q has the revision %d (part %d), the creation revision %d, the "+
			"version %d, the lease %d and the expiry %d, after row %d and up to revision %d",
			string(r.Key), r.Revision, r.Part, r.Create, r.Version, r.Lease, r.Expiry, after, head)
	}
	return nil
}
