//go:build unix

package crdstest_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// BenchmarkStart prints the median time from the call to a server that is ready, and the processor
// time of a start and an end, with -benchtime 20x of 20.
func BenchmarkStart(b *testing.B) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var times []time.Duration
	before := used()
	for b.Loop() {
		began := time.Now()
		s := crdstest.Start(b, testkit.Options{})
		times = append(times, time.Since(began))
		s.Stop()
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "median-ms")
	b.ReportMetric(float64((used()-before).Milliseconds())/float64(len(times)), "cpu-ms")
	b.ReportMetric(0, "ns/op")
}
