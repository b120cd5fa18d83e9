package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Lock takes the commit lock, as somebody else would who has the row in his transaction: the whole
// database where that is the lock.
func (d *DB) Lock(ctx context.Context) (unlock func(), err error) {
	query := "SELECT id FROM rowkeeper_store WHERE " + d.itself() + " FOR UPDATE"
	if d.kind == "sqlite" {
		query = "SELECT id FROM rowkeeper_store" // the transaction began as a writing one
	}
	for {
		var tx *sql.Tx
		// The transaction lives until unlock, whatever happens to the context.
		tx, err = d.BeginTx(context.WithoutCancel(ctx), nil)
		if err == nil {
			var id int
			if err = tx.QueryRowContext(ctx, query).Scan(&id); err == nil {
				return func() { _ = tx.Rollback() }, nil
			}
			_ = tx.Rollback()
		}
		if ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
		// Others have it most of the time.
		timer := time.NewTimer(10 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// ReadLock takes MySQL's global read lock, as a backup does.
func (d *DB) ReadLock(ctx context.Context) (unlock func() error, err error) {
	conn, err := d.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "FLUSH TABLES WITH READ LOCK"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return func() error {
		_, err := conn.ExecContext(context.WithoutCancel(ctx), "UNLOCK TABLES")
		return errors.Join(err, conn.Close())
	}, nil
}

// EndOthers ends all connections to the database but one.
func (d *DB) EndOthers(ctx context.Context) error {
	conn, err := d.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if strings.HasPrefix(d.kind, "postgres") {
		_, err := conn.ExecContext(ctx,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		return err
	}
	rows, err := conn.QueryContext(ctx,
		"SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
	if err != nil {
		return err
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, id := range ids {
		// One that has ended meanwhile is as it should be.
		_, _ = conn.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
	}
	return nil
}

// Expand does what an expanding migration of the next release does. Servers of this one go on.
func (d *DB) Expand(ctx context.Context) error {
	var newest int64
	if err := d.QueryRowContext(ctx,
		"SELECT max(version_id) FROM rowkeeper_schema").Scan(&newest); err != nil {
		return err
	}
	for _, query := range []string{
		fmt.Sprintf("ALTER TABLE rowkeeper_live ADD COLUMN note%d INTEGER", newest),
		fmt.Sprintf("INSERT INTO rowkeeper_schema (version_id, is_applied) VALUES (%d, true)",
			newest+1),
	} {
		if _, err := d.ExecContext(ctx, query); err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
	}
	return nil
}

// Dump is a copy of all rows, or of the file.
type Dump struct {
	// Head is its newest revision.
	Head   int64
	tables []table
	file   string
	// fences are the markers that a drill has put into the copy.
	fences []int64
}

// Drill fences the copy twice, as a drill does that tries a backup, or two. A file is fenced by the
// product, and then has the drill's fingerprint; rows are restored with the fences. Drill returns
// the revision of the second fence.
func (d *DB) Drill(ctx context.Context, dump *Dump, fence func(url string) error) (int64, error) {
	if dump.file != "" {
		// The first one is for the other fingerprint, the second one by hand.
		if err := fence("sqlite://" + dump.file); err != nil {
			return 0, err
		}
		return headOfFile(ctx, dump.file)
	}
	dump.fences = []int64{dump.Head + jump, dump.Head + 2*jump}
	return dump.fences[1], nil
}

// jump is how far a fence moves the revision at least.
const jump = 1 << 24

// fence does by SQL what a fence does. On TiDB the row of the store has the head, too.
func (d *DB) fence(ctx context.Context, tx *sql.Tx, marker int64, headInStore bool) error {
	store, id := "store, ", "(SELECT id FROM rowkeeper_store WHERE "+d.itself()+"), "
	if d.kind == "sqlite" {
		store, id = "", ""
	}
	token, now := fmt.Appendf(nil, "%016x", marker), time.Now().UnixMicro()
	insert := fmt.Sprintf("INSERT INTO rowkeeper_log (%srevision, %s, prev_revision, "+
		"create_revision, version, lease, token, time, deleted) "+
		"VALUES (%s%d, '', 0, 0, 0, 0, %s, %d, true)", store, d.key, id, marker, d.arg(1), now)
	if _, err := tx.ExecContext(ctx, insert, token); err != nil {
		return err
	}
	set := fmt.Sprintf("epoch = epoch + 1, compacted = %d", marker)
	if headInStore {
		set += fmt.Sprintf(", head = %d, head_token = x'%x', head_time = %d", marker, token, now)
	}
	_, err := tx.ExecContext(ctx, "UPDATE rowkeeper_store SET "+set+" WHERE "+d.itself())
	return err
}

// of is the condition that a row of a table is the store's.
func (d *DB) of(table string) string {
	if table == "rowkeeper_store" {
		return d.itself()
	}
	return d.in("")
}

type table struct {
	name    string
	columns []string
	rows    [][]any
}

// Dump copies all rows of one snapshot, as the databases' own tools do. SQLite writes a file into
// the directory.
func (d *DB) Dump(ctx context.Context, dir string) (*Dump, error) {
	if d.kind == "sqlite" {
		return d.dumpFile(ctx, filepath.Join(dir, fmt.Sprintf("dump-%d.db", time.Now().UnixNano())))
	}
	tx, err := d.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	dump := &Dump{}
	for _, name := range []string{"rowkeeper_store", "rowkeeper_log", "rowkeeper_live",
		"rowkeeper_lease", "rowkeeper_aborted", "rowkeeper_resource",
		"rowkeeper_index", "rowkeeper_user"} {
		t, err := d.copyTable(ctx, tx, name)
		if err != nil {
			return nil, err
		}
		dump.tables = append(dump.tables, t)
	}
	log := dump.tables[1]
	revision := slices.Index(log.columns, "revision")
	for _, row := range log.rows {
		dump.Head = max(dump.Head, row[revision].(int64))
	}
	return dump, nil
}

func (d *DB) dumpFile(ctx context.Context, path string) (*Dump, error) {
	if _, err := d.ExecContext(ctx, "VACUUM INTO ?", path); err != nil {
		return nil, err
	}
	head, err := headOfFile(ctx, path)
	return &Dump{Head: head, file: path}, err
}

func headOfFile(ctx context.Context, path string) (head int64, err error) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return head, db.QueryRowContext(ctx, "SELECT max(revision) FROM rowkeeper_log").Scan(&head)
}

func (d *DB) copyTable(ctx context.Context, tx *sql.Tx, name string) (table, error) {
	t := table{name: name}
	rows, err := tx.QueryContext(ctx, "SELECT * FROM "+name+" WHERE "+d.of(name))
	if err != nil {
		return t, err
	}
	defer rows.Close()
	if t.columns, err = rows.Columns(); err != nil {
		return t, err
	}
	for rows.Next() {
		values := make([]any, len(t.columns))
		pointers := make([]any, len(t.columns))
		for i := range values {
			pointers[i] = &values[i]
		}
		if err := rows.Scan(pointers...); err != nil {
			return t, err
		}
		t.rows = append(t.rows, values)
	}
	return t, rows.Err()
}

// Restore puts a dump in the place of what is there: its rows, in one transaction, or its file. It
// returns the database as it is from then on.
func (d *DB) Restore(ctx context.Context, dump *Dump) (*DB, error) {
	if dump.file == "" {
		return d, d.restoreRows(ctx, dump)
	}
	// A process that has the old file open goes on to see that one, and when it closes the file,
	// removes the write-ahead log by its name, which is the new file's by then.
	if err := d.RemoveLog(); err != nil {
		return nil, err
	}
	if err := os.Rename(dump.file, d.path); err != nil {
		return nil, err
	}
	return Open(d.url, d.prefixOfKeys, d.store)
}

// RemoveLog closes the file, and then removes its write-ahead log.
func (d *DB) RemoveLog() error {
	err := d.Close()
	for _, suffix := range []string{"-wal", "-shm"} {
		if e := os.Remove(d.path + suffix); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (d *DB) restoreRows(ctx context.Context, dump *Dump) error {
	tx, err := d.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, t := range dump.tables {
		if err := d.fill(ctx, tx, t); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	headInStore := slices.Contains(dump.tables[0].columns, "head") // on TiDB
	for _, marker := range dump.fences {
		if err := d.fence(ctx, tx, marker, headInStore); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// fill puts rows in the place of a table's.
func (d *DB) fill(ctx context.Context, tx *sql.Tx, t table) error {
	if _, err := tx.ExecContext(ctx, "DELETE FROM "+t.name+" WHERE "+d.of(t.name)); err != nil {
		return err
	}
	columns := make([]string, len(t.columns))
	places := make([]string, len(t.columns))
	for i, c := range t.columns {
		// Some have the names of keywords, such as group.
		columns[i], places[i] = `"`+c+`"`, d.arg(i+1)
		if d.kind == "mysql" {
			columns[i] = "`" + c + "`"
		}
	}
	insert, err := tx.PrepareContext(ctx, fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", t.name,
		strings.Join(columns, ", "), strings.Join(places, ", ")))
	if err != nil {
		return err
	}
	defer insert.Close()
	for _, values := range t.rows {
		if _, err := insert.ExecContext(ctx, values...); err != nil {
			return err
		}
	}
	return nil
}
