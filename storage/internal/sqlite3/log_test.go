package sqlite3

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// disk is a file of the translated code, whose writes are recorded.
type disk struct {
	tls     *libc.TLS
	log     *log
	file    lib.Tsqlite3_file
	methods lib.Tsqlite3_io_methods
	write   func(tls *libc.TLS, file, p uintptr, n int32, offset int64) int32
	// did are the calls, and bytes is what was written.
	did   []string
	bytes []byte
	full  bool
}

func newDisk(t *testing.T) *disk {
	d := &disk{tls: libc.NewTLS(), bytes: make([]byte, 1<<20)}
	d.write = func(_ *libc.TLS, _, p uintptr, n int32, offset int64) int32 {
		d.did = append(d.did, fmt.Sprintf("write %d at %d", n, offset))
		if d.full {
			return lib.SQLITE_FULL
		}
		copy(d.bytes[offset:], memory(p, int(n)))
		return lib.SQLITE_OK
	}
	d.methods.FxWrite = *(*uintptr)(unsafe.Pointer(&d.write))
	d.file.FpMethods = uintptr(unsafe.Pointer(&d.methods))
	d.log = newLog(d.tls, uintptr(unsafe.Pointer(&d.file)))
	t.Cleanup(func() {
		d.log.free(d.tls)
		d.tls.Close()
	})
	return d
}

// put writes bytes as SQLite does, and returns its code.
func (d *disk) put(b []byte, offset int) int32 {
	p := libc.Xmalloc(d.tls, libc.Tsize_t(len(b)))
	defer libc.Xfree(d.tls, p)
	copy(memory(p, len(b)), b)
	return d.log.xWrite(d.tls, d.log.file, p, int32(len(b)), int64(offset))
}

// frame writes a frame, and returns the offset of the next one.
func (d *disk) frame(t *testing.T, offset, page int, last bool) int {
	t.Helper()
	header := bytes.Repeat([]byte{1}, frameHeader)
	if !last {
		clear(header[4:8])
	}
	if d.put(header, offset) != lib.SQLITE_OK ||
		d.put(bytes.Repeat([]byte{2}, page), offset+frameHeader) != lib.SQLITE_OK {
		t.Errorf("the frame at %d was not written", offset)
	}
	if last && d.bytes[offset+frameHeader+page-1] != 2 {
		t.Errorf("the last frame, at %d, is not in the file", offset)
	}
	return offset + frameHeader + page
}

// The frames of a commit are written together, and at its end all of them are written.
func TestLogCollects(t *testing.T) {
	const page, size = 8192, 8192 + frameHeader
	for name, test := range map[string]struct {
		do   func(t *testing.T, d *disk)
		want []string
	}{
		"a commit": {func(t *testing.T, d *disk) {
			d.frame(t, d.frame(t, 32, page, false), page, true)
		}, []string{"write 16432 at 32"}},
		"two commits": {func(t *testing.T, d *disk) {
			at := d.frame(t, 32, page, true)
			d.log.stop()
			d.log.begin()
			d.frame(t, at, page, true)
		}, []string{"write 8216 at 32", "write 8216 at 8248"}},
		"a new log": {func(t *testing.T, d *disk) {
			d.put(make([]byte, 32), 0)
			d.frame(t, 32, page, true)
		}, []string{"write 8248 at 0"}},
		"a large commit": {func(t *testing.T, d *disk) {
			at := 32
			for i := range 9 {
				at = d.frame(t, at, page, i == 8)
			}
		}, []string{"write 57536 at 32", "write 16408 at 57568"}},
		"pages larger than the buffer": {func(t *testing.T, d *disk) {
			d.frame(t, d.frame(t, 32, logBytes+1, false), page, true)
		}, []string{"write 24 at 32", "write 65537 at 56", "write 8216 at 65593"}},
		"a gap": {func(t *testing.T, d *disk) {
			d.frame(t, d.frame(t, 32, page, false)+size, page, true)
		}, []string{"write 8216 at 32", "write 8216 at 16464"}},
		"a header that is rewritten": {func(t *testing.T, d *disk) {
			d.frame(t, d.frame(t, 32, page, false), page, true)
			d.put(bytes.Repeat([]byte{3}, frameHeader), 32)
		}, []string{"write 16432 at 32", "write 24 at 32"}},
		"no commit": {func(t *testing.T, d *disk) {
			d.log.stop()
			d.frame(t, 32, page, false)
		}, []string{"write 24 at 32", "write 8192 at 56"}},
		"a commit that fails": {func(t *testing.T, d *disk) {
			d.frame(t, 32, page, false)
			d.log.stop()
			d.log.begin()
			d.frame(t, 32, page, true)
		}, []string{"write 8216 at 32"}},
		"a disk that is full": {func(t *testing.T, d *disk) {
			at := d.frame(t, 32, page, false)
			d.full = true
			d.put(bytes.Repeat([]byte{1}, frameHeader), at)
			if rc := d.put(make([]byte, page), at+frameHeader); rc != lib.SQLITE_FULL {
				t.Errorf("the commit ends with %d", rc)
			}
			d.log.flush(d.tls) // there is nothing left
		}, []string{"write 16432 at 32"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			d.log.begin()
			test.do(t, d)
			if !slices.Equal(d.did, test.want) {
				t.Errorf("the file was asked for %q, want %q", d.did, test.want)
			}
		})
	}
}

// What is committed is in the files, whatever its size and however SQLite synchronizes, also if it
// writes pages before the commit because its cache is small.
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
					if err := errors.Join(begin, update, insert, c.Commit()); err != nil {
						t.Fatal(err)
					}
					if c.LogEnd() > 256<<10 {
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
					// What is rolled back leaves nothing.
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
