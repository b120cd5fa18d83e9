package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// openFirst opens the writing connection and checks that the database holds a store that this
// program can use. It returns the store's identity and the fingerprint that it has recorded. After
// an error no connection is open. The caller holds b.mu or is alone.
func (b *backend) openFirst(ctx context.Context) (store, recorded string, err error) {
	open := b.openFile
	if b.cfg.memory() {
		open = b.openMemory
	}
	store, recorded, err = open(ctx)
	if errors.Is(err, errMoved) || errors.Is(err, errLogRemoved) {
		// Opening a file for writing changes its identity where that moves it to another layer of a
		// file system.
		if err = b.closeAll(); err == nil {
			store, recorded, err = open(ctx)
		}
	}
	if err != nil {
		_ = b.closeAll() // the first error says more
	}
	return store, recorded, err
}

func (b *backend) openFile(ctx context.Context) (store, recorded string, err error) {
	if err := checkPath(b.cfg); err != nil {
		return "", "", err
	}
	if err = b.settle(); err != nil {
		return "", "", err
	}
	logged := b.logged()
	c, err := b.commits.Get(ctx)
	if err != nil {
		return "", "", b.classify(ctx, err)
	}
	defer b.commits.Put(c)
	c.BusyTimeout(openWait)
	defer c.BusyTimeout(0)
	if err = b.check(ctx, c); err == nil {
		store, recorded, err = b.inspect(ctx, c, logged)
	}
	if err == nil {
		err = b.sameStore(c)
	}
	if err == nil {
		err = b.findLog(ctx, c, recorded)
	}
	if err == nil {
		err = b.displaced()
	}
	if err != nil {
		c.KeepLog()
	}
	return store, recorded, b.classify(ctx, err)
}

// findLog remembers which write-ahead log is open, and finds out whether one is lost.
func (b *backend) findLog(ctx context.Context, c *sqlite3.Conn, recorded string) error {
	lost, err := b.lostLog(c)
	if err != nil {
		return err
	}
	moved := b.isMoved(recorded)
	if lost = lost && !moved; lost {
		if b.opts.RefuseLost {
			return b.errLost("start a server, which begins a new history with what is left")
		}
		b.opts.Logger.Error("the write-ahead log of the database was removed, and the newest "+
			"writes are lost with it", "database", b.name(), "log", b.wal)
	}
	b.wrote = false
	b.lost.Store(lost)
	b.unfenced = moved
	if b.log, err = identify(b.wal); err != nil {
		return errLogRemoved
	}
	return nil
}

// logged tells whether there is a write-ahead log with something in it, before the first connection
// opens it.
func (b *backend) logged() bool {
	b.wal = walOf(b.cfg.path)
	return b.walSize() > 0
}

// isMoved tells whether a file with this recorded fingerprint is another one than the one in which
// it was recorded.
func (b *backend) isMoved(recorded string) bool {
	return recorded != "" && recorded != b.fingerprint()
}

// inspect reads which store a database holds, and checks that a small one is whole. It refuses a
// file whose fingerprint differs from the recorded one though it has a write-ahead log. The log may
// be that of the file in whose place this one is. Then what is read is the other file's newest
// state, or a mixture, and nothing in the two files tells: a copy of a file fits the log that was
// begun before the copy was made.
func (b *backend) inspect(ctx context.Context, c *sqlite3.Conn,
	logged bool) (store, recorded string, err error) {
	id, err := b.identity(c)
	if err != nil {
		return "", "", err
	}
	store, recorded = id.Store, id.Recorded
	pages, err := c.Once("PRAGMA page_count")
	if err != nil {
		return "", "", err
	}
	n, err := strconv.Atoi(pages)
	switch foreign := logged && b.isMoved(recorded); {
	case err != nil:
	case foreign:
		err = contract.Errorf(contract.Invalid, "the database file %s was restored, copied or moved, and "+
			"a write-ahead log lies beside it that may belong to another file: remove %s, or, if "+
			"it was copied together with the file, open the file once with the program sqlite3",
			b.name(), b.wal)
	case n <= checkedSize/pageSize:
		err = b.verify(ctx, c)
	}
	return store, recorded, err
}

