package standalone

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Dir is a server's directory, which no other server uses at the same time.
type Dir struct {
	path string
	lock *os.File
}

// errLocked is what lockFile returns for a file that another process has locked.
var errLocked = errors.New("locked")

// OpenDir creates the directory, readable by its owner only, if it does not exist, and locks it.
// The lock ends with Close or with the process, however it ends. A directory that is locked already
// is an error which names the process that holds it. So is one that belongs to somebody else.
func OpenDir(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("cannot find the data directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the data directory: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the data directory: %w", err)
	}
	if owner := ownerOf(info); !trusted(owner, os.Geteuid()) {
		return nil, fmt.Errorf("the data directory %s belongs to the user with id %d, who could be "+
			"anybody to the server: choose another --data-dir, or change its owner", path, owner)
	}
	name := filepath.Join(path, "lock")
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the data directory: %w", err)
	}
	if err := lockFile(file); err != nil {
		holder, _ := os.ReadFile(name)
		file.Close()
		if !errors.Is(err, errLocked) {
			return nil, fmt.Errorf("cannot lock the data directory %s: %w", path, err)
		}
		by := "another server"
		if pid := strings.TrimSpace(string(holder)); pid != "" {
			by = "the server with process id " + pid
		}
		return nil, fmt.Errorf("the data directory %s is in use by %s: stop it or choose another "+
			"--data-dir", path, by)
	}
	// The process id is for the message above only, so that failing to write it is no reason not to
	// start.
	if err := file.Truncate(0); err == nil {
		fmt.Fprintln(file, os.Getpid())
	}
	return &Dir{path: path, lock: file}, nil
}

// trusted tells whether a server of a user may use a directory of an owner, who can read the
// authority's key there, and replace it. That may be the user, or root, to whom nothing is closed
// anyway; mounted volumes often are root's. An owner below 0 is unknown.
func trusted(owner, user int) bool { return owner <= 0 || owner == user }

// Path returns the absolute path of a file in the directory.
func (d *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// Close gives the directory back.
func (d *Dir) Close() error { return d.lock.Close() }
