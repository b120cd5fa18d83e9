package sqlite3

import (
	"context"
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// Conn is a connection. One goroutine at a time uses it.
type Conn struct {
	// Broken is set when nobody knows the connection's state any more. It must not be used again.
	Broken bool

	tls   *libc.TLS
	db    uintptr
	stmts map[string]*Stmt
	// stop points to an int32 that interrupts the running statement when it is not 0.
	stop uintptr
}

// pointer makes a pointer of an address in memory that the translated code has allocated. That
// memory is not Go's heap and does not move.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// memory is n bytes of such memory.
func memory(address uintptr, n int) []byte { return unsafe.Slice((*byte)(pointer(address)), n) }

// Open opens a database that exists, for writing if that is possible; see [Conn.ReadOnly]. The
// connection has no locks of its own: a caller hands it to one goroutine at a time.
func Open(path string) (*Conn, error) { return open(path, "", 0) }

// OpenMemory opens a database in memory, or makes it. All connections of this process that name it
// share it. It lives as long as one of them does. The name begins with a slash.
func OpenMemory(name string) (*Conn, error) { return open(name, MemoryVFS, lib.SQLITE_OPEN_CREATE) }

// MemoryVFS is SQLite's name for the file system of the databases in memory.
const MemoryVFS = "memdb"

func open(path, vfs string, flags int32) (*Conn, error) {
	c := &Conn{tls: libc.NewTLS(), stmts: map[string]*Stmt{}}
	name, err := libc.CString(path)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(c.tls, name)
	var vfsName uintptr
	if vfs != "" {
		if vfsName, err = libc.CString(vfs); err != nil {
			return nil, err
		}
		defer libc.Xfree(c.tls, vfsName)
	}
	flags |= lib.SQLITE_OPEN_READWRITE | lib.SQLITE_OPEN_NOMUTEX | lib.SQLITE_OPEN_EXRESCODE
	out := c.tls.Alloc(8)
	rc := lib.Xsqlite3_open_v2(c.tls, name, out, flags, vfsName)
	c.db = *(*uintptr)(pointer(out))
	c.tls.Free(8)
	if rc != lib.SQLITE_OK {
		err := c.fail(rc)
		lib.Xsqlite3_close_v2(c.tls, c.db)
		c.tls.Close()
		return nil, err
	}
	c.stop = libc.Xcalloc(c.tls, 1, 4)
	// SQLite calls it every 1,000 steps of its virtual machine, which take some ten microseconds.
	lib.Xsqlite3_progress_handler(c.tls, c.db, 1000, stoppedPointer, c.stop)
	return c, nil
}

// stopped is SQLite's progress handler; it ends the statement by returning 1.
func stopped(_ *libc.TLS, stop uintptr) int32 {
	return atomic.LoadInt32((*int32)(pointer(stop)))
}

// stoppedPointer is what the translated code takes for a pointer to the function: the address of a
// func value.
var (
	stoppedFunc = struct {
		f func(*libc.TLS, uintptr) int32
	}{stopped}
	stoppedPointer = *(*uintptr)(unsafe.Pointer(&stoppedFunc))
)

// Interruptible ends the connection's statement, with an error, when the context ends. It does so
// until the returned function is called.
func (c *Conn) Interruptible(ctx context.Context) (release func()) {
	flag := (*int32)(pointer(c.stop))
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		atomic.StoreInt32(flag, 1)
		close(ended)
	})
	return func() {
		if !stop() {
			<-ended
			atomic.StoreInt32(flag, 0)
		}
	}
}

// Close closes the connection. The last one to a database checkpoints its log, unless it has called
// [Conn.KeepLog].
func (c *Conn) Close() error {
	for _, s := range c.stmts {
		s.finalize()
	}
	rc := lib.Xsqlite3_close(c.tls, c.db)
	var err error
	if rc != lib.SQLITE_OK {
		err = c.fail(rc)
	}
	libc.Xfree(c.tls, c.stop)
	c.tls.Close()
	return err
}

// InTransaction tells whether BEGIN was neither committed nor rolled back.
func (c *Conn) InTransaction() bool { return lib.Xsqlite3_get_autocommit(c.tls, c.db) == 0 }

// BusyTimeout sets how long SQLite itself waits where somebody else holds a lock. Nothing
// interrupts this wait.
func (c *Conn) BusyTimeout(milliseconds int32) {
	lib.Xsqlite3_busy_timeout(c.tls, c.db, milliseconds)
}

