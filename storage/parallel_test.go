package storage

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestInParallel: each number comes once, whatever is worth a goroutine.
func TestInParallel(t *testing.T) {
	for _, worth := range []int{0, 1, 3, 1000} {
		for _, n := range []int{0, 1, 2, 100} {
			times := make([]atomic.Int32, n)
			inParallel(n, worth, func(i int) { times[i].Add(1) })
			for i := range times {
				if got := times[i].Load(); got != 1 {
					t.Errorf("%d of %d came %d times, if %d are worth it", i, n, got, worth)
				}
			}
		}
	}
}

// TestInParallelPanics: the caller panics, and the process goes on.
func TestInParallelPanics(t *testing.T) {
	defer func() {
		err, _ := recover().(error)
		if p := (*contract.PanicError)(nil); !errors.As(err, &p) || p.Value != "here" {
			t.Errorf("the caller panics with %v", err)
		}
	}()
	inParallel(100, 2, func(i int) {
		if i == 50 {
			panic("here")
		}
	})
	t.Error("the caller does not panic")
}
