package sqlite3

import (
	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// syncData makes durable what was written to a file, and of the rest what is needed to read it
// back, its size for instance. The translated code was compiled without fdatasync and has fsync in
// its place, for which the file system writes the time of the change as well. It reports false if
// it has done nothing: SQLite synchronizes the directory of a new file, too.
func syncData(tls *libc.TLS, file uintptr) (rc int32, done bool) {
	f := (*lib.TunixFile)(pointer(file))
	if f.FctrlFlags&lib.UNIXFILE_DIRSYNC != 0 {
		return lib.SQLITE_OK, false
	}
	if libc.Xfdatasync(tls, f.Fh) != 0 {
		return lib.SQLITE_IOERR_FSYNC, true // never tried again, since that might succeed in vain
	}
	return lib.SQLITE_OK, true
}
