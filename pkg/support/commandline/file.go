package commandline

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// StandardStream is the name of a file that stands for standard input or output.
const StandardStream = "-"

// CreateFile writes a file under another name, and gives it its own when it is on the disk. Others
// cannot read it, as it may hold secrets. It replaces an older backup if force is set.
func CreateFile(name string, force bool, write func(*os.File) error) error {
	if err := replaceable(name, force); err != nil {
		return err
	}
	dir, base := filepath.Split(name)
	_, err := create(cmp.Or(dir, "."), base, force, func(f *os.File) (string, error) {
		return base, write(f)
	})
	return err
}

// CreateFileIn is CreateFile for a file in a directory whose name is known only when it is written.
// base stands for the name until then. It returns the path. It replaces nothing.
func CreateFileIn(dir, base string, write func(*os.File) (name string, err error)) (string, error) {
	return create(dir, base, false, write)
}

func create(dir, base string, force bool,
	write func(*os.File) (name string, err error)) (path string, err error) {
	f, err := os.CreateTemp(dir, "."+base+".*"+Partial)
	if err != nil {
		return "", fmt.Errorf("cannot write the file: %w", err)
	}
	name, err := write(f)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	path = filepath.Join(dir, name)
	if err == nil {
		err = replaceable(path, force) // somebody may have written it meanwhile
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return path, syncDir(dir)
}

// Partial ends the names of files that are being written, or whose writer was killed.
const Partial = ".partial"

// syncDir makes the name of a file as durable as its content.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("cannot make the name of the backup durable: %w", err)
	}
	return nil
}

// replaceable refuses to put a backup in the place of anything but another backup: of the database
// itself, for one, or of a device; and in the place of another backup without force.
func replaceable(name string, force bool) error {
	st, err := os.Stat(name)
	switch {
	case err != nil:
		return nil // it is not there, or what is wrong shows when it is written
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is no file that a backup could replace: name another one, or - for "+
			"the standard output", name)
	case st.Size() == 0:
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("cannot look into %s, which the backup would replace: %w", name, err)
	}
	defer f.Close()
	const first = "rowkeeper-backup "
	begin := make([]byte, len(first))
	if _, err := io.ReadFull(f, begin); err != nil || string(begin) != first {
		return fmt.Errorf("%s exists and is no backup: name another file, or remove it", name)
	}
	if !force {
		return fmt.Errorf("%s is an older backup: name another file, or remove it; "+
			"`rowkeeper backup` replaces it with --force", name)
	}
	return nil
}
