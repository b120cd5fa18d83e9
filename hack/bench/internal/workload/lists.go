package workload

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
)

// pageSize is that of kubectl and of client-go's pagers.
const pageSize = 500

func listLines() []Line {
	ready := []Measure{
		{Key: "ready", Title: "time until the watch cache is ready", Unit: "ms", Lower: true},
		{Key: "over_list", Title: "that ÷ time of a whole list, raw", Unit: "×", Lower: true},
		{Key: "cpu", Title: "CPU until then", Unit: "ms", Lower: true},
		{Key: "bytes", Title: "memory that it holds for an object", Unit: "bytes", Lower: true},
	}
	whole := []Measure{
		{Key: "cpu", Title: "CPU per list", Unit: "ms", Lower: true, Aim: ratio(1, 1)},
		{Key: "peak", Title: "peak memory, client and server", Unit: "MB", Lower: true,
			Aim: ratio(1, 1)},
		{Key: "p50", Title: "time per list", Unit: "ms", Lower: true},
		{Key: "growth", Title: "of the peak: above that before the list", Unit: "MB", Lower: true},
	}
	pages := []Measure{
		{Key: "over_whole", Title: "CPU of all pages ÷ CPU of the whole list", Unit: "×",
			Lower: true, Aim: limit(1.2, 1.2)},
		{Key: "cpu", Title: "CPU of all pages", Unit: "ms", Lower: true},
		{Key: "first_p50", Title: "first page p50", Unit: "ms", Lower: true},
		{Key: "time", Title: "time of all pages", Unit: "ms", Lower: true},
	}
	return []Line{
		{Name: "list5k", Work: "whole list of 5,000 objects, raw", Measures: whole,
			Run: wholeList(5_000)},
		{Name: "list10k", Work: "whole list of 10,000 objects, raw", Measures: whole,
			Run: wholeList(10_000)},
		{Name: "list100k", Work: "whole list of 100,000 objects, raw", Measures: whole,
			Run: wholeList(100_000)},
		{Name: "pages10k", Work: "list of 10,000 objects by pages of 500, raw", Measures: pages,
			Run: pagedList(10_000)},
		{Name: "pages100k", Work: "list of 100,000 objects by pages of 500, raw", Measures: pages,
			Run: pagedList(100_000)},
		{Name: "firstpage1m", Work: "first page of 500 at 10,000 and at 1,000,000 objects",
			Once: true, Run: firstPage(10_000, 1_000_000), Measures: []Measure{
				{Key: "growth", Title: "p50 at 1,000,000 ÷ p50 at 10,000", Unit: "×", Lower: true,
					Aim: limit(1.2, 1.2)},
				{Key: "small_p50", Title: "p50 at 10,000", Unit: "ms", Lower: true},
				{Key: "large_p50", Title: "p50 at 1,000,000", Unit: "ms", Lower: true},
			}},
		{Name: "cache100k", Work: "watch cache of 100,000 objects", Measures: ready,
			Run: cacheReady(100_000)},
		{Name: "cache1m", Work: "watch cache of 1,000,000 objects", Once: true, Measures: ready,
			Run: cacheReady(1_000_000)},
		{Name: "cachedlist", Work: "consistent list of 10,000 objects from the watch cache",
			Run: cachedList(10_000), Measures: []Measure{
				{Key: "over_rv0", Title: "time ÷ time of a list at resourceVersion 0", Unit: "×",
					Lower: true, Aim: limit(1.2, 1.2)},
				{Key: "busy_over_rv0", Title: "the same while other resources change, 100/s",
					Unit:  "×",
					Lower: true, Aim: limit(1.2, 1.2)},
				{Key: "reads", Title: "lists and gets that reached the store", Unit: "",
					Lower: true,
					Aim:   &Aim{Absolute: true, Fast: zero, MySQL: zero}},
				{Key: "p50", Title: "p50", Unit: "ms", Lower: true},
				{Key: "busy_p50", Title: "p50 while other resources change", Unit: "ms",
					Lower: true},
				{Key: "rv0_p50", Title: "p50 at resourceVersion 0", Unit: "ms", Lower: true},
			}},
	}
}

// zero is a bound that only 0 meets.
const zero = 1e-9

// listOptions read everything, from the newest state.
func listOptions(limit int64, token string) storage.ListOptions {
	return storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
		Label: labels.Everything(), Field: fields.Everything(), GetAttrs: object.Attributes,
		Limit: limit, Continue: token,
	}}
}

func list(ctx context.Context, store storage.Interface, o storage.ListOptions,
	want int) (*example.PodList, error) {
	l := &example.PodList{}
	if err := store.GetList(ctx, object.Prefix+"/", o, l); err != nil {
		return nil, err
	}
	if len(l.Items) != want {
		return nil, fmt.Errorf("a list has %d objects instead of %d", len(l.Items), want)
	}
	return l, nil
}

