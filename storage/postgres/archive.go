package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

var _ mvcc.Archiver = (*backend)(nil)

// sqlBeginExport begins a transaction whose statements read one snapshot. It is not READ ONLY, since the state tells by that whether the server takes writes.
const sqlBeginExport = `BEGIN ISOLATION LEVEL REPEATABLE READ`

// sqlCountAll counts all live rows.
const sqlCountAll = `SELECT count(*) FROM rowkeeper_live`

// sqlRecords walks the log by its primary key, which is the order that is asked for, and finds by the primary key of live which of its rows are live. Values of
// the others that are stored out of line are not read.
const sqlRecords = `
SELECT g.revision, l.create_revision, coalesce(l.expiry, 0), g.key, g.value
FROM rowkeeper_log g
CROSS JOIN LATERAL (
    SELECT create_revision, expiry FROM rowkeeper_live WHERE key = g.key AND revision = g.revision OFFSET 0
) l
ORDER BY g.revision`

// sqlArchiveSettings are made for the transaction, where the server has them: it may take as long as it needs to, and values are compressed as those of
// commits are.
const sqlArchiveSettings = `
SELECT set_config(name, CASE name WHEN 'default_toast_compression' THEN 'lz4' ELSE '0' END, true)
FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout')
   OR name = 'default_toast_compression' AND setting = 'pglz' AND 'lz4' = ANY (enumvals)`

// sqlSweepOut waits for the sweep that is under way, and keeps others from beginning: it would be in the way of the deletions.
const sqlSweepOut = `SELECT pg_advisory_xact_lock('rowkeeper_log'::regclass::oid::int, 1)`

// sqlClear deletes everything.
const sqlClear = `WITH keys AS (DELETE FROM rowkeeper_live) DELETE FROM rowkeeper_log`

// sqlImport writes records: each is a row of the log and a live one. The primary keys of both refuse what was there before.
//
// $1 revisions, $2 creation revisions, $3 expiries or 0, $4 keys, $5 values, $6 time, $7 token.
const sqlImport = `
WITH records AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[])
        AS r (revision, create_revision, expiry, key, value)
), keys AS (
    INSERT INTO rowkeeper_live (key, revision, create_revision, expiry)
    SELECT key, revision, create_revision, nullif(expiry, 0) FROM records
)
INSERT INTO rowkeeper_log (revision, prev_revision, create_revision, time, deleted, key, token, value)
SELECT revision, 0, create_revision, $6::bigint, false, key, $7::bytea, value FROM records`

// sqlMark begins the new epoch, under the commit lock, and tells the other processes. What was replaced by compaction is not there any more, so there is
// nothing left to sweep up to the marker.
//
// $1 revision, $2 time, $3 token, $4 epoch, $5 fingerprint or "", $6 notification channel.
const sqlMark = `
WITH marker AS (
    INSERT INTO rowkeeper_log (revision, prev_revision, create_revision, time, deleted, key, token)
    VALUES ($1::bigint, 0, 0, $2::bigint, true, '', $3::bytea)
), moved AS (
    UPDATE rowkeeper_store s
    SET epoch = $4::bigint, compacted = $1::bigint, swept = $1::bigint, fingerprint = coalesce(nullif($5::text, ''), s.fingerprint)
    WHERE s.id = 1
)
SELECT pg_notify($6::text, $1::bigint::text)`

// importRows and importBytes bound what is sent in one statement.
const (
	importRows  = 1000
	importBytes = 4 << 20
)

// archive runs f in a transaction on a connection of its own, whose time only the context bounds.
func (b *backend) archive(ctx context.Context, begin, idle string, f func(*pgx.Conn) error) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	// It ends the transaction, too, if that was not committed.
	defer conn.Close(context.WithoutCancel(ctx))
	id, err := b.identify(ctx, conn)
	if err == nil {
		err = b.recognize(id)
	}
	if err != nil {
		return err
	}
	for _, sql := range []string{
		begin,
		b.cfg.transactionSettings(),
		sqlArchiveSettings,
		// How long this process may be silent, in milliseconds, before the server takes it for dead.
		setConfig(map[string]string{"idle_in_transaction_session_timeout": idle}, true),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return readError(err)
		}
	}
	return f(conn)
}

// Export implements [mvcc.Archiver].
func (b *backend) Export(ctx context.Context, begin func(context.Context, mvcc.State, int64) error, each func(*mvcc.Record) error) error {
	// Who takes the rows may do so at leisure: the snapshot is in nobody's way but vacuum's.
	return b.archive(ctx, sqlBeginExport, "0", func(conn *pgx.Conn) error {
		st, err := stateOf(ctx, conn)
		if err != nil {
			return err
		}
		var n int64
		if err := conn.QueryRow(ctx, sqlCountAll).Scan(&n); err != nil {
			return readError(err)
		}
		if err := begin(ctx, st, n); err != nil {
			return err
		}
		return records(ctx, conn, each)
	})
}

