package app

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage/directory"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
)

// directoryFlags name a directory of stores over many databases, and the file in which this machine
// has the databases' URLs.
type directoryFlags struct {
	control   *options.StorageOptions
	databases string
}

func newDirectoryFlags() *directoryFlags { return &directoryFlags{control: program.StorageOptions()} }

func (d *directoryFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&d.control.URL, "directory", "",
		"The control database of a directory, by URL: it says in which database each store is.")
	fs.StringVar(&d.control.URLFile, "directory-file", "",
		"File that holds the URL of the control database, in place of --directory.")
	fs.StringVar(&d.control.URLEnv, "directory-env", "",
		"Environment variable that holds the URL of the control database, in place of --directory.")
	fs.StringVar(&d.databases, "databases-file", "",
		"File with a name and a URL on each line: the databases of the directory, as this machine "+
			"reaches them. It is read again for each database.")
}

// given tells whether a directory is named.
func (d *directoryFlags) given() bool { return d.control.NamesDatabase() }

// validate returns what is wrong with the flags.
func (d *directoryFlags) validate() error {
	switch err := d.control.ValidateURL("directory", "directory"); {
	case err != nil:
		return err
	case d.databases == "":
		return errors.New("--directory needs --databases-file")
	}
	return nil
}

// open opens the directory. base says how the databases are used, and the control database too.
func (d *directoryFlags) open(ctx context.Context, base etcd.Config) (*directory.Directory, error) {
	if err := d.validate(); err != nil {
		return nil, server.UsageError{Err: err}
	}
	databases, err := directory.ReadDatabases(d.databases, base)
	if err != nil {
		return nil, err
	}
	named, err := d.control.Database()
	if err != nil {
		return nil, err
	}
	control := named.Database()
	control.Logger, control.Timeout, control.Migrate = base.Logger, base.Timeout, base.Migrate
	return directory.OpenDirectory(ctx, control, databases)
}

// openAlone is open for a command that does something to stores, and ends.
func (d *directoryFlags) openAlone(ctx context.Context) (*directory.Directory, error) {
	base, err := d.control.Database()
	if err != nil {
		return nil, err
	}
	c := base.Database()
	c.Migrate, c.Compaction.Window = true, -1
	return d.open(ctx, c)
}

// pool opens the directory for a server.
func (d *directoryFlags) pool(ctx context.Context, base etcd.Config) (storePool, error) {
	opened, err := d.open(ctx, base)
	if err != nil {
		return nil, err
	}
	return &directoryPool{directory.NewPool(opened), opened}, nil
}

// directoryPool closes the directory with the pool.
type directoryPool struct {
	*directory.Pool
	directory *directory.Directory
}

func (p *directoryPool) Close() error { return errors.Join(p.Pool.Close(), p.directory.Close()) }
