package sqlite

import (
	"fmt"
	"path/filepath"

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
	st, err := statx(path, unix.STATX_INO|unix.STATX_BTIME)
	if err != nil {
		return fileID{}, err
	}
	id := fileID{device: unix.Mkdev(st.Dev_major, st.Dev_minor), inode: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return id, nil
}

func statx(path string, mask int) (st unix.Statx_t, err error) {
	for {
		if err = unix.Statx(unix.AT_FDCWD, path, 0, mask, &st); err != unix.EINTR {
			return st, err
		}
	}
}

// namesOf counts the hard links of a file, and tells whether it is mounted by itself, so that it
// is in another directory elsewhere. Linux before 5.8 does not tell the latter.
func namesOf(path string) (links uint64, mounted bool) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return 0, false // whoever opens it says so
	}
	file, err := statx(path, unix.STATX_NLINK|unix.STATX_MNT_ID)
	if err != nil {
		return 0, false
	}
	dir, err := statx(filepath.Dir(path), unix.STATX_MNT_ID)
	known := err == nil && file.Mask&dir.Mask&unix.STATX_MNT_ID != 0
	return uint64(file.Nlink), known && file.Mnt_id != dir.Mnt_id
}
