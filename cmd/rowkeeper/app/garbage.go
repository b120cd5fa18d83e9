package app

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// garbageBytes is how much garbage there may be before it is collected, however little there is
// besides.
const garbageBytes = 64 << 20

// collectSeldom lets this process have garbageBytes of garbage from now on, unless GOGC is set. A
// server of etcd's API holds some megabytes. By Go's default it collected eight times a second
// while 64 clients wrote, and looked through all that it holds each time. GOMEMLIMIT holds in any
// case.
var collectSeldom = sync.OnceFunc(func() {
	if _, set := os.LookupEnv("GOGC"); !set {
		afterCollection(100)
	}
})

// afterCollection sets after the next collection, and after each one that follows, at which growth
// in percent of what is held the next one is due. Each change stops the process for a moment, so
// small ones are not made.
func afterCollection(percent int) {
	type unreachable struct{ _ *int }
	runtime.AddCleanup(&unreachable{}, func(percent int) {
		held := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(held)
		next := int(max(100, garbageBytes*100/max(held[0].Value.Uint64(), 1<<20)))
		if next < percent*7/8 || next > percent*9/8 {
			debug.SetGCPercent(next)
			percent = next
		}
		afterCollection(percent)
	}, percent)
}
