package sqlite

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// place is where a file is in its file system: its name, and the identity of its directory.
//
// The fingerprint is the file's identity and its place. Its parts follow from its purpose: it has
// to change whenever the history may be another one, and should change for nothing else, since each
// change ends all watches.
//
//   - The inode and the time of its creation change when the file is written anew: by cp, rsync,
//     tar, a dump, a copy to another volume. A copy may be from the past.
//   - The name and the directory change when a file is moved or renamed. Without them a copy that
//     was served elsewhere, and fenced there, would bring its own fingerprint along.
//   - The directory stands for the path. One volume has several paths: containers and their host
//     mount it at different points, and a path may lead over symbolic links.
//   - The device number is left out. It says in which order the kernel found its disks, so it
//     changes when a volume is attached to another machine, or to the same one again. For the same
//     reason the file system's id is left out: XFS makes it of the device number.
//   - The kernel's file handle (name_to_handle_at) is the inode and its generation, which says no
//     more than the time of creation does, and not every file system has handles.
//
// So a clone of a whole volume, block by block, has the fingerprint of the original. So has a
// directory that is moved with the file in it.
type place struct {
	name      string
	directory fileID
}

func (p place) String() string {
	return fmt.Sprintf("%s in directory %s", strconv.QuoteToASCII(p.name), p.directory)
}

// locate returns the place of a file, following symbolic links.
func locate(path string) (place, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return place{}, err
	}
	directory, err := identify(filepath.Dir(path))
	return place{name: filepath.Base(path), directory: directory}, err
}

// settle finds out which file has the database's name now, and where it is.
func (b *backend) settle() (err error) {
	b.log = fileID{}
	if b.file, err = identify(b.cfg.path); err == nil {
		b.place, err = locate(b.cfg.path)
	}
	if err != nil {
		return pathError(b.cfg, err)
	}
	return nil
}
