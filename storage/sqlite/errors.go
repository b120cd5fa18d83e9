package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// errMoved says that the file under the database's name is not the one that is open.
var errMoved = errors.New("the database file was replaced or removed while it was open")

// errLogRemoved says that the write-ahead log of the open file is not under its name.
var errLogRemoved = errors.New("its write-ahead log was removed while it was open")

// classify makes an [contract.Error] of what went wrong in an operation that has changed nothing.
func (b *backend) classify(ctx context.Context, err error) error {
	var known *contract.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if ctx.Err() != nil {
		return contract.Errorf(contract.Unavailable, "the database %s did not answer in time: %w", b.name(),
			context.Cause(ctx))
	}
	return classifyError(b.name(), err)
}

// classifyError is classify for an operation that has no context. name is how people call the
// database.
func classifyError(name string, err error) error {
	e, ok := sqlite3.AsError(err)
	if !ok {
		return contract.Errorf(contract.Unavailable, "the database %s cannot be used: %w", name, err)
	}
	switch e.Code() {
	case sqlite3.Busy, sqlite3.Locked, sqlite3.Protocol:
		return contract.Errorf(contract.Transient, "the database %s is locked by another program: %w", name,
			err)
	case sqlite3.Full:
		return full(name, err)
	case sqlite3.ReadOnly:
		return contract.Errorf(contract.ReadOnly, "the database %s cannot be written: check the "+
			"permissions of the file and its directory: %w", name, err)
	case sqlite3.Corrupt:
		return contract.Errorf(contract.Invalid, "the database %s is damaged: restore a backup into a "+
			"new file: %w", name, err)
	case sqlite3.NotADB:
		return contract.Errorf(contract.Invalid, "the file %s is not a SQLite database: name another "+
			"file in the database URL", name)
	case sqlite3.Perm, sqlite3.Auth:
		return contract.Errorf(contract.Denied, "the database %s may not be used: check the permissions "+
			"of the file and its directory: %w", name, err)
	case sqlite3.TooBig, sqlite3.Constraint, sqlite3.Mismatch, sqlite3.Range:
		return contract.Errorf(contract.Data, "the database %s rejected a value: %w", name, err)
	case sqlite3.IOErr, sqlite3.CantOpen:
		switch errno := syscall.Errno(e.Errno); {
		case errno == syscall.ENOSPC || errno == syscall.EDQUOT:
			return full(name, err)
		case errno == syscall.EROFS:
			return contract.Errorf(contract.ReadOnly, "the file system of the database %s is read-only: %w",
				name, errno)
		case errors.Is(errno, fs.ErrPermission):
			return contract.Errorf(contract.Denied, "the database %s may not be used: check the "+
				"permissions of the file and its directory: %w", name, errno)
		case errno != 0:
			return contract.Errorf(contract.Unavailable,
				"the database %s cannot be read or written: %w (%w)", name, err, errno)
		}
	}
	return contract.Errorf(contract.Unavailable, "the database %s cannot be used: %w", name, err)
}

func full(name string, err error) error {
	return contract.Errorf(contract.Full, "there is no space left for the database %s: make room on its "+
		"file system: %w", name, err)
}

// commitOutcome classifies an error of COMMIT, after which the transaction was rolled back.
//
// A COMMIT that did not get a lock, or no space for its part of the write-ahead log, has not
// written its last frame, the one that makes the others valid. After any other error that frame may
// be in the file, though this process's index of the log does not count it: a crash at this moment
// would bring it to life. So the outcome is unknown until the next commit, which writes over it.
// Resolving it makes such a commit.
func (b *backend) commitOutcome(err error) error {
	if e, ok := sqlite3.AsError(err); ok {
		switch e.Code() {
		case sqlite3.Busy, sqlite3.Locked, sqlite3.Full, sqlite3.ReadOnly:
			return classifyError(b.name(), err)
		}
	}
	return contract.Errorf(contract.Unknown, "the database %s did not confirm a commit: %w", b.name(), err)
}

// damagedKey makes damage an error of the key at which it was found. So the group is divided, and
// the other keys are written. An index page has many keys: all of them are damaged then.
func (b *backend) damagedKey(k contract.Key, err error) error {
	if !sqlite3.Is(err, sqlite3.Corrupt) {
		return err
	}
	return contract.Errorf(contract.Data, "the database %s is damaged where it holds the key %q, which "+
		"cannot be written: restore a backup into a new file: %w",
		b.name(), string(k), err)
}
