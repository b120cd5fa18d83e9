package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// errMoved says that the file under the database's name is not the one that is open.
var errMoved = errors.New("the database file was replaced or removed while it was open")

// classify makes an [mvcc.Error] of what went wrong in an operation that has changed nothing.
func (b *backend) classify(ctx context.Context, err error) error {
	var known *mvcc.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if ctx.Err() != nil {
		return mvcc.Errorf(mvcc.Unavailable, "the database %s did not answer in time: %w", b.name(), context.Cause(ctx))
	}
	return classifyError(b.name(), err)
}

// classifyError is classify for an operation that has no context. name is how people call the database.
func classifyError(name string, err error) error {
	var e *sqliteError
	var fromDriver *sqlite.Error // of the migrations, which use database/sql
	switch {
	case errors.As(err, &e):
	case errors.As(err, &fromDriver):
		e = &sqliteError{code: int32(fromDriver.Code())}
	default:
		return mvcc.Errorf(mvcc.Unavailable, "the database %s cannot be used: %w", name, err)
	}
	switch e.primary() {
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_PROTOCOL:
		return mvcc.Errorf(mvcc.Transient, "the database %s is locked by another program: %w", name, err)
	case lib.SQLITE_FULL:
		return full(name, err)
	case lib.SQLITE_READONLY:
		return mvcc.Errorf(mvcc.ReadOnly, "the database %s cannot be written: check the permissions of the file and its directory: %w", name, err)
	case lib.SQLITE_CORRUPT:
		return mvcc.Errorf(mvcc.Invalid, "the database %s is damaged: restore a backup: %w", name, err)
	case lib.SQLITE_NOTADB:
		return mvcc.Errorf(mvcc.Invalid, "the file %s is not a SQLite database: name another file in the database URL", name)
	case lib.SQLITE_PERM, lib.SQLITE_AUTH:
		return mvcc.Errorf(mvcc.Denied, "the database %s may not be used: check the permissions of the file and its directory: %w", name, err)
	case lib.SQLITE_TOOBIG, lib.SQLITE_CONSTRAINT, lib.SQLITE_MISMATCH, lib.SQLITE_RANGE:
		return mvcc.Errorf(mvcc.Data, "the database %s rejected a value: %w", name, err)
	case lib.SQLITE_IOERR, lib.SQLITE_CANTOPEN:
		switch errno := syscall.Errno(e.errno); {
		case errno == syscall.ENOSPC || errno == syscall.EDQUOT:
			return full(name, err)
		case errno == syscall.EROFS:
			return mvcc.Errorf(mvcc.ReadOnly, "the file system of the database %s is read-only: %w", name, errno)
		case errors.Is(errno, fs.ErrPermission):
			return mvcc.Errorf(mvcc.Denied, "the database %s may not be used: check the permissions of the file and its directory: %w", name, errno)
		case errno != 0:
			return mvcc.Errorf(mvcc.Unavailable, "the database %s cannot be read or written: %w (%w)", name, err, errno)
		}
	}
	return mvcc.Errorf(mvcc.Unavailable, "the database %s cannot be used: %w", name, err)
}

func full(name string, err error) error {
	return mvcc.Errorf(mvcc.Full, "there is no space left for the database %s: make room on its file system: %w", name, err)
}

// commitOutcome classifies an error of COMMIT, after which the transaction was rolled back.
//
// A COMMIT that did not get a lock, or no space for its part of the write-ahead log, has not written its last frame, the one that makes
// the others valid. After any other error that frame may be in the file, though this process's index of the log does not count it:
// a crash at this moment would bring it to life. So the outcome is unknown until the next commit, which writes over it. Resolving
// it makes such a commit.
func (b *backend) commitOutcome(err error) error {
	var e *sqliteError
	if errors.As(err, &e) {
		switch e.primary() {
		case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_FULL, lib.SQLITE_READONLY:
			return classifyError(b.name(), err)
		}
	}
	return mvcc.Errorf(mvcc.Unknown, "the database %s did not confirm a commit: %w", b.name(), err)
}

// damagedKey makes an error about damage one of the key at which it was found, so that the group is divided
// and the other keys are written. An index page has many keys: all of them are damaged then.
func (b *backend) damagedKey(k mvcc.Key, err error) error {
	if !isCorrupt(err) {
		return err
	}
	return mvcc.Errorf(mvcc.Data, "the database %s is damaged where it holds the key %q, which cannot be written: restore a backup: %w",
		b.name(), string(k), err)
}

func isCorrupt(err error) bool {
	var e *sqliteError
	return errors.As(err, &e) && e.primary() == lib.SQLITE_CORRUPT
}

func isBusy(err error) bool {
	var e *sqliteError
	return errors.As(err, &e) && e.primary() == lib.SQLITE_BUSY
}
