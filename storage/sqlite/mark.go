package sqlite

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// The file's mark, SQLite's user_version, tells whether a write-ahead log belongs to the file. The
// package documentation has the argument, "A log that is gone".
//
// If markOpen is in the log, the file is marked: markOpen was committed after markOpening had been
// copied to the file, and before anybody had committed anything else.
const (
	markClosed  = 0 // all commits are in the file
	markOpening = 1 // somebody is about to commit
	markOpen    = 2 // somebody commits
	markLost    = 3 // a log was lost, and no history was begun since
)

// readMark reads the mark in a transaction, or in one of its own.
func readMark(c *sqlite3.Conn) (mark int64, err error) {
	s, err := c.Prepare(selectMark)
	if err != nil {
		return 0, err
	}
	_, err = s.Row(func() { mark = s.ColInt(0) })
	return mark, err
}

// putMark writes the mark in a transaction, or in one of its own.
func putMark(c *sqlite3.Conn, mark int64) error {
	return c.Exec([]string{updateMarkClosed, updateMarkOpening, updateMarkOpen,
		updateMarkLost}[mark])
}

// markTries is how often a commit tries to mark the file while others commit in between.
const markTries = 3

// markFile makes sure, as far as readers let it, that the file is marked before the transaction
// that has begun is committed. It may end that transaction and begin another one.
func (b *backend) markFile(ctx context.Context, c *sqlite3.Conn) error {
	if b.cfg.memory() {
		return nil
	}
	for range markTries {
		mark, err := readMark(c)
		if err != nil || mark == markOpen {
			return err
		}
		if b.unfenced {
			// The fence comes first. Somebody else who opens the file would take a log that has no
			// fence in it for the one of another file.
			return putMark(c, markOpening)
		}
		if mark == markClosed {
			if err = putMark(c, markOpening); err == nil {
				err = c.Exec(commit)
			}
		} else {
			err = c.Exec(rollback)
		}
		if err != nil {
			return err
		}
		before, err := versionOf(c)
		if err != nil {
			return err
		}
		copied, copyErr := c.CopyWholeLog()
		if err := b.begin(ctx, c); err != nil {
			return err
		}
		after, err := versionOf(c)
		switch {
		case err != nil:
			return err
		case copyErr != nil || !copied:
			// A reader is in the way, or the disk: the next commit tries again.
			return putMark(c, markOpening)
		case before == after: // nobody has committed since, so the mark is what was copied
			return putMark(c, markOpen)
		}
	}
	return nil
}

// versionOf changes when another connection has committed.
func versionOf(c *sqlite3.Conn) (version int64, err error) {
	s, err := c.Prepare(dataVersion)
	if err != nil {
		return 0, err
	}
	_, err = s.Row(func() { version = s.ColInt(0) })
	return version, err
}

// lostLog tells whether the file had a write-ahead log that is gone.
func (b *backend) lostLog(c *sqlite3.Conn) (lost bool, err error) {
	s, err := c.Prepare(selectMark)
	if err != nil {
		return false, err
	}
	_, err = s.Row(func() {
		lost = logLost(s.ColInt(0), b.walSize())
	})
	return lost, err
}

// logLost decides by the mark that is read from a file, and the length of its log while it is read.
// A file is marked by a checkpoint only, which leaves the frame of the mark in the log. The code
// that takes that away says so: a clean close commits markClosed before, and emptyLog commits the
// mark anew.
func logLost(mark, bytes int64) bool {
	return mark == markLost || mark != markClosed && bytes == 0
}

// errLost describes a lost log. what says what is done about it.
func (b *backend) errLost(what string) error {
	return contract.Errorf(contract.Invalid, "the write-ahead log %s of the database was removed before it "+
		"was copied to the file, and the newest writes are lost with it: put the log back while no "+
		"server runs, or %s", b.wal, what)
}

// emptyLog copies the log to the file and empties it. An empty log beside a marked file is a lost
// one, so the mark is committed anew.
func (b *backend) emptyLog(c *sqlite3.Conn) (emptied bool, err error) {
	if emptied, err = c.EmptyLog(); err != nil || !emptied {
		return emptied, err
	}
	mark, err := readMark(c)
	if err == nil && mark != markClosed {
		err = putMark(c, mark)
	}
	return true, err
}

// finish prepares the writing connection, which is the backend's last one, for a clean close.
func (b *backend) finish(c *sqlite3.Conn) {
	mark, err := readMark(c)
	if err == nil && mark == markClosed {
		return
	}
	if err == nil && b.wrote {
		c.BusyTimeout(checkpointWait)
		if err = c.CopyLog(); err == nil {
			err = putMark(c, markClosed)
		}
		if err == nil {
			return
		}
	}
	c.KeepLog()
}

// letGoOfLog saves a log whose name is gone, if that harms nobody, and closes the file.
func (b *backend) letGoOfLog() error {
	b.wrote = false // what is done to the mark is done here
	if c := b.commits.GetOpen(); c != nil {
		c.BusyTimeout(checkpointWait)
		if b.walSize() > 0 || putMark(c, markClosed) != nil {
			c.KeepLog()
		}
		b.commits.Put(c)
	}
	return b.closeAll()
}
