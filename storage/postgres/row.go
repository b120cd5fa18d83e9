package postgres

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// row is a row of a result in the binary format; nil stands for NULL. The statements' columns are of the types bigint, boolean, bytea and text,
// and arrays of them, and never NULL unless it is said.
type row [][]byte

// copyRow keeps a row beyond the buffer that it was received in.
func copyRow(values [][]byte) row {
	size := 0
	for _, v := range values {
		size += len(v)
	}
	buf := make([]byte, 0, size)
	r := make(row, len(values))
	for i, v := range values {
		if v != nil {
			at := len(buf)
			buf = append(buf, v...)
			r[i] = buf[at:len(buf):len(buf)]
		}
	}
	return r
}

func (r row) int(i int) int64 {
	if len(r[i]) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(r[i]))
}

func (r row) bool(i int) bool { return len(r[i]) == 1 && r[i][0] != 0 }

func (r row) revision(i int) mvcc.Revision { return mvcc.Revision(r.int(i)) }

func (r row) key(i int) mvcc.Key { return mvcc.Key(r[i]) }

func (r row) time(i int) time.Time { return time.UnixMicro(r.int(i)) }

func (r row) token(i int) (t mvcc.Token) {
	copy(t[:], r[i])
	return t
}

// value copies a value out of the row. The value of NULL is nil.
func (r row) value(i int) []byte {
	if r[i] == nil {
		return nil
	}
	return append(make([]byte, 0, len(r[i])), r[i]...)
}

// stateColumns is how many columns the state has, which come first.
const stateColumns = 7

func (r row) state() mvcc.State {
	return mvcc.State{
		Head:      mvcc.Position{Epoch: mvcc.Epoch(r.int(0)), Revision: r.revision(3), Token: r.token(4)},
		Compacted: r.revision(1),
		Swept:     r.revision(2),
		Writable:  r.bool(5),
		Now:       r.time(6),
	}
}

// array returns the elements of an array of n elements. NULL is the array of none.
func (r row) array(i, n int) ([][]byte, error) {
	b := r[i]
	if b == nil && n == 0 {
		return nil, nil
	}
	if len(b) < 20 || binary.BigEndian.Uint32(b) != 1 || int(binary.BigEndian.Uint32(b[12:])) != n {
		return nil, fmt.Errorf("column %d is not an array of %d elements", i, n)
	}
	elements := make([][]byte, n)
	b = b[20:]
	for i := range elements {
		if len(b) < 4 {
			return nil, fmt.Errorf("element %d is missing", i)
		}
		size := int32(binary.BigEndian.Uint32(b))
		b = b[4:]
		if size < 0 {
			continue // NULL
		}
		if len(b) < int(size) {
			return nil, fmt.Errorf("element %d is cut off", i)
		}
		elements[i], b = b[:size:size], b[size:]
	}
	return elements, nil
}
