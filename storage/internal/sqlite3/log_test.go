package sqlite3

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A commit is in the files, whatever its size and however SQLite synchronizes, also if it writes
// pages before the commit because its cache is small.
func TestCommitIsInTheFiles(t *testing.T) {
	for _, synchronous := range []string{"OFF", "NORMAL", "FULL"} {
		for _, cache := range []string{"5", "2000"} {
			t.Run(synchronous+" "+cache, func(t *testing.T) {
				path, open := fresh(t)
				c, other := must(open())(t), must(open())(t)
				closed(t, c)
				closed(t, other)
				if err := errors.Join(c.Set("synchronous", synchronous),
					c.Set("cache_size", cache)); err != nil {
					t.Fatal(err)
				}
				c.NoAutocheckpoint()
				total := 0
				for _, n := range []int{1, 3, 100, 1, 400, 2} {
					begin := c.Exec(`BEGIN IMMEDIATE`)
					update := c.Exec(`UPDATE rows SET v = zeroblob(2000) WHERE id % 7 = 0`)
					insert := c.Exec(fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) INSERT INTO rows (v) SELECT randomblob(1000) FROM n`, n))
					if err := errors.Join(begin, update, insert, c.Exec(`COMMIT`)); err != nil {
						t.Fatal(err)
					}
					if must(c.LogEnd(4096))(t) > 256<<10 {
						if err := c.CopyLog(); err != nil {
							t.Fatal(err)
						}
					}
					total += n
					whole(t, other, total)
					copied := filepath.Join(t.TempDir(), "copy.db")
					for _, suffix := range []string{"", "-wal"} {
						data := must(os.ReadFile(path + suffix))(t)
						if err := os.WriteFile(copied+suffix, data, 0o600); err != nil {
							t.Fatal(err)
						}
					}
					copy := must(Open(copied))(t)
					whole(t, copy, total)
					if err := copy.Close(); err != nil {
						t.Fatal(err)
					}
					// A transaction that is rolled back leaves nothing.
					begin = c.Exec(`BEGIN IMMEDIATE`)
					update = c.Exec(`UPDATE rows SET v = zeroblob(3000)`)
					if err := errors.Join(begin, update, c.Exec(`ROLLBACK`)); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// The log ends where its file ends, as long as it was never begun anew, whoever has written it.
func TestLogEnd(t *testing.T) {
	path, open := fresh(t)
	c, other := must(open())(t), must(open())(t)
	closed(t, c)
	closed(t, other)
	for i := range 3 {
		writer := []*Conn{c, other}[i%2]
		if err := writer.Exec(`INSERT INTO rows (v) VALUES (randomblob(10000))`); err != nil {
			t.Fatal(err)
		}
		size := must(os.Stat(path + "-wal"))(t).Size()
		if end := must(c.LogEnd(4096))(t); end != size {
			t.Errorf("the log ends at %d, and its file at %d", end, size)
		}
	}
	if emptied := must(c.EmptyLog())(t); !emptied || must(c.LogEnd(4096))(t) != 0 {
		t.Error("the log was not emptied")
	}
}

// whole checks that a database has as many rows and is not damaged.
func whole(t *testing.T, c *Conn, rows int) {
	t.Helper()
	if n := must(c.Once(`SELECT count(*) FROM rows`))(t); n != strconv.Itoa(rows) {
		t.Errorf("there are %s rows, want %d", n, rows)
	}
	if check := must(c.Once(`PRAGMA integrity_check`))(t); !strings.EqualFold(check, "ok") {
		t.Errorf("the database is damaged: %s", check)
	}
}
