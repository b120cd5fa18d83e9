package sqlite

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// read runs an operation that only reads, on a connection of the pool. The context that it gives to
// the operation ends with the operation's time.
func (b *backend) read(ctx context.Context, p *sqlite3.Pool,
	fn func(context.Context, *sqlite3.Conn) error) error {
	return b.readDespiteFence(ctx, p, func(ctx context.Context, c *sqlite3.Conn) error {
		if err := b.checkFence(); err != nil {
			return err
		}
		return fn(ctx, c)
	})
}

func (b *backend) readDespiteFence(ctx context.Context, p *sqlite3.Pool,
	fn func(context.Context, *sqlite3.Conn) error) error {
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	return b.on(ctx, p, func(c *sqlite3.Conn) error { return fn(ctx, c) })
}

// class returns the connections of a class.
func (b *backend) class(c sqlkit.Class) *sqlite3.Pool {
	switch c {
	case sqlkit.Head:
		return b.heads
	case sqlkit.Single, sqlkit.List:
		return b.reads
	default:
		return b.tails
	}
}

// Query implements [sqlkit.Runner].
func (b *backend) Query(ctx context.Context, r *sqlkit.Read, each func(sqlkit.Cursor) bool,
	args ...any) error {
	return b.read(ctx, b.class(r.Class), func(ctx context.Context, c *sqlite3.Conn) error {
		cur := &cursor{}
		if r.Class != sqlkit.Head && r.Class != sqlkit.Single {
			// A read of one key, or of a few, is over before it could be interrupted. This one may
			// walk over many rows.
			defer c.Interruptible(ctx)()
		}
		if !r.OneRow {
			done, err := b.snapshot(c, &cur.state)
			if err != nil {
				return err
			}
			defer done()
			cur.hasState = true
			if !each(cur) {
				return nil
			}
			cur.hasState = false
		}
		s, err := c.Prepare(r.SQL)
		if err != nil {
			return err
		}
		for _, a := range args {
			bind(s, a)
		}
		cur.s = s
		if r.OneRow {
			cur.first, cur.hasState = stateColumns, true
			_, err := s.Row(func() {
				b.scanState(s, &cur.state)
				each(cur)
			})
			return err
		}
		err = s.Each(func() error {
			if !each(cur) {
				return errEnough
			}
			return ctx.Err()
		})
		if errors.Is(err, errEnough) {
			return nil
		}
		return err
	})
}

// errEnough ends a read whose rest is not wanted.
var errEnough = errors.New("enough was read")

// bind binds the next parameter to an argument. Keys, revisions and leases are a JSON array.
func bind(s *sqlite3.Stmt, arg any) {
	switch v := arg.(type) {
	case int64:
		s.Int(v)
	case bool:
		s.Bool(v)
	case string:
		s.Text(v)
	case contract.Token:
		s.Blob(v[:])
	case contract.Key:
		s.BlobString(string(v))
	case []contract.Entry:
		for _, e := range v {
			s.BlobString(string(e))
		}
	case sqlkit.Packed:
		for i := range v {
			s.Blob(contract.PackEntries(v[i : i+1]))
		}
	case []contract.Key:
		array := []byte{'['}
		for i, key := range v {
			if i > 0 {
				array = append(array, ',')
			}
			array = append(array, '"')
			array = hex.AppendEncode(array, []byte(key))
			array = append(array, '"')
		}
		s.Text(string(append(array, ']')))
	case []contract.Revision:
		s.Text(numbers(v))
	case []contract.Lease:
		s.Text(numbers(v))
	default:
		panic(fmt.Sprintf("sqlite: an argument of type %T", arg))
	}
}

// numbers is a JSON array.
func numbers[T ~int64](list []T) string {
	array := append(make([]byte, 0, 2+12*len(list)), '[')
	for i, n := range list {
		if i > 0 {
			array = append(array, ',')
		}
		array = strconv.AppendInt(array, int64(n), 10)
	}
	return string(append(array, ']'))
}

// cursor implements [sqlkit.Cursor].
type cursor struct {
	// s is the statement, nil while only the state is there, and first its first column after the
	// state.
	s        *sqlite3.Stmt
	first    int
	state    contract.State
	hasState bool
}

func (c *cursor) State(st *contract.State) bool {
	if c.hasState {
		*st = c.state
	}
	return c.hasState
}

// More asks for the type of a column only where it may be NULL: in the one row that has the state.
func (c *cursor) More() bool { return c.s != nil && (c.first == 0 || !c.s.ColNull(c.first)) }

func (c *cursor) Int(i int) int64            { return c.s.ColInt(c.first + i) }
func (c *cursor) Bool(i int) bool            { return c.Int(i) != 0 }
func (c *cursor) Token(i int) contract.Token { return colToken(c.s, c.first+i) }
func (c *cursor) Key(i int) contract.Key     { return contract.Key(c.s.ColString(c.first + i)) }
func (c *cursor) Value(i int) []byte         { return c.s.ColBlob(c.first + i) }

// colToken reads a token. A blob of another length is none of ours, and NULL is no token.
func colToken(s *sqlite3.Stmt, i int) (t contract.Token) {
	if b := s.ColRaw(i); len(b) == len(t) {
		copy(t[:], b)
	}
	return t
}

// stateColumns is how many columns the state has.
const stateColumns = 5

// scanState reads the first columns of a statement that begins with the state.
func (b *backend) scanState(s *sqlite3.Stmt, st *contract.State) {
	*st = contract.State{
		Head: contract.Position{Epoch: contract.Epoch(s.ColInt(0)),
			Revision: contract.Revision(s.ColInt(3)), Token: colToken(s, 4)},
		Compacted: contract.Revision(s.ColInt(1)),
		Swept:     contract.Revision(s.ColInt(2)),
		Writable:  true,
		Now:       b.now(),
	}
}

// snapshot steps the statement of the state. Until done is called, the connection's other
// statements read the same snapshot.
func (b *backend) snapshot(c *sqlite3.Conn, st *contract.State) (done func(), err error) {
	s, err := c.Prepare(selectState)
	if err != nil {
		return nil, err
	}
	row, err := s.Step()
	if err == nil && !row {
		err = contract.ErrEmptyStore
	}
	if err != nil {
		return nil, err
	}
	b.scanState(s, st)
	return s.Reset, nil
}

// Size implements [contract.Backend]. The write-ahead log is a file besides.
func (b *backend) Size(ctx context.Context) (contract.Size, error) {
	size, err := b.Reader.Size(ctx)
	size.Total += b.walSize()
	return size, err
}
