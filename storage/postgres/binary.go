package postgres

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// row is a row of a result in the binary format; nil stands for NULL. The statements' columns have
// the types bigint, boolean, bytea and text, and arrays of them, and are never NULL unless it is
// said.
type row [][]byte

// copyRow copies a row out of the buffer in which it was received.
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

func (r row) revision(i int) contract.Revision { return contract.Revision(r.int(i)) }

func (r row) key(i int) contract.Key { return contract.Key(r[i]) }

func (r row) time(i int) time.Time { return time.UnixMicro(r.int(i)) }

func (r row) token(i int) (t contract.Token) {
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

// stateColumns is how many columns the header has, which come first.
const stateColumns = 2

// state reads the header.
func (r row) state() contract.State {
	return contract.State{
		Head: contract.Position{Epoch: contract.Epoch(r.number(0, 0)),
			Revision: contract.Revision(r.number(0, 3)), Token: r.token(1)},
		Compacted: contract.Revision(r.number(0, 1)),
		Swept:     contract.Revision(r.number(0, 2)),
		Now:       time.UnixMicro(r.number(0, 4)),
		Writable:  r.number(0, 5) != 0,
	}
}

// number returns element n of an array of bigint that has no NULL.
func (r row) number(i, n int) int64 {
	at := 20 + 12*n + 4
	if len(r[i]) < at+8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(r[i][at:]))
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

const (
	oidBool       = pgtype.BoolOID
	oidBytes      = pgtype.ByteaOID
	oidInt        = pgtype.Int8OID
	oidStore      = pgtype.Int4OID
	oidBoolArray  = pgtype.BoolArrayOID
	oidBytesArray = pgtype.ByteaArrayOID
	oidIntArray   = pgtype.Int8ArrayOID
	oidText       = pgtype.TextOID
	oidTextArray  = pgtype.TextArrayOID
)

var binaryFormat = []int16{pgtype.BinaryFormatCode}

// encodeAll encodes parameters in the binary format. Their types are those of the statements, which
// the Go types imply.
func encodeAll(args []any) ([][]byte, error) {
	params := make([][]byte, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case int32:
			params[i] = binary.BigEndian.AppendUint32(nil, uint32(v))
		case int64:
			params[i] = binary.BigEndian.AppendUint64(nil, uint64(v))
		case bool:
			params[i] = []byte{0}
			if v {
				params[i][0] = 1
			}
		case []byte:
			params[i] = v
		case string:
			params[i] = []byte(v)
		case []int64:
			params[i] = encodeArray(oidInt, len(v), 8*len(v), func(b []byte, i int) []byte {
				return binary.BigEndian.AppendUint64(b, uint64(v[i]))
			})
		case []bool:
			params[i] = encodeArray(oidBool, len(v), len(v), func(b []byte, i int) []byte {
				if v[i] {
					return append(b, 1)
				}
				return append(b, 0)
			})
		case []string:
			size := 0
			for _, e := range v {
				size += len(e)
			}
			params[i] = encodeArray(oidText, len(v), size, func(b []byte, i int) []byte {
				return append(b, v[i]...)
			})
		case [][]byte:
			size := 0
			for _, e := range v {
				size += len(e)
			}
			params[i] = encodeArray(oidBytes, len(v), size, func(b []byte, i int) []byte {
				return append(b, v[i]...)
			})
		default:
			return nil, fmt.Errorf("a parameter of type %T cannot be encoded", arg)
		}
	}
	return params, nil
}

// encodeArray encodes an array of one dimension without NULLs: dimensions, flags, the element's
// type, length, lower bound, and each element with its length before it.
func encodeArray(element uint32, n, size int, add func(b []byte, i int) []byte) []byte {
	b := make([]byte, 0, 20+4*n+size)
	if n == 0 {
		b = binary.BigEndian.AppendUint32(b, 0)
		b = binary.BigEndian.AppendUint32(b, 0)
		return binary.BigEndian.AppendUint32(b, element)
	}
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, element)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = binary.BigEndian.AppendUint32(b, 1)
	for i := range n {
		at := len(b)
		b = add(append(b, 0, 0, 0, 0), i)
		binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	}
	return b
}
