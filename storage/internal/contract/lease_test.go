package contract

import (
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
	serving := service{since: at(0), last: at(100)}
	for name, test := range map[string]struct {
		before      service
		now         time.Time
		since, last time.Time
	}{
		"the first answer":                     {service{}, at(7), at(7), at(7)},
		"an answer in time":                    {serving, at(104), at(0), at(104)},
		"one that was given a little earlier":  {serving, at(99), at(0), at(100)},
		"one that comes late":                  {serving, at(104.1), at(104.1), at(104.1)},
		"a clock that was set back":            {serving, at(95.9), at(95.9), at(95.9)},
		"one after somebody was refused":       {service{at(0), at(100), true, false}, at(101), at(101), at(101)},
		"one after the store was closed":       {service{at(0), at(100), false, true}, at(900), at(0), at(900)},
		"one after it could not be opened":     {service{at(0), at(100), true, true}, at(900), at(900), at(900)},
		"one after it was closed, a bit early": {service{at(0), at(100), false, true}, at(99), at(0), at(100)},
	} {
		if got := test.before.answered(test.now, gap); got != (service{since: test.since, last: test.last}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	s := NewServed(gap)
	for i, step := range []struct {
		do    func()
		now   float64
		since float64
	}{{func() {}, 0, 0}, {func() {}, 3, 0}, {func() { s.waited(gap) }, 4, 0},
		{func() { s.waited(gap + 1) }, 5, 5}, {func() {}, 6, 5}, {s.Rests, 99, 5}, {s.Lost, 100, 100},
		{func() {}, 200, 200}} {
		step.do()
		if got := s.Answered(at(step.now)); !got.Equal(at(step.since)) {
			t.Errorf("step %d: it is served since %s, want %v s", i, got.Sub(start), step.since)
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
