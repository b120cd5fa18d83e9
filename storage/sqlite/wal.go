package sqlite

import (
	"os"

	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// boundLog keeps the write-ahead log from growing without end. SQLite copies it to the database at
// every COMMIT that leaves it longer than walPages, and the next writer starts it anew if no reader
// is in it at that moment; under constant readers that may never be the case. So beyond walLimit it
// is emptied by force: a checkpoint that waits for the readers that are in it, while new readers
// read the database alone.
func (b *backend) boundLog(c *sqlite3.Conn) {
	if b.cfg.memory() {
		return
	}
	size := b.walSize()
	if size < b.walLimit {
		b.walRetry = 0
		return
	}
	if size < b.walRetry {
		return
	}
	c.BusyTimeout(checkpointWait)
	emptied, err := c.Checkpoint()
	c.BusyTimeout(0)
	switch {
	case err != nil:
		b.opts.Logger.Warn("cannot copy the write-ahead log to the database; trying again when "+
			"it has grown", "database", b.name(), "bytes", size, "err", err)
	case !emptied:
		b.opts.Logger.Warn("a reader holds the write-ahead log; trying again when it has grown",
			"database", b.name(), "bytes", size)
	}
	if err != nil || !emptied {
		b.walRetry = size + b.walLimit/4
	}
}

const (
	// walPages is the length at which a COMMIT copies the log to the database: 8 MiB. A page that
	// was changed many times is copied once, so with a quarter of it commits are a fifth slower;
	// with more they are not faster, but the one that copies takes longer.
	walPages = 8 << 20 / pageSize
	// walLimit is the length in bytes at which it is emptied by force.
	walLimit = 64 << 20
	// checkpointWait is how long, in milliseconds, writers wait for the readers in a log that is
	// too long.
	checkpointWait = 200
)

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
