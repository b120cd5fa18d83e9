package sqlite

import (
	"context"
	"errors"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A database file can be renamed, deleted or replaced while it is open. SQLite does not notice: it
// goes on with the file that it has open, so what it commits is lost to everybody who opens the
// name; worse, the write-ahead log is found by name, and whoever opens a new file of that name
// applies the old file's log to it.
//
// The log can be removed as well, and then there are two: the one that is open, without a name, and
// the one that the next process makes.
//
// So every operation compares, after it, the identities of the open file and its log with those of
// their names (backend.on); it costs two microseconds. The answer of a read is dropped if the name
// has another file by then. A commit compares before it begins, too. If the file is replaced after
// that, its outcome is unknown. When the difference is seen, the write-ahead log is copied to its
// own file and emptied, and all connections are closed. That makes the moved file complete, and the
// log harmless to the new file.
//
// The next operation opens what has the name now. Another file of the same store is a restored
// copy, and has another history: all operations answer Fenced until the history was fenced. A file
// that is not that store is refused, and so is a missing one, until a person has mended it. So is
// the file itself, if its log is gone and could not be saved; see mark.go.

// displaced compares the files that are open with the files that have their names now: errMoved
// tells that the database's is another one, and errLogRemoved that its log's is.
func (b *backend) displaced() error {
	if b.cfg.memory() {
		return nil
	}
	if id, err := identify(b.cfg.path); err != nil || id != b.file {
		return errMoved
	}
	if b.log == (fileID{}) {
		return nil
	}
	if id, err := identify(b.wal); err != nil || id != b.log {
		return errLogRemoved
	}
	return nil
}

// replaced lets go of a file that is not under its name any more, or without its log, and returns
// the error for the operation that has found out, which itself ended with cause.
func (b *backend) replaced(cause error) error {
	b.long.end(errMoved)
	b.mu.Lock()
	defer b.mu.Unlock()
	var why error
	if !b.moved {
		why = b.displaced()
	}
	if why == nil {
		why = errMoved // it is known already, or the file has come back
	}
	switch {
	case b.moved:
	case errors.Is(why, errLogRemoved):
		b.moved = true
		b.opts.Logger.Error("the write-ahead log of the database was removed while it was open; "+
			"nothing more is written to it", "database", b.name(), "log", b.wal)
		if err := b.letGoOfLog(); err != nil {
			b.opts.Logger.Error("cannot close the file without a log", "database", b.name(), "err",
				err)
		}
	case b.displaced() != nil:
		b.moved = true
		b.opts.Logger.Error("the database file was replaced or removed while it was open; "+
			"nothing more is written to it", "database", b.name())
		// A connection that was closed because of an error is not opened again for this: that would
		// open the other file.
		if c := b.commits.GetOpen(); c != nil {
			c.BusyTimeout(checkpointWait)
			if err := putMark(c, markClosed); err != nil {
				b.opts.Logger.Error("cannot mark the replaced file as whole: who opens it takes "+
					"its write-ahead log for lost", "err", err)
			}
			if emptied, err := c.EmptyLog(); err != nil || !emptied {
				b.opts.Logger.Error("cannot empty the write-ahead log of the replaced file: "+
					"remove it before the new file is opened", "log", b.wal, "err", err)
			}
			b.commits.Put(c)
		}
		if err := b.closeAll(); err != nil {
			b.opts.Logger.Error("cannot close the replaced file", "database", b.name(), "err", err)
		}
	}
	var known *contract.Error
	if errors.As(cause, &known) && known.Class == contract.Unknown {
		return known
	}
	return contract.Errorf(contract.Fenced, "the database %s cannot be trusted any more: %w",
		b.name(), why)
}

// reopen opens the file that has the name now.
func (b *backend) reopen(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b.errClosed()
	}
	if !b.moved {
		return nil
	}
	old := b.file
	_, recorded, err := b.openFirst(ctx)
	if err == nil && b.lost.Load() {
		err = errors.Join(b.errLost("restart the server to go on with what is left"), b.closeAll())
	}
	if err != nil {
		return err
	}
	b.moved = false
	b.copyDue, b.logEnd, b.copyRetry, b.emptyRetry = false, 0, 0, 0
	id := contract.Identity{Recorded: recorded, Actual: b.fingerprint()}
	if b.file != old && id.Moved() {
		b.fenced.Store(true)
	}
	b.opts.Logger.Warn("opened the database file again", "database", b.name(), "replaced",
		b.file != old)
	return nil
}

// checkFence refuses operations on a file that took another one's place.
func (b *backend) checkFence() error {
	if b.fenced.Load() {
		return contract.Errorf(contract.Fenced, "the database file %s was replaced while it was open, "+
			"and its history must be fenced", b.name())
	}
	return nil
}