// listAll reads by pages, and returns how long the first took.
func listAll(ctx context.Context, store storage.Interface, n int) (first time.Duration, err error) {
	token := ""
	began := time.Now()
	for read := 0; ; {
		page, err := list(ctx, store, listOptions(pageSize, token), min(pageSize, n-read))
		if err != nil {
			return 0, err
		}
		if read == 0 {
			first = time.Since(began)
		}
		read += len(page.Items)
		if token = page.Continue; token == "" {
			if read != n {
				return 0, fmt.Errorf("the pages hold %d objects instead of %d", read, n)
			}
			return first, nil
		}
	}
}

// repeat measures an operation as often as it fits into the usual duration, three times at least;
// once before to warm up.
func (b *Bench) repeat(ctx context.Context, what string,
	op func(context.Context) error) (Load, error) {
	b.Progress("%s", what)
	if err := op(ctx); err != nil {
		return Load{}, named(what, err)
	}
	runtime.GC()
	var load Load
	w, err := b.window(func() error {
		for began := time.Now(); load.Operations < 3 ||
			time.Since(began) < b.Duration; load.Operations++ {
			start := time.Now()
			if err := op(ctx); err != nil {
				return err
			}
			load.Latencies = append(load.Latencies, time.Since(start))
		}
		return nil
	})
	load.Elapsed, load.CPU = w.to.Sub(w.from), w.cpu
	return load, named(what, err)
}

// listWhole lists n objects again and again.
func (b *Bench) listWhole(ctx context.Context, n int) (Load, error) {
	return b.repeat(ctx, "listing", func(ctx context.Context) error {
		_, err := list(ctx, b.Store, listOptions(0, ""), n)
		return err
	})
}

func wholeList(size int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		n := b.Size(size)
		if err := b.load(ctx, b.Store, object.Prefix, "list", n); err != nil {
			return nil, err
		}
		if err := b.Reopen(ctx); err != nil {
			return nil, err
		}
		read := func() error {
			_, err := list(ctx, b.Store, listOptions(0, ""), n)
			return err
		}
		var peaks, growths []float64
		const megabyte = 1e6
		for range 3 {
			b.Progress("listing, looking at memory")
			debug.FreeOSMemory()
			peak, before, err := measure.PeakMemory(b.Server.Processes(), read)
			if err != nil {
				return nil, err
			}
			peaks, growths = append(peaks, float64(peak)/megabyte),
				append(growths, float64(peak-before)/megabyte)
		}
		load, err := b.listWhole(ctx, n)
		if err != nil {
			return nil, err
		}
		m := load.metrics()
		m["cpu"] /= 1000
		m["peak"], m["growth"] = measure.Median(peaks), measure.Median(growths)
		return m, nil
	}
}

// cacheReady fills watch caches, and looks at what one holds when it is filled.
func cacheReady(size int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		n := b.Size(size)
		if err := b.load(ctx, b.Store, object.Prefix, "list", n); err != nil {
			return nil, err
		}
		if err := b.Reopen(ctx); err != nil {
			return nil, err
		}
		whole, err := b.listWhole(ctx, n)
		if err != nil {
			return nil, err
		}
		var held, cpu []float64
		var took measure.Latencies
		for range 3 {
			b.Progress("filling a watch cache")
			if err := b.Reopen(ctx); err != nil { // a store has one watch cache
				return nil, err
			}
			before := heap() // which may have the cache before this one, so that the most counts
			var stop func()
			w, err := b.window(func() (err error) {
				_, stop, err = watchCache(ctx, b.Store)
				return err
			})
			if err != nil {
				return nil, err
			}
			took = append(took, w.to.Sub(w.from))
			cpu = append(cpu, measure.Milliseconds(w.cpu.Total()))
			held = append(held, float64(heap()-before)/float64(n))
			stop()
		}
		ready, listed := took.Percentile(50), whole.Latencies.Percentile(50)
		return Metrics{"ready": measure.Milliseconds(ready), "cpu": measure.Median(cpu),
			"over_list": float64(ready) / float64(listed), "bytes": slices.Max(held)}, nil
	}
}

