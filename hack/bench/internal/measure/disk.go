package measure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DirSize returns how many bytes of disk the files below a directory occupy, and how many of them
// are write-ahead logs. Files may come and go meanwhile.
func DirSize(dir string) (total, log int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() {
			const block = 512 // the unit of st_blocks, whatever the file system's block size is
			total += st.Blocks * block
			if isLog(path) {
				log += st.Blocks * block
			}
		}
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("size of %s: %w", dir, err)
	}
	return total, log, nil
}

// Free is how many bytes the file system of a directory has room for.
func Free(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

// isLog tells whether a file is a write-ahead log: of SQLite, PostgreSQL or MariaDB, or one of the
// two of MySQL.
func isLog(path string) bool {
	switch filepath.Base(filepath.Dir(path)) {
	case "pg_wal", "#innodb_redo":
		return true
	}
	name := filepath.Base(path)
	return strings.HasSuffix(name, "-wal") || strings.HasPrefix(name, "ib_logfile") ||
		strings.HasPrefix(name, "binlog.")
}

// volatile are file systems that lose everything with the power, so that a commit on them proves
// nothing.
var volatile = map[int64]string{
	unix.TMPFS_MAGIC:     "tmpfs",
	unix.RAMFS_MAGIC:     "ramfs",
	unix.HUGETLBFS_MAGIC: "hugetlbfs",
}

// known are the names of common file systems, by what statfs says.
var known = map[int64]string{
	unix.EXT4_SUPER_MAGIC:      "ext2/ext3/ext4",
	unix.XFS_SUPER_MAGIC:       "xfs",
	unix.BTRFS_SUPER_MAGIC:     "btrfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
}

// FileSystem names the file system of a directory. A file system in memory is an error.
func FileSystem(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", fmt.Errorf("file system of %s: %w", dir, err)
	}
	if name, ok := volatile[st.Type]; ok {
		return "", fmt.Errorf("%s is on %s, where nothing is durable: choose a directory on a disk",
			dir, name)
	}
	if name, ok := known[st.Type]; ok {
		return name, nil
	}
	return fmt.Sprintf("file system %#x", st.Type), nil
}

// Sync measures how long it takes to append one page to a file and make it durable, as a database
// does for each commit.
func Sync(dir string, times int) (_ Latencies, err error) {
	f, err := os.CreateTemp(dir, "fsync-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	page := make([]byte, 4096)
	samples := make(Latencies, 0, times)
	for range times {
		began := time.Now()
		if _, err := f.Write(page); err != nil {
			return nil, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		samples = append(samples, time.Since(began))
	}
	return samples, nil
}
