package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// openSQL opens the database for database/sql, which the migrations use, through the driver that
// modernc.org/sqlite registers.
func openSQL(path, query string) (*sql.DB, error) {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path), OmitHost: true}
	return sql.Open("sqlite", u.String()+"?_txlock=immediate&_pragma=busy_timeout(30000)"+query)
}

// Migrate brings the file to the newest schema. It creates the file of the default store if it is
// not there. A store in memory has the schema from the beginning.
func (driver) Migrate(ctx context.Context, url string,
	opts contract.DriverOptions) ([]contract.Migration, error) {
	cfg, err := configure(url, opts)
	if err != nil || cfg.memory() {
		return nil, err
	}
	if cfg.main != cfg.path || !creatable(cfg) {
		if err := checkPath(cfg); err != nil {
			return nil, err
		}
	}
	return upgrade(ctx, cfg, opts)
}

func upgrade(ctx context.Context, cfg config, opts contract.DriverOptions) ([]contract.Migration, error) {
	b := newBackend(cfg, opts)
	done, err := b.migrate(ctx)
	err = b.classify(ctx, err)
	var list []contract.Migration
	for _, m := range done {
		list = append(list, contract.Migration(m))
	}
	return list, err
}

// creatable tells whether only the file is missing, not its directory.
func creatable(cfg config) bool {
	_, file := os.Stat(cfg.path)
	_, dir := os.Stat(filepath.Dir(cfg.path))
	return errors.Is(file, fs.ErrNotExist) && dir == nil
}

// creating keeps a second migration in this process from opening a file that is being created.
var creating sync.Mutex

// create makes an empty file that only this user can read, since the store may hold secrets, if
// there is no file yet. SQLite gives its permissions to the log's files.
func (b *backend) create() (created bool, err error) {
	creating.Lock()
	defer creating.Unlock()
	f, err := os.OpenFile(b.cfg.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return false, nil
	case errors.Is(err, fs.ErrPermission):
		return false, contract.Errorf(contract.Denied, "the database file %s cannot be created: give this user "+
			"write permission on its directory", b.name())
	case err != nil:
		return false, contract.Errorf(contract.Unavailable, "the database file %s cannot be created: %w",
			b.name(), err)
	}
	return true, f.Close()
}

func (b *backend) migrate(ctx context.Context) (done []migrations.Migration, err error) {
	if _, err := b.create(); err != nil {
		return nil, err
	}
	logged := b.logged()
	c, err := sqlite3.Open(b.dbName)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.KeepLog()
		}
		if cerr := c.Close(); err == nil {
			err = cerr
		}
	}()
	c.BusyTimeout(openWait)
	ours, foreign, err := whose(c)
	if err != nil {
		return nil, err
	}
	if c.ReadOnly() {
		return nil, readOnlyFile(b.cfg)
	}
	if err = b.settle(); err != nil {
		return nil, err
	}
	moved := false
	switch {
	case ours:
		var recorded string
		_, recorded, err = b.inspect(ctx, c, logged)
		if moved = b.isMoved(recorded); err == nil && !moved {
			err = b.keepMark(c)
		}
	case foreign:
		err = notOurs(b.cfg)
	}
	if err != nil {
		return nil, err
	}
	// The page size and auto_vacuum take effect with the first write to an empty file, which is the
	// change to WAL mode.
	for _, p := range [][2]string{{"page_size", strconv.Itoa(pageSize)},
		{"auto_vacuum", "INCREMENTAL"}} {
		if err := c.Set(p[0], p[1]); err != nil {
			return nil, err
		}
	}
	mode, err := b.walMode(ctx, c)
	if err != nil {
		return nil, err
	}
	if mode != "wal" {
		return nil, contract.Errorf(contract.Invalid, "the file system of the database %s cannot share "+
			"memory, which SQLite's WAL mode needs: name a file on a local disk", b.name())
	}
	db, err := openSQL(b.dbName, "&mode=rw&_pragma=synchronous("+b.cfg.synchronous+")")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	done, err = migrations.Up(ctx, db, migrations.SQLite, nil)
	if err == nil {
		// SQL cannot tell what the file is called.
		_, err = db.ExecContext(ctx, updateName, b.cfg.store)
	}
	if err == nil && moved {
		// A log beside a file that is not fenced yet would be taken for another file's.
		_, err = c.EmptyLog()
	}
	return done, schemaError(b.name(), err)
}

// keepMark leaves the log of a file that is in use as it is. If the log is lost, the migrations are
// written to a new one, so that its length does not tell any more, and the mark does.
func (b *backend) keepMark(c *sqlite3.Conn) error {
	mark, err := readMark(c)
	if err != nil || mark == markClosed {
		return err
	}
	c.KeepLog()
	lost, err := b.lostLog(c)
	if err == nil && lost && mark != markLost {
		err = putMark(c, markLost)
	}
	return err
}

// walMode changes to WAL mode, for which SQLite does not wait when another process does the same at
// this moment.
func (b *backend) walMode(ctx context.Context, c *sqlite3.Conn) (string, error) {
	timer := time.NewTicker(5 * time.Millisecond)
	defer timer.Stop()
	for {
		mode, err := c.Once("PRAGMA journal_mode = WAL")
		if !sqlite3.Is(err, sqlite3.Busy) {
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
func (driver) Status(ctx context.Context, url string,
	opts contract.DriverOptions) ([]contract.Migration, error) {
	cfg, err := configure(url, opts)
	if err != nil {
		return nil, err
	}
	b := newBackend(cfg, opts)
	if cfg.memory() {
		store, err := contract.OpenBackend(ctx, Driver, url, opts)
		if err != nil {
			return nil, err
		}
		defer func() { _ = store.Close() }()
		b.dbName = store.(*backend).dbName
		return b.status(ctx, "&vfs="+sqlite3.MemoryVFS)
	}
	if err := checkPath(cfg); err != nil {
		return nil, err
	}
	c, err := sqlite3.Open(b.dbName)
	if err != nil {
		return nil, b.classify(ctx, err)
	}
	c.KeepLog()
	defer func() { _ = c.Close() }() // it has only read
	c.BusyTimeout(openWait)
	_, foreign, err := whose(c)
	if err == nil && foreign {
		err = notOurs(cfg)
	}
	if err != nil {
		return nil, b.classify(ctx, err)
	}
	return b.status(ctx, "&mode=rw&_pragma=query_only(1)")
}

func (b *backend) status(ctx context.Context, query string) ([]contract.Migration, error) {
	db, err := openSQL(b.dbName, query)
	if err != nil {
		return nil, b.classify(ctx, err)
	}
	defer db.Close()
	list, err := migrations.Status(ctx, db, migrations.SQLite)
	if err != nil {
		return nil, b.classify(ctx, err)
	}
	var out []contract.Migration
	for _, m := range list {
		out = append(out, contract.Migration(m))
	}
	return out, nil
}
