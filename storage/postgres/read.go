package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// class returns the connections of a class.
func (d *database) class(c sqlkit.Class) *pgxpool.Pool {
	switch c {
	case sqlkit.Single, sqlkit.List:
		return d.reads
	default:
		return d.tails
	}
}

// Query implements [sqlkit.Runner].
func (b *backend) Query(ctx context.Context, r *sqlkit.Read, each func(sqlkit.Cursor) bool,
	args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.timeout)
	defer cancel()
	conn, err := b.Take(ctx, (*pool)(b.class(r.Class)))
	if err != nil {
		return b.cfg.connectError(err)
	}
	defer conn.Release()
	for i, a := range args {
		args[i] = argument(a)
	}
	rows, err := conn.Query(ctx, r.SQL, append(args, b.store)...)
	if err != nil {
		return readError(err)
	}
	defer rows.Close()
	c, g := &cursor{}, greetingOf(conn.Conn)
	for rows.Next() {
		c.row = rows.RawValues()
		c.own = c.row[stateColumns:]
		if err := g.check(c.row); err != nil {
			return err
		}
		if !each(c) {
			cancel() // the connection is given up, as the rest would have to be read
			return nil
		}
	}
	return readError(rows.Err())
}

// argument converts an argument of a read to a type that pgx encodes.
func argument(a any) any {
	switch a := a.(type) {
	case contract.Key:
		return []byte(a)
	case []contract.Key:
		keys := make([][]byte, len(a))
		for i, k := range a {
			keys[i] = []byte(k)
		}
		return keys
	case []contract.Entry:
		return bytesOf(a)
	case sqlkit.Packed:
		return bytesOf(a)
	case []contract.Revision:
		return numbers(a)
	case []contract.Lease:
		return numbers(a)
	case contract.Token:
		return a[:]
	}
	return a
}

func bytesOf(entries []contract.Entry) [][]byte {
	b := make([][]byte, len(entries))
	for i, e := range entries {
		b[i] = []byte(e)
	}
	return b
}

func numbers[T ~int64](list []T) []int64 {
	n := make([]int64, len(list))
	for i, v := range list {
		n[i] = int64(v)
	}
	return n
}

// cursor implements [sqlkit.Cursor]. Its row is valid until the next one is received.
type cursor struct {
	row row
	// own are the columns after those of the state.
	own row
}

func (c *cursor) State(st *contract.State) bool {
	if c.row[0] == nil {
		return false
	}
	*st = c.row.state()
	return true
}

func (c *cursor) More() bool                 { return len(c.own) > 0 && c.own[0] != nil }
func (c *cursor) Int(i int) int64            { return c.own.int(i) }
func (c *cursor) Bool(i int) bool            { return c.own.bool(i) }
func (c *cursor) Token(i int) contract.Token { return c.own.token(i) }
func (c *cursor) Key(i int) contract.Key     { return c.own.key(i) }
func (c *cursor) Value(i int) []byte         { return c.own.value(i) }

// writable refuses to write to a server that may be late.
func writable(s contract.State) error {
	if !s.Writable {
		return contract.Errorf(contract.ReadOnly, "the PostgreSQL server is read-only, a standby "+
			"or set so")
	}
	return nil
}
