package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// TestLogIsCopied writes without readers: the log is begun anew again and again, and is never
// emptied by force.
func TestLogIsCopied(t *testing.T) {
	b := open(t, fresh(t)).(*backend)
	defer b.Close()
	b.logCopied = 256 << 10
	f := filler{store: b, value: bytes.Repeat([]byte("v"), 1024)}
	f.grow(t, 1000)
	longest := b.walSize()
	for range 100 {
		f.update(t, 50)
		longest = max(longest, b.walSize())
	}
	t.Logf("the log was %d KB long", longest>>10)
	// A group alone may be longer than logCopied.
	if longest > 4<<20 {
		t.Errorf("the log has grown to %d bytes", longest)
	}
}

// TestLogIsBounded writes while readers are always in the write-ahead log, with copies of it from a
// short length on, and only from logLimit on, as if readers kept it from ever being begun anew.
func TestLogIsBounded(t *testing.T) {
	ctx := context.Background()
	const limit = 1 << 20
	for _, copied := range []int64{limit / 4, limit} {
		b := open(t, fresh(t)).(*backend)
		defer b.Close()
		b.logCopied, b.logLimit = copied, limit
		f := filler{store: b, value: bytes.Repeat([]byte("v"), 1024)}
		f.grow(t, 1000)

		var wg sync.WaitGroup
		ended := make(chan struct{})
		var reads atomic.Int64
		for range b.reads.Size() {
			wg.Go(func() {
				for {
					select {
					case <-ended:
						return
					default:
					}
					if _, err := b.Page(ctx, contract.PageQuery{Start: "/", End: "0", Limit: 10}); err != nil {
						t.Error(err)
						return
					}
					reads.Add(1)
				}
			})
		}
		longest, written := int64(0), int64(0)
		for range 60 {
			before := b.walSize()
			f.update(t, 50)
			longest = max(longest, b.walSize())
			written += max(b.walSize()-before, 0)
		}
		close(ended)
		wg.Wait()
		t.Logf("%d reads beside 3,000 updates; the log was %d KB long", reads.Load(), longest>>10)
		// One group and what one checkpoint waits for may come on top.
		if longest > 3*limit {
			t.Errorf("the log has grown to %d bytes", longest)
		}
		if copied == limit && written < 2*limit {
			t.Errorf("only %d bytes were written to the log", written)
		}
	}
}

// TestLogOutlivesAReader holds one snapshot for long: the log grows, writers go on, and when the
// reader is gone it is begun anew at once, and emptied.
func TestLogOutlivesAReader(t *testing.T) {
	ctx := context.Background()
	b := open(t, fresh(t)).(*backend)
	defer b.Close()
	b.logCopied, b.logLimit = 256<<10, 1<<20
	f := filler{store: b, value: bytes.Repeat([]byte("v"), 4096)}
	f.grow(t, 100)
	reader, err := b.reads.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var st contract.State
	done, err := b.snapshot(reader, &st)
	if err != nil {
		t.Fatal(err)
	}
	for b.walSize() < 2*b.logLimit {
		f.update(t, 50)
	}
	f.update(t, 1) // comes after an attempt to empty it, in vain
	done()
	b.reads.Put(reader)
	f.update(t, 1)
	f.update(t, 1) // comes after a copy of all, so it begins the log anew
	c, err := b.commits.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if end, err := c.LogEnd(pageSize); err != nil || end > b.logLimit {
		t.Errorf("the log goes on at %d bytes, though the reader is gone: %v", end, err)
	}
	b.commits.Put(c)
	for range 200 {
		if b.walSize() < b.logLimit {
			return
		}
		f.update(t, 50)
	}
	t.Errorf("the log is still %d bytes long", b.walSize())
}

// TestLogAfterARollback: the log of a large transaction that was rolled back is emptied after the
// next commit, however small.
func TestLogAfterARollback(t *testing.T) {
	ctx := context.Background()
	b := open(t, fresh(t)+"?cache_size=1MiB").(*backend)
	defer b.Close()
	b.logLimit = 1 << 20
	f := filler{store: b, value: bytes.Repeat([]byte("v"), 4096)}
	f.grow(t, 1)
	given := errors.New("given up")
	err := b.Locked(ctx, contract.LockOptions{}, func(tx contract.Tx) error {
		return tx.Insert(newToken(), func(insert func(*contract.Record) error) error {
			for i := range 2000 {
				if err := insert(&contract.Record{Key: contract.Key(fmt.Sprintf("key/%04d", i)),
					Revision: 1000 + contract.Revision(i), Create: 1, Value: f.value}); err != nil {
					return err
				}
			}
			return given
		})
	})
	if !errors.Is(err, given) || b.walSize() < 2*b.logLimit {
		t.Fatalf("%v; the log is %d bytes long", err, b.walSize())
	}
	f.update(t, 1)
	f.update(t, 1) // comes after the copy
	if size := b.walSize(); size > b.logLimit {
		t.Errorf("the log is still %d bytes long", size)
	}
}

