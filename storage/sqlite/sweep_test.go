package sqlite

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestFileShrinks deletes much, compacts and sweeps: the file gets smaller while the store is open.
func TestFileShrinks(t *testing.T) {
	ctx := context.Background()
	b := open(t, fresh(t)).(*backend)
	defer b.Close()
	f := filler{store: b, value: bytes.Repeat([]byte("v"), 8000)}
	f.grow(t, 3000)
	checkpoint := func() int64 {
		t.Helper()
		c, err := b.commits.Get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer b.commits.Put(c)
		if ok, err := c.EmptyLog(); !ok || err != nil {
			t.Fatal(ok, err)
		}
		fi, err := os.Stat(b.cfg.path)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	full := checkpoint()
	var ms []*contract.Mutation
	for i, k := range f.keys {
		ms = append(ms, &contract.Mutation{Key: k, Expect: f.revisions[i], Delete: true, HasPrev: true})
		if len(ms) == 500 {
			f.commit(t, ms)
			ms = nil
		}
	}
	st, err := contract.RaiseCompacted(ctx, b, f.seen.Revision)
	if err != nil {
		t.Fatal(err)
	}
	for st.Swept < st.Compacted {
		if _, st, err = contract.SweepBatch(ctx, b, 500); err != nil {
			t.Fatal(err)
		}
	}
	left := checkpoint()
	// Free pages are kept up to an eighth of what there is, or shrinkFrom.
	if most := int64(shrinkFrom+100)*pageSize + full/8; left > most {
		t.Errorf("the file had %d bytes and has %d, want at most %d", full, left, most)
	}
	size, err := b.Size(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if size.Live > 1<<20 || size.Total < left {
		t.Errorf("the size is %+v", size)
	}
	checkWhole(t, b.cfg.path)
}
