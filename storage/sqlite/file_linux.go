package sqlite

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fileID tells one file from another of the same name. It never opens the file: a process that
// closes a database file which SQLite has open as well loses SQLite's locks on it.
type fileID struct {
	device, inode uint64
	// born is the time when the file was created, in nanoseconds, or 0 where the file system does
	// not know: a number of an inode may be given to the next file as soon as the first one is
	// deleted.
	born int64
}

// String is what of it the fingerprint has; see [place].
func (id fileID) String() string { return fmt.Sprintf("%x:%x", id.inode, id.born) }

// identify returns the identity of the file, following symbolic links.
func identify(path string) (fileID, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fileID{}, err
		}
		id := fileID{device: unix.Mkdev(st.Dev_major, st.Dev_minor), inode: st.Ino}
		if st.Mask&unix.STATX_BTIME != 0 {
			id.born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
		}
		return id, nil
	}
}
