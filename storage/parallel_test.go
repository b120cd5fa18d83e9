package storage

import (
	"errors"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestInParallel: each number comes once, whatever is worth a goroutine.
func TestInParallel(t *testing.T) {
	for _, worth := range []int{0, 1, 3, 1000} {
		for _, n := range []int{0, 1, 2, 100} {
			times := make([]atomic.Int32, n)
			inParallel(n, worth, func(i int) bool { times[i].Add(1); return true })
			for i := range times {
				if got := times[i].Load(); got != 1 {
					t.Errorf("%d of %d came %d times, if %d are worth it", i, n, got, worth)
				}
			}
		}
	}
}

// TestInParallelStops: after a number that ends it, none begins; all before that have come. Where
// each number ends it, that is one for each processor, however these run.
func TestInParallelStops(t *testing.T) {
	const n, last = 10_000, 100
	for _, test := range []struct{ worth, most int }{{1, 1}, {n, goruntime.GOMAXPROCS(0)}} {
		for _, ends := range []func(i int) bool{
			func(i int) bool { return i == last },
			func(i int) bool { return i >= last },
		} {
			var came [n]atomic.Bool
			inParallel(n, test.worth, func(i int) bool { came[i].Store(true); return !ends(i) })
			count := 0
			for i := range came {
				if came[i].Load() {
					count++
				}
			}
			for i := range count {
				if !came[i].Load() {
					t.Fatalf("of %d numbers that came, %d is not one", count, i)
				}
			}
			if count <= last || (ends(n) || test.worth == 1) && count > last+test.most {
				t.Errorf("%d numbers came, if %d are worth it", count, test.worth)
			}
		}
	}
}

// TestInParallelPanics: the caller panics, and knows where, and the process goes on.
func TestInParallelPanics(t *testing.T) {
	defer func() {
		err, _ := recover().(error)
		if p := (*contract.PanicError)(nil); !errors.As(err, &p) || p.Value != "here" ||
			!strings.Contains(err.Error(), "parallel_test.go") {
			t.Errorf("the caller panics with %v", err)
		}
	}()
	inParallel(100, 2, func(i int) bool {
		if i == 50 {
			panic("here")
		}
		return true
	})
	t.Error("the caller does not panic")
}
