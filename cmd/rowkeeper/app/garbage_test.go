package app

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func metric(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// TestAfterCollection: with little held, a collection is due after garbageBytes, and with much held
// when that has doubled.
func TestAfterCollection(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	afterCollection(100)
	await := func(what string, holds func(percent, held uint64) bool) {
		t.Helper()
		for range 1_000 {
			if holds(metric("/gc/gogc:percent"), metric("/gc/heap/live:bytes")) {
				return
			}
			runtime.GC() // what follows it happens beside this
		}
		t.Fatalf("%s: %d %% of %d bytes", what, metric("/gc/gogc:percent"),
			metric("/gc/heap/live:bytes"))
	}
	await("little is held", func(percent, held uint64) bool {
		garbage := percent * held / 100
		return percent > 100 && garbage > garbageBytes/2 && garbage < garbageBytes*2
	})
	much := make([]byte, 4*garbageBytes)
	await("much is held", func(percent, _ uint64) bool { return percent == 100 })
	runtime.KeepAlive(much)
}
