package sqlite

import (
	"context"
	"fmt"
	"strconv"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

// read runs an operation that only reads, on a connection of the pool.
func (b *backend) read(ctx context.Context, p *pool, fn func(*conn) error) error {
	return b.readDespiteFence(ctx, p, func(c *conn) error {
		if err := b.checkFence(); err != nil {
			return err
		}
		return fn(c)
	})
}

func (b *backend) readDespiteFence(ctx context.Context, p *pool, fn func(*conn) error) error {
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	return b.on(ctx, p, fn)
}

// class returns the connections of a class.
func (b *backend) class(c sqlread.Class) *pool {
	switch c {
	case sqlread.Head:
		return b.heads
	case sqlread.Single, sqlread.List:
		return b.reads
	default:
		return b.tails
	}
}

// Query implements [sqlread.Database].
func (b *backend) Query(ctx context.Context, r *sqlread.Read, each func(sqlread.Cursor) bool, args ...any) error {
	return b.read(ctx, b.class(r.Class), func(c *conn) error {
		cur := &c.cursor
		*cur = cursor{}
		if r.Class != sqlread.Head && r.Class != sqlread.Single {
			// A read of a single row is over before it could be interrupted; this one may walk over many.
			defer c.interruptible(ctx)()
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
		s, err := c.prepare(r.SQL)
		if err != nil {
			return err
		}
		for _, a := range args {
			s.bind(a)
		}
		for {
			row, err := s.step()
			if err != nil || !row {
				return err
			}
			cur.s = s
			if r.OneRow {
				b.scanState(s, &cur.state)
				cur.hasState, cur.first = true, stateColumns
			}
			if !each(cur) || r.OneRow {
				s.reset()
				return nil
			}
			if err := ctx.Err(); err != nil {
				s.reset()
				return err
			}
		}
	})
}

// bind binds the next parameter to an argument of a read. Revisions are a JSON array.
func (s *stmt) bind(arg any) {
	switch v := arg.(type) {
	case int64:
		s.int(v)
	case bool:
		s.bool(v)
	case mvcc.Key:
		s.key(v)
	case []mvcc.Revision:
		array := append(make([]byte, 0, 2+12*len(v)), '[')
		for i, r := range v {
			if i > 0 {
				array = append(array, ',')
			}
			array = strconv.AppendInt(array, int64(r), 10)
		}
		s.text(string(append(array, ']')))
	default:
		panic(fmt.Sprintf("sqlite: an argument of type %T", arg))
	}
}

// cursor implements [sqlread.Cursor].
type cursor struct {
	// s is the statement, nil while only the state is there, and first its first column after the state.
	s        *stmt
	first    int32
	state    mvcc.State
	hasState bool
}

func (c *cursor) State(st *mvcc.State) bool {
	if c.hasState {
		*st = c.state
	}
	return c.hasState
}

// More asks for the type of a column only where it may be NULL: in the one row that has the state.
func (c *cursor) More() bool { return c.s != nil && (c.first == 0 || !c.s.colNull(c.first)) }

func (c *cursor) Int(i int) int64        { return c.s.colInt(c.first + int32(i)) }
func (c *cursor) Bool(i int) bool        { return c.Int(i) != 0 }
func (c *cursor) Token(i int) mvcc.Token { return c.s.colToken(c.first + int32(i)) }
func (c *cursor) Key(i int) mvcc.Key     { return c.s.colKey(c.first + int32(i)) }
func (c *cursor) Value(i int) []byte     { return c.s.colValue(c.first + int32(i)) }

// stateColumns is how many columns the state has.
const stateColumns = 5

// scanState reads the first columns of a statement that begins with the state.
func (b *backend) scanState(s *stmt, st *mvcc.State) {
	*st = mvcc.State{
		Head:      mvcc.Position{Epoch: mvcc.Epoch(s.colInt(0)), Revision: s.colRevision(3), Token: s.colToken(4)},
		Compacted: s.colRevision(1),
		Swept:     s.colRevision(2),
		Writable:  true,
		Now:       b.now(),
	}
}

// snapshot steps the statement of the state. Until done is called, the connection's other statements read the same snapshot.
func (b *backend) snapshot(c *conn, st *mvcc.State) (done func(), err error) {
	s, err := c.prepare(selectState)
	if err != nil {
		return nil, err
	}
	row, err := s.step()
	if err == nil && !row {
		err = mvcc.ErrEmptyStore
	}
	if err != nil {
		return nil, err
	}
	b.scanState(s, st)
	return s.reset, nil
}

// readRows runs one statement in the snapshot of the state.
func (b *backend) readRows(ctx context.Context, p *pool, text string, st *mvcc.State, bind func(*stmt), row func(*stmt)) error {
	return b.read(ctx, p, func(c *conn) error {
		defer c.interruptible(ctx)()
		done, err := b.snapshot(c, st)
		if err != nil {
			return err
		}
		defer done()
		s, err := c.prepare(text)
		if err != nil {
			return err
		}
		bind(s)
		for {
			more, err := s.step()
			if err != nil || !more {
				return err
			}
			row(s)
			if err := ctx.Err(); err != nil {
				s.reset()
				return err
			}
		}
	})
}

// Size implements [mvcc.Backend]. The write-ahead log is a file besides.
func (b *backend) Size(ctx context.Context) (mvcc.Size, error) {
	size, err := b.Reader.Size(ctx)
	size.Total += b.walSize()
	return size, err
}
