package sqlite3

import (
	"fmt"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// Stmt is a prepared statement of a connection.
type Stmt struct {
	c *Conn
	p uintptr
	// next is the number of the last parameter that was bound.
	next int32
	// buf holds what was bound, len bytes of cap. A statement that outgrows it gets a greater one.
	// The old one is kept until the reset, since parameters point to it.
	buf      uintptr
	len, cap int
	old      []uintptr
}

// Prepare returns the connection's statement for this text. It is compiled at its first use.
func (c *Conn) Prepare(text string) (*Stmt, error) {
	if s := c.stmts[text]; s != nil {
		return s, nil
	}
	z, err := libc.CString(text)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(c.tls, z)
	out := c.tls.Alloc(8)
	rc := lib.Xsqlite3_prepare_v3(c.tls, c.db, z, -1, lib.SQLITE_PREPARE_PERSISTENT, out, 0)
	p := *(*uintptr)(pointer(out))
	c.tls.Free(8)
	if rc != lib.SQLITE_OK {
		return nil, c.fail(rc)
	}
	s := &Stmt{c: c, p: p}
	c.stmts[text] = s
	return s, nil
}

// Exec runs a statement without parameters to its end. It ignores the rows.
func (c *Conn) Exec(text string) error {
	s, err := c.Prepare(text)
	if err != nil {
		return err
	}
	return s.Run()
}

// Once runs a statement that is not worth keeping. It returns the first column of the first row as
// text.
func (c *Conn) Once(text string) (string, error) {
	s, err := c.Prepare(text)
	if err != nil {
		return "", err
	}
	delete(c.stmts, text)
	defer s.finalize()
	row, err := s.Step()
	if err != nil || !row {
		return "", err
	}
	return libc.GoString(lib.Xsqlite3_column_text(c.tls, s.p, 0)), nil
}

// Set sets a PRAGMA.
func (c *Conn) Set(name, value string) error {
	_, err := c.Once("PRAGMA " + name + " = " + value)
	return err
}

func (s *Stmt) finalize() {
	lib.Xsqlite3_finalize(s.c.tls, s.p)
	for _, b := range append(s.old, s.buf) {
		libc.Xfree(s.c.tls, b)
	}
}

// Int binds the next parameter.
func (s *Stmt) Int(v int64) *Stmt {
	s.next++
	lib.Xsqlite3_bind_int64(s.c.tls, s.p, s.next, v)
	return s
}

// Bool binds the next parameter as 0 or 1.
func (s *Stmt) Bool(v bool) *Stmt {
	if v {
		return s.Int(1)
	}
	return s.Int(0)
}

// Null binds the next parameter.
func (s *Stmt) Null() *Stmt {
	s.next++
	lib.Xsqlite3_bind_null(s.c.tls, s.p, s.next)
	return s
}

// Blob binds the next parameter.
func (s *Stmt) Blob(v []byte) *Stmt {
	p := s.alloc(len(v))
	copy(memory(p, len(v)), v)
	return s.bindBlob(p, len(v))
}

// BlobString binds the next parameter to the bytes of a string, as a blob.
func (s *Stmt) BlobString(v string) *Stmt {
	p := s.alloc(len(v))
	copy(memory(p, len(v)), v)
	return s.bindBlob(p, len(v))
}

func (s *Stmt) bindBlob(p uintptr, n int) *Stmt {
	s.next++
	lib.Xsqlite3_bind_blob(s.c.tls, s.p, s.next, p, int32(n), 0)
	return s
}

// Text binds the next parameter.
func (s *Stmt) Text(v string) *Stmt {
	p := s.alloc(len(v))
	copy(memory(p, len(v)), v)
	s.next++
	lib.Xsqlite3_bind_text(s.c.tls, s.p, s.next, p, int32(len(v)), 0)
	return s
}

// alloc returns memory that lives until the statement is reset. It is never null, which would bind
// NULL for an empty value.
func (s *Stmt) alloc(n int) uintptr {
	if s.cap-s.len < n || s.cap == 0 {
		if s.buf != 0 {
			s.old = append(s.old, s.buf)
		}
		s.len, s.cap = 0, max(256, n, 2*s.cap)
		s.buf = libc.Xmalloc(s.c.tls, libc.Tsize_t(s.cap))
		if s.buf == 0 {
			panic(fmt.Sprintf("sqlite3: out of memory for %d bytes", s.cap))
		}
	}
	p := s.buf + uintptr(s.len)
	s.len += n
	return p
}

// Step runs the statement to its next row and reports whether there is one. At the end, and after
// an error, the statement is reset.
func (s *Stmt) Step() (bool, error) {
	switch rc := lib.Xsqlite3_step(s.c.tls, s.p); rc {
	case lib.SQLITE_ROW:
		return true, nil
	case lib.SQLITE_DONE:
		s.Reset()
		return false, nil
	default:
		err := s.c.fail(rc)
		s.Reset()
		return false, err
	}
}

// Run runs a statement whose parameters are bound to its end.
func (s *Stmt) Run() error {
	for {
		if more, err := s.Step(); err != nil || !more {
			return err
		}
	}
}

// Each calls read for each row until it returns an error.
func (s *Stmt) Each(read func() error) error {
	for {
		row, err := s.Step()
		if err != nil || !row {
			return err
		}
		if err := read(); err != nil {
			s.Reset()
			return err
		}
	}
}

// Row calls read for the first row, and reports whether there is one.
func (s *Stmt) Row(read func()) (found bool, err error) {
	if found, err = s.Step(); found {
		read()
		s.Reset()
	}
	return found, err
}

// maxIdleBuffer is the size up to which a statement keeps its memory for the next use.
const maxIdleBuffer = 64 << 10

// Reset ends the statement.
func (s *Stmt) Reset() {
	lib.Xsqlite3_reset(s.c.tls, s.p)
	s.next, s.len = 0, 0
	for _, b := range s.old {
		libc.Xfree(s.c.tls, b)
	}
	s.old = s.old[:0]
	if s.cap > maxIdleBuffer {
		// The parameters point to it, but they are bound again before SQLite reads them.
		libc.Xfree(s.c.tls, s.buf)
		s.buf, s.cap = 0, 0
	}
}

// Columns are the names of the statement's columns.
func (s *Stmt) Columns() []string {
	names := make([]string, lib.Xsqlite3_column_count(s.c.tls, s.p))
	for i := range names {
		names[i] = libc.GoString(lib.Xsqlite3_column_name(s.c.tls, s.p, int32(i)))
	}
	return names
}

// ColInt returns a column of the row. Columns are numbered from 0.
func (s *Stmt) ColInt(i int) int64 { return lib.Xsqlite3_column_int64(s.c.tls, s.p, int32(i)) }

// ColNull tells whether a column is NULL.
func (s *Stmt) ColNull(i int) bool {
	return lib.Xsqlite3_column_type(s.c.tls, s.p, int32(i)) == lib.SQLITE_NULL
}

// ColRaw is SQLite's own memory of a blob or a text. It is valid until the next step or reset.
func (s *Stmt) ColRaw(i int) []byte {
	p := lib.Xsqlite3_column_blob(s.c.tls, s.p, int32(i))
	return memory(p, int(lib.Xsqlite3_column_bytes(s.c.tls, s.p, int32(i))))
}

// ColString returns a blob or a text as a string.
func (s *Stmt) ColString(i int) string { return string(s.ColRaw(i)) }

// ColBlob returns a copy of a blob. It is nil for NULL, and only for NULL.
func (s *Stmt) ColBlob(i int) []byte {
	b := s.ColRaw(i)
	if len(b) == 0 && s.ColNull(i) {
		return nil
	}
	v := make([]byte, len(b))
	copy(v, b)
	return v
}
