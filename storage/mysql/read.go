package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

// class returns the connections of a class.
func (b *backend) class(c sqlread.Class) *sql.DB {
	switch c {
	case sqlread.Head:
		return b.heads
	case sqlread.Single, sqlread.List:
		return b.reads
	default:
		return b.tails
	}
}

// Query implements [sqlread.Database]. database/sql tries again by itself only when the driver says
// that nothing was sent.
func (b *backend) Query(ctx context.Context, r *sqlread.Read, each func(sqlread.Cursor) bool, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	text, args := arguments(r.SQL, args)
	rows, err := b.class(r.Class).QueryContext(ctx, text, args...)
	if err != nil {
		return b.failed(r.What, err)
	}
	defer rows.Close()
	c := newCursor(r.Columns)
	for rows.Next() {
		if err := rows.Scan(c.scanned...); err != nil {
			return b.failed(r.What, err)
		}
		more := each(c)
		if c.readOnly {
			b.server.suspect()
		}
		if !more {
			cancel() // the connection is given up, as the rest would have to be read
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return b.failed(r.What, err)
	}
	return nil
}

// arguments makes the arguments of a read those of a statement. A list becomes a part of the text, at %s.
func arguments(text string, args []any) (string, []any) {
	for i, a := range args {
		switch a := a.(type) {
		case mvcc.Key:
			args[i] = []byte(a)
		case []mvcc.Key:
			return fmt.Sprintf(text, keyList(a)), nil
		case []mvcc.Revision:
			return fmt.Sprintf(text, revisionList(a)), nil
		}
	}
	return text, args
}

// cursor implements [sqlread.Cursor].
type cursor struct {
	columns []column
	// scanned are pointers to the columns.
	scanned []any
	// readOnly is set when the state says so.
	readOnly bool
}

func newCursor(columns int) *cursor {
	c := &cursor{columns: make([]column, stateColumns+columns)}
	c.scanned = make([]any, len(c.columns))
	for i := range c.columns {
		c.scanned[i] = &c.columns[i]
	}
	return c
}

func (c *cursor) own(i int) *column { return &c.columns[stateColumns+i] }

func (c *cursor) State(st *mvcc.State) bool {
	s := c.columns[:stateColumns]
	if s[1].null {
		return false
	}
	*st = mvcc.State{
		Head:      mvcc.Position{Epoch: mvcc.Epoch(s[0].int), Revision: mvcc.Revision(s[1].int), Token: s[2].token()},
		Compacted: mvcc.Revision(s[3].int),
		Swept:     mvcc.Revision(s[4].int),
		Writable:  isOff(s[5].text()),
		Now:       time.UnixMicro(s[6].int),
	}
	c.readOnly = !st.Writable
	return true
}

func (c *cursor) More() bool             { return !c.own(0).null }
func (c *cursor) Int(i int) int64        { return c.own(i).int }
func (c *cursor) Bool(i int) bool        { return c.own(i).int != 0 }
func (c *cursor) Token(i int) mvcc.Token { return c.own(i).token() }
func (c *cursor) Key(i int) mvcc.Key     { return mvcc.Key(c.own(i).bytes) }

// Value hands the column's buffer over to the caller.
func (c *cursor) Value(i int) []byte {
	o := c.own(i)
	if o.null {
		return nil
	}
	v := o.bytes
	o.bytes = nil
	return v
}

// column receives a column of a row: a number or bytes. It implements [sql.Scanner], by which
// database/sql gets by without reflection.
type column struct {
	null bool
	int  int64
	// bytes is a copy: what the driver lends is gone when the context ends, which may be at any time.
	bytes []byte
}

// Scan implements [sql.Scanner].
func (c *column) Scan(v any) error {
	c.null, c.int = false, 0
	switch v := v.(type) {
	case nil:
		c.null, c.bytes = true, c.bytes[:0]
	case int64:
		c.int, c.bytes = v, c.bytes[:0]
	case []byte:
		if cap(c.bytes) < len(v) || c.bytes == nil {
			c.bytes = make([]byte, len(v))
		}
		c.bytes = c.bytes[:copy(c.bytes[:len(v)], v)]
	default:
		return fmt.Errorf("a column is of type %T", v)
	}
	return nil
}

// text returns bytes, or a number in digits.
func (c *column) text() string {
	if len(c.bytes) > 0 {
		return string(c.bytes)
	}
	return strconv.FormatInt(c.int, 10)
}

func (c *column) token() (t mvcc.Token) {
	if len(c.bytes) == len(t) {
		copy(t[:], c.bytes)
	}
	return t
}
