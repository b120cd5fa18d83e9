package contract

import (
	"errors"
	"fmt"
)

// Class says what an error of a Backend means for what was asked.
type Class int

const (
	// Unavailable: the database could not be asked or did not answer in time, and nothing was
	// changed. It may be tried again.
	Unavailable Class = iota
	// Transient: the database undid the transaction for reasons of its own (deadlock,
	// serialization, lock wait). It may be tried again at once.
	Transient
	// Unknown: the connection was lost when the transaction may have been committed, or may still
	// be. It must be resolved, never repeated.
	Unknown
	// Data: the database rejected a value. Repeating is useless; a group is split to find the
	// culprit.
	Data
	// Full: there is no room left, until a person has made some: on the disk, or in what the
	// database numbers its transactions by. Nothing was changed.
	Full
	// ReadOnly: the server is a standby, was demoted, or is in read-only mode. Nothing was changed.
	ReadOnly
	// Aborted: the group's token is recorded as aborted. Nothing was changed.
	Aborted
	// Fenced: the database is not the one that this process has seen. Nothing was changed.
	Fenced
	// Denied: a wrong password, a missing privilege, a missing database, a certificate that does
	// not hold. A person has to mend it.
	Denied
	// Invalid: the database does not hold a store, or one of another schema, or is damaged. A
	// person has to mend it.
	Invalid
)

var classNames = [...]string{"unavailable", "transient", "unknown outcome", "data", "full",
	"read-only", "aborted", "fenced", "denied", "invalid"}

func (c Class) String() string { return classNames[c] }

// Error is an error of a Backend. Its text is for people: one sentence, without secrets.
type Error struct {
	Class Class
	Err   error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an *Error as fmt.Errorf makes an error.
func Errorf(c Class, format string, args ...any) *Error {
	return &Error{Class: c, Err: fmt.Errorf(format, args...)}
}

// Damaged makes the error of a database that lacks what must be there.
func Damaged(format string, args ...any) *Error {
	return Errorf(Invalid, "the database is damaged: "+format+": restore a backup into a new database",
		args...)
}

// LostValue is for a key whose newest row is not in the log, or has no value.
func LostValue(key Key, r Revision) *Error {
	return Damaged("the key %q is at revision %d, whose value is not in the log", string(key), r)
}

// ErrEmptyStore is for a database whose state cannot be read.
var ErrEmptyStore = Damaged("the table rowkeeper_store has lost its row, or rowkeeper_log all rows")

// ErrDropped is for a store that was dropped, or is closed by a move; see fill.go.
var ErrDropped = Errorf(Invalid, "the store was dropped, or is one end of a move: a server "+
	"with --directory finds it by itself when the move has ended; otherwise name another store, create "+
	"it again by `rowkeeper stores create`, or end the move by `rowkeeper move --finish`, and restart "+
	"the server")

// ErrStartingUp is for a server that takes no connections yet, since it starts up or recovers.
var ErrStartingUp = errors.New("the database server is starting up")

// ErrPrivilege is for a statement that the server has refused to the user of the session.
var ErrPrivilege = errors.New("a privilege is missing")

// ErrAnotherServer is for an answer of another server than the one to which the connection led when
// it was made, as a proxy can bring about. Nothing was changed, and nothing of the answer is used.
var ErrAnotherServer = Errorf(Unavailable, "a proxy between this process and the database has led a "+
	"connection to another server: new connections find out which database that is")

// ErrAnotherStore is for a store in the place of the one that was opened: that one was dropped and
// created again, or its tables were replaced.
var ErrAnotherStore = errors.New("another store")

// AnotherStore says which store was found in the place of which one.
func AnotherStore(now, opened string) *Error {
	return Errorf(Invalid, "the database holds %w (%s) than when this process opened it (%s): "+
		"restart the server if that is meant", ErrAnotherStore, now, opened)
}

// ClassOf returns the class of an error, Unavailable for one that has none.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Unavailable
}

var (
	// ErrCompacted: the revision is below the compacted one; also what all watchers get when the
	// epoch changes.
	ErrCompacted = errors.New("the required revision has been compacted")
	// ErrUnknownOutcome: nobody can tell whether the write was done.
	ErrUnknownOutcome = errors.New("the outcome of the write is unknown: the database did not " +
		"confirm it in time, and it may or may not have been committed")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// ConflictError says that the key was not at the expected revision.
type ConflictError struct {
	Key Key
	// Current is the key's revision when that was decided, 0 if it did not exist, -1 if nobody
	// knows.
	Current Revision
}

func (e *ConflictError) Error() string {
	switch e.Current {
	case -1:
		return fmt.Sprintf("key %q is not at the expected revision", string(e.Key))
	case 0:
		return fmt.Sprintf("key %q does not exist", string(e.Key))
	}
	return fmt.Sprintf("key %q is at revision %d", string(e.Key), e.Current)
}

// FutureRevisionError says that the revision is newer than the head.
type FutureRevisionError struct {
	Revision, Head Revision
}

func (e *FutureRevisionError) Error() string {
	return fmt.Sprintf("revision %d is newer than the newest, %d", e.Revision, e.Head)
}

// LimitError says that a key or a value is too large.
type LimitError struct {
	// What is "key", "value", "condition" or "transaction".
	What string
	// Bytes is its length, Limit the greatest that is allowed.
	Bytes, Limit int
	// Keys: what is counted is keys, and not bytes.
	Keys bool
}

func (e *LimitError) Error() string {
	unit := "bytes"
	if e.Keys {
		unit = "keys"
	}
	return fmt.Sprintf("the %s has %d %s, more than the limit of %d", e.What, e.Bytes, unit, e.Limit)
}
