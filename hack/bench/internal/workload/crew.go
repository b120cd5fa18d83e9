package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
)

// errDone ends a worker that has nothing left to do.
var errDone = errors.New("done")

// crew are workers that repeat an operation until they are dismissed.
type crew struct {
	bench   *Bench
	cancel  context.CancelFunc
	stop    chan struct{}
	workers sync.WaitGroup
	done    chan struct{}
	count   atomic.Int64
	samples [][]sample
	// due, if not nil, is when an operation is to begin, after began. It is measured from then on,
	// so that what waits behind a slow one is slow as well.
	due   func(worker, i int) time.Duration
	began time.Time

	failed  chan struct{} // closed with the first error
	failure error
	once    sync.Once
}

// sample is one operation: when it ended, in nanoseconds of Unix time, and how long it took. There
// are millions of them, so they hold no pointer.
type sample struct {
	end  int64
	took time.Duration
}

// hire starts workers. op's i counts the calls of its worker.
func (b *Bench) hire(ctx context.Context, workers int,
	op func(ctx context.Context, worker, i int) error) *crew {
	return b.hireAt(ctx, workers, nil, op)
}

// hireAt starts workers that repeat an operation at their times: due says when a worker's i-th one
// begins, as the time from now on.
func (b *Bench) hireAt(ctx context.Context, workers int, due func(worker, i int) time.Duration,
	op func(ctx context.Context, worker, i int) error) *crew {
	ctx, cancel := context.WithCancel(ctx)
	c := &crew{bench: b, cancel: cancel, stop: make(chan struct{}), done: make(chan struct{}),
		failed: make(chan struct{}), samples: make([][]sample, workers), due: due,
		began: time.Now()}
	for worker := range workers {
		c.workers.Go(func() { c.work(ctx, worker, op) })
	}
	go func() { c.workers.Wait(); close(c.done) }()
	return c
}

func (c *crew) work(ctx context.Context, worker int,
	op func(ctx context.Context, worker, i int) error) {
	for i := 0; ; i++ {
		select {
		case <-c.stop:
			return
		case <-ctx.Done():
			c.fail(ctx.Err())
			return
		default:
		}
		began := time.Now()
		if c.due != nil {
			began = c.began.Add(c.due(worker, i))
			select {
			case <-time.After(time.Until(began)):
			case <-c.stop:
				return
			}
		}
		err := op(ctx, worker, i)
		end := time.Now()
		if errors.Is(err, errDone) {
			return
		}
		if err != nil {
			c.fail(err)
			return
		}
		c.samples[worker] = append(c.samples[worker], sample{end.UnixNano(), end.Sub(began)})
		c.count.Add(1)
	}
}

func (c *crew) fail(err error) {
	c.once.Do(func() {
		c.failure = err
		close(c.failed)
	})
}

// dismiss ends the workers after their current operation. It returns the first error that one of
// them met.
func (c *crew) dismiss() error {
	close(c.stop)
	<-c.done
	c.cancel()
	return c.failure
}

// reporting is how often a long phase says how far it is.
const reporting = time.Second

// await waits until all workers are done, and reports meanwhile.
func (c *crew) await(report func()) error {
	tick := time.NewTicker(reporting)
	defer tick.Stop()
	for {
		select {
		case <-c.done:
			return nil
		case <-c.failed:
			return nil // dismiss says why
		case <-tick.C:
			report()
		}
	}
}

// pass waits for a time, and reports meanwhile.
func (c *crew) pass(what string, d time.Duration) error {
	tick := time.NewTicker(reporting)
	defer tick.Stop()
	end := time.After(d)
	last := c.count.Load()
	for {
		select {
		case <-end:
			return nil
		case <-c.done:
			return errors.New("the workers have ended early")
		case <-c.failed:
			return nil // dismiss says why
		case <-tick.C:
			now := c.count.Load()
			c.bench.Progress("%s: %d/s", what, now-last)
			last = now
		}
	}
}

// rest waits for a time.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// window is a measured time.
type window struct {
	from, to time.Time
	cpu      measure.CPU
	written  int64
}

// window measures while f runs.
func (c *crew) window(f func() error) (window, error) { return c.bench.window(f) }

func (b *Bench) window(f func() error) (w window, err error) {
	if b.Measuring != nil {
		end, err := b.Measuring()
		if err != nil {
			return window{}, err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	before, err := measure.CPUTime(b.Server.Processes())
	if err != nil {
		return window{}, err
	}
	written, err := measure.Written(b.Server.Processes())
	if err != nil {
		return window{}, err
	}
	w.from = time.Now()
	err = f()
	w.to = time.Now()
	after, cpuErr := measure.CPUTime(b.Server.Processes())
	w.cpu = after.Sub(before)
	now, ioErr := measure.Written(b.Server.Processes())
	w.written = now - written
	return w, errors.Join(err, cpuErr, ioErr)
}

// measure measures for a time, after a tenth of it, or half a second at least, to warm up.
func (c *crew) measure(what string, d time.Duration) (window, error) {
	if err := c.pass(what+", warming up", warmup(d)); err != nil {
		return window{}, err
	}
	return c.window(func() error { return c.pass(what, d) })
}

// warmup is how long a phase is preceded by work that is not measured.
func warmup(d time.Duration) time.Duration { return max(d/10, 500*time.Millisecond) }

// load is what the dismissed workers did in a window.
func (c *crew) load(w window) Load {
	l := Load{Elapsed: w.to.Sub(w.from), CPU: w.cpu, Written: w.written}
	from, to := w.from.UnixNano(), w.to.UnixNano()
	for _, samples := range c.samples {
		for _, s := range samples {
			if s.end > from && s.end <= to {
				l.Latencies = append(l.Latencies, s.took)
			}
		}
	}
	l.Operations = len(l.Latencies)
	return l
}

// pace calls start at a steady rate until the crew of the caller is dismissed: workers take a turn
// each.
type pace struct {
	turns chan struct{}
}

// newPace hands out rate turns per second until ctx ends. Turns that nobody takes in time are not
// lost but taken later, so that a slow target gets all of the work.
func newPace(ctx context.Context, rate int) *pace {
	p := &pace{turns: make(chan struct{}, 1<<20)}
	go func() {
		began := time.Now()
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		given := 0
		for {
			select {
			case <-ctx.Done():
				close(p.turns)
				return
			case now := <-tick.C:
				for due := int(now.Sub(began).Seconds() * float64(rate)); given < due; given++ {
					p.turns <- struct{}{}
				}
			}
		}
	}()
	return p
}

// next waits for a turn.
func (p *pace) next() error {
	if _, ok := <-p.turns; !ok {
		return errDone
	}
	return nil
}

// named adds what was being done to an error.
func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