// TestShownIsDurable kills a process that has not waited for the disk. The next process that opens
// the file waits for it before anything is answered, and answers nothing if that fails.
func TestShownIsDurable(t *testing.T) {
	ctx := context.Background()
	url := fresh(t)
	path := strings.TrimPrefix(url, "sqlite://")
	w := start(t, "writer", url+"?synchronous=OFF", "w")
	if !w.lines.Scan() {
		t.Fatal("the other process has not written")
	}
	w.kill()

	var synced []string
	failed := errors.New("the disk is gone")
	fails := true
	defer func(f func(*os.File) error) { syncFile = f }(syncFile)
	syncFile = func(f *os.File) error {
		synced = append(synced, f.Name())
		if fails {
			return failed
		}
		return f.Sync()
	}
	_, err := contract.OpenBackend(ctx, Driver, url, options(t))
	oneSentence(t, err, contract.Unavailable, path+"-wal", "cannot be made durable", failed.Error())
	_, _, err = valueIn(ctx, path, "k")
	oneSentence(t, err, contract.Unavailable, path+"-wal", "cannot be made durable")

	fails, synced = false, nil
	b := open(t, url)
	defer b.Close()
	if len(synced) != 1 || synced[0] != path+"-wal" {
		t.Errorf("before the first answer %q were made durable", synced)
	}
	if st, err := b.State(ctx); err != nil || st.Head.Revision < 2 {
		t.Errorf("the state is %+v, %v", st, err)
	}
}

// TestDirectoryOfStoresIsDurable: before a store is created, the disk has the name of the directory
// in which its file is.
func TestDirectoryOfStoresIsDurable(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no directory can be waited for")
	}
	url := fresh(t)
	cfg, err := configure(url, contract.DriverOptions{})
	if err != nil {
		t.Fatal(err)
	}
	synced := false
	defer func(f func(*os.File) error) { syncFile = f }(syncFile)
	syncFile = func(f *os.File) error {
		if f.Name() == filepath.Dir(cfg.path) {
			_, err := os.Stat(storesOf(cfg.path))
			synced = err == nil
		}
		return f.Sync()
	}
	opts := options(t)
	opts.Store = "other"
	if _, err := Driver.CreateStore(t.Context(), url, opts); err != nil || !synced {
		t.Errorf("the directory's name is durable: %t, %v", synced, err)
	}
}

// TestBootReachesTheDisk: a transaction that is to be on the disk is, on macOS, too, and those
// after it are as the URL says.
func TestBootReachesTheDisk(t *testing.T) {
	b := open(t, fresh(t)+"?synchronous=NORMAL").(*backend)
	defer b.Close()
	reaches := func(synchronous, want string) {
		t.Helper()
		if err := b.transactAt(t.Context(), synchronous, func(c *sqlite3.Conn) (bool, error) {
			got, err := c.Once("PRAGMA fullfsync")
			if err != nil || got != want {
				t.Errorf("fullfsync is %s, %v, with synchronous=%s", got, err, synchronous)
			}
			return false, nil
		}); err != nil {
			t.Error(err)
		}
	}
	reaches("FULL", "1")
	reaches("NORMAL", "0")
}

// once panics when the first warning is logged.
type once struct {
	slog.Handler
	did atomic.Bool
}

func (h *once) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && h.did.CompareAndSwap(false, true) {
		panic("planted")
	}
	return h.Handler.Handle(ctx, r)
}

// TestPanicWhenTheLogIsCopied: a copy of the log that panics does not end the process. The next
// commit makes it.
func TestPanicWhenTheLogIsCopied(t *testing.T) {
	ctx := context.Background()
	var out bytes.Buffer
	b := open(t, fresh(t)).(*backend)
	defer b.Close()
	planted := &once{Handler: slog.NewTextHandler(&out, nil)}
	b.opts.Logger = slog.New(planted)
	b.logCopied, b.logLimit = 64<<10, 64<<10
	f := filler{store: b, value: bytes.Repeat([]byte("v"), 4096)}
	reader, err := b.reads.Get(ctx) // so the log cannot be emptied, which is logged
	if err != nil {
		t.Fatal(err)
	}
	var st contract.State
	done, err := b.snapshot(reader, &st)
	if err != nil {
		t.Fatal(err)
	}
	// copied waits until the copy was made, or has panicked. The next commit would make it else.
	copied := func() bool {
		c, err := b.commits.Get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer b.commits.Put(c)
		return !b.copyDue || planted.did.Load()
	}
	f.grow(t, 100)
	for !planted.did.Load() {
		for !copied() {
		}
		f.update(t, 50)
	}
	f.update(t, 50)
	done()
	b.reads.Put(reader)
	f.update(t, 1)
	if log := out.String(); strings.Count(log, "level=ERROR") != 1 || !strings.Contains(log, "planted") {
		t.Errorf("the log has %s", log)
	}
}