// openMemory makes a store in memory. Its migrations run on connections of their own to the
// database that the first connection keeps.
func (b *backend) openMemory(ctx context.Context) (store, recorded string, err error) {
	c, err := b.commits.Get(ctx)
	if err != nil {
		return "", "", b.classify(ctx, err)
	}
	defer b.commits.Put(c)
	c.SizeLimit(1 << 50)
	for _, p := range [][2]string{{"page_size", strconv.Itoa(pageSize)}, {"journal_mode", "MEMORY"},
		{"synchronous", "OFF"}} {
		if err := c.Set(p[0], p[1]); err != nil {
			return "", "", b.classify(ctx, err)
		}
	}
	db, err := openSQL(b.dbName, "&vfs="+sqlite3.MemoryVFS)
	if err != nil {
		return "", "", b.classify(ctx, err)
	}
	defer db.Close()
	if _, err := migrations.Up(ctx, db, migrations.SQLite, nil); err != nil {
		return "", "", b.classify(ctx, err)
	}
	id, err := b.identity(c)
	return id.Store, "", b.classify(ctx, err)
}

// checkPath says in words what SQLite would call "unable to open".
func checkPath(cfg config) error {
	fi, err := os.Stat(cfg.path)
	switch {
	case err != nil:
		return pathError(cfg, err)
	case fi.IsDir():
		return contract.Errorf(contract.Invalid, "%s is a directory: name a file in the database URL",
			cfg.path)
	case !fi.Mode().IsRegular():
		return contract.Errorf(contract.Invalid, "%s is not a regular file: name another file in the "+
			"database URL", cfg.path)
	}
	return oneName(cfg)
}

// oneName refuses a file that has another name, or may have one. SQLite finds a file's log, and the
// locks of those who use it, beside the name by which it was opened. Two processes that open it by
// two names do not know of each other, and damage it.
func oneName(cfg config) error {
	switch links, mounted := namesOf(cfg.path); {
	case links > 1:
		return contract.Errorf(contract.Invalid, "the database file %s has %d names (hard links), and "+
			"whoever opens it by another one damages it: remove the other names, or make a copy "+
			"of the file with this name", cfg.path, links)
	case mounted:
		return contract.Errorf(contract.Invalid, "the database file %s is mounted without its directory, "+
			"and whoever opens it elsewhere damages it: mount the directory in which it lies, "+
			"with the files beside it", cfg.path)
	}
	return nil
}

// pathError describes why a file is not there.
func pathError(cfg config, err error) error {
	dir := filepath.Dir(cfg.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && cfg.main != cfg.path:
		main := config{path: cfg.main, main: cfg.main}
		if err := checkPath(main); err != nil && !creatable(main) {
			return err
		}
		// Without a database there is no store either, and who creates the store creates both.
		return contract.NoStore(cfg.store)
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return contract.Errorf(contract.Invalid, "the directory %s of the database does not exist: "+
				"create it, or correct the database URL", dir)
		}
		return contract.Errorf(contract.Invalid, "there is no database file %s: correct the "+
			"database URL, or make an empty database by `rowkeeper migrate up`", cfg.path)
	case errors.Is(err, fs.ErrPermission):
		return contract.Errorf(contract.Denied, "the directory %s of the database may not be read: check "+
			"its permissions", dir)
	}
	return contract.Errorf(contract.Unavailable, "the database file %s cannot be used: %w", cfg.path, err)
}

