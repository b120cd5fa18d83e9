package mvcc_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/memdb"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// stale is a backend that was led to another database for a moment: it tells of that one when it is
// asked for an identity, and then works on this one.
type stale struct {
	mvcc.Backend
	looks atomic.Int32
}

func (b *stale) Identity(ctx context.Context) (mvcc.Identity, error) {
	id, err := b.Backend.Identity(ctx)
	if b.looks.Add(-1) >= 0 {
		id.Actual = "elsewhere"
	}
	return id, err
}

// TestLedElsewhereForAMoment: a process that takes this database for another one does not fence it.
// It looks again, and goes on.
func TestLedElsewhereForAMoment(t *testing.T) {
	d := memdb.New(t.Name(), time.Now)
	open := func(b mvcc.Backend) *mvcc.Store {
		t.Helper()
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{
			Compaction: mvcc.CompactionPolicy{Window: -1}})
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
	other := open(d.Open(mvcc.DriverOptions{}))
	epoch := other.Epoch()
	b := &stale{Backend: d.Open(mvcc.DriverOptions{})}
	b.looks.Store(1)
	s := open(b)
	if s.Epoch() != epoch {
		t.Errorf("a process that begins has fenced: epoch %d after %d", s.Epoch(), epoch)
	}
	// From here on: the store looks as soon as it hears of the fence, perhaps before it is read.
	b.looks.Store(1)
	fenced, err := other.Fence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/", End: "0"})
	if err != nil || p.Revision != fenced || s.Epoch() != other.Epoch() {
		t.Errorf("a read is of revision %d in epoch %d, %v, and the other process has fenced at %d "+
			"in epoch %d", p.Revision, s.Epoch(), err, fenced, other.Epoch())
	}
	if looks := b.looks.Load(); looks >= 0 {
		t.Error("nobody was led elsewhere")
	}
	if _, err := s.Commit(t.Context(), mvcc.Mutation{Key: "/a", Value: []byte("v")}); err != nil {
		t.Error(err)
	}
}