func stateOf(ctx context.Context, conn *pgx.Conn) (st mvcc.State, err error) {
	rows, err := conn.Query(ctx, sqlState)
	if err != nil {
		return st, readError(err)
	}
	defer rows.Close()
	found := rows.Next()
	if found {
		st = row(rows.RawValues()).state()
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return st, readError(err)
	}
	if !found {
		return st, errEmpty
	}
	return st, nil
}

func records(ctx context.Context, conn *pgx.Conn, each func(*mvcc.Record) error) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	rows, err := conn.Query(reading, sqlRecords)
	if err != nil {
		return readError(err)
	}
	defer rows.Close()
	for rows.Next() {
		r := row(rows.RawValues())
		if err := each(&mvcc.Record{Revision: r.revision(0), Create: r.revision(1), Expiry: r.int(2), Key: r.key(3), Value: r.value(4)}); err != nil {
			stop() // the other rows, however many, are not waited for
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return readError(err)
	}
	return nil
}

// Import implements [mvcc.Archiver]. Readers go on with what was before, in their snapshots. The locks are taken in the order of a sweep: its
// own first.
func (b *backend) Import(ctx context.Context, in *mvcc.Import) (st mvcc.State, err error) {
	err = b.archive(ctx, sqlBegin, "60000", func(conn *pgx.Conn) error {
		for _, sql := range []string{sqlSweepOut, sqlLock} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return readError(err)
			}
		}
		if st, err = stateOf(ctx, conn); err != nil {
			return err
		}
		if err := writable(st); err != nil {
			return err
		}
		var n int64
		if err := conn.QueryRow(ctx, sqlCountAll).Scan(&n); err != nil {
			return readError(err)
		}
		if err := in.Begin(st, n); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, sqlClear); err != nil {
			return readError(err)
		}
		w := importer{conn: conn, now: st.Now.UnixMicro(), token: in.Token}
		if err := in.Write(func(r *mvcc.Record) error { return w.add(ctx, r) }); err != nil {
			return err
		}
		if err := w.flush(ctx); err != nil {
			return err
		}
		if err := in.Check(func(each func(*mvcc.Record) error) error { return records(ctx, conn, each) }); err != nil {
			return err
		}
		st = in.End(st)
		_, err := conn.Exec(ctx, sqlMark, int64(st.Head.Revision), w.now, w.token[:], int64(st.Head.Epoch), in.Fingerprint, b.channel())
		if err != nil {
			return readError(err)
		}
		tag, err := conn.Exec(ctx, sqlCommit)
		switch {
		case err != nil:
			return mvcc.Errorf(mvcc.Unknown, "PostgreSQL did not confirm the commit: %w", readError(err))
		case tag.String() != "COMMIT":
			return mvcc.Errorf(mvcc.Transient, "PostgreSQL ended the transaction by %q instead of COMMIT", tag)
		}
		return nil
	})
	return st, err
}

// importer gathers records to statements.
type importer struct {
	conn  *pgx.Conn
	now   int64
	token mvcc.Token

	revisions, creations, expiries []int64
	keys, values                   [][]byte
	bytes                          int
}

func (w *importer) add(ctx context.Context, r *mvcc.Record) error {
	w.revisions = append(w.revisions, int64(r.Revision))
	w.creations = append(w.creations, int64(r.Create))
	w.expiries = append(w.expiries, r.Expiry)
	w.keys = append(w.keys, []byte(r.Key))
	w.values = append(w.values, r.Value)
	w.bytes += len(r.Key) + len(r.Value)
	if len(w.keys) < importRows && w.bytes < importBytes {
		return nil
	}
	return w.flush(ctx)
}

func (w *importer) flush(ctx context.Context) error {
	if len(w.keys) == 0 {
		return nil
	}
	if _, err := w.conn.Exec(ctx, sqlImport, w.revisions, w.creations, w.expiries, w.keys, w.values, w.now, w.token[:]); err != nil {
		if e := (*pgconn.PgError)(nil); errors.As(err, &e) && e.Code == "23505" {
			// Nobody else writes, so to try again would be of no use.
			return mvcc.Errorf(mvcc.Data, "a key is in it twice: %w", e)
		}
		return readError(err)
	}
	w.revisions, w.creations, w.expiries = w.revisions[:0], w.creations[:0], w.expiries[:0]
	clear(w.keys)
	clear(w.values)
	w.keys, w.values, w.bytes = w.keys[:0], w.values[:0], 0
	return nil
}
