package sqlite3

import (
	"encoding/binary"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// log stands between SQLite and the file of a connection's write-ahead log while the connection
// commits. SQLite writes a frame, a page with its header, in two calls of the operating system, and
// a commit has some dozens of frames that lie next to each other. log collects them, and writes
// them in one call.
//
// It holds nothing back that somebody could ask for. Other connections read the frames of a commit
// only when the index says that they are there, which is after the last of them was written. The
// header of the last frame says that it is the last, and log writes all it has when that frame is
// complete. SQLite itself reads frames of its own commit only after that, to rewrite checksums.
// Those that it had to write before the COMMIT were not collected.
//
// What a failed commit leaves is never written: a rollback only reads the file, perhaps when
// another process has the lock of writers already, and [Conn.Commit] drops the rest.
//
// The layout of a frame is that of https://sqlite.org/fileformat2.html#walformat.
type log struct {
	file uintptr
	// methods are the file's methods with those of log among them, in memory of the translated
	// code, and old are the ones it had.
	methods uintptr
	old     *lib.Tsqlite3_io_methods
	// The translated code has the addresses of these func values.
	write func(tls *libc.TLS, file, p uintptr, n int32, offset int64) int32
	sync  func(tls *libc.TLS, file uintptr, flags int32) int32

	// committing is set during a COMMIT. Otherwise nothing is collected.
	committing bool
	// buf has room for logBytes. The first n of them are to be written at start.
	buf   uintptr
	n     int
	start int64
	// end is where the last write has ended, be it done or collected.
	end int64
	// last is set after the header of a commit's last frame.
	last bool
}

const (
	logBytes    = 64 << 10
	frameHeader = 24
)

// newLog puts a log before a file that is open.
func newLog(tls *libc.TLS, file uintptr) *log {
	f := (*lib.Tsqlite3_file)(pointer(file))
	l := &log{file: file, old: (*lib.Tsqlite3_io_methods)(pointer(f.FpMethods))}
	l.write, l.sync = l.xWrite, l.xSync
	l.methods = libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(*l.old)))
	l.buf = libc.Xmalloc(tls, logBytes)
	if l.methods == 0 || l.buf == 0 {
		panic("sqlite3: out of memory")
	}
	methods := (*lib.Tsqlite3_io_methods)(pointer(l.methods))
	*methods = *l.old
	methods.FxWrite = *(*uintptr)(unsafe.Pointer(&l.write))
	methods.FxSync = *(*uintptr)(unsafe.Pointer(&l.sync))
	f.FpMethods = l.methods
	return l
}

// begin begins to collect.
func (l *log) begin() { l.committing, l.end, l.last = true, 0, false }

// stop ends that, and drops what a commit that has failed has left.
func (l *log) stop() { l.committing, l.n = false, 0 }

// free gives back memory after the connection was closed.
func (l *log) free(tls *libc.TLS) {
	libc.Xfree(tls, l.buf)
	libc.Xfree(tls, l.methods)
}

// xWrite collects what follows the last write, or comes after it, and writes all when a commit is
// complete. What lies before it rewrites a frame.
func (l *log) xWrite(tls *libc.TLS, _, p uintptr, n int32, offset int64) int32 {
	if !l.committing || offset < l.end || n > logBytes {
		if rc := l.flush(tls); rc != lib.SQLITE_OK {
			return rc
		}
		return l.through(tls, p, n, offset)
	}
	if offset != l.end || l.n+int(n) > logBytes {
		if rc := l.flush(tls); rc != lib.SQLITE_OK {
			return rc
		}
	}
	if l.n == 0 {
		l.start = offset
	}
	data := memory(p, int(n))
	copy(memory(l.buf+uintptr(l.n), int(n)), data)
	l.n += int(n)
	l.end = offset + int64(n)
	if n == frameHeader {
		l.last = binary.BigEndian.Uint32(data[4:]) != 0 // the database's size after a commit
		return lib.SQLITE_OK
	}
	if l.last {
		return l.flush(tls)
	}
	return lib.SQLITE_OK
}

func (l *log) xSync(tls *libc.TLS, file uintptr, flags int32) int32 {
	if rc := l.flush(tls); rc != lib.SQLITE_OK {
		return rc
	}
	if rc, done := syncData(tls, file); done {
		return rc
	}
	return (*(*func(*libc.TLS, uintptr, int32) int32)(unsafe.Pointer(&l.old.FxSync)))(tls, file,
		flags)
}

// flush writes what was collected.
func (l *log) flush(tls *libc.TLS) int32 {
	if l.n == 0 {
		return lib.SQLITE_OK
	}
	n := l.n
	l.n = 0
	return l.through(tls, l.buf, int32(n), l.start)
}

// through writes to the file.
func (l *log) through(tls *libc.TLS, p uintptr, n int32, offset int64) int32 {
	return (*(*func(*libc.TLS, uintptr, uintptr, int32, int64) int32)(unsafe.Pointer(
		&l.old.FxWrite)))(tls, l.file, p, n, offset)
}
