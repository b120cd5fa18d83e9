package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// class returns the connections of a class.
func (b *backend) class(c sqlkit.Class) *sql.DB {
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
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	text, args := arguments(r.SQL, args)
	if text == preparedState {
		args = []any{b.ID, b.ID, b.ID}
	}
	conn, err := b.Take(ctx, (*pool)(b.class(r.Class)))
	if err != nil {
		return b.failed(r.What, err)
	}
	defer conn.Release()
	f, err := factsOf(conn.Conn)
	if err != nil {
		return b.failed(r.What, err)
	}
	rows, err := conn.QueryContext(ctx, text, args...)
	if err != nil {
		return b.failed(r.What, err)
	}
	defer rows.Close()
	c := &cursor{}
	err = eachRow(rows, stateColumns+r.Columns, func(row row) error {
		if err := f.check(row); err != nil {
			return err
		}
		c.row, c.own = row, row[stateColumns:]
		if !each(c) {
			cancel() // the connection is given up, as the rest would have to be read
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return b.failed(r.What, err)
	}
	return nil
}

// errEnough ends a read whose rest is not wanted.
var errEnough = errors.New("enough was read")

// arguments converts the arguments of a read to those of a statement. If there is a list, it
// becomes a part of the text, at %s, and so do the others.
func arguments(text string, args []any) (string, []any) {
	if n := len(args); n > 0 {
		if entries, ok := args[n-1].([]contract.Entry); ok {
			args = argumentsOf(entries, args[:n-1])
		} else if entries, ok := args[n-1].(sqlkit.Packed); ok {
			args = args[:n-1]
			for i := range entries {
				args = append(args, contract.PackEntries(entries[i:i+1]))
			}
		}
	}
	lists := false
	for i, a := range args {
		list := true
		switch a := a.(type) {
		case []contract.Key:
			args[i] = keyList(a)
		case []contract.Revision:
			args[i] = revisionList(a)
		case []contract.Lease:
			args[i] = revisionList(a)
		case contract.Key:
			args[i], list = []byte(a), false
		default:
			list = false
		}
		lists = lists || list
	}
	if lists {
		return fmt.Sprintf(text, args...), nil
	}
	return text, args
}

// argumentsOf repeats the arguments of a read by entries for each of them. The last one is the
// limit. A page has one for all of them, too.
func argumentsOf(entries []contract.Entry, args []any) (all []any) {
	for _, e := range entries {
		all = append(append(all, []byte(e)), args...)
	}
	if len(args) > 3 {
		all = append(all, args[len(args)-1])
	}
	return all
}

// cursor implements [sqlkit.Cursor].
type cursor struct {
	row row
	// own are the columns after those of the state.
	own row
}

func (c *cursor) State(st *contract.State) bool {
	state, found := c.row.state()
	if found {
		*st = state
	}
	return found
}

func (c *cursor) More() bool                 { return !c.own[0].null }
func (c *cursor) Int(i int) int64            { return c.own.int(i) }
func (c *cursor) Bool(i int) bool            { return c.own.int(i) != 0 }
func (c *cursor) Token(i int) contract.Token { return c.own.token(i) }
func (c *cursor) Key(i int) contract.Key     { return c.own.key(i) }
func (c *cursor) Value(i int) []byte         { return c.own.value(i) }

// eachRow calls each for the rows of a result, until it returns an error. The row is valid until
// the next one.
func eachRow(rows *sql.Rows, columns int, each func(row) error) error {
	r, scanned := make(row, columns), make([]any, columns)
	for i := range r {
		scanned[i] = &r[i]
	}
	for rows.Next() {
		if err := rows.Scan(scanned...); err != nil {
			return err
		}
		if err := each(r); err != nil {
			return err
		}
	}
	return rows.Err()
}

// row is a row of a result. A column that is NULL is zero.
type row []column

// stateColumns is how many columns the state has, which come first.
const stateColumns = 8

// state returns the state that is in the row, if there is one.
func (r row) state() (st contract.State, found bool) {
	if r[1].null {
		return st, false
	}
	return contract.State{
		Head: contract.Position{Epoch: contract.Epoch(r.int(0)), Revision: r.revision(1),
			Token: r.token(2)},
		Compacted: r.revision(3),
		Swept:     r.revision(4),
		Writable:  isOff(r[5].text()),
		Now:       r.time(6),
	}, true
}

func (r row) int(i int) int64                  { return r[i].int }
func (r row) revision(i int) contract.Revision { return contract.Revision(r[i].int) }
func (r row) time(i int) time.Time             { return time.UnixMicro(r[i].int) }
func (r row) key(i int) contract.Key           { return contract.Key(r[i].bytes) }

func (r row) token(i int) (t contract.Token) {
	if len(r[i].bytes) == len(t) {
		copy(t[:], r[i].bytes)
	}
	return t
}

// value hands the column's buffer over to the caller. It is nil for NULL, and only for NULL.
func (r row) value(i int) []byte {
	if r[i].null {
		return nil
	}
	v := r[i].bytes
	r[i].bytes = nil
	return v
}

// column receives a column of a row: a number or bytes. It implements [sql.Scanner], by which
// database/sql gets by without reflection.
type column struct {
	null bool
	int  int64
	// bytes is a copy. The driver may use its own buffer again as soon as the context ends, which
	// may be at any time.
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

// isOff reads the variable read_only. MySQL says 0, newer MariaDBs say OFF. Both know degrees of
// read-only besides.
func isOff(readOnly string) bool { return readOnly == "0" || strings.EqualFold(readOnly, "OFF") }
