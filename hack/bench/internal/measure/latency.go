package measure

import (
	"slices"
	"time"
)

// Latencies are durations of single operations.
type Latencies []time.Duration

// Percentile returns the duration that p percent of the operations did not exceed, 0 if there were
// none. It sorts the latencies.
func (l Latencies) Percentile(p float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	slices.Sort(l)
	return l[int(p/100*float64(len(l)-1)+0.5)]
}

// Milliseconds is d in milliseconds.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Median returns the middle value, the mean of the two middle ones if their number is even, and 0
// if there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	middle := len(s) / 2
	if len(s)%2 == 1 {
		return s[middle]
	}
	return (s[middle-1] + s[middle]) / 2
}
