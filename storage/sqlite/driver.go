package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Driver serves the URL schemes "sqlite" and "memory".
var Driver mvcc.Driver = driver{}

type driver struct{}

func (driver) Name() string { return "sqlite" }

func (driver) Schemes() []string { return []string{"sqlite", "memory"} }

const (
	// pageSize in bytes, fixed when the file is created. A page of SQLite's default 4096 would hold three rows with values of 1 KB, and most objects would
	// not fit into one: files are a seventh smaller this way, and creations take a fifth less CPU.
	pageSize = 8192
	// applicationID is what the first migration writes to the file's header.
	applicationID = 0x526b7072
	// checkedSize is the size up to which a file is checked as a whole when it is opened, which takes some tenths of a second.
	checkedSize = 32 << 20
)

// Open opens the store in a file, or makes one in memory.
func (driver) Open(ctx context.Context, url string, opts mvcc.DriverOptions) (mvcc.Backend, error) {
	cfg, err := parse(url)
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
}

func newBackend(cfg config, opts mvcc.DriverOptions) *backend {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	b := &backend{cfg: cfg, opts: opts, dbName: cfg.path, wal: cfg.path + "-wal", walLimit: walLimit}
	if cfg.memory() {
		// SQLite keeps it for as long as a connection is open, which is shared by all operations: memory has no readers beside a writer.
		b.vfs, b.dbName = "memdb", "/rowkeeper-"+rand.Text()
		p := newPool("commit", 1, b.connect)
		b.commits, b.heads, b.tails, b.reads, b.polls = p, p, p, p, p
		return b
	}
	b.commits = newPool("commit", 1, b.connectWriter)
	// Reads of the head and of the log have connections of their own, which no number of lists can take.
	b.heads = newPool("head", 1, b.connectReader)
	b.tails = newPool("tail", 2, b.connectReader)
	b.reads = newPool("read", cfg.readers, b.connectReader)
	b.polls = newPool("poll", 1, b.connectReader)
	return b
}

// connect opens a connection and sets what holds for all.
func (b *backend) connect() (*conn, error) {
	// Another file of this name would be read together with the log of the one that is open.
	if b.hasMoved() {
		return nil, errMoved
	}
	c, err := openConn(b.dbName, b.vfs, b.openFlags())
	if err != nil {
		return nil, err
	}
	// Sorted rows and the like go to memory, never to a file.
	if err := c.set("temp_store", "MEMORY"); err != nil {
		return nil, c.giveUp(err)
	}
	return c, nil
}

// giveUp closes a connection that could not be set up, and returns the reason.
func (c *conn) giveUp(err error) error { return errors.Join(err, c.close()) }

func (b *backend) openFlags() int32 {
	if b.cfg.memory() {
		return lib.SQLITE_OPEN_CREATE
	}
	return 0
}

// connectWriter opens the writing connection. Its cache stays valid as long as no other process writes, so it is worth more than
// those of readers, which each commit empties.
func (b *backend) connectWriter() (*conn, error) {
	c, err := b.connect()
	if err != nil {
		return nil, err
	}
	// fullfsync makes FULL true on macOS, where fsync alone does not reach the disk; it does nothing elsewhere.
	for _, p := range [][2]string{
		{"synchronous", b.cfg.synchronous},
		{"fullfsync", strconv.FormatBool(b.cfg.synchronous == "FULL")},
		{"checkpoint_fullfsync", strconv.FormatBool(b.cfg.synchronous != "OFF")},
		{"cache_size", strconv.Itoa(-b.cfg.cacheKiB)},
	} {
		if err := c.set(p[0], p[1]); err != nil {
			return nil, c.giveUp(err)
		}
	}
	c.autocheckpoint(walPages)
	return c, nil
}

// connectReader opens a connection that cannot write.
func (b *backend) connectReader() (*conn, error) {
	c, err := b.connect()
	if err != nil {
		return nil, err
	}
	// Should the file have been replaced a moment ago, closing this connection must not apply the log of the old one to the new one.
	c.keepLog()
	// A reader waits only while another process recovers the write-ahead log or opens the database for the first time.
	c.busyTimeout(1000)
	for _, p := range [][2]string{{"query_only", "ON"}, {"cache_size", "-4096"}} {
		if err := c.set(p[0], p[1]); err != nil {
			return nil, c.giveUp(err)
		}
	}
	return c, nil
}

// set sets a PRAGMA.
func (c *conn) set(name, value string) error {
	_, err := c.once("PRAGMA " + name + " = " + value)
	return err
}

