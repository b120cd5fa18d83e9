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
		{func() { s.Waited(gap + 1) }, 5, 5}, {func() {}, 6, 5}, {s.Rests, 9, 5}, {s.Lost, 10, 10},
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
