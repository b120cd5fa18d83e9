package sqlite3

import (
	"testing"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// An error of fdatasync is one of the COMMIT, and a file that is new is left to SQLite.
func TestSyncData(t *testing.T) {
	tls := libc.NewTLS()
	defer tls.Close()
	f := &lib.TunixFile{Fh: -1}
	if rc, done := syncData(tls, uintptr(unsafe.Pointer(f))); !done || rc != lib.SQLITE_IOERR_FSYNC {
		t.Errorf("a file that cannot be synchronized: %d, %v", rc, done)
	}
	f.FctrlFlags = lib.UNIXFILE_DIRSYNC
	if _, done := syncData(tls, uintptr(unsafe.Pointer(f))); done {
		t.Error("the directory of a new file is not synchronized")
	}
}
