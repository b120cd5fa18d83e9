package mvcc

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
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

func (b *lostKey) Lapsing(context.Context, int64, int) ([]contract.LeaseRow, contract.State, error) {
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
		s := &Engine{b: b, ctx: ctx, metrics: NewMetrics(), hub: &hub{},
			served:   contract.NewServed(time.Minute, time.Now),
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

// TestLook: which of the leases that lapse first are ended, which are emptied, and which are left.
func TestLook(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	row := func(l contract.Lease, left time.Duration) contract.LeaseRow {
		return contract.LeaseRow{Lease: l, TTL: 10, Expiry: now.Add(left).UnixMicro()}
	}
	ended := func(l contract.Lease) contract.LeaseRow { return contract.LeaseRow{Lease: l, TTL: 10} }
	for name, test := range map[string]struct {
		rows    []contract.LeaseRow
		served  time.Duration
		known   map[contract.Lease]time.Time
		lapsed  int
		ended   int
		beyond  int
		waiting map[contract.Lease]time.Duration
		passed  int
		next    time.Duration
	}{
		"none":             {served: time.Hour, next: contract.Never},
		"one that has not": {rows: []contract.LeaseRow{row(1, 5*time.Second)}, served: time.Hour, next: 5 * time.Second},
		"some that have": {rows: []contract.LeaseRow{row(1, -time.Second), row(2, 0), row(3, time.Second)},
			served: time.Hour, lapsed: 2, next: time.Second},
		"some that lapse too late": {rows: []contract.LeaseRow{row(1, 10*time.Second), row(2, time.Minute), row(3, time.Hour)},
			served: time.Hour, beyond: 2, next: 10 * time.Second},
		"those that lapsed in an outage": {rows: []contract.LeaseRow{row(1, -time.Hour), row(2, -time.Second), row(3, time.Second)},
			served: 4 * time.Second, passed: 2, next: 6 * time.Second},
		"one that another process has ended": {rows: []contract.LeaseRow{ended(1)}, served: time.Hour,
			waiting: map[contract.Lease]time.Duration{1: takeOver}, passed: 1, next: takeOver},
		"one that it has not emptied yet": {rows: []contract.LeaseRow{ended(1), ended(2)}, served: 0,
			known:   map[contract.Lease]time.Time{1: now.Add(time.Millisecond), 7: now},
			waiting: map[contract.Lease]time.Duration{1: time.Millisecond, 2: takeOver}, passed: 2, next: time.Millisecond},
		"one that it has not emptied in time": {rows: []contract.LeaseRow{ended(1), row(2, -1), row(3, time.Hour)}, served: time.Hour,
			known: map[contract.Lease]time.Time{1: now}, ended: 1, lapsed: 1, beyond: 1, next: 10 * time.Second},
	} {
		l := look(test.rows, now, now.Add(-test.served), test.known)
		waiting := map[contract.Lease]time.Duration{}
		for id, at := range l.waiting {
			waiting[id] = at.Sub(now)
		}
		if len(l.lapsed) != test.lapsed || len(l.ended) != test.ended ||
			len(l.beyond) != test.beyond || !maps.Equal(waiting, test.waiting) ||
			l.passed != test.passed || l.next != test.next {
			t.Errorf("%s: %+v", name, l)
		}
	}
}
