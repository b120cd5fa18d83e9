package mvcc_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// TestBoundary: what is compacted is as old as the window, and followed by as many revisions as are
// kept.
func TestBoundary(t *testing.T) {
	// Revision 2 is written at once, and 11 after nine minutes.
	for _, test := range []struct {
		window time.Duration
		keep   int64
		want   contract.Revision
	}{
		{5 * time.Minute, 1, 6},
		{5*time.Minute + time.Second, 1, 5},
		{5 * time.Minute, 5, 6},
		{5 * time.Minute, 8, 3},
		{time.Nanosecond, 1, 10},
		{time.Hour, 1, 0},
		{time.Nanosecond, 100, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, err := mvcc.Open(t.Context(), memdb.New(t.Name(), time.Now).Open(contract.DriverOptions{}),
				mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: test.window,
					Keep: contract.Revision(test.keep), Interval: 24 * time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			head := put(t, s, "/k", 0, "v")
			for range 9 {
				<-time.After(time.Minute)
				head = put(t, s, "/k", head, "v")
			}
			if _, err := s.CompactAgain(t.Context(), mvcc.CompactionPass{}); err != nil {
				t.Error(err)
			}
			if got := s.CompactedRevision(); got != test.want || head != 11 {
				t.Errorf("with a window of %v, and %d revisions kept, compacted is %d of %d, not %d",
					test.window, test.keep, got, head, test.want)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCompactionSweeps: what a compaction by hand has released is removed, also where nothing is
// compacted by itself.
func TestCompactionSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memdb.New(t.Name(), time.Now).Open(contract.DriverOptions{})
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{
			Compaction: mvcc.CompactionPolicy{Window: -1}})
		if err != nil {
			t.Fatal(err)
		}
		r := put(t, s, "/k", 0, "1")
		r = put(t, s, "/k", r, "2")
		if _, err := s.CompactExactly(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if st, err := b.State(t.Context()); err != nil || st.Swept != r {
			t.Errorf("the store is swept up to %d of %d, %v", st.Swept, r, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
