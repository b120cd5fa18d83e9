package storage

import (
	goruntime "runtime"
	"sync"
	"sync/atomic"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// inParallel calls f with each number below n, on as many processors as there are, and as are worth
// it. A panic of f is one of the caller, as if the caller had called f.
func inParallel(n, worth int, f func(i int)) {
	workers := min(goruntime.GOMAXPROCS(0), worth, n)
	if workers < 2 {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	var panicked atomic.Pointer[error]
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			err := contract.Recovered(func() error {
				for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
					f(i)
				}
				return nil
			})
			if err != nil {
				panicked.Store(&err)
			}
		})
	}
	wg.Wait()
	if err := panicked.Load(); err != nil {
		panic(*err)
	}
}