// check tells whether the file is a database of ours, of a usable schema, and can be written. It
// changes nothing, but for the journal mode of a file that took another one's place.
func (b *backend) check(ctx context.Context, c *sqlite3.Conn) error {
	ours, foreign, err := whose(c)
	if err != nil {
		return err
	}
	switch {
	case foreign:
		return notOurs(b.cfg)
	case ours:
		// The file system is not asked whether the file can be written: it would answer for another
		// user, such as root.
		if c.ReadOnly() {
			return readOnlyFile(b.cfg)
		}
		mode, err := c.Once("PRAGMA journal_mode")
		if err == nil && mode != "wal" && b.moved {
			// A copy that VACUUM INTO made has taken the file's place. Nobody will migrate it,
			// since the server runs already. A file of another store is not touched.
			if err = b.sameStore(c); err == nil {
				mode, err = b.walMode(ctx, c)
			}
		}
		if err != nil {
			return err
		}
		if mode != "wal" {
			return contract.Errorf(contract.Invalid, "the database %s is in journal mode %q, not in WAL "+
				"mode: run `rowkeeper migrate up`", b.name(), mode)
		}
	}
	db, err := openSQL(b.dbName, "&mode=rw&_pragma=query_only(1)")
	if err != nil {
		return err
	}
	defer db.Close()
	return schemaError(b.name(), migrations.SQLite.Check(ctx, db))
}

// schemaError tells an unfit schema from a database that did not answer.
func schemaError(name string, err error) error {
	var version *migrations.VersionError
	if errors.As(err, &version) {
		return contract.Errorf(contract.Invalid, "the database %s cannot be used: %w", name, err)
	}
	return err
}

func readOnlyFile(cfg config) error {
	return contract.Errorf(contract.ReadOnly, "the database file %s cannot be written: give this user "+
		"write permission on the file and its directory", cfg.path)
}

// whose tells whether a database is ours, which the first migration marks together with creating
// the tables, or somebody else's. An empty one, or one that has only the table of the migrations,
// is neither: another process may be creating it at this moment.
func whose(c *sqlite3.Conn) (ours, foreign bool, err error) {
	s, err := c.Prepare(selectOwner)
	if err != nil {
		return false, false, err
	}
	_, err = s.Int(applicationID).Row(func() { ours, foreign = s.ColInt(0) != 0, s.ColInt(1) != 0 })
	return ours, foreign && !ours, err
}

func notOurs(cfg config) error {
	return contract.Errorf(contract.Invalid, "the file %s is a SQLite database of another program: name "+
		"another file in the database URL", cfg.path)
}

// verify checks the structure of the whole file and that every live row has its value.
func (b *backend) verify(ctx context.Context, c *sqlite3.Conn) error {
	defer c.Interruptible(ctx)()
	text, err := c.Once("PRAGMA quick_check(1)")
	if err != nil {
		return err
	}
	if text == "ok" {
		damage, err := c.Once(selectDamage)
		if err != nil {
			return err
		}
		if damage == "0" {
			return nil
		}
		text = "a key has lost its value"
	}
	text = strings.ReplaceAll(strings.TrimPrefix(text, "*** in database main ***\n"), "\n", "; ")
	return contract.Errorf(contract.Invalid, "the database %s cannot be used: it is damaged: restore a "+
		"backup into a new file (%s)", b.name(), text)
}

const (
	// pageSize in bytes, fixed when the file is created. A page of SQLite's default 4096 would hold
	// three rows with values of 1 KB, and most objects would not fit into one: files are a seventh
	// smaller this way, and creations take a fifth less CPU.
	pageSize = 8192
	// applicationID is what the first migration writes to the file's header.
	applicationID = 0x526b7072
	// checkedSize is the size up to which a file is checked as a whole when it is opened, which
	// takes some tenths of a second.
	checkedSize = 32 << 20
)

// Connect reads the URL. Each store is opened in a file of its own, or made in memory.
func (driver) Connect(_ context.Context, url string,
	opts contract.DriverOptions) (contract.Database, error) {
	opts.Store = ""
	if _, err := configure(url, opts); err != nil {
		return nil, err
	}
	return contract.Separate(func(ctx context.Context, name string) (contract.Backend, error) {
		opts := opts
		opts.Store = name
		cfg, err := configure(url, opts)
		if err != nil {
			return nil, err
		}
		b := newBackend(cfg, opts)
		ctx, cancel := b.timeout(ctx)
		defer cancel()
		if b.store, _, err = b.openFirst(ctx); err != nil {
			return nil, err
		}
		return b, nil
	}), nil
}