// openFirst opens the writing connection and checks that the database holds a store that this program can use. It returns the store's
// identity and the fingerprint that it has recorded. After an error no connection is open. The caller holds b.mu or is alone.
func (b *backend) openFirst(ctx context.Context) (store, recorded string, err error) {
	open := b.openFile
	if b.cfg.memory() {
		open = b.openMemory
	}
	store, recorded, err = open(ctx)
	if errors.Is(err, errMoved) {
		// Opening a file for writing changes its identity where that moves it to another layer of a file system.
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
	if b.file, err = identify(b.cfg.path); err != nil {
		return "", "", pathError(b.cfg, err)
	}
	logged := b.logged()
	c, err := b.commits.get(ctx)
	if err != nil {
		return "", "", b.classify(ctx, err)
	}
	defer b.commits.put(c)
	// Another process may be recovering the write-ahead log, or closing the database.
	c.busyTimeout(int32(min(b.cfg.busyTimeout, 5*time.Second) / time.Millisecond))
	defer c.busyTimeout(0)
	if err = b.check(ctx, c); err == nil {
		store, recorded, err = b.inspect(ctx, c, logged)
	}
	if err == nil && b.hasMoved() {
		err = errMoved
	}
	if err != nil {
		c.keepLog()
	}
	return store, recorded, b.classify(ctx, err)
}

// logged tells whether there is a write-ahead log with something in it, before the first connection opens it.
func (b *backend) logged() bool {
	b.wal = b.cfg.path + "-wal"
	if resolved, err := filepath.EvalSymlinks(b.cfg.path); err == nil {
		b.wal = resolved + "-wal"
	}
	return b.walSize() > 0
}

// inspect reads which store a database holds, and checks that it is whole: a small file always, and one whose fingerprint differs from the recorded
// one though it has a write-ahead log, since a file that was replaced without its log would be read together with that of the other file.
func (b *backend) inspect(ctx context.Context, c *conn, logged bool) (store, recorded string, err error) {
	s, err := c.prepare(selectIdentity)
	if err != nil {
		return "", "", err
	}
	row, err := s.step()
	if err == nil && !row {
		err = b.noStore()
	}
	if err != nil {
		return "", "", err
	}
	store, recorded = s.colString(0), s.colString(1)
	s.reset()

	pages, err := c.once("PRAGMA page_count")
	if err != nil {
		return "", "", err
	}
	n, err := strconv.Atoi(pages)
	switch foreign := logged && recorded != "" && recorded != b.fingerprint(); {
	case err != nil:
	case foreign:
		err = b.verify(ctx, c, "the file and its write-ahead log do not belong together, or the file is damaged: restore it again while no server runs, "+
			"without the files that end in -wal and -shm")
	case n <= checkedSize/pageSize:
		err = b.verify(ctx, c, "it is damaged: restore a backup")
	}
	return store, recorded, err
}

// openMemory makes a store in memory. Its migrations run on connections of their own to the database that the first connection keeps.
func (b *backend) openMemory(ctx context.Context) (store, recorded string, err error) {
	c, err := b.commits.get(ctx)
	if err != nil {
		return "", "", b.classify(ctx, err)
	}
	defer b.commits.put(c)
	c.sizeLimit(1 << 50)
	for _, p := range [][2]string{{"page_size", strconv.Itoa(pageSize)}, {"journal_mode", "MEMORY"}, {"synchronous", "OFF"}} {
		if err := c.set(p[0], p[1]); err != nil {
			return "", "", b.classify(ctx, err)
		}
	}
	db, err := openSQL(b.dbName, "&vfs=memdb")
	if err != nil {
		return "", "", b.classify(ctx, err)
	}
	defer db.Close()
	if _, err := migrations.Up(ctx, db, migrations.SQLite, nil); err != nil {
		return "", "", b.classify(ctx, err)
	}
	s, err := c.prepare(selectIdentity)
	if err != nil {
		return "", "", b.classify(ctx, err)
	}
	if _, err := s.step(); err != nil {
		return "", "", b.classify(ctx, err)
	}
	store = s.colString(0)
	s.reset()
	return store, "", nil
}

// checkPath says in words what SQLite would call "unable to open".
func checkPath(cfg config) error {
	fi, err := os.Stat(cfg.path)
	switch {
	case err != nil:
		return pathError(cfg, err)
	case fi.IsDir():
		return mvcc.Errorf(mvcc.Invalid, "%s is a directory: name a file in the database URL", cfg.path)
	case !fi.Mode().IsRegular():
		return mvcc.Errorf(mvcc.Invalid, "%s is not a regular file: name another file in the database URL", cfg.path)
	}
	return nil
}

// pathError describes why a file is not there.
func pathError(cfg config, err error) error {
	dir := filepath.Dir(cfg.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return mvcc.Errorf(mvcc.Invalid, "the directory %s of the database does not exist: create it, or correct the database URL", dir)
		}
		return mvcc.Errorf(mvcc.Invalid, "there is no database file %s: run `rowkeeper migrate up`, or correct the database URL", cfg.path)
	case errors.Is(err, fs.ErrPermission):
		return mvcc.Errorf(mvcc.Denied, "the directory %s of the database may not be read: check its permissions", dir)
	}
	return mvcc.Errorf(mvcc.Unavailable, "the database file %s cannot be used: %w", cfg.path, err)
}