// NoAutocheckpoint leaves it to the caller to copy the write-ahead log to the database. Otherwise
// SQLite does so within each COMMIT that leaves the log long.
func (c *Conn) NoAutocheckpoint() { lib.Xsqlite3_wal_autocheckpoint(c.tls, c.db, 0) }

// LogEnd is how long the write-ahead log of a database with pages of this size is, in bytes, or 0
// if the connection has not used it yet. The file of the log may be longer. It copies nothing.
func (c *Conn) LogEnd(pageSize int64) (int64, error) {
	// The layout of the log is that of https://sqlite.org/fileformat2.html#walformat.
	const header, frameHeader = 32, 24
	frames := c.tls.Alloc(4)
	defer c.tls.Free(4)
	rc := lib.Xsqlite3_wal_checkpoint_v2(c.tls, c.db, 0, lib.SQLITE_CHECKPOINT_NOOP, frames, 0)
	if rc != lib.SQLITE_OK {
		return 0, c.fail(rc)
	}
	n := int64(*(*int32)(pointer(frames)))
	if n <= 0 {
		return 0, nil
	}
	return header + n*(frameHeader+pageSize), nil
}

// CopyLog copies the write-ahead log to the database, up to what some reader has not seen yet. It
// waits for nobody. If it has copied all, the next writer may begin the log anew.
func (c *Conn) CopyLog() error {
	_, err := c.CopyWholeLog()
	return err
}

// CopyWholeLog is CopyLog, and reports whether nothing is left to be copied.
func (c *Conn) CopyWholeLog() (bool, error) {
	out := c.tls.Alloc(8)
	defer c.tls.Free(8)
	rc := lib.Xsqlite3_wal_checkpoint_v2(c.tls, c.db, 0, lib.SQLITE_CHECKPOINT_PASSIVE, out, out+4)
	frames, copied := *(*int32)(pointer(out)), *(*int32)(pointer(out + 4))
	ended, err := c.checkpointed(rc)
	return ended && frames == copied, err
}

// EmptyLog copies the write-ahead log to the database and empties its file. It reports whether it
// could: readers and writers of other connections may be in the way.
func (c *Conn) EmptyLog() (bool, error) {
	return c.checkpointed(lib.Xsqlite3_wal_checkpoint_v2(c.tls, c.db, 0,
		lib.SQLITE_CHECKPOINT_TRUNCATE, 0, 0))
}

// checkpointed tells from the result of a checkpoint whether nobody was in its way.
func (c *Conn) checkpointed(rc int32) (bool, error) {
	switch rc & 0xff {
	case lib.SQLITE_OK:
		return true, nil
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		return false, nil
	default:
		return false, c.fail(rc)
	}
}

// DisableLookaside gives back the memory, some 50 kB, from which SQLite takes what is small and
// short-lived. It allocates that piece by piece then. Nothing may be prepared.
func (c *Conn) DisableLookaside() error {
	args := c.tls.Alloc(24)
	defer c.tls.Free(24)
	rc := lib.Xsqlite3_db_config(c.tls, c.db, lib.SQLITE_DBCONFIG_LOOKASIDE,
		libc.VaList(args, uintptr(0), int32(0), int32(0)))
	if rc != lib.SQLITE_OK {
		return c.fail(rc)
	}
	return nil
}

// KeepLog makes Close leave the write-ahead log as it is, even if this is the last connection.
func (c *Conn) KeepLog() {
	args := c.tls.Alloc(16)
	defer c.tls.Free(16)
	lib.Xsqlite3_db_config(c.tls, c.db, lib.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE,
		libc.VaList(args, int32(1), uintptr(0)))
}

// SizeLimit bounds a database in memory.
func (c *Conn) SizeLimit(bytes int64) {
	p := c.tls.Alloc(8)
	defer c.tls.Free(8)
	*(*int64)(pointer(p)) = bytes
	lib.Xsqlite3_file_control(c.tls, c.db, 0, lib.SQLITE_FCNTL_SIZE_LIMIT, p)
}

// ReadOnly tells whether the database was opened for reading only. SQLite does that, without an
// error, for a file that cannot be written.
func (c *Conn) ReadOnly() bool {
	name := c.tls.Alloc(8)
	defer c.tls.Free(8)
	copy(memory(name, 8), "main\x00")
	return lib.Xsqlite3_db_readonly(c.tls, c.db, name) == 1
}

// Changes is the number of rows that the last INSERT, UPDATE or DELETE changed.
func (c *Conn) Changes() int { return int(lib.Xsqlite3_changes(c.tls, c.db)) }
