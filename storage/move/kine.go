package move

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// kine is the table of a kine as a source.
//
// Each row is a write of a key: its number is the revision. A row with deleted = 1 deletes the key.
// The value and the lease, a time to live in seconds, are in the row. Compaction deletes rows that
// were replaced, and rows that delete, up to a revision, which prev_revision of the row
// compact_rev_key tells. Rows that fill gaps are named gap-NUMBER, and delete.
type kine struct {
	db *sql.DB
	d  dialect
	// name names the database, without secrets.
	name string
	// patience is how long a gap is waited for.
	patience time.Duration
}

// Kine is the table of a kine as a source, in SQLite, PostgreSQL or MySQL. The URL is as in kine's
// option --endpoint and k3s's --datastore-endpoint, or as Rowkeeper's own. The configuration of TLS
// may be nil.
func Kine(ctx context.Context, url string, config *tls.Config) (*Source, error) {
	k, err := openKine(url, config)
	if err != nil {
		return nil, err
	}
	if _, err := k.table(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return &Source{k}, nil
}

const (
	// kineTable is the name of the table, and movedTable its name after the fence.
	kineTable  = "kine"
	movedTable = "kine_moved"
	// tombstone is the only column of what stands in the place of the table after the fence.
	tombstone = "moved_to_rowkeeper"

	// compactKey is the row of the compacted revision, and compactAPIKey what kube-apiserver is
	// shown in its place. A store needs neither, and kube-apiserver writes its own again.
	compactKey    = "compact_rev_key"
	compactAPIKey = "compact_rev_key_apiserver"
	// fillPrefix begins the names of rows that fill gaps.
	fillPrefix = "gap-"

	kinePatience = time.Minute
	kineRows     = 500
	// fenceWait is how many seconds the fence waits for transactions of kine.
	fenceWait = 10
)

func (k *kine) Close() error { return k.db.Close() }

func (k *kine) failed(what string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("cannot %s in %s: %w", what, k.name, err)
}

func (k *kine) number(ctx context.Context, what, text string, args ...any) (int64, error) {
	var n sql.NullInt64
	err := k.db.QueryRowContext(ctx, k.d.text(text), args...).Scan(&n)
	return n.Int64, k.failed(what, err)
}

// exists tells whether there is a table of the name.
func (k *kine) exists(ctx context.Context, name string) (bool, error) {
	n, err := k.number(ctx, "look for kine's table", k.d.tables, name)
	return n > 0, err
}

// table is the name of the table.
func (k *kine) table(ctx context.Context) (string, error) {
	moved, err := k.fenced(ctx)
	if err != nil || moved {
		return movedTable, err
	}
	there, err := k.exists(ctx, kineTable)
	if err == nil && !there {
		err = fmt.Errorf("%s has no table kine: name the database of kine; k3s keeps its own in "+
			"/var/lib/rancher/k3s/server/db/state.db", k.name)
	}
	return kineTable, err
}

func (k *kine) identity(context.Context) (string, error) { return "kine in " + k.name, nil }

func (k *kine) fenced(ctx context.Context) (bool, error) { return k.exists(ctx, movedTable) }

func (k *kine) newest(ctx context.Context) (contract.Revision, error) {
	t, err := k.table(ctx)
	if err != nil {
		return 0, err
	}
	n, err := k.number(ctx, "read the newest revision", `SELECT MAX(id) FROM `+t)
	return contract.Revision(n), err
}

// compacted is the revision up to which rows may be missing.
func (k *kine) compacted(ctx context.Context, table string) (contract.Revision, error) {
	n, err := k.number(ctx, "read the compacted revision",
		`SELECT MAX(prev_revision) FROM `+table+` WHERE name = '`+compactKey+`'`)
	return contract.Revision(n), err
}

// live is the condition of rows that are the newest ones of their keys, by the index on name and
// id.
const live = ` WHERE k.deleted = 0 AND NOT EXISTS (
    SELECT 1 FROM %[1]s n WHERE n.name = k.name AND n.id > k.id)`

func (k *kine) count(ctx context.Context) (int64, error) {
	t, err := k.table(ctx)
	if err != nil {
		return 0, err
	}
	// Rows that were replaced are counted, too: those that were not cost as much to find as to
	// read.
	return k.number(ctx, "count the keys", `SELECT COUNT(*) FROM `+t)
}

const kineColumns = `k.id, k.name, k.created, k.deleted, k.create_revision, k.lease, k.value`

// scan reads a row. ours is false for rows that mean nothing to anybody but kine.
func (k *kine) scan(rows *sql.Rows, now time.Time) (c change, id contract.Revision, ours bool,
	err error) {
	var (
		created, deleted, createRevision, lease sql.NullInt64
		name                                    []byte
		r                                       contract.Record
	)
	err = rows.Scan(&r.Revision, &name, &created, &deleted, &createRevision, &lease, &r.Value)
	if err != nil {
		return c, 0, false, err
	}
	r.Key = contract.Key(name)
	c.key, id = r.Key, r.Revision
	switch {
	case r.Key == compactKey, r.Key == compactAPIKey,
		deleted.Int64 != 0 && strings.HasPrefix(string(name), fillPrefix):
		return c, id, false, nil
	case deleted.Int64 != 0:
		return c, id, true, nil
	case len(r.Key) > contract.MaxKeyBytes || len(r.Value) > contract.MaxValueBytes:
		return c, id, true, fmt.Errorf("the key %q has %d bytes, with a value of %d bytes, and a store "+
			"takes %d and %d: make the object smaller, or delete it, while kine serves", name,
			len(name), len(r.Value), contract.MaxKeyBytes, contract.MaxValueBytes)
	}
	if err := movable(r.Key); err != nil {
		return c, id, true, err
	}
	r.Version = 1 // kine does not count
	r.Create = contract.Revision(createRevision.Int64)
	if created.Int64 != 0 || r.Create < 1 || r.Create > r.Revision {
		r.Create = r.Revision
	}
	if lease.Int64 > 0 {
		r.Expiry = now.Add(time.Duration(lease.Int64) * time.Second).UnixMicro()
	}
	if r.Value == nil {
		r.Value = []byte{}
	}
	c.record = &r
	return c, id, true, nil
}

// all reads the live rows in one statement. Changes are followed from the first gap on that there
// was before it: what comes there later may be missing in what the statement reads.
func (k *kine) all(ctx context.Context, c clock,
	each func(*contract.Record) error) (w whole, err error) {
	t, err := k.table(ctx)
	if err != nil {
		return w, err
	}
	if w.at.Revision, err = k.dense(ctx, t); err != nil {
		return w, err
	}
	now, err := c(ctx)
	if err != nil {
		return w, err
	}
	rows, err := k.db.QueryContext(ctx, k.d.text(fmt.Sprintf(
		`SELECT `+kineColumns+` FROM %[1]s k`+live+` ORDER BY k.id`, t)))
	if err != nil {
		return w, k.failed("read the keys", err)
	}
	defer rows.Close()
	for rows.Next() {
		change, _, ours, err := k.scan(rows, now)
		if err != nil {
			return w, k.failed("read a key", err)
		}
		if ours {
			if err := each(change.record); err != nil {
				return w, err
			}
		}
	}
	return w, k.failed("read the keys", rows.Err())
}

// dense is the last revision before the first gap above compacted.
func (k *kine) dense(ctx context.Context, table string) (contract.Revision, error) {
	at, err := k.compacted(ctx, table)
	if err != nil {
		return 0, err
	}
	rows, err := k.db.QueryContext(ctx, k.d.text(`SELECT id FROM `+table+` WHERE id > ? ORDER BY id`),
		int64(at))
	if err != nil {
		return 0, k.failed("read the revisions", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id contract.Revision
		if err := rows.Scan(&id); err != nil {
			return 0, k.failed("read the revisions", err)
		}
		if id != at+1 {
			return at, nil
		}
		at = id
	}
	return at, k.failed("read the revisions", rows.Err())
}

// beyondGap decides how many of some ids, which rise, may be passed after a position. An id that is
// missing stops the follower, unless it is not above settled: then it was missing for long.
func beyondGap(after contract.Revision, ids []contract.Revision, settled contract.Revision) int {
	for i, id := range ids {
		if id != after+1 && id > settled+1 {
			return i
		}
		after = id
	}
	return len(ids)
}

func (k *kine) follow(ctx context.Context, after position, c clock,
	each func([]change, position, contract.Revision) error) error {
	var (
		// settled is the revision up to which no missing id is waited for any more. A gap is waited
		// for since a time, when the newest revision was newest.
		settled, newest contract.Revision
		since           time.Time
	)
	for {
		changes, ids, head, err := k.after(ctx, after.Revision, c)
		if err != nil {
			return err
		}
		n := beyondGap(after.Revision, ids, settled)
		switch {
		case n == len(ids):
			since = time.Time{}
		case since.IsZero():
			since, newest = time.Now(), head
		case time.Since(since) >= k.patience:
			settled, since = newest, time.Time{}
			continue
		}
		var ours []change
		for i := range n {
			if after.Revision = ids[i]; changes[i].key != "" {
				ours = append(ours, changes[i])
			}
		}
		if err := each(ours, after, head); err != nil {
			return err
		}
		if n == kineRows {
			continue
		}
		if !wait(ctx, followPause) {
			return nil
		}
	}
}

// after reads rows after a position: their numbers, and what they change, without a key if they
// concern nobody but kine.
func (k *kine) after(ctx context.Context, after contract.Revision,
	c clock) (changes []change, ids []contract.Revision, head contract.Revision, err error) {
	now, err := c(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	rows, err := k.db.QueryContext(ctx, k.d.text(`SELECT `+kineColumns+` FROM `+kineTable+
		` k WHERE k.id > ? ORDER BY k.id LIMIT ?`), int64(after), kineRows)
	if err != nil {
		return nil, nil, 0, k.failed("read the changes", err)
	}
	defer rows.Close()
	for rows.Next() {
		change, id, ours, err := k.scan(rows, now)
		if err != nil {
			return nil, nil, 0, k.failed("read a change", err)
		}
		if !ours {
			change.key = ""
		}
		changes, ids, head = append(changes, change), append(ids, id), id
	}
	if err := rows.Err(); err != nil {
		return nil, nil, 0, k.failed("read the changes", err)
	}
	rows.Close()
	// It is read after the rows: it was no greater then.
	compacted, err := k.compacted(ctx, kineTable)
	if err == nil && compacted > after {
		err = errPassed
	}
	if err == nil && len(ids) == kineRows {
		head, err = k.newest(ctx)
	}
	return changes, ids, max(head, after), err
}

// fence renames the table, and puts another one in its place. Both are done together, and wait
// until no transaction uses the table.
func (k *kine) fence(ctx context.Context) error {
	if done, err := k.fenced(ctx); err != nil || done {
		return err
	}
	return k.change(ctx, "rename kine's table (stop kine, and run `rowkeeper move --finish` again)",
		k.d.fence)
}

func (k *kine) unfence(ctx context.Context) (bool, error) {
	if there, err := k.fenced(ctx); err != nil || !there {
		return false, err
	}
	return true, k.change(ctx, "give kine's table its name again", k.d.unfence)
}

// change runs statements in one transaction, where the database has such ones.
func (k *kine) change(ctx context.Context, what string, statements []string) error {
	conn, err := k.db.Conn(ctx)
	if err != nil {
		return k.failed(what, err)
	}
	defer conn.Close()
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			return k.failed(what, err)
		}
	}
	return nil
}

// dialect is what differs between the databases.
type dialect struct {
	// tables counts the tables of a name.
	tables string
	// fence and unfence are statements.
	fence, unfence []string
	// numbered: parameters are $1, $2, …
	numbered bool
}

func (d *dialect) text(s string) string {
	for n := 1; d.numbered && strings.Contains(s, "?"); n++ {
		s = strings.Replace(s, "?", fmt.Sprintf("$%d", n), 1)
	}
	return s
}

var (
	renames = []string{
		`ALTER TABLE ` + kineTable + ` RENAME TO ` + movedTable,
		`CREATE TABLE ` + kineTable + ` (` + tombstone + ` INTEGER)`,
		`COMMIT`,
	}
	renamesBack = []string{
		`DROP TABLE ` + kineTable,
		`ALTER TABLE ` + movedTable + ` RENAME TO ` + kineTable,
		`COMMIT`,
	}

	onSQLite = dialect{
		tables:  `SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ?`,
		fence:   append([]string{`BEGIN IMMEDIATE`}, renames...),
		unfence: append([]string{`BEGIN IMMEDIATE`}, renamesBack...),
	}
	onPostgres = dialect{
		tables: `SELECT COUNT(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?`,
		fence: append([]string{`BEGIN`,
			fmt.Sprintf(`SET LOCAL lock_timeout = '%ds'`, fenceWait)}, renames...),
		unfence:  append([]string{`BEGIN`}, renamesBack...),
		numbered: true,
	}
	// MySQL's statements on tables are no transactions. One statement renames both.
	onMySQL = dialect{
		tables: `SELECT COUNT(*) FROM information_schema.TABLES WHERE table_schema = DATABASE() AND table_name = ?`,
		fence: []string{
			fmt.Sprintf(`SET SESSION lock_wait_timeout = %d`, fenceWait),
			`DROP TABLE IF EXISTS kine_tombstone`,
			`CREATE TABLE kine_tombstone (` + tombstone + ` INTEGER PRIMARY KEY)`,
			`RENAME TABLE ` + kineTable + ` TO ` + movedTable + `, kine_tombstone TO ` + kineTable,
		},
		unfence: []string{
			`RENAME TABLE ` + kineTable + ` TO kine_tombstone, ` + movedTable + ` TO ` + kineTable,
			`DROP TABLE kine_tombstone`,
		},
	}
)

// fileName is the path of a SQLite URL.
func fileName(rest string) string {
	rest, _, _ = strings.Cut(rest, "?")
	rest = strings.TrimPrefix(rest, "file:")
	return path.Clean(strings.TrimPrefix(rest, "//"))
}