// check tells whether the file is a database of ours, of a usable schema, and can be written. It changes nothing.
func (b *backend) check(ctx context.Context, c *conn) error {
	ours, _, err := whose(c)
	if err != nil {
		return err
	}
	if ours {
		// The file system must not be asked whether it can be written, as the answer would be another one's (root's, for one).
		if c.readOnly() {
			return readOnlyFile(b.cfg)
		}
		mode, err := c.once("PRAGMA journal_mode")
		if err != nil {
			return err
		}
		if mode != "wal" {
			return mvcc.Errorf(mvcc.Invalid, "the database %s is in journal mode %q, not in WAL mode: run `rowkeeper migrate up`", b.name(), mode)
		}
	} else if err := notOurs(b.cfg, c); err != nil {
		return err
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
		return mvcc.Errorf(mvcc.Invalid, "the database %s cannot be used: %w", name, err)
	}
	return err
}

func readOnlyFile(cfg config) error {
	return mvcc.Errorf(mvcc.ReadOnly, "the database file %s cannot be written: give this user write permission on the file and its directory", cfg.path)
}

// whose tells whether a database is ours, and whether it has any tables.
func whose(c *conn) (ours, used bool, err error) {
	id, err := c.once("PRAGMA application_id")
	if err != nil {
		return false, false, err
	}
	tables, err := c.once("SELECT count(*) FROM sqlite_master")
	return id == strconv.Itoa(applicationID), tables != "0", err
}

// notOurs returns an error for a database of somebody else, and none for an empty one.
func notOurs(cfg config, c *conn) error {
	if _, used, err := whose(c); err != nil || !used {
		return err
	}
	return mvcc.Errorf(mvcc.Invalid, "the file %s is a SQLite database of another program: name another file in the database URL", cfg.path)
}

// verify checks the structure of the whole file and that every live row has its value.
func (b *backend) verify(ctx context.Context, c *conn, otherwise string) error {
	defer c.interruptible(ctx)()
	text, err := c.once("PRAGMA quick_check(1)")
	if err != nil {
		return err
	}
	if text == "ok" {
		damage, err := c.once(selectDamage)
		if err != nil {
			return err
		}
		if damage == "0" {
			return nil
		}
		text = "a key has lost its value"
	}
	text = strings.ReplaceAll(strings.TrimPrefix(text, "*** in database main ***\n"), "\n", "; ")
	return mvcc.Errorf(mvcc.Invalid, "the database %s cannot be used: %s (%s)", b.name(), otherwise, text)
}

// openSQL opens the database for database/sql, which the migrations use, through the driver that modernc.org/sqlite registers.
func openSQL(path, query string) (*sql.DB, error) {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path), OmitHost: true}
	return sql.Open("sqlite", u.String()+"?_txlock=immediate&_pragma=busy_timeout(30000)"+query)
}

