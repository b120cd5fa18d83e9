package mysql

import (
	"bytes"
	"strconv"
	"strings"
)

// text builds the statements of a transaction, whose numbers of rows vary. Everything that comes from outside goes through int or binary.
type text struct{ strings.Builder }

func (t *text) int(n int64) {
	var b [20]byte
	t.Write(strconv.AppendInt(b[:0], n, 10))
}

// binary writes bytes as a literal of type binary string. In it, only the quote and the backslash have a meaning; both are written after a
// backslash, which the session's sql_mode (no NO_BACKSLASH_ESCAPES) and character set (utf8mb4, where neither byte is a part of another
// character) make safe.
func (t *text) binary(data []byte) {
	t.WriteString("_binary'")
	quote, backslash := bytes.IndexByte(data, '\''), bytes.IndexByte(data, '\\')
	for begin := 0; ; {
		// The next of the two that was not written yet. -1 is none, and greater than all as an unsigned number.
		next := int(min(uint(quote), uint(backslash)))
		if next < 0 {
			t.Write(data[begin:])
			break
		}
		t.Write(data[begin:next])
		t.WriteByte('\\')
		t.WriteByte(data[next])
		begin = next + 1
		if next == quote {
			quote = indexFrom(data, begin, '\'')
		} else {
			backslash = indexFrom(data, begin, '\\')
		}
	}
	t.WriteByte('\'')
}

func indexFrom(data []byte, begin int, c byte) int {
	i := bytes.IndexByte(data[begin:], c)
	if i < 0 {
		return i
	}
	return begin + i
}

// escapedBytes is the greatest length of a literal of n bytes.
func escapedBytes(n int) int { return len("_binary''") + 2*n }

// comma writes what separates the elements of a list: nothing before the first.
func (t *text) comma(n *int) {
	if *n > 0 {
		t.WriteByte(',')
	}
	*n++
}

// revisions writes a list for IN. It begins with 0, which no row has, as a list cannot be empty.
func revisionList[T ~int64](revisions []T) string {
	var t text
	t.Grow(1 + 12*len(revisions))
	t.WriteByte('0')
	for _, r := range revisions {
		t.WriteByte(',')
		t.int(int64(r))
	}
	return t.String()
}
