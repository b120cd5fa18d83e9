package sqlite

import (
	"errors"
	"strconv"

	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// openWait is how long, in milliseconds, the opening of a connection waits for locks: other
// processes may be creating or closing the database, or recovering its write-ahead log. Nothing
// interrupts it.
const openWait = 5000

// connect opens a connection and makes the settings that all connections have.
func (b *backend) connect() (*sqlite3.Conn, error) {
	// Another file of this name would be read together with the log of the one that is open.
	if err := b.displaced(); err != nil {
		return nil, err
	}
	open := sqlite3.Open
	if b.cfg.memory() {
		open = sqlite3.OpenMemory
	}
	c, err := open(b.dbName)
	if err != nil {
		return nil, err
	}
	c.BusyTimeout(openWait)
	// Sorted rows and the like go to memory, never to a file.
	return setUp(c, [][2]string{{"temp_store", "MEMORY"}})
}

// setUp sets PRAGMAs. It closes a connection that cannot be set up.
func setUp(c *sqlite3.Conn, pragmas [][2]string) (*sqlite3.Conn, error) {
	for _, p := range pragmas {
		if err := c.Set(p[0], p[1]); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// connectWriter opens the writing connection. Its cache stays valid as long as no other process
// writes, so a large one pays. Each commit empties the caches of readers.
func (b *backend) connectWriter() (*sqlite3.Conn, error) {
	c, err := b.connect()
	if err != nil {
		return nil, err
	}
	if err := setSynchronous(c, b.cfg.synchronous); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if c, err = setUp(c, [][2]string{
		{"checkpoint_fullfsync", strconv.FormatBool(b.cfg.synchronous != "OFF")},
		{"cache_size", strconv.Itoa(-b.cfg.cacheKiB)},
	}); err != nil {
		return nil, err
	}
	// The settings have read the schema, so the log is recovered. With relaxed durability nobody
	// relies on it, and the boot is recorded.
	if b.cfg.synchronous == "FULL" {
		if err := syncLog(b.wal); err != nil {
			c.KeepLog()
			return nil, errors.Join(err, c.Close())
		}
	}
	c.NoAutocheckpoint() // see copyLog
	// begin waits by itself. The settings above read the schema, and wait as every statement does.
	c.BusyTimeout(0)
	return c, nil
}

// setSynchronous makes the commits of a connection as durable as synchronous says. fullfsync makes
// FULL true on macOS, where fsync alone does not reach the disk.
func setSynchronous(c *sqlite3.Conn, synchronous string) error {
	if err := c.Set("fullfsync", strconv.FormatBool(synchronous == "FULL")); err != nil {
		return err
	}
	return c.Set("synchronous", synchronous)
}

// connectReader opens a connection that cannot write.
func (b *backend) connectReader() (*sqlite3.Conn, error) {
	c, err := b.connect()
	if err != nil {
		return nil, err
	}
	// If the file was replaced a moment ago, closing this connection must not apply the log of the
	// old one to the new one.
	c.KeepLog()
	c, err = setUp(c, [][2]string{{"query_only", "ON"}, {"cache_size", "-4096"}})
	if err != nil {
		return nil, err
	}
	// Each open store has several readers.
	if err := c.DisableLookaside(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}
