package directory

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// Config says how to use a database; see package storage/etcd.
type Config = database.Config

// Databases knows the URLs of databases by their names. It is local to a process: the directory has
// names only.
type Databases struct {
	file string
	base Config
}

// ReadDatabases reads the URLs from a file, now and whenever one is asked for. Each line of the
// file is a name and a URL, with space in between; empty lines and those that begin with # are
// passed over. A name is like that of a store. base says how the databases are used; its URL, Login
// and Store do not count.
func ReadDatabases(file string, base Config) (*Databases, error) {
	d := &Databases{file: file, base: base}
	_, _, err := d.read()
	return d, err
}

// Names lists the names, in order.
func (d *Databases) Names() ([]string, error) {
	names, _, err := d.read()
	slices.Sort(names)
	return names, err
}

// Config returns the configuration of a database for a store in it.
func (d *Databases) Config(name, store string) (Config, error) {
	_, urls, err := d.read()
	if err != nil {
		return Config{}, err
	}
	c := d.base
	if c.URL = urls[name]; c.URL == "" {
		return c, contract.Errorf(contract.Denied, "the file %s does not name the database %q: add a "+
			"line with its name and its URL", d.file, name)
	}
	c.Store, c.Login = store, nil // the URL has the password
	return c, nil
}

// read never puts a part of a URL into an error, since it may hold a password.
func (d *Databases) read() (names []string, urls map[string]string, err error) {
	content, err := os.ReadFile(d.file)
	if err != nil {
		return nil, nil, fmt.Errorf("the file of the databases cannot be read: %w", err)
	}
	urls = map[string]string{}
	n := 0
	for line := range strings.Lines(string(content)) {
		n++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		switch {
		case len(fields) != 2:
			err = fmt.Errorf("it has %d fields, and not a name and a URL", len(fields))
		case urls[fields[0]] != "":
			err = fmt.Errorf("the name %q comes twice", fields[0])
		case database.CheckStoreName(fields[0]) != nil:
			err = errors.New("a name has at most 63 lower-case letters, digits and hyphens, and comes " +
				"before its URL")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("the file %s cannot be used, line %d: %w", d.file, n, err)
		}
		names, urls[fields[0]] = append(names, fields[0]), fields[1]
	}
	return names, urls, nil
}
