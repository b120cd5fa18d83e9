package sqlite

import "golang.org/x/sys/unix"

// space returns how many bytes of the file system that holds the path this process may still use,
// and how many it has.
func space(path string) (free, total int64, err error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == unix.EINTR {
			continue
		}
		size := int64(st.Bsize) //nolint:unconvert // it has 32 bits on other processors
		return int64(st.Bavail) * size, int64(st.Blocks) * size, err
	}
}
