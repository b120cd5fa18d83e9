package mvcc_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// TestCompactionOfAnIdleStore: when all is compacted, a pass asks the database nothing until
// somebody writes, be it another process.
func TestCompactionOfAnIdleStore(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	var passes atomic.Int32
	open := func(hook func(context.Context, string) error) *mvcc.Engine {
		b := db.Open(contract.DriverOptions{})
		b.Hook = hook
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{
			Compaction: mvcc.CompactionPolicy{Window: -1, Keep: 1}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	s := open(func(_ context.Context, method string) error {
		if method == "Size" {
			passes.Add(1)
		}
		return nil
	})
	other := open(nil)
	var last mvcc.CompactionPass
	// settles runs passes until one does nothing.
	settles := func(after string) {
		t.Helper()
		for n := range 3 {
			before := passes.Load()
			var err error
			if last, err = s.CompactAgain(t.Context(), last); err != nil {
				t.Fatal(err)
			}
			if did := passes.Load() > before; did == (n == 2) {
				t.Errorf("after %s, the pass %d of three: %t", after, n, did)
			}
		}
	}
	r := put(t, s, "/k", 0, "1")
	for _, value := range []string{"2", "3"} {
		r = put(t, s, "/k", r, value)
	}
	settles("writes")
	put(t, other, "/another", 0, "1")
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	settles("a write of another process")
}

// TestCompactionInterval: a pass that sweeps for long does not put off the next one.
func TestCompactionInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var passes []time.Time
		b := memdb.New(t.Name(), time.Now).Open(contract.DriverOptions{})
		b.Hook = func(_ context.Context, method string) error {
			switch method {
			case "Sweepable":
				<-time.After(40 * time.Second)
			case "Size":
				passes = append(passes, time.Now())
			}
			return nil
		}
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{Timeout: time.Hour,
			Compaction: mvcc.CompactionPolicy{Interval: time.Minute, Keep: 1}})
		if err != nil {
			t.Fatal(err)
		}
		r := put(t, s, "/k", 0, "1")
		for range 10 {
			<-time.After(time.Minute)
			r = put(t, s, "/k", r, "2")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := len(passes); n < 8 {
			t.Errorf("%d passes in ten minutes with one each minute, at %v", n, passes)
		}
	})
}
