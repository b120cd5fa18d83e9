package mysql

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

var _ mvcc.Archiver = (*backend)(nil)

// setExportIsolation and startSnapshot begin a transaction whose reads are all of one snapshot, which is taken at once.
const setExportIsolation = `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`

const startSnapshot = `START TRANSACTION WITH CONSISTENT SNAPSHOT`

// setArchiveTimeouts: who takes the rows may do so at leisure, and a process that restores may be silent for this long, in seconds, before the
// server takes it for dead.
const setArchiveTimeouts = `SET SESSION net_write_timeout = 3600, wait_timeout = 60`

// selectAllKeys counts all live keys.
const selectAllKeys = `
SELECT COUNT(*)
FROM rowkeeper_live l`

// selectRecords walks the log by its primary key, which is the order that is asked for, and finds by the primary key of live which of its
// rows are live.
const selectRecords = `
SELECT g.revision, l.key, l.create_revision, COALESCE(l.expiry, 0), g.value
FROM rowkeeper_log g FORCE INDEX (PRIMARY)
STRAIGHT_JOIN rowkeeper_live l FORCE INDEX (PRIMARY) ON l.key = g.key AND l.revision = g.revision
WHERE g.revision > 0
ORDER BY g.revision`

// deleteAllLive and deleteAllLog walk the tables.
const deleteAllLive = `
DELETE FROM rowkeeper_live`

const deleteAllLog = `
DELETE FROM rowkeeper_log`

// insertLive is followed by rows. Unlike replaceLive, it refuses a key that is there.
const insertLive = `
INSERT INTO rowkeeper_live
       (rowkeeper_live.key, revision, create_revision, expiry)
VALUES `

// archive runs f on a connection of its own, whose time only the context bounds.
func (b *backend) archive(ctx context.Context, what string, f func(*sql.Conn) error) error {
	db := b.server.pool(connector{server: b.server, transactions: true}, 1)
	defer db.Close() // which ends the transaction, too, if that was not committed
	conn, err := db.Conn(ctx)
	if err != nil {
		return b.failed(what, err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, setArchiveTimeouts); err != nil {
		return b.failed(what, err)
	}
	return f(conn)
}

// Export implements [mvcc.Archiver].
func (b *backend) Export(ctx context.Context, begin func(context.Context, mvcc.State, int64) error, each func(*mvcc.Record) error) error {
	const what = "export the store"
	return b.archive(ctx, what, func(conn *sql.Conn) error {
		for _, statement := range []string{setExportIsolation, startSnapshot} {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return b.failed(what, err)
			}
		}
		st, n, err := b.contents(ctx, conn, what)
		if err != nil {
			return err
		}
		if err := begin(ctx, st, n); err != nil {
			return err
		}
		return b.records(ctx, conn, what, each)
	})
}

// contents reads the state and how many keys there are.
func (b *backend) contents(ctx context.Context, conn *sql.Conn, what string) (st mvcc.State, keys int64, err error) {
	var (
		s    stateRow
		rows *sql.Rows
	)
	if rows, err = conn.QueryContext(ctx, selectState); err != nil {
		return st, 0, b.failed(what, err)
	}
	defer rows.Close()
	if rows.Next() {
		if err := rows.Scan(s.columns()...); err != nil {
			return st, 0, b.failed(what, err)
		}
		st = s.state()
	}
	if err := rows.Close(); err != nil {
		return st, 0, b.failed(what, err)
	}
	if err := rows.Err(); err != nil {
		return st, 0, b.failed(what, err)
	}
	if !s.found {
		return st, 0, errNoState
	}
	if err := conn.QueryRowContext(ctx, selectAllKeys).Scan(&keys); err != nil {
		return st, 0, b.failed(what, err)
	}
	return st, keys, nil
}

// records calls each for all keys. Errors of each are returned as they are.
func (b *backend) records(ctx context.Context, conn *sql.Conn, what string, each func(*mvcc.Record) error) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	rows, err := conn.QueryContext(reading, selectRecords)
	if err != nil {
		return b.failed(what, err)
	}
	defer rows.Close()
	var (
		key                      sql.RawBytes
		revision, create, expiry int64
	)
	for rows.Next() {
		var value []byte
		if err := rows.Scan(&revision, &key, &create, &expiry, &value); err != nil {
			return b.failed(what, err)
		}
		r := &mvcc.Record{Key: mvcc.Key(key), Revision: mvcc.Revision(revision), Create: mvcc.Revision(create), Expiry: expiry, Value: value}
		if err := each(r); err != nil {
			stop() // the other rows, however many, are not waited for
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return b.failed(what, err)
	}
	return nil
}

