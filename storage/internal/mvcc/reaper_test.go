package mvcc

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// lostKey is a backend with one expired key, whose value is lost, and nothing else.
type lostKey struct {
	contract.Backend
	gets int
}

func (b *lostKey) Expired(context.Context, int) ([]contract.Expired, time.Duration, error) {
	return []contract.Expired{{Key: "/lost", Revision: 7}}, 0, nil
}

func (b *lostKey) Lapsing(context.Context, int) ([]contract.LeaseRow, contract.State, error) {
	return nil, contract.State{}, nil
}

func (b *lostKey) Values(context.Context, []contract.Revision) ([]contract.Row, contract.State, error) {
	return nil, contract.State{}, nil
}

func (b *lostKey) Get(context.Context, contract.Key) (*contract.Row, contract.State, error) {
	b.gets++
	return nil, contract.State{}, contract.Errorf(contract.Invalid, "the value is lost")
}

// TestReaperOfDamagedKey: a damaged key that has expired is tried ever more rarely, and logged
// once.
func TestReaperOfDamagedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := &lostKey{}
		ctx, cancel := context.WithCancel(t.Context())
		s := &Store{b: b, ctx: ctx, metrics: NewMetrics(), hub: &hub{},
			log:      slog.New(slog.NewTextHandler(&out, nil)),
			reapSoon: make(chan time.Duration, 1), damaged: map[contract.Key]damaged{}}
		s.cfg, s.tailer = s.cfg.withDefaults(), newTailer(s)
		done := make(chan struct{})
		go func() {
			s.reapLoop(ctx)
			close(done)
		}()
		<-time.After(2 * time.Hour) // of the bubble's clock, which passes at once
		cancel()
		<-done
		// 1, 2, 4, … 512 s, and then every ten minutes.
		if b.gets < 15 || b.gets > 25 {
			t.Errorf("within two hours the damaged key was tried %d times", b.gets)
		}
		if n := bytes.Count(out.Bytes(), []byte("level=ERROR")); n != 1 ||
			!bytes.Contains(out.Bytes(), []byte("/lost")) {
			t.Errorf("the damaged key was logged %d times: %s", n, out.String())
		}
	})
}

// TestRingCountsWhatWasReadLater: a previous value that a watcher had to read is held by the ring,
// too.
func TestRingCountsWhatWasReadLater(t *testing.T) {
	h := newHub(RingLimits{Events: 1000, Bytes: 100_000}, NewMetrics(), newRowCache(0))
	before := contract.Position{}
	for i := range 100 {
		e := &Event{Key: "/k", Revision: contract.Revision(i + 1), Prev: 1, Deleted: true, bytes: 2}
		after := contract.Position{Revision: e.Revision}
		if !h.append(before, []*Event{e}, after) {
			t.Fatal("not taken")
		}
		before = after
		h.grew(e, 10_000)
	}
	if len(h.ring) > 10 || h.ringBytes > 100_000 {
		t.Errorf("the ring holds %d events of 10,000 bytes, and counts %d", len(h.ring),
			h.ringBytes)
	}
	counted := h.ringBytes
	h.grew(&Event{Revision: before.Revision}, 10_000)
	if h.ringBytes != counted {
		t.Error("the ring counts an event that it does not hold")
	}
}
