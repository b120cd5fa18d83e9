package sqlite3

import (
	"errors"
	"fmt"

	"modernc.org/libc"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// Code is a primary result code of SQLite.
type Code int32

// The codes that callers tell apart.
const (
	Auth       Code = lib.SQLITE_AUTH
	Busy       Code = lib.SQLITE_BUSY
	CantOpen   Code = lib.SQLITE_CANTOPEN
	Constraint Code = lib.SQLITE_CONSTRAINT
	Corrupt    Code = lib.SQLITE_CORRUPT
	Full       Code = lib.SQLITE_FULL
	IOErr      Code = lib.SQLITE_IOERR
	Locked     Code = lib.SQLITE_LOCKED
	Mismatch   Code = lib.SQLITE_MISMATCH
	NotADB     Code = lib.SQLITE_NOTADB
	Perm       Code = lib.SQLITE_PERM
	Protocol   Code = lib.SQLITE_PROTOCOL
	Range      Code = lib.SQLITE_RANGE
	ReadOnly   Code = lib.SQLITE_READONLY
	TooBig     Code = lib.SQLITE_TOOBIG
)

// Error is an error of SQLite.
type Error struct {
	// Extended is the extended result code.
	Extended int32
	// Errno is the operating system's error number, 0 if it has nothing to do with the error.
	Errno int32
	// Text describes the error.
	Text string
}

func (e *Error) Error() string { return e.Text }

// Code is the result code without its extension.
func (e *Error) Code() Code { return Code(e.Extended & 0xff) }

// AsError finds SQLite's error in an error, be it of this package or of the driver for
// database/sql.
func AsError(err error) (*Error, bool) {
	var (
		own        *Error
		fromDriver *sqlite.Error
	)
	switch {
	case errors.As(err, &own):
		return own, true
	case errors.As(err, &fromDriver):
		return &Error{Extended: int32(fromDriver.Code()), Text: fromDriver.Error()}, true
	}
	return nil, false
}

// Is tells whether an error is one of SQLite with this code.
func Is(err error, code Code) bool {
	e, ok := AsError(err)
	return ok && e.Code() == code
}

// fail describes the error that the connection's last call returned.
func (c *Conn) fail(rc int32) error {
	e := &Error{Extended: rc}
	if c.db == 0 {
		e.Text = fmt.Sprintf("SQLite error %d", rc)
		return e
	}
	e.Errno = lib.Xsqlite3_system_errno(c.tls, c.db)
	e.Text = fmt.Sprintf("%s (SQLite code %d)", libc.GoString(lib.Xsqlite3_errmsg(c.tls, c.db)), rc)
	return e
}
