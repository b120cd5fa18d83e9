//go:build unix && !linux

package sqlite

import (
	"fmt"
	"syscall"
)

// fileID tells one file from another of the same name. It never opens the file: a process that
// closes a database file which SQLite has open as well loses SQLite's locks on it.
type fileID struct{ device, inode uint64 }

// String is what of it the fingerprint has; see [place].
func (id fileID) String() string { return fmt.Sprintf("%x", id.inode) }

// identify returns the identity of the file, following symbolic links.
func identify(path string) (fileID, error) {
	var st syscall.Stat_t
	for {
		err := syscall.Stat(path, &st)
		if err == syscall.EINTR {
			continue
		}
		return fileID{device: uint64(st.Dev), inode: uint64(st.Ino)}, err
	}
}

// namesOf counts the hard links of a file. Whether it is mounted by itself is not known here.
func namesOf(path string) (links uint64, mounted bool) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return 0, false // whoever opens it says so
	}
	return uint64(st.Nlink), false
}
