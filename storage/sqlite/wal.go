package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

const (
	// logCopied is the length of the write-ahead log at which it is copied to the database. A page
	// that was changed many times is copied once, so with a quarter of it commits are a fifth
	// slower; with more they are not faster, but a commit waits longer for the copy.
	logCopied = 8 << 20
	// logLimit is the length at which it is emptied by force.
	logLimit = 64 << 20
	// checkpointWait is how long, in milliseconds, writers wait for the readers in a log that is
	// too long.
	checkpointWait = 200
)

// committed makes a copy of the log due if it is long, be it by commits or by a large transaction
// that was rolled back. The copy takes longer than the commit, and waits for the disk. So it is
// made when the commit was answered, while those who have waited for it go on. It is made before
// the next commit, so the reserve of a full disk has room for it.
func (b *backend) committed(c *sqlite3.Conn) {
	if b.cfg.memory() {
		return
	}
	end, err := c.LogEnd(pageSize)
	if err != nil {
		return // the next commit reads the same, and reports what is wrong
	}
	if end < b.logEnd { // the log was begun anew: whatever held it is gone
		b.copyRetry, b.emptyRetry = 0, 0
	}
	b.logEnd = end
	long := end >= max(b.logCopied, b.copyRetry) ||
		end >= b.emptyRetry && b.walSize() >= b.logLimit
	if long && !b.copyDue {
		b.copyDue = true
		go b.copySoon()
	}
}

// copySoon makes the copy that is due, if no writer has come before. It is an operation like
// others: it ends before the connection is closed.
func (b *backend) copySoon() {
	ctx, cancel := b.timeout(context.Background())
	defer cancel()
	// What goes wrong with the log is logged. What goes wrong before that also ends the next
	// commit, after which this is tried again. After a panic the next commit makes the copy, where
	// a panic closes no more than the store.
	err := contract.Recovered(func() error {
		return b.on(ctx, b.commits, func(c *sqlite3.Conn) error {
			copied := false
			defer func() { b.copyDue = b.copyDue || !copied }()
			b.copyLog(c)
			copied = true
			return nil
		})
	})
	if p := (*contract.PanicError)(nil); errors.As(err, &p) {
		b.opts.Logger.Error("to copy the write-ahead log has panicked; the next commit tries again",
			"database", b.name(), "panic", fmt.Sprint(p.Value), "stack", p.Stack)
	}
}

// copyLog keeps the write-ahead log from growing without end. It copies the log to the database,
// if that is due, and the next writer starts it anew if no reader is in it at that moment; under
// constant readers that may never be the case. So beyond logLimit it is emptied by force: by a
// checkpoint that waits for the readers that are in it, while new readers read the database alone.
// A file that was replaced is left alone.
func (b *backend) copyLog(c *sqlite3.Conn) {
	if !b.copyDue || b.displaced() != nil {
		return
	}
	b.copyDue, b.copyRetry = false, 0
	err, emptied := c.CopyLog(), true
	if err != nil {
		b.copyRetry = b.logEnd + b.logCopied/8
	}
	size := b.walSize()
	if err == nil && size >= b.logLimit && b.logEnd >= b.emptyRetry {
		c.BusyTimeout(checkpointWait)
		emptied, err = b.emptyLog(c)
		c.BusyTimeout(0)
		if err != nil || !emptied {
			b.emptyRetry = b.logEnd + b.logLimit/4
		}
	}
	switch {
	case err != nil:
		b.opts.Logger.Warn("cannot copy the write-ahead log to the database; trying again when "+
			"it has grown", "database", b.name(), "bytes", size, "err", err)
	case !emptied:
		b.opts.Logger.Warn("a reader holds the write-ahead log; trying again when it has grown",
			"database", b.name(), "bytes", size)
	}
}

// syncLog makes durable what the write-ahead log of a file shows, as a connection has found it.
//
// SQLite writes a commit to the log, waits for the disk, and shows it then. If the process is
// killed in between, the commit is in the operating system's memory. Whoever opens the file next
// counts it when the log is recovered, and SQLite does not wait for the disk then. A power failure
// would undo what was shown, and an update that changes nothing would have been acknowledged by it.
// So nothing is answered before this has succeeded.
func syncLog(wal string) error {
	f, err := os.OpenFile(wal, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		f, err = os.Open(wal) // not every system waits for a file that cannot be written
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = errors.Join(syncFile(f), f.Close())
	}
	if err != nil {
		return contract.Errorf(contract.Unavailable, "what the write-ahead log %s holds cannot be made "+
			"durable, so nothing of it is shown: check the disk: %w", wal, err)
	}
	return nil
}

// syncFile is replaced by tests.
var syncFile = (*os.File).Sync

// walOf is the write-ahead log of a file, which lies where the file itself is, whatever symbolic
// links lead there.
func walOf(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	return path + "-wal"
}

// walSize is the length of the write-ahead log's file.
func (b *backend) walSize() int64 {
	if b.cfg.memory() {
		return 0
	}
	fi, err := os.Stat(b.wal)
	if err != nil {
		return 0 // there is none yet
	}
	return fi.Size()
}
