package exampletest

import (
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

var benchmarked = map[string]testkit.Database{"sqlite": {}, "memory": testkit.Memory}

// first starts a server, and returns it after its first answer.
func first(b *testing.B, database testkit.Database) *testkit.Server {
	s := Start(b, testkit.Options{Database: database})
	client := dynamic.NewForConfigOrDie(s.Config)
	if _,
		err := client.Resource(civ1.SchemeGroupVersion.WithResource("pipelines")).List(b.Context(),
		metav1.ListOptions{}); err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkStart prints the median time from the call to the first successful request, with
// -benchtime 20x that of 20.
func BenchmarkStart(b *testing.B) {
	for name, database := range benchmarked {
		b.Run(name, func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				began := time.Now()
				s := first(b, database)
				times = append(times, time.Since(began))
				s.Stop()
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "median-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkHundred starts a hundred servers at once, and prints how long it takes until all have
// answered, the median time from the start of one to its first answer, and, as they run side by
// side, the memory that each takes at rest.
func BenchmarkHundred(b *testing.B) {
	const servers = 100
	for name, database := range benchmarked {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before := inUse()
				began := time.Now()
				running, times := make([]*testkit.Server, servers), make([]time.Duration, servers)
				var group sync.WaitGroup
				for i := range running {
					group.Go(func() {
						began := time.Now()
						running[i] = first(b, database) // if it fails, only this goroutine ends
						times[i] = time.Since(began)
					})
				}
				group.Wait()
				if b.Failed() {
					b.FailNow()
				}
				b.ReportMetric(time.Since(began).Seconds(), "s/100")
				slices.Sort(times)
				b.ReportMetric(times[servers/2].Seconds()*1000, "median-ms")
				b.ReportMetric(float64(inUse()-before)/servers/(1<<20), "MiB/server")
				for _, s := range running {
					s.Stop()
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// inUse is the memory that Go has in use after a collection.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
