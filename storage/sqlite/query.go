package sqlite

import (
	"context"
	"errors"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// openToRead opens a file for a command that only reads. The connection leaves the write-ahead log
// as it is, and as long as it is open, the log is not copied when another one is closed.
func openToRead(ctx context.Context, url string, opts contract.DriverOptions) (*backend,
	*sqlite3.Conn, error) {
	cfg, err := configure(url, opts)
	if err != nil {
		return nil, nil, err
	}
	if cfg.memory() {
		return nil, nil, contract.Errorf(contract.Invalid, "a database in memory has nothing for "+
			"others to read: name a file in the database URL")
	}
	if err := checkPath(cfg); err != nil {
		return nil, nil, err
	}
	b := newBackend(cfg, opts)
	c, err := sqlite3.Open(b.dbName)
	if err != nil {
		return nil, nil, b.classify(ctx, err)
	}
	c.KeepLog()
	c.BusyTimeout(openWait)
	return b, c, nil
}

// Query implements [contract.Driver]. The connection is opened for reading only. Another one keeps
// the write-ahead log from being copied when it is closed.
func (driver) Query(ctx context.Context, url string, opts contract.DriverOptions, q contract.Query,
	each func(columns []string, values []any) error) error {
	if err := q.Check(); err != nil {
		return err
	}
	b, c, err := openToRead(ctx, url, opts)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // it has only read
	ours, _, err := whose(c)
	if err == nil && !ours {
		err = notOurs(b.cfg)
	}
	if err != nil {
		return b.classify(ctx, err)
	}
	db, err := openSQL(b.dbName, "&mode=ro&_pragma=query_only(1)")
	if err != nil {
		return b.classify(ctx, err)
	}
	defer db.Close()
	limited := ctx
	if q.Timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, q.Timeout)
		defer cancel()
	}
	var callers error
	late := func(error) bool { return errors.Is(limited.Err(), context.DeadlineExceeded) }
	err = sqlkit.Query(limited, db, []string{"BEGIN DEFERRED"}, q, late, func(columns []string, values []any) error {
		callers = each(columns, values)
		return callers
	})
	if callers != nil {
		return callers
	}
	return b.classify(ctx, err)
}
