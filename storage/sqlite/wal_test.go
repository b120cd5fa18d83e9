package sqlite

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// TestLogIsBounded writes while readers are always in the write-ahead log, with SQLite's own
// checkpoints and without them, as if readers kept these from ever starting the log anew.
func TestLogIsBounded(t *testing.T) {
	ctx := context.Background()
	for _, pages := range []int32{32, 0} {
		b := open(t, fresh(t)).(*backend)
		defer b.Close()
		b.walLimit = 1 << 20
		c, err := b.commits.Get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		c.Autocheckpoint(pages)
		b.commits.Put(c)
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
					if _, err := b.Page(ctx, mvcc.PageQuery{Start: "/", End: "0", Limit: 10}); err != nil {
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
		if longest > 3*b.walLimit {
			t.Errorf("the log has grown to %d bytes", longest)
		}
		if pages == 0 && written < 2*b.walLimit {
			t.Errorf("only %d bytes were written to the log", written)
		}
	}
}

// TestLogOutlivesAReader holds one snapshot for long: the log grows, writers go on, and when the
// reader is gone it is emptied.
func TestLogOutlivesAReader(t *testing.T) {
	ctx := context.Background()
	b := open(t, fresh(t)).(*backend)
	defer b.Close()
	b.walLimit = 1 << 20
	f := filler{store: b, value: bytes.Repeat([]byte("v"), 4096)}
	f.grow(t, 100)
	reader, err := b.reads.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var st mvcc.State
	done, err := b.snapshot(reader, &st)
	if err != nil {
		t.Fatal(err)
	}
	for b.walSize() < 2*b.walLimit {
		f.update(t, 50)
	}
	done()
	b.reads.Put(reader)
	f.update(t, 50)
	for range 200 {
		if b.walSize() < b.walLimit {
			return
		}
		f.update(t, 50)
	}
	t.Errorf("the log is still %d bytes long", b.walSize())
}
