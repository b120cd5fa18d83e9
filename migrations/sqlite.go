package migrations

import (
	"context"
	"embed"

	"github.com/pressly/goose/v3/database"
)

//go:embed sqlite/*.sql
var sqliteFiles embed.FS

// SQLite are the migrations of SQLite.
//
// SQLite has no lock that a session could hold over several transactions while other connections go
// on reading and writing. Here the version table is the lock: it holds each version once, and a
// migration and its row there are one transaction, begun with BEGIN IMMEDIATE (the connections of
// db must be opened so). Of several programs that run one migration, one commits; the others then
// wait for it, find the migration's objects or its version there, roll back, and go on with what is
// left.
var SQLite = Set{
	dialect: database.DialectSQLite3,
	files:   sqliteFiles,
	dir:     "sqlite",
	tableExists: `SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '` +
		VersionTable + `')`,
	store:      newSQLiteStore,
	optimistic: true,
}

// sqliteStore is goose's store for SQLite with a version table that holds each version once and may
// be created by several at once.
type sqliteStore struct{ database.Store }

func newSQLiteStore() (database.Store, error) {
	s, err := database.NewStore(database.DialectSQLite3, VersionTable)
	return sqliteStore{s}, err
}

const createSQLiteVersionTable = `
CREATE TABLE IF NOT EXISTS ` + VersionTable + ` (
    id         INTEGER PRIMARY KEY,
    version_id INTEGER NOT NULL UNIQUE,
    is_applied INTEGER NOT NULL,
    tstamp     TIMESTAMP NOT NULL DEFAULT (datetime('now'))
)`

func (s sqliteStore) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	_, err := db.ExecContext(ctx, createSQLiteVersionTable)
	return err
}

// Insert records a version. goose records version 0 after it created the table, which two programs
// may believe to have done.
func (s sqliteStore) Insert(ctx context.Context, db database.DBTxConn,
	req database.InsertRequest) error {
	if req.Version != 0 {
		return s.Store.Insert(ctx, db, req)
	}
	_, err := db.ExecContext(ctx, `INSERT OR IGNORE INTO `+VersionTable+
		` (version_id, is_applied) VALUES (0, 1)`)
	return err
}
