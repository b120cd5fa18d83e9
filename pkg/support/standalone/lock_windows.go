package standalone

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/windows"
)

// lockFile locks a byte far behind the end, as a locked range cannot be read by others, and the
// process id is at the beginning.
func lockFile(file *os.File) error {
	err := windows.LockFileEx(windows.Handle(file.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
		&windows.Overlapped{OffsetHigh: math.MaxInt32})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return errLocked
	}
	return err
}

// ownerOf does not know the owner: directories of a user's profile are closed to others.
func ownerOf(os.FileInfo) int { return -1 }
