package mysql

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// text builds statements that are sent together. Everything in them that comes from outside goes
// through int, binary or hex, or is the value of a variable; see held.go.
type text struct {
	strings.Builder
	// store is the id of the store in decimal digits, for which $store stands in statements.
	store string
	// tidb: they are for TiDB.
	tidb bool
	// variables are the numbers of the variables that have the values of mutations; see held.go.
	variables map[*contract.Mutation]int
	// starts are where the statements begin.
	starts []int
}

// text returns an empty text of statements on the store.
func (b *backend) text() text { return text{store: b.store, tidb: b.tidb} }

// on makes a statement one on the store.
func (b *backend) on(sql string) string { return ofStore(onServer(sql, b.tidb), b.store) }

// ofStore writes a store's id into a statement.
func ofStore(sql, store string) string { return strings.ReplaceAll(sql, "$store", store) }

// statement begins a statement, with its beginning or the whole of it.
func (t *text) statement(sql string, args ...any) {
	if t.Len() > 0 {
		t.WriteString(";\n")
	}
	t.starts = append(t.starts, t.Len())
	sql = ofStore(onServer(sql, t.tidb), t.store)
	if len(args) == 0 {
		t.WriteString(sql)
	} else {
		fmt.Fprintf(t, sql, args...)
	}
}

// statements returns the statements one by one.
func (t *text) statements() []string {
	all := t.String()
	list := make([]string, len(t.starts))
	for i, start := range t.starts {
		end := len(all)
		if i+1 < len(t.starts) {
			end = t.starts[i+1] - len(";\n")
		}
		list[i] = all[start:end]
	}
	return list
}

func (t *text) int(n int64) {
	var b [20]byte
	t.Write(strconv.AppendInt(b[:0], n, 10))
}

// binary writes bytes as a literal of type binary string.
//
// Text in ASCII stays readable: only the quote and the backslash have a meaning in a quoted
// literal, and both are written twice. The session's sql_mode (no NO_BACKSLASH_ESCAPES) makes one
// backslash of two. If a proxy has lost it, there are two, and the literal ends where it should all
// the same. It is half as long as hexadecimal digits. All else is written in those: bytes that are
// no text of the connection's character set would break the lists of running statements that
// administrators read.
func (t *text) binary(data []byte) {
	if !isASCII(data) {
		t.hex(data)
		return
	}
	t.WriteString("_binary'")
	quote, backslash := bytes.IndexByte(data, '\''), bytes.IndexByte(data, '\\')
	for begin := 0; ; {
		// The next of the two that was not written yet. -1 is none, and greater than all as an
		// unsigned number.
		next := int(min(uint(quote), uint(backslash)))
		if next < 0 {
			t.Write(data[begin:])
			break
		}
		t.Write(data[begin:next])
		t.WriteByte(data[next])
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

func (t *text) hex(data []byte) {
	t.WriteString("x'")
	var digits [512]byte
	for piece := range slices.Chunk(data, len(digits)/2) {
		t.Write(hex.AppendEncode(digits[:0], piece))
	}
	t.WriteByte('\'')
}

// isASCII looks at eight bytes at a time.
func isASCII(data []byte) bool {
	var high byte
	for len(data) >= 8 {
		if binary.LittleEndian.Uint64(data)&0x8080808080808080 != 0 {
			return false
		}
		data = data[8:]
	}
	for _, c := range data {
		high |= c
	}
	return high < 0x80
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

// keyList writes a list for IN.
func keyList(keys []contract.Key) string { return list(keys, (*text).key) }

// revisionList writes a list for IN.
func revisionList[T ~int64](revisions []T) string { return list(revisions, revision[T]) }

// list writes NULL in place of an empty list, which IN does not take: nothing equals NULL. A NULL
// before the others would make one element a list of two. Servers look a single element up, which
// costs half as much as a search for the ranges of a list.
func list[T any](elements []T, write func(*text, T)) string {
	if len(elements) == 0 {
		return "NULL"
	}
	var t text
	n := 0
	for _, v := range elements {
		t.comma(&n)
		write(&t, v)
	}
	return t.String()
}

// keyRows writes a table with the column value.
func keyRows(keys []contract.Key) string { return rows(keys, (*text).key) }

// revisionRows writes a table with the column value.
func revisionRows[T ~int64](revisions []T) string { return rows(revisions, revision[T]) }

// entryRows writes a table with the columns entry, NULL if there is none, and value, which is the
// key.
func entryRows(rows []entryRow) string {
	var t text
	t.WriteString("SELECT NULL AS entry, NULL AS value")
	for _, r := range rows {
		t.WriteString(" UNION ALL SELECT ")
		if r.entry == "" {
			t.WriteString("NULL")
		} else {
			t.binary([]byte(r.entry))
		}
		t.WriteByte(',')
		t.key(r.key)
	}
	return t.String()
}

// rows writes a table that begins with NULL, which names the column and equals nothing.
func rows[T any](elements []T, write func(*text, T)) string {
	var t text
	t.WriteString("SELECT NULL AS value")
	for _, v := range elements {
		t.WriteString(" UNION ALL SELECT ")
		write(&t, v)
	}
	return t.String()
}

func (t *text) key(k contract.Key) { t.binary([]byte(k)) }

func revision[T ~int64](t *text, r T) { t.int(int64(r)) }
