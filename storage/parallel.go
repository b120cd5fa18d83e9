package storage

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"sync"
	"sync/atomic"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// inParallel calls f with the numbers below n in their order, on as many processors as there are
// and as are worth it. After f has returned false for one, no other one begins. So f was called for
// all numbers up to some one, and has returned for each of them. A panic of f is one of the caller.
func inParallel(n, worth int, f func(i int) (goOn bool)) {
	workers := min(goruntime.GOMAXPROCS(0), worth, n)
	if workers < 2 {
		for i := 0; i < n && f(i); i++ {
		}
		return
	}
	var next atomic.Int64
	var stopped atomic.Bool
	var panicked atomic.Pointer[contract.PanicError]
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			err := contract.Recovered(func() error {
				for !stopped.Load() {
					if i := int(next.Add(1)) - 1; i >= n || !f(i) {
						stopped.Store(true)
					}
				}
				return nil
			})
			if p := (*contract.PanicError)(nil); errors.As(err, &p) {
				stopped.Store(true)
				panicked.Store(p)
			}
		})
	}
	wg.Wait()
	if p := panicked.Load(); p != nil {
		panic(fmt.Errorf("%w\n%s", p, p.Stack))
	}
}