// Import implements [mvcc.Archiver]. Readers go on with what was before, in their snapshots. A sweep that has read what it will delete finds
// that the epoch is another one, and deletes nothing; one that is deleting may be in the way, then the server undoes one of the two.
func (b *backend) Import(ctx context.Context, in *mvcc.Import) (st mvcc.State, err error) {
	const what = "import into the store"
	err = b.archive(ctx, what, func(conn *sql.Conn) error {
		exec := func(t *text) error {
			if _, err := b.send(ctx, conn, t, nil); err != nil {
				return b.failed(what, err)
			}
			return nil
		}
		var first text
		first.statement(setIsolation)
		first.statement(startTransaction)
		b.takeTurn(&first)
		first.statement(lockStore)
		if err := exec(&first); err != nil {
			return err
		}
		var n int64
		if st, n, err = b.contents(ctx, conn, what); err != nil {
			return err
		}
		if !st.Writable {
			b.server.suspect()
			return errReadOnly
		}
		if err := in.Begin(st, n); err != nil {
			return err
		}
		var second text
		second.statement(deleteAllLive)
		second.statement(deleteAllLog)
		if err := exec(&second); err != nil {
			return err
		}
		w := importer{limits: b.limits, now: st.Now, token: in.Token, exec: exec}
		if err := in.Write(w.add); err != nil {
			return err
		}
		if err := w.flush(); err != nil {
			return err
		}
		if err := in.Check(func(each func(*mvcc.Record) error) error { return b.records(ctx, conn, what, each) }); err != nil {
			return err
		}
		st = in.End(st)
		var last text
		last.fence(st, in.Fingerprint)
		// The sweep compares the epoch when it moves swept.
		last.statement(updateSwept, int64(st.Head.Epoch), int64(st.Swept))
		last.statement(commit)
		if reached, err := b.send(ctx, conn, &last, nil); err != nil {
			if !reached {
				return b.failed(what, err)
			}
			return b.failedCommit(what, err)
		}
		return nil
	})
	return st, err
}

// importer gathers records to statements as large as those of a commit group.
type importer struct {
	limits mvcc.Limits
	now    time.Time
	token  mvcc.Token
	exec   func(*text) error

	records []mvcc.Record
	bytes   int
}

func (w *importer) add(r *mvcc.Record) error {
	size := len(r.Key) + len(r.Value)
	if len(w.records) == w.limits.GroupMutations || w.bytes+size > w.limits.GroupBytes {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.records = append(w.records, *r)
	w.bytes += size
	return nil
}

func (w *importer) flush() error {
	if len(w.records) == 0 {
		return nil
	}
	var t text
	t.Grow(statementBytes + len(w.records)*rowBytes + w.bytes + w.bytes/8)
	n := 0
	t.statement(insertLog)
	for _, r := range w.records {
		m := mvcc.Mutation{Key: r.Key, Value: r.Value}
		t.comma(&n)
		t.logRow(&m, &mvcc.Outcome{Revision: r.Revision, Create: r.Create}, w.token, w.now)
	}
	n = 0
	t.statement(insertLive)
	for _, r := range w.records {
		t.comma(&n)
		t.recordRow(&r)
	}
	clear(w.records)
	w.records, w.bytes = w.records[:0], 0
	err := w.exec(&t)
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && e.Number == duplicateKey {
		// Nobody else writes, so to try again would be of no use.
		return mvcc.Errorf(mvcc.Data, "a key is in it twice: %w", e)
	}
	return err
}

// duplicateKey is the server's error for it.
const duplicateKey = 1062

// recordRow writes the values of insertLive.
func (t *text) recordRow(r *mvcc.Record) {
	t.WriteByte('(')
	t.binary([]byte(r.Key))
	t.WriteByte(',')
	t.int(int64(r.Revision))
	t.WriteByte(',')
	t.int(int64(r.Create))
	t.WriteByte(',')
	if r.Expiry > 0 {
		t.int(r.Expiry)
	} else {
		t.WriteString("NULL")
	}
	t.WriteByte(')')
}
