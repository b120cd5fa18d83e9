//go:build !unix

package sqlite

import "os"

// fileID tells one file from another of the same name. On this system it cannot, beyond that the
// file is there: other programs cannot replace a file that is open here, and after a restore with
// all servers stopped `rowkeeper fence` is needed.
type fileID struct{ path string }

func (id fileID) String() string { return id.path }

func identify(path string) (fileID, error) {
	_, err := os.Stat(path)
	return fileID{path}, err
}

// namesOf knows nothing of a file's other names on this system.
func namesOf(string) (links uint64, mounted bool) { return 1, false }
