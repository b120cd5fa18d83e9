package target

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// sqliteFile is a database file. There is no server: the client opens it.
type sqliteFile struct {
	dir string
}

func serveSQLite(_ context.Context, dir string, _ Programs) (Server, error) {
	dir, err := mkdir(dir, "sqlite")
	if err != nil {
		return nil, err
	}
	return &sqliteFile{dir}, nil
}

// Address names what is the default, so that nothing weaker can be measured.
func (s *sqliteFile) Address() string {
	return "sqlite://" + filepath.Join(s.dir, "state.db") + "?synchronous=FULL"
}
func (s *sqliteFile) Processes() []int   { return nil }
func (s *sqliteFile) DataDirs() []string { return []string{s.dir} }

// Settings are the settings that all clients of the file are given.
func (s *sqliteFile) Settings(context.Context) ([]string, error) {
	return []string{"SQLite in the process that writes: journal_mode=WAL, synchronous=FULL"}, nil
}

// Checkpoint empties the write-ahead logs of all databases in the directory. A reader can hold it
// up for a moment.
func (s *sqliteFile) Checkpoint(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(s.dir, "*-wal"))
	if err != nil {
		return err
	}
	for _, wal := range files {
		if err := truncateWAL(ctx, wal[:len(wal)-len("-wal")]); err != nil {
			return err
		}
	}
	return nil
}

func truncateWAL(ctx context.Context, file string) error {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(30000)")
	if err != nil {
		return err
	}
	defer db.Close()
	deadline := time.Now().Add(startTimeout)
	for {
		var busy, pages, moved int
		if err := db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages,
			&moved); err != nil {
			return fmt.Errorf("checkpoint of %s: %w", file, err)
		}
		if busy == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the write-ahead log of %s is in use", file)
		}
	}
}

func (s *sqliteFile) Settle(context.Context) error  { return nil }
func (s *sqliteFile) Restart(context.Context) error { return nil }
func (s *sqliteFile) Stop() error                   { return nil }

func (s *sqliteFile) Committer(ctx context.Context) (Committer, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.dir, "raw.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	raw, err := newSQLCommitter(ctx, db, "INSERT INTO raw (id, value) VALUES (?, ?)",
		"CREATE TABLE IF NOT EXISTS raw (id INTEGER PRIMARY KEY, value BLOB NOT NULL)",
		"CREATE TABLE IF NOT EXISTS raw_log (revision INTEGER PRIMARY KEY, key BLOB NOT NULL, "+
			"value BLOB NOT NULL)",
		"CREATE TABLE IF NOT EXISTS raw_live (key BLOB PRIMARY KEY, revision INTEGER NOT NULL) "+
			"WITHOUT ROWID")
	if err != nil {
		return nil, err
	}
	return sqliteCommitter{raw}, nil
}

type sqliteCommitter struct{ *sqlCommitter }

// Append needs no lock but that of the transaction.
func (c sqliteCommitter) Append(ctx context.Context, id int64, value []byte) error {
	key := []byte(rawKey(id))
	_, err := c.db.ExecContext(ctx, `
		BEGIN IMMEDIATE;
		INSERT INTO raw_log (revision, key, value) SELECT coalesce(max(revision), 0) + 1, ?1, ?2 FROM raw_log;
		INSERT INTO raw_live (key, revision) SELECT ?1, max(revision) FROM raw_log;
		COMMIT`, key, value)
	return err
}

// sqlCommitter commits one row at a time through database/sql.
type sqlCommitter struct {
	// db has one connection.
	db     *sql.DB
	insert *sql.Stmt
}

func newSQLCommitter(ctx context.Context, db *sql.DB, insert string,
	create ...string) (*sqlCommitter, error) {
	for _, statement := range create {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	stmt, err := db.PrepareContext(ctx, insert)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &sqlCommitter{db, stmt}, nil
}

func (c *sqlCommitter) Commit(ctx context.Context, id int64, value []byte) error {
	_, err := c.insert.ExecContext(ctx, id, value)
	return err
}

func (c *sqlCommitter) Close() error { return errors.Join(c.insert.Close(), c.db.Close()) }

// rawKey is the key of a row that a Committer appends.
func rawKey(id int64) string { return fmt.Sprintf("/raw/%012d", id) }