// Migrate creates the file if it is not there, and brings it to the newest schema. A store in memory has it from the beginning.
func (driver) Migrate(ctx context.Context, url string, opts mvcc.DriverOptions) ([]mvcc.Migration, error) {
	cfg, err := parse(url)
	if err != nil || cfg.memory() {
		return nil, err
	}
	if err := checkPath(cfg); err != nil {
		if _, dirErr := os.Stat(filepath.Dir(cfg.path)); dirErr != nil || fileExists(cfg.path) {
			return nil, err
		}
	}
	b := newBackend(cfg, opts)
	done, err := b.migrate(ctx)
	err = b.classify(ctx, err)
	var list []mvcc.Migration
	for _, m := range done {
		list = append(list, mvcc.Migration(m))
	}
	return list, err
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// creating keeps a second migration in this process from opening a file that is being created.
var creating sync.Mutex

// create makes an empty file that only this user can read, since the store may hold secrets, if there is no file yet. SQLite gives its
// permissions to the log's files.
func (b *backend) create() error {
	creating.Lock()
	defer creating.Unlock()
	f, err := os.OpenFile(b.cfg.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return mvcc.Errorf(mvcc.Denied, "the database file %s cannot be created: give this user write permission on its directory", b.name())
	case err != nil:
		return mvcc.Errorf(mvcc.Unavailable, "the database file %s cannot be created: %w", b.name(), err)
	}
	return f.Close()
}

func (b *backend) migrate(ctx context.Context) (done []migrations.Migration, err error) {
	if err := b.create(); err != nil {
		return nil, err
	}
	logged := b.logged()
	c, err := openConn(b.dbName, "", 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.keepLog()
		}
		if cerr := c.close(); err == nil {
			err = cerr
		}
	}()
	c.busyTimeout(30_000)
	ours, _, err := whose(c)
	if err != nil {
		return nil, err
	}
	if c.readOnly() {
		return nil, readOnlyFile(b.cfg)
	}
	if b.file, err = identify(b.cfg.path); err != nil {
		return nil, pathError(b.cfg, err)
	}
	if ours {
		_, _, err = b.inspect(ctx, c, logged)
	} else {
		err = notOurs(b.cfg, c)
	}
	if err != nil {
		return nil, err
	}
	// The page size and auto_vacuum take effect with the first write to an empty file, which is the change to WAL mode.
	for _, p := range [][2]string{{"page_size", strconv.Itoa(pageSize)}, {"auto_vacuum", "INCREMENTAL"}} {
		if err := c.set(p[0], p[1]); err != nil {
			return nil, err
		}
	}
	mode, err := b.walMode(ctx, c)
	if err != nil {
		return nil, err
	}
	if mode != "wal" {
		return nil, mvcc.Errorf(mvcc.Invalid, "the file system of the database %s cannot share memory, which SQLite's WAL mode needs: name a file on a local disk", b.name())
	}
	db, err := openSQL(b.dbName, "&mode=rw&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	done, err = migrations.Up(ctx, db, migrations.SQLite, nil)
	return done, schemaError(b.name(), err)
}

// walMode changes to WAL mode, for which SQLite does not wait when another process does the same at this moment.
func (b *backend) walMode(ctx context.Context, c *conn) (string, error) {
	timer := time.NewTicker(5 * time.Millisecond)
	defer timer.Stop()
	for {
		mode, err := c.once("PRAGMA journal_mode = WAL")
		if !isBusy(err) {
			return mode, err
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return "", fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// Status lists the migrations. It creates nothing.
func (driver) Status(ctx context.Context, url string, opts mvcc.DriverOptions) ([]mvcc.Migration, error) {
	cfg, err := parse(url)
	if err != nil {
		return nil, err
	}
	b := newBackend(cfg, opts)
	if cfg.memory() {
		store, err := Driver.Open(ctx, url, opts)
		if err != nil {
			return nil, err
		}
		defer func() { _ = store.Close() }()
		b.dbName = store.(*backend).dbName
		return b.status(ctx, "&vfs=memdb")
	}
	if err := checkPath(cfg); err != nil {
		return nil, err
	}
	c, err := openConn(b.dbName, "", 0)
	if err != nil {
		return nil, b.classify(ctx, err)
	}
	c.keepLog()
	defer func() { _ = c.close() }() // it has only read
	c.busyTimeout(1000)
	ours, _, err := whose(c)
	if err == nil && !ours {
		err = notOurs(cfg, c)
	}
	if err != nil {
		return nil, b.classify(ctx, err)
	}
	return b.status(ctx, "&mode=rw&_pragma=query_only(1)")
}

func (b *backend) status(ctx context.Context, query string) ([]mvcc.Migration, error) {
	db, err := openSQL(b.dbName, query)
	if err != nil {
		return nil, b.classify(ctx, err)
	}
	defer db.Close()
	list, err := migrations.Status(ctx, db, migrations.SQLite)
	if err != nil {
		return nil, b.classify(ctx, err)
	}
	var out []mvcc.Migration
	for _, m := range list {
		out = append(out, mvcc.Migration(m))
	}
	return out, nil
}
