package sqlite

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strconv"

	lib "modernc.org/sqlite/lib"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

// Driver serves the URL schemes "sqlite" and "memory".
var Driver mvcc.Driver = driver{}

type driver struct{}

func (driver) Name() string { return "sqlite" }

func (driver) Schemes() []string { return []string{"sqlite", "memory"} }

const (
	// pageSize in bytes, fixed when the file is created. A page of SQLite's default 4096 would hold three rows with values of 1 KB, and most objects would
	// not fit into one: files are a seventh smaller this way, and creations take a fifth less CPU.
	pageSize = 8192
	// applicationID is what the first migration writes to the file's header.
	applicationID = 0x526b7072
	// openWait is how long, in milliseconds, the opening of a connection waits for locks. It cannot be interrupted.
	openWait = 5000
	// checkedSize is the size up to which a file is checked as a whole when it is opened, which takes some tenths of a second.
	checkedSize = 32 << 20
)

// Open opens the store in a file, or makes one in memory.
func (driver) Open(ctx context.Context, url string, opts mvcc.DriverOptions) (mvcc.Backend, error) {
	cfg, err := parse(url)
	if err != nil {
		return nil, err
	}
	b := newBackend(cfg, opts)
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	if b.store, _, err = b.openFirst(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func newBackend(cfg config, opts mvcc.DriverOptions) *backend {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	b := &backend{cfg: cfg, opts: opts, dbName: cfg.path, wal: cfg.path + "-wal", walLimit: walLimit}
	if cfg.memory() {
		// SQLite keeps it for as long as a connection is open, which is shared by all operations: memory has no readers beside a writer.
		b.vfs, b.dbName = "memdb", "/rowkeeper-"+rand.Text()
		p := newPool("commit", 1, b.connect)
		b.commits, b.heads, b.tails, b.reads, b.polls = p, p, p, p, p
		b.Reader = sqlread.NewReader(b, &reads, 1)
		return b
	}
	b.commits = newPool("commit", 1, b.connectWriter)
	// Reads of the head and of the log have connections of their own, which no number of lists can take.
	b.heads = newPool("head", 1, b.connectReader)
	b.tails = newPool("tail", 2, b.connectReader)
	b.reads = newPool("read", cfg.readers, b.connectReader)
	b.polls = newPool("poll", 1, b.connectReader)
	b.Reader = sqlread.NewReader(b, &reads, cfg.readers)
	return b
}

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
