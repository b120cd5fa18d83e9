package sqlite3

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// fresh makes a file with a table, in WAL mode, and returns its name and an opener.
func fresh(t *testing.T) (path string, open func() (*Conn, error)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "test.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(c.Set("journal_mode", "WAL"),
		c.Exec(`CREATE TABLE rows (id INTEGER PRIMARY KEY, v)`), c.Close())
	if err != nil {
		t.Fatal(err)
	}
	return path, func() (*Conn, error) { return Open(path) }
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func closed(t *testing.T, c *Conn) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A statement is compiled once and used again. It keeps what is bound to it until it is reset, also
// where that outgrows its memory.
func TestStatement(t *testing.T) {
	_, open := fresh(t)
	c := must(open())(t)
	closed(t, c)
	const text = `SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7`
	for _, size := range []int{0, 1, 255, 256, 5000, maxIdleBuffer + 1, 3} {
		blob, word := bytes.Repeat([]byte{7}, size), strings.Repeat("w", size)
		s := must(c.Prepare(text))(t)
		s.Int(-5).Bool(true).Blob(blob).BlobString(word).Text(word).Null().Bool(false)
		found, err := s.Row(func() {
			if s.ColInt(0) != -5 || s.ColInt(1) != 1 || s.ColInt(6) != 0 ||
				!bytes.Equal(s.ColBlob(2), blob) ||
				s.ColString(3) != word || s.ColString(4) != word {
				t.Errorf("the row of %d bytes differs", size)
			}
			if s.ColBlob(2) == nil || s.ColNull(2) || s.ColBlob(5) != nil || !s.ColNull(5) {
				t.Errorf("an empty blob, or NULL, is not what it was (%d bytes)", size)
			}
		})
		if !found || err != nil {
			t.Fatalf("found: %v, %v", found, err)
		}
	}
	if len(c.stmts) != 1 {
		t.Errorf("%d statements are prepared", len(c.stmts))
	}
	if must(c.Once(`SELECT 'once'`))(t) != "once" || len(c.stmts) != 1 {
		t.Error("a statement that is run once is kept")
	}
}

