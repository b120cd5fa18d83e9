package sqlite

import (
	lib "modernc.org/sqlite/lib"

	"errors"
	"strconv"
)

// connect opens a connection and sets what holds for all.
func (b *backend) connect() (*conn, error) {
	// Another file of this name would be read together with the log of the one that is open.
	if b.hasMoved() {
		return nil, errMoved
	}
	c, err := openConn(b.dbName, b.vfs, b.openFlags())
	if err != nil {
		return nil, err
	}
	// Whoever opens a database waits for a process that is just creating or closing it, or recovers the write-ahead log.
	c.busyTimeout(openWait)
	// Sorted rows and the like go to memory, never to a file.
	if err := c.set("temp_store", "MEMORY"); err != nil {
		return nil, c.giveUp(err)
	}
	return c, nil
}

// giveUp closes a connection that could not be set up, and returns the reason.
func (c *conn) giveUp(err error) error { return errors.Join(err, c.close()) }

func (b *backend) openFlags() int32 {
	if b.cfg.memory() {
		return lib.SQLITE_OPEN_CREATE
	}
	return 0
}

// connectWriter opens the writing connection. Its cache stays valid as long as no other process writes, so it is worth more than
// those of readers, which each commit empties.
func (b *backend) connectWriter() (*conn, error) {
	c, err := b.connect()
	if err != nil {
		return nil, err
	}
	// fullfsync makes FULL true on macOS, where fsync alone does not reach the disk; it does nothing elsewhere.
	for _, p := range [][2]string{
		{"synchronous", b.cfg.synchronous},
		{"fullfsync", strconv.FormatBool(b.cfg.synchronous == "FULL")},
		{"checkpoint_fullfsync", strconv.FormatBool(b.cfg.synchronous != "OFF")},
		{"cache_size", strconv.Itoa(-b.cfg.cacheKiB)},
	} {
		if err := c.set(p[0], p[1]); err != nil {
			return nil, c.giveUp(err)
		}
	}
	c.autocheckpoint(walPages)
	c.busyTimeout(0) // begin waits by itself
	return c, nil
}

// connectReader opens a connection that cannot write.
func (b *backend) connectReader() (*conn, error) {
	c, err := b.connect()
	if err != nil {
		return nil, err
	}
	// Should the file have been replaced a moment ago, closing this connection must not apply the log of the old one to the new one.
	c.keepLog()
	for _, p := range [][2]string{{"query_only", "ON"}, {"cache_size", "-4096"}} {
		if err := c.set(p[0], p[1]); err != nil {
			return nil, c.giveUp(err)
		}
	}
	return c, nil
}

// set sets a PRAGMA.
func (c *conn) set(name, value string) error {
	_, err := c.once("PRAGMA " + name + " = " + value)
	return err
}
