package mvcc_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// stale is a backend that was led to another database for a moment: it tells of that one when it is
// asked for an identity, and then works on this one.
type stale struct {
	contract.Backend
	looks atomic.Int32
}

func (b *stale) Identity(ctx context.Context) (contract.Identity, error) {
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
	open := func(b contract.Backend) *mvcc.Engine {
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
	other := open(d.Open(contract.DriverOptions{}))
	epoch := other.Epoch()
	b := &stale{Backend: d.Open(contract.DriverOptions{})}
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
	if _, err := s.Commit(t.Context(), contract.Mutation{Key: "/a", Value: []byte("v")}); err != nil {
		t.Error(err)
	}
}

// TestLossLookedIntoOnce: who has noticed a loss, and comes when the process is in the new history
// by then, does not have the database looked at again. There are as many as there were reads.
func TestLossLookedIntoOnce(t *testing.T) {
	b := &stale{Backend: openBackend(t, inMemory(t))}
	s, err := mvcc.Open(t.Context(), b, mvcc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	lost := s.NewestSeen()
	if _, err := s.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := b.looks.Load()
	for range 3 {
		if err := s.Refence(t.Context(), lost); err != nil {
			t.Error(err)
		}
	}
	if looks := before - b.looks.Load(); looks != 0 {
		t.Errorf("the database was looked at %d times after the process had left the history", looks)
	}
	if err := s.Refence(t.Context(), s.NewestSeen()); err != nil {
		t.Error(err)
	}
	if looks := before - b.looks.Load(); looks != 1 {
		t.Errorf("a position of the present history was looked for %d times, not once", looks)
	}
}
