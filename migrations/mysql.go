package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed mysql/*.sql
var mysqlFiles embed.FS

// MySQL are the migrations of MySQL and MariaDB, where DDL is not transactional: each migration is
// written so that running it again completes what an interrupted run has left. Use them with
// [MySQLLocker].
var MySQL = Set{
	dialect: database.DialectMySQL,
	files:   mysqlFiles,
	dir:     "mysql",
	tableExists: `SELECT EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '` +
		VersionTable + `')`,
	begin: `INSERT INTO ` + VersionTable +
		` (version_id, is_applied) SELECT 0, TRUE FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM ` +
		VersionTable + `)`,
}

// TiDB are the migrations of MySQL as TiDB takes them: other statements in a few lines. All else
// about the two is the same.
var TiDB = func() Set {
	s := MySQL
	s.files = tidbFiles{mysqlFiles}
	return s
}()

// ForTiDB makes a migration of MySQL one of TiDB: the line after lines that begin with "-- TiDB:"
// is replaced by what those say.
func ForTiDB(sql string) string {
	return tidbLines.ReplaceAllStringFunc(sql, func(lines string) string {
		lines = lines[:strings.LastIndexByte(lines[:len(lines)-1], '\n')+1]
		return strings.ReplaceAll(lines, "-- TiDB: ", "")
	})
}

var tidbLines = regexp.MustCompile(`(?m)^(-- TiDB: .*\n)+.*\n`)

// tidbFiles are the files as TiDB takes them.
type tidbFiles struct{ fs.FS }

func (f tidbFiles) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if err != nil || path.Ext(name) != ".sql" {
		return file, err
	}
	data, err := io.ReadAll(file)
	return tidbFile{file, strings.NewReader(ForTiDB(string(data)))}, err
}

type tidbFile struct {
	fs.File
	edited *strings.Reader
}

func (f tidbFile) Read(p []byte) (int, error) { return f.edited.Read(p) }

// MySQLLocker returns a lock that one connection to the database holds at a time. It ends with the
// connection, if not before.
func MySQLLocker() lock.SessionLocker { return mysqlLocker{} }

type mysqlLocker struct{}

// SessionLock waits for the lock until ctx ends. The server waits a second at a time: a connection
// that was given up then does not stay behind in the queue for the lock.
func (mysqlLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	name, err := mysqlLockName(ctx, conn)
	if err != nil {
		return err
	}
	for {
		var got sql.NullBool
		err := conn.QueryRowContext(ctx, `SELECT GET_LOCK(?, 1)`, name).Scan(&got)
		if err != nil && strings.HasSuffix(err.Error(), ": lock wait timeout") {
			continue // so says TiDB now and then where it should say 0
		}
		if err != nil {
			return err
		}
		if got.Bool {
			return nil
		}
		if !got.Valid {
			return errors.New("the lock for migrations was refused")
		}
	}
}

func (mysqlLocker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	name, err := mysqlLockName(ctx, conn)
	if err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, `DO RELEASE_LOCK(?)`, name)
	return err
}

// mysqlLockName makes the lock's name, at most 64 characters long, from the database's, since the
// locks of a server are one name space.
func mysqlLockName(ctx context.Context, conn *sql.Conn) (string, error) {
	var db string
	if err := conn.QueryRowContext(ctx, `SELECT DATABASE()`).Scan(&db); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(db))
	return VersionTable + "." + hex.EncodeToString(sum[:16]), nil
}