// Each ends early without leaving the statement open, and Row tells nothing from a row.
func TestRows(t *testing.T) {
	_, open := fresh(t)
	c := must(open())(t)
	closed(t, c)
	if err := c.Exec(`INSERT INTO rows SELECT value, NULL FROM json_each('[1,2,3]')`); err != nil ||
		c.Changes() != 3 {
		t.Fatalf("%d rows, %v", c.Changes(), err)
	}
	s := must(c.Prepare(`SELECT id FROM rows ORDER BY id`))(t)
	enough, sum := errors.New("enough"), int64(0)
	err := s.Each(func() error {
		if sum += s.ColInt(0); sum == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || sum != 3 {
		t.Errorf("the sum is %d, %v", sum, err)
	}
	sum = 0
	if err := s.Each(func() error { sum += s.ColInt(0); return nil }); err != nil || sum != 6 {
		t.Errorf("the sum is %d, %v", sum, err)
	}
	none := must(c.Prepare(`SELECT id FROM rows WHERE id = ?1`))(t)
	if found, err := none.Int(9).Row(func() { t.Error("there is no such row") }); found || err != nil {
		t.Errorf("found: %v, %v", found, err)
	}
}

// A statement that is not reset keeps the connection in its snapshot.
func TestSnapshot(t *testing.T) {
	_, open := fresh(t)
	reader, writer := must(open())(t), must(open())(t)
	closed(t, reader)
	closed(t, writer)
	count := func() (n int64) {
		s := must(reader.Prepare(`SELECT count(*) FROM rows`))(t)
		if _, err := s.Row(func() { n = s.ColInt(0) }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	held := must(reader.Prepare(`SELECT 1 FROM sqlite_master`))(t)
	if row, err := held.Step(); !row || err != nil {
		t.Fatal(row, err)
	}
	if err := writer.Exec(`INSERT INTO rows VALUES (1, 'v')`); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("the snapshot has %d rows", n)
	}
	if emptied, err := writer.EmptyLog(); emptied || err != nil {
		t.Errorf("the log was emptied under a reader: %v, %v", emptied, err)
	}
	held.Reset()
	if n := count(); n != 1 {
		t.Errorf("after the snapshot there are %d rows", n)
	}
	if emptied, err := writer.EmptyLog(); !emptied || err != nil {
		t.Errorf("the log was not emptied: %v, %v", emptied, err)
	}
}

func TestErrors(t *testing.T) {
	path, open := fresh(t)
	c, other := must(open())(t), must(open())(t)
	closed(t, c)
	closed(t, other)
	if _, err := Open(path + ".missing"); !Is(err, CantOpen) {
		t.Errorf("a missing file: %v", err)
	}
	if err := c.Exec(`BEGIN IMMEDIATE`); err != nil || !c.InTransaction() {
		t.Fatal(err)
	}
	if err := other.Exec(`BEGIN IMMEDIATE`); !Is(err, Busy) || other.InTransaction() {
		t.Errorf("a second writer: %v", err)
	}
	if err := errors.Join(c.Exec(`INSERT INTO rows VALUES (1, 1)`), c.Exec(`COMMIT`)); err != nil ||
		c.InTransaction() {
		t.Fatal(err)
	}
	err := c.Exec(`INSERT INTO rows VALUES (1, 1)`)
	if e, ok := AsError(err); !ok || e.Code() != Constraint || e.Extended == int32(Constraint) ||
		!strings.Contains(err.Error(), "UNIQUE") {
		t.Errorf("a second row: %v", err)
	}
	db := must(sql.Open("sqlite", path))(t)
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO rows VALUES (1, 1)`); !Is(err,
		Constraint) {
		t.Errorf("the same by database/sql: %v", err)
	}
	if _, ok := AsError(errors.New("another")); ok || Is(nil, Busy) {
		t.Error("another error is one of SQLite")
	}
}

// The end of a context ends a statement, and nothing of it is left on the connection.
func TestInterruptible(t *testing.T) {
	c := must(OpenMemory("/test-interruptible"))(t)
	closed(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	release := c.Interruptible(ctx)
	cancel()
	if err := c.Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n`); err == nil {
		t.Error("an endless statement has ended")
	}
	release()
	if err := c.Exec(`SELECT 1`); err != nil {
		t.Error(err)
	}
}

// The last connection empties the log, unless it keeps it.
func TestKeepLog(t *testing.T) {
	path, open := fresh(t)
	for _, keep := range []bool{true, false} {
		c := must(open())(t)
		if keep {
			c.KeepLog()
		}
		if err := errors.Join(c.Exec(`INSERT INTO rows (v) VALUES (1)`), c.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path + "-wal"); (err == nil) != keep {
			t.Errorf("keep: %v, the log: %v", keep, err)
		}
	}
}

// Connections to one name in memory share a database, which is gone with the last one.
func TestMemory(t *testing.T) {
	a, b := must(OpenMemory("/test-memory"))(t), must(OpenMemory("/test-memory"))(t)
	if err := errors.Join(a.Exec(`CREATE TABLE t (v)`), b.Exec(`INSERT INTO t VALUES (1)`),
		a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	c := must(OpenMemory("/test-memory"))(t)
	closed(t, c)
	c.SizeLimit(64 << 10)
	if err := c.Exec(`SELECT * FROM t`); err == nil {
		t.Error("the table is still there")
	}
	if err := errors.Join(c.Exec(`CREATE TABLE t (v)`),
		c.Exec(`INSERT INTO t VALUES (zeroblob(100000))`)); !Is(err, Full) {
		t.Errorf("beyond its limit: %v", err)
	}
}

// A pool opens no more than are needed, gives the one that was used last, and replaces a broken
// one.
func TestPool(t *testing.T) {
	_, open := fresh(t)
	p := NewPool(2, open)
	if p.GetOpen() != nil {
		t.Error("a connection is open before the first use")
	}
	a := must(p.Get(t.Context()))(t)
	b := must(p.Get(t.Context()))(t)
	ended, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := p.Get(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting for a connection: %v", err)
		}
	})
	cancel()
	wg.Wait()
	if inUse, idle := p.Usage(); inUse != 2 || idle != 0 || p.Size() != 2 {
		t.Errorf("%d are in use, %d idle", inUse, idle)
	}
	p.Put(a)
	p.Put(b)
	if c := p.GetOpen(); c != b {
		t.Error("another connection than the last one came back")
	}
	b.Broken = true
	p.Put(b)
	if inUse, idle := p.Usage(); inUse != 0 || idle != 1 {
		t.Errorf("%d are in use, %d idle", inUse, idle)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, idle := p.Usage(); idle != 0 {
		t.Errorf("%d are open after Close", idle)
	}
	p.Put(must(p.Get(t.Context()))(t))
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("cannot open")
	bad := NewPool(1, func() (*Conn, error) { return nil, failure })
	for range 2 { // the slot is not lost
		if _, err := bad.Get(t.Context()); !errors.Is(err, failure) {
			t.Error(err)
		}
	}
}
