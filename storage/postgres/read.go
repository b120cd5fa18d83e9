package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// query runs a read whose rows have the columns of the state, NULL in all rows but one, and calls each, if it is not nil, with the columns after them, unless the first
// of these is NULL. The row is valid during the call.
func (b *backend) query(ctx context.Context, pool *pgxpool.Pool, each func(row) error, sql string, args ...any) (s mvcc.State, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.timeout)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return s, b.cfg.connectError(err)
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return s, readError(err)
	}
	defer rows.Close()
	found := false
	for rows.Next() {
		r := row(rows.RawValues())
		if r[0] != nil {
			found, s = true, r.state()
		}
		if rest := r[stateColumns:]; len(rest) > 0 && rest[0] != nil {
			if err := each(rest); err != nil {
				return s, err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return s, readError(err)
	}
	if !found {
		return s, errEmpty
	}
	return s, nil
}

// State implements [mvcc.Backend].
func (b *backend) State(ctx context.Context) (mvcc.State, error) {
	return b.query(ctx, b.tails, nil, sqlState)
}

// Tail implements [mvcc.Backend].
func (b *backend) Tail(ctx context.Context, from mvcc.Revision, limit int, prev mvcc.Prev) (*mvcc.Tail, error) {
	t := &mvcc.Tail{}
	var err error
	t.State, err = b.query(ctx, b.tails, func(r row) error {
		t.Rows = append(t.Rows, mvcc.Row{Revision: r.revision(0), Prev: r.revision(1), Create: r.revision(2), Time: r.time(3), Deleted: r.bool(4),
			Key: r.key(5), Token: r.token(6), Value: r.value(7), HasPrev: r.bool(8), PrevValue: r.value(9)})
		return nil
	}, sqlTail, int64(from), int64(limit), prev == mvcc.PrevOfAll)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// damaged says that a key's newest row is not in the log.
func damaged(key mvcc.Key, r mvcc.Revision) error {
	return mvcc.Errorf(mvcc.Invalid, "the database is damaged: the key %q is at revision %d, which is not in the log", string(key), r)
}

// Get implements [mvcc.Backend].
func (b *backend) Get(ctx context.Context, key mvcc.Key) (*mvcc.Row, mvcc.State, error) {
	var found *mvcc.Row
	s, err := b.query(ctx, b.reads, func(r row) error {
		if r[5] == nil {
			return damaged(key, r.revision(0))
		}
		found = &mvcc.Row{Key: key, Revision: r.revision(0), Create: r.revision(1), Prev: r.revision(2), Time: r.time(3), Token: r.token(4), Value: r.value(5)}
		return nil
	}, sqlGet, []byte(key))
	return found, s, err
}

// GetKeys implements [mvcc.KeysReader].
func (b *backend) GetKeys(ctx context.Context, keys []mvcc.Key) (found []mvcc.Row, s mvcc.State, err error) {
	asked := make([][]byte, len(keys))
	for i, k := range keys {
		asked[i] = []byte(k)
	}
	found = make([]mvcc.Row, 0, len(keys))
	s, err = b.query(ctx, b.reads, func(r row) error {
		found = append(found, mvcc.Row{Key: r.key(0), Revision: r.revision(1), Create: r.revision(2), Value: r.value(3)})
		return nil
	}, sqlGetKeys, asked)
	return found, s, err
}

// Page implements [mvcc.Backend].
func (b *backend) Page(ctx context.Context, q mvcc.PageQuery) (*mvcc.Page, error) {
	p := &mvcc.Page{}
	sql := sqlPage
	if q.KeysOnly {
		sql = sqlKeys
	}
	var err error
	p.State, err = b.query(ctx, b.reads, func(r row) error {
		kv := mvcc.Row{Key: r.key(0), Revision: r.revision(1), Create: r.revision(2)}
		if !q.KeysOnly {
			if kv.Value = r.value(3); kv.Value == nil {
				return damaged(kv.Key, kv.Revision)
			}
		}
		p.Rows = append(p.Rows, kv)
		return nil
	}, sql, []byte(q.Start), []byte(q.End), int64(q.At), int64(q.Limit))
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Replaced implements [mvcc.Backend].
func (b *backend) Replaced(ctx context.Context, q mvcc.ReplacedQuery) (replaced []mvcc.Replaced, s mvcc.State, err error) {
	s, err = b.query(ctx, b.reads, func(r row) error {
		replaced = append(replaced, mvcc.Replaced{Key: r.key(0), Revision: r.revision(1)})
		return nil
	}, sqlReplaced, []byte(q.Start), []byte(q.End), int64(q.At), int64(q.After), int64(q.Upto))
	return replaced, s, err
}

// Values implements [mvcc.Backend].
func (b *backend) Values(ctx context.Context, revisions []mvcc.Revision) (found []mvcc.Row, s mvcc.State, err error) {
	asked := make([]int64, len(revisions))
	for i, r := range revisions {
		asked[i] = int64(r)
	}
	s, err = b.query(ctx, b.reads, func(r row) error {
		found = append(found, mvcc.Row{Key: r.key(0), Revision: r.revision(1), Create: r.revision(2), Deleted: r.bool(3), Value: r.value(4)})
		return nil
	}, sqlValues, asked)
	return found, s, err
}

// Count implements [mvcc.Backend].
func (b *backend) Count(ctx context.Context, start, end mvcc.Key, at mvcc.Revision, limit int64) (n int64, s mvcc.State, err error) {
	s, err = b.query(ctx, b.reads, func(r row) error {
		n = r.int(0)
		return nil
	}, sqlCount, []byte(start), []byte(end), int64(at), limit)
	return n, s, err
}

// Expired implements [mvcc.Backend].
func (b *backend) Expired(ctx context.Context, limit int) (expired []mvcc.Expired, next time.Duration, err error) {
	var left []time.Time
	s, err := b.query(ctx, b.reads, func(r row) error {
		expired = append(expired, mvcc.Expired{Key: r.key(0), Revision: r.revision(1)})
		left = append(left, r.time(2))
		return nil
	}, sqlExpired, int64(limit)+1)
	if err == nil {
		err = writable(s)
	}
	if err != nil {
		return nil, 0, err
	}
	n := 0
	for n < len(left) && n < limit && !left[n].After(s.Now) {
		n++
	}
	if n < len(left) {
		next = max(left[n].Sub(s.Now), time.Microsecond)
	}
	return expired[:n], next, nil
}

// FirstAt implements [mvcc.Backend].
func (b *backend) FirstAt(ctx context.Context, revision mvcc.Revision) (*mvcc.Row, error) {
	var first *mvcc.Row
	s, err := b.query(ctx, b.reads, func(r row) error {
		first = &mvcc.Row{Revision: r.revision(0), Time: r.time(1)}
		return nil
	}, sqlFirstAt, int64(revision))
	if err == nil {
		err = writable(s)
	}
	if err != nil {
		return nil, err
	}
	return first, nil
}

// writable refuses an answer whose caller does not get the state, from a server that may be late.
func writable(s mvcc.State) error {
	if !s.Writable {
		return mvcc.Errorf(mvcc.ReadOnly, "the PostgreSQL server is read-only, a standby or set so")
	}
	return nil
}

// Size implements [mvcc.Backend].
func (b *backend) Size(ctx context.Context) (s mvcc.Size, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.timeout)
	defer cancel()
	conn, err := b.reads.Acquire(ctx)
	if err != nil {
		return s, b.cfg.connectError(err)
	}
	defer conn.Release()
	return s, readError(conn.QueryRow(ctx, sqlSize).Scan(&s.Total, &s.Live))
}

// Identity implements [mvcc.Backend].
func (b *backend) Identity(ctx context.Context) (id mvcc.Identity, err error) {
	err = b.beside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		id, err = b.identify(ctx, conn)
		return err
	})
	return id, err
}
