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
// So every operation compares, after it, the identity of the open file with that of the name
// (backend.on); it costs a microsecond. The answer of a read is dropped if the name has another
// file by then. A commit compares before it begins, too. If the file is replaced after that, its
// outcome is unknown. When the difference is seen, the write-ahead log is copied to its own file
// and emptied, and all connections are closed. That makes the moved file complete, and the log
// harmless to the new file.
//
// The next operation opens what has the name now. Another file of the same store is a restored
// copy, and has another history: all operations answer Fenced until the history was fenced. A file
// that is not that store is refused, and so is a missing one, until a person has mended it.

// hasMoved compares the file that is open with the one that has its name.
func (b *backend) hasMoved() bool {
	if b.cfg.memory() {
		return false
	}
	id, err := identify(b.cfg.path)
	return err != nil || id != b.file
}

// replaced lets go of a file that is not under its name any more, and returns the error for the
// operation that has found out, which itself ended with cause.
func (b *backend) replaced(cause error) error {
	b.long.end(errMoved)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.moved && b.hasMoved() {
		b.moved = true
		b.opts.Logger.Error("the database file was replaced or removed while it was open; "+
			"nothing more is written to it", "database", b.name())
		// A connection that was closed because of an error is not opened again for this: that would
		// open the other file.
		if c := b.commits.GetOpen(); c != nil {
			c.BusyTimeout(checkpointWait)
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
		b.name(), errMoved)
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
