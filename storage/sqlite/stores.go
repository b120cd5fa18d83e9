package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// Each store is a file of its own. So it has its own lock, log and fingerprint, and no statement
// knows of the others.
const (
	// storesSuffix is what the directory of the other stores is called after the default store's
	// file, and storeSuffix what a store's file is called after the store.
	storesSuffix = ".stores"
	storeSuffix  = ".db"
)

// configure reads a URL, and finds the file of the store.
func configure(url string, opts contract.DriverOptions) (config, error) {
	c, err := parse(url)
	c.main, c.store = c.path, opts.StoreName()
	switch {
	case err != nil || c.store == contract.DefaultStore:
		return c, err
	case c.memory():
		return c, contract.Errorf(contract.Invalid, "a database in memory has no store but %q: name a "+
			"file in the database URL, or no store", contract.DefaultStore)
	}
	c.path = filepath.Join(storesOf(c.main), c.store+storeSuffix)
	return c, nil
}

// storesOf returns the directory of the stores beside the default one. It lies where the file
// itself is, whatever symbolic links lead there.
func storesOf(file string) string {
	if resolved, err := filepath.EvalSymlinks(file); err == nil {
		file = resolved
	}
	return file + storesSuffix
}

// CreateStore implements [contract.Driver].
func (d driver) CreateStore(ctx context.Context, url string,
	opts contract.DriverOptions) (created bool, err error) {
	store := opts.StoreName()
	opts.Store = ""
	if _, err := d.Migrate(ctx, url, opts); err != nil || store == contract.DefaultStore {
		return false, err
	}
	opts.Store = store
	cfg, err := configure(url, opts)
	if err != nil {
		return false, err
	}
	dir := filepath.Dir(cfg.path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, contract.Errorf(contract.Denied, "the directory %s of the stores cannot be "+
			"created: %w", dir, err)
	}
	if err := syncParent(dir); err != nil {
		return false, contract.Errorf(contract.Unavailable, "the directory %s of the stores cannot "+
			"be made durable: check the disk: %w", dir, err)
	}
	if created, err = newBackend(cfg, opts).create(); err != nil {
		return false, err
	}
	_, err = upgrade(ctx, cfg, opts)
	return created && err == nil, err
}

// syncParent makes a directory's name durable. In the directory, SQLite does the same for the log
// of a file, and so for the file itself, when it waits for the log's first commit. Windows does not
// let a directory be waited for.
func syncParent(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	return errors.Join(syncFile(f), f.Close())
}

// Stores implements [contract.Driver].
func (driver) Stores(ctx context.Context, url string, opts contract.DriverOptions) ([]string, error) {
	opts.Store = ""
	cfg, err := configure(url, opts)
	if err != nil {
		return nil, err
	}
	stores := []string{contract.DefaultStore}
	if cfg.memory() {
		return stores, nil
	}
	if err := checkPath(cfg); err != nil {
		return nil, err
	}
	files, err := filesOf(cfg.main)
	if err != nil {
		return nil, err
	}
	for name, path := range files {
		if _, dropped, err := valueIn(ctx, path, ""); err != nil {
			return nil, err
		} else if !dropped || opts.Dropped {
			stores = append(stores, name)
		}
	}
	slices.Sort(stores)
	return stores, nil
}

// filesOf finds the files of the stores beside the default one.
func filesOf(main string) (map[string]string, error) {
	dir := storesOf(main)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, contract.Errorf(contract.Denied, "the directory %s of the stores cannot be read: %w",
			dir, err)
	}
	files := map[string]string{}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), storeSuffix); ok {
			files[name] = filepath.Join(dir, e.Name())
		}
	}
	return files, nil
}

// Everywhere implements [contract.Backend]. It opens the other stores' files one after the other,
// each for a single read.
func (b *backend) Everywhere(ctx context.Context,
	key contract.Key) (map[string][]byte, contract.State, error) {
	values := map[string][]byte{}
	row, st, err := b.Get(ctx, key)
	if row != nil {
		values[b.cfg.store] = row.Value
	}
	if err != nil || b.cfg.memory() {
		return values, st, err
	}
	files, err := filesOf(b.cfg.main)
	if err != nil {
		return nil, st, err
	}
	files[contract.DefaultStore] = b.cfg.main
	delete(files, b.cfg.store)
	for name, path := range files {
		if err := ctx.Err(); err != nil {
			return nil, st, contract.Errorf(contract.Unavailable,
				"cannot read the files of all stores in time: %w", err)
		}
		switch value, dropped, err := valueIn(ctx, path, key); {
		case err != nil:
			return nil, st, err
		case value != nil && !dropped:
			values[name] = value
		}
	}
	return values, st, nil
}

// valueIn reads a key of the store in a file, nil if it is not there, and whether the store was
// dropped. A file without a store is one that is being created.
func valueIn(ctx context.Context, path string, key contract.Key) (value []byte, dropped bool,
	err error) {
	b := newBackend(config{path: path, main: path}, contract.DriverOptions{})
	c, err := sqlite3.Open(b.dbName)
	if err != nil {
		return nil, false, b.classify(ctx, err)
	}
	c.KeepLog()
	defer func() { _ = c.Close() }() // it has only read
	c.BusyTimeout(openWait)
	ours, _, err := whose(c)
	if err != nil || !ours {
		return nil, false, b.classify(ctx, err)
	}
	s, err := c.Prepare(selectGet)
	if err != nil {
		return nil, false, b.classify(ctx, err)
	}
	var lost error
	_, err = s.BlobString(string(key)).Row(func() {
		cur := &cursor{s: s, first: stateColumns}
		b.scanState(s, &cur.state)
		dropped = cur.state.Dropped()
		if cur.More() {
			if value = cur.Value(7); value == nil {
				lost = contract.LostValue(key, contract.Revision(cur.Int(0)))
			}
		}
	})
	if err == nil {
		err = lost
	}
	if err == nil {
		err = syncLog(walOf(path))
	}
	return value, dropped, b.classify(ctx, err)
}