// heap is how many bytes this process holds.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers have let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func pagedList(size int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		n := b.Size(size)
		if err := b.load(ctx, b.Store, object.Prefix, "list", n); err != nil {
			return nil, err
		}
		whole, err := b.listWhole(ctx, n)
		if err != nil {
			return nil, err
		}
		var firsts measure.Latencies
		pages, err := b.repeat(ctx, "listing by pages", func(ctx context.Context) error {
			first, err := listAll(ctx, b.Store, n)
			firsts = append(firsts, first)
			return err
		})
		if err != nil {
			return nil, err
		}
		return Metrics{
			"cpu":        pages.CPUPerOperation() / 1000,
			"cpu_whole":  whole.CPUPerOperation() / 1000,
			"over_whole": pages.CPUPerOperation() / whole.CPUPerOperation(),
			"first_p50":  measure.Milliseconds(firsts.Percentile(50)),
			"time":       measure.Milliseconds(pages.Latencies.Percentile(50)),
		}, nil
	}
}

func firstPage(small, large int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		m := Metrics{}
		loaded := 0
		for _, size := range []struct {
			name string
			n    int
		}{{"small", b.Size(small)}, {"large", b.Size(large)}} {
			_, err := b.each(ctx, "creating objects", loaders, size.n-loaded,
				func(ctx context.Context, _, i int) error {
					return create(ctx, b.Store, object.Prefix, object.Name("list", loaded+i))
				})
			if err != nil {
				return nil, err
			}
			loaded = size.n
			load, err := b.repeat(ctx, "listing a page", func(ctx context.Context) error {
				_, err := list(ctx, b.Store, listOptions(pageSize, ""), min(pageSize, size.n))
				return err
			})
			if err != nil {
				return nil, err
			}
			m[size.name+"_p50"] = measure.Milliseconds(load.Latencies.Percentile(50))
		}
		m["growth"] = m["large_p50"] / m["small_p50"]
		return m, nil
	}
}

// readCounter counts the reads of objects that reach a store.
type readCounter struct {
	storage.Interface
	reads atomic.Int64
}

func (c *readCounter) Get(ctx context.Context, key string, o storage.GetOptions,
	out apiruntime.Object) error {
	c.reads.Add(1)
	return c.Interface.Get(ctx, key, o, out)
}

func (c *readCounter) GetList(ctx context.Context, key string, o storage.ListOptions,
	out apiruntime.Object) error {
	c.reads.Add(1)
	return c.Interface.GetList(ctx, key, o, out)
}

func cachedList(size int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (m Metrics, err error) {
		n := b.Size(size)
		if err := b.load(ctx, b.Store, object.Prefix, "list", n); err != nil {
			return nil, err
		}
		counter := &readCounter{Interface: b.Store}
		cache, stop, err := watchCache(ctx, counter)
		if err != nil {
			return nil, err
		}
		defer stop()
		counter.reads.Store(0)
		idle, err := b.compareLists(ctx, "listing from the watch cache", cache, n)
		if err != nil {
			return nil, err
		}
		busy, err := b.whileOthersChange(ctx, func() (listTimes, error) {
			return b.compareLists(ctx, "listing from the watch cache while other resources change",
				cache, n)
		})
		if err != nil {
			return nil, err
		}
		return Metrics{
			"p50": idle.consistent, "rv0_p50": idle.any, "over_rv0": idle.consistent / idle.any,
			"busy_p50": busy.consistent, "busy_over_rv0": busy.consistent / busy.any,
			"reads": float64(counter.reads.Load()),
		}, nil
	}
}

// listTimes are the p50 of consistent lists and of lists at resourceVersion 0, in milliseconds.
type listTimes struct{ consistent, any float64 }

// compareLists reads both kinds of lists in turn.
func (b *Bench) compareLists(ctx context.Context, what string, cache storage.Interface,
	n int) (listTimes, error) {
	var took [2]measure.Latencies
	_, err := b.repeat(ctx, what, func(ctx context.Context) error {
		for i, revision := range []string{"", "0"} {
			o := listOptions(0, "")
			o.ResourceVersion = revision
			began := time.Now()
			if _, err := list(ctx, cache, o, n); err != nil {
				return err
			}
			took[i] = append(took[i], time.Since(began))
		}
		return nil
	})
	return listTimes{measure.Milliseconds(took[0].Percentile(50)),
		measure.Milliseconds(took[1].Percentile(50))}, err
}

// whileOthersChange runs f while 100 objects a second are created that are not below object.Prefix.
func (b *Bench) whileOthersChange(ctx context.Context,
	f func() (listTimes, error)) (listTimes, error) {
	const other = "/others"
	others, release, err := b.Client.Store(other)
	if err != nil {
		return listTimes{}, err
	}
	defer release()
	pacing, rest := context.WithCancel(ctx)
	turns := newPace(pacing, 100)
	writers := b.hire(ctx, 16, func(ctx context.Context, worker, i int) error {
		if err := turns.next(); err != nil {
			return err
		}
		return create(ctx, others, other, object.Name(fmt.Sprintf("w%03d", worker), i))
	})
	times, err := f()
	rest()
	return times, errors.Join(err, writers.dismiss())
}
