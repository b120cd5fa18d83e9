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

// Query implements [sqlkit.Database].
func (b *backend) Query(ctx context.Context, r *sqlkit.Read, each func(sqlkit.Cursor) bool,
	args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.timeout)
	defer cancel()
	conn, err := b.take(ctx, b.class(r.Class))
	if err != nil {
		return err
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
	c := &cursor{}
	for rows.Next() {
		c.row = rows.RawValues()
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
	case []contract.Revision:
		revisions := make([]int64, len(a))
		for i, r := range a {
			revisions[i] = int64(r)
		}
		return revisions
	}
	return a
}

// cursor implements [sqlkit.Cursor]. Its row is valid until the next one is received.
type cursor struct{ row row }

func (c *cursor) State(st *contract.State) bool {
	if c.row[0] == nil {
		return false
	}
	*st = c.row.state()
	return true
}

func (c *cursor) More() bool {
	return len(c.row) > stateColumns && c.row[stateColumns] != nil
}
func (c *cursor) Int(i int) int64            { return c.row.int(stateColumns + i) }
func (c *cursor) Bool(i int) bool            { return c.row.bool(stateColumns + i) }
func (c *cursor) Token(i int) contract.Token { return c.row.token(stateColumns + i) }
func (c *cursor) Key(i int) contract.Key     { return c.row.key(stateColumns + i) }
func (c *cursor) Value(i int) []byte         { return c.row.value(stateColumns + i) }

// writable refuses to write to a server that may be late.
func writable(s contract.State) error {
	if !s.Writable {
		return contract.Errorf(contract.ReadOnly, "the PostgreSQL server is read-only, a standby or set so")
	}
	return nil
}
