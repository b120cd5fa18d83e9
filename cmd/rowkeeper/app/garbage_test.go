package app

import (
	"os"
	"runtime"
	"runtime/metrics"
	"testing"
)

func read(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// TestCollectSeldom: with little held, a collection is due after garbageBytes, and with much held
// when that has doubled.
func TestCollectSeldom(t *testing.T) {
	if _, set := os.LookupEnv("GOGC"); set {
		t.Skip("GOGC is set, so nothing is changed")
	}
	collectSeldom()
	await := func(what string, holds func(percent, held uint64) bool) {
		t.Helper()
		for range 1_000 {
			if holds(read("/gc/gogc:percent"), read("/gc/heap/live:bytes")) {
				return
			}
			runtime.GC() // what follows it happens beside this
		}
		t.Fatalf("%s: %d %% of %d bytes", what, read("/gc/gogc:percent"),
			read("/gc/heap/live:bytes"))
	}
	await("little is held", func(percent, held uint64) bool {
		garbage := percent * held / 100
		return percent > 100 && garbage > garbageBytes/2 && garbage < garbageBytes*2
	})
	much := make([]byte, 4*garbageBytes)
	await("much is held", func(percent, _ uint64) bool { return percent == 100 })
	runtime.KeepAlive(much)
}
