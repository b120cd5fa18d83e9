package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
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
		return mvcc.Errorf(mvcc.Unavailable, "the database %s did not answer in time: %w", b.name(),
			context.Cause(ctx))
	}
	return classifyError(b.name(), err)
}

// classifyError is classify for an operation that has no context. name is how people call the
// database.
func classifyError(name string, err error) error {
	e, ok := sqlite3.AsError(err)
	if !ok {
		return mvcc.Errorf(mvcc.Unavailable, "the database %s cannot be used: %w", name, err)
	}
	switch e.Code() {
	case sqlite3.Busy, sqlite3.Locked, sqlite3.Protocol:
		return mvcc.Errorf(mvcc.Transient, "the database %s is locked by another program: %w", name,
			err)
	case sqlite3.Full:
		return full(name, err)
	case sqlite3.ReadOnly:
		return mvcc.Errorf(mvcc.ReadOnly, "the database %s cannot be written: check the "+
			"permissions of the file and its directory: %w", name, err)
	case sqlite3.Corrupt:
		return mvcc.Errorf(mvcc.Invalid, "the database %s is damaged: restore a backup: %w", name,
			err)
	case sqlite3.NotADB:
		return mvcc.Errorf(mvcc.Invalid, "the file %s is not a SQLite database: name another "+
			"file in the database URL", name)
	case sqlite3.Perm, sqlite3.Auth:
		return mvcc.Errorf(mvcc.Denied, "the database %s may not be used: check the permissions "+
			"of the file and its directory: %w", name, err)
	case sqlite3.TooBig, sqlite3.Constraint, sqlite3.Mismatch, sqlite3.Range:
		return mvcc.Errorf(mvcc.Data, "the database %s rejected a value: %w", name, err)
	case sqlite3.IOErr, sqlite3.CantOpen:
		switch errno := syscall.Errno(e.Errno); {
		case errno == syscall.ENOSPC || errno == syscall.EDQUOT:
			return full(name, err)
		case errno == syscall.EROFS:
			return mvcc.Errorf(mvcc.ReadOnly, "the file system of the database %s is read-only: %w",
				name, errno)
		case errors.Is(errno, fs.ErrPermission):
			return mvcc.Errorf(mvcc.Denied, "the database %s may not be used: check the "+
				"permissions of the file and its directory: %w", name, errno)
		case errno != 0:
			return mvcc.Errorf(mvcc.Unavailable,
				"the database %s cannot be read or written: %w (%w)", name, err, errno)
		}
	}
	return mvcc.Errorf(mvcc.Unavailable, "the database %s cannot be used: %w", name, err)
}

func full(name string, err error) error {
	return mvcc.Errorf(mvcc.Full, "there is no space left for the database %s: make room on its "+
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
	return mvcc.Errorf(mvcc.Unknown, "the database %s did not confirm a commit: %w", b.name(), err)
}

// damagedKey makes damage an error of the key at which it was found. So the group is divided, and
// the other keys are written. An index page has many keys: all of them are damaged then.
func (b *backend) damagedKey(k mvcc.Key, err error) error {
	if !sqlite3.Is(err, sqlite3.Corrupt) {
		return err
	}
	return mvcc.Errorf(mvcc.Data, "the database %s is damaged where it holds the key %q, which "+
		"cannot be written: restore a backup: %w",
		b.name(), string(k), err)
}
