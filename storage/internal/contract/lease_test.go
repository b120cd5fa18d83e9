package contract

import (
	"math"
	"slices"
	"testing"
	"time"
)

// TestService: since when a store was served, by what was answered when.
func TestService(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(seconds float64) time.Time {
		return start.Add(time.Duration(seconds * float64(time.Second)))
	}
	const gap = 4 * time.Second
	// Of the process's own clock, 100 s of the database's are the beginning.
	noted := func(seconds float64) time.Time { return at(seconds + 12345) }
	serving := service{since: at(0), last: at(100), noted: noted(100)}
	closed := service{at(0), at(100), noted(100), false, true}
	for name, test := range map[string]struct {
		before      service
		now, noted  float64
		since, last float64
	}{
		"the first answer":                        {service{}, 7, 7, 7, 7},
		"an answer in time":                       {serving, 104, 104, 0, 104},
		"one that was given a little earlier":     {serving, 99, 101, 0, 100},
		"one that comes late":                     {serving, 104.1, 104.1, 104.1, 104.1},
		"a clock that was set back":               {serving, 95.9, 101, 95.9, 95.9},
		"one after somebody was refused":          {service{at(0), at(100), noted(100), true, false}, 101, 101, 101, 101},
		"one after the store was closed":          {closed, 900, 900, 0, 900},
		"one after it could not be opened":        {service{at(0), at(100), noted(100), true, true}, 900, 900, 900, 900},
		"one after it was closed, a bit early":    {closed, 99, 101, 0, 100},
		"closed, and the clocks differ a little":  {closed, 900, 896, 0, 900},
		"closed, and the database's was set":      {closed, 900, 895.9, 900, 900},
		"closed, and the process stood still":     {closed, 900, 101, 900, 900},
		"closed, and the database's was set back": {closed, 90, 900, 90, 90},
		"closed, and the database's stood still":  {closed, 101, 900, 0, 101},
	} {
		got := test.before.answered(at(test.now), noted(test.noted), gap)
		if !got.since.Equal(at(test.since)) || !got.last.Equal(at(test.last)) || got.lost ||
			got.rests {
			t.Errorf("%s: %+v", name, got)
		}
	}
	s := NewServed(gap, time.Now)
	for i, step := range []struct {
		do    func()
		now   float64
		since float64
	}{{func() {}, 0, 0}, {func() {}, 3, 0}, {func() { s.Waited(gap) }, 4, 0},
		{func() { s.Waited(gap + 1) }, 5, 5}, {func() {}, 6, 5}, {func() { s.Rests(1) }, 9, 5}, {s.Lost, 10, 10},
		{func() {}, 200, 200}, {func() { s.Rests(1); s.Wakes(1) }, 201, 200},
		{func() { s.Rests(1); s.Wakes(2) }, 202, 202}, {func() { s.Wakes(3) }, 203, 202}} {
		step.do()
		if got := s.Answered(at(step.now)); !got.Equal(at(step.since)) {
			t.Errorf("step %d: it is served since %s, want %v s", i, got.Sub(start), step.since)
		}
	}
}

// TestServedHistory: in another history, a store is served since it was first seen there.
func TestServedHistory(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	s := NewServed(time.Hour, time.Now)
	for i, step := range []struct {
		epoch      Epoch
		now, since time.Duration
	}{{3, 0, 0}, {3, 9, 0}, {4, 10, 10}, {4, 20, 10}, {3, 21, 21}} {
		st := State{Head: Position{Epoch: step.epoch}, Now: start.Add(step.now * time.Second)}
		if got := s.Told(st); !got.Equal(start.Add(step.since * time.Second)) {
			t.Errorf("step %d: it is served since %s", i, got.Sub(start))
		}
	}
}

// TestLapsesIn: a lease has the whole of its time from when it was served, and one that has ended
// has none.
func TestLapsesIn(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, test := range []struct {
		left, ttl, served, want time.Duration
	}{
		{9, 10, 100, 9}, {9, 10, 5, 9}, {9, 10, 0, 10}, {3, 10, 5, 5}, {-1, 10, 9, 1},
		{-1, 10, 10, 0}, {-1, 10, 11, -1}, {-7, 10, 12, -2}, {MaxTTL, MaxTTL, 0, MaxTTL},
		// The database's clock was set back, and is a little behind what the process knows.
		{3600, 10, 100, 10}, {3600, 10, 0, 10}, {5, 10, -1, 10},
	} {
		r := LeaseRow{TTL: int64(test.ttl), Expiry: now.Add(test.left * time.Second).UnixMicro()}
		if got := r.LapsesIn(now, now.Add(-test.served*time.Second)); got != test.want*time.Second {
			t.Errorf("%+v: %s", test, got)
		}
	}
	ended := LeaseRow{TTL: 10}
	if got := ended.LapsesIn(now, now); got > 0 {
		t.Errorf("a lease that has ended lasts for %s", got)
	}
}

// TestBeyond: which leases lapse later than they can.
func TestBeyond(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, test := range []struct {
		ttl, expiry int64
		want        bool
	}{
		{10, 0, false}, {10, now.UnixMicro() - 1, false}, {10, now.UnixMicro() + 10_000_000, false},
		{10, now.UnixMicro() + 11_000_000, false}, {10, now.UnixMicro() + 11_000_001, true},
		{10, math.MaxInt64, true}, {MaxTTL, now.UnixMicro() + MaxTTL*1_000_000, false},
		{MaxTTL, math.MaxInt64, true},
	} {
		r := LeaseRow{TTL: test.ttl, Expiry: test.expiry}
		if r.Beyond(now) != test.want {
			t.Errorf("%+v: %t", test, !test.want)
		}
		if left := r.LapsesIn(now, now.Add(-time.Hour)); left > r.whole() {
			t.Errorf("%+v lasts for %s", test, left)
		}
	}
}

// TestPulse: how often a process has stood still, by the times at which it ran.
func TestPulse(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	p := NewPulse(4 * time.Second)
	for i, beat := range []struct {
		at    time.Duration
		stops int
	}{{0, 0}, {time.Second, 0}, {5 * time.Second, 0}, {9*time.Second + 1, 1}, {10 * time.Second, 1},
		{time.Hour, 2}, {time.Hour - time.Minute, 2}, {time.Hour - time.Second, 3}} {
		if got := p.Beat(start.Add(beat.at)); got != beat.stops {
			t.Errorf("beat %d: %d stops", i, got)
		}
	}
}

// TestGrants: of those with one ID one is granted, and none if there is one.
func TestGrants(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	asked := []*LeaseRow{{Lease: 1, TTL: 10}, {Lease: 2, TTL: 20}, {Lease: 1, TTL: 30},
		{Lease: 3, TTL: 40}}
	granted, rows := grants(asked, []LeaseRow{{Lease: 2, TTL: 5}}, now)
	if !slices.Equal(granted, []bool{true, false, false, true}) {
		t.Errorf("%t are granted", granted)
	}
	in := func(seconds int64) int64 { return now.UnixMicro() + seconds*1_000_000 }
	if !slices.Equal(rows, []LeaseRow{{1, 10, in(10)}, {3, 40, in(40)}}) {
		t.Errorf("the rows are %+v", rows)
	}
}
