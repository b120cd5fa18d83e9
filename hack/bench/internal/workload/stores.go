package workload

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
)

const (
	// floodable is how many stores are disturbed by a flood of another one.
	floodable = 50
	// steady is how often each of them is written to in a second.
	steady = 10
	// turnsTaken is how often the two things that a line compares are done, in turns.
	turnsTaken = 3
	// settling is how long a store that was written to goes on asking for other processes' writes
	// often, and a little more.
	settling = 15 * time.Second
)

func storeLines() []Line {
	flooded := []Measure{
		{Key: "p99_growth", Title: "p99 ÷ that without the flood", Unit: "×", Lower: true,
			Aim: limit(2, 2)},
		{Key: "p50", Title: "p50", Unit: "ms", Lower: true},
		{Key: "p99", Title: "p99", Unit: "ms", Lower: true},
		{Key: "quiet_p50", Title: "p50 without", Unit: "ms", Lower: true},
		{Key: "quiet_p99", Title: "p99 without", Unit: "ms", Lower: true},
		{Key: "flood", Title: "the flood's creates", Unit: "/s"},
	}
	rowkeeper := func(t target.Target) bool { return t.Product == "rowkeeper" }
	return []Line{
		{Name: "flood", Work: "50 stores, 10 creates/s in each, while 256 writers flood another " +
			"one, same process", Only: rowkeeper, Measures: flooded, Run: flood(within)},
		{Name: "floodapart", Work: "the same, the flood comes from another process",
			Only: rowkeeper, Measures: flooded, Run: flood(apart)},
		{Name: "burn", Work: "the same, but the other processes only count, one for each processor",
			Only: rowkeeper, Measures: flooded[:len(flooded)-1], Run: flood(burning)},
		{Name: "threestores", Work: "three processes, 64 writers in each, on a store each",
			Run: threeStores, Only: func(t target.Target) bool { return t.Product != "kine" },
			Measures: []Measure{
				{Key: "scaling", Title: "creates, 3 × 64 writers ÷ 1 × 192", Unit: "×",
					Aim: ratio(1, 1)},
				{Key: "throughput", Title: "creates, 3 × 64", Unit: "/s"},
				{Key: "single_throughput", Title: "creates, 1 × 192", Unit: "/s"},
			}},
		{Name: "sixteenstores", Work: "create in 16 stores, 4 writers in each, same process",
			Only: rowkeeper, Measures: measures(nil, nil), Run: manyStores(16, 4)},
		{Name: "thousand", Work: "1,000 stores, each written to once", Once: true, Only: rowkeeper,
			Run: thousand(1000), Measures: []Measure{
				{Key: "heap", Title: "heap per store", Unit: "kB", Lower: true,
					Aim: limit(1000, 1000)},
				{Key: "memory", Title: "memory per store, process", Unit: "kB", Lower: true},
				{Key: "memory_server", Title: "memory per store, database", Unit: "kB",
					Lower: true},
				{Key: "goroutines", Title: "goroutines per store", Lower: true},
				{Key: "statements", Title: "statements, all idle", Unit: "/s", Lower: true},
				{Key: "cores_client", Title: "cores, process, all idle", Lower: true},
				{Key: "cores_server", Title: "cores, database, all idle", Lower: true},
				{Key: "create", Title: "to create one", Unit: "ms", Lower: true},
				{Key: "open_first", Title: "to open the first", Unit: "ms", Lower: true},
				{Key: "open_last", Title: "to open the last", Unit: "ms", Lower: true},
			}},
	}
}

// disturbance is what disturbs the writes to some stores.
type disturbance int

const (
	// within: this process floods another store.
	within disturbance = iota
	// apart: another process does.
	apart
	// burning: there is no flood, but processes of the same priority that use all processors.
	burning
)

// flood compares the latency of writes to some stores with that while they are disturbed.
func flood(by disturbance) func(context.Context, *Bench) (Metrics, error) {
	const writers = 256
	return func(ctx context.Context, b *Bench) (_ Metrics, err error) {
		stores := make([]*Bench, max(int(floodable*b.Scale), 2))
		for i := range stores {
			if stores[i], err = b.beside(ctx, fmt.Sprintf("steady-%d", i)); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, stores[i].Close()) }()
		}
		if err := b.Target.CreateStore(ctx, b.Server.Address(), "flooded"); err != nil {
			return nil, err
		}
		spec := ReplicaSpec{Target: b.Target.Name(), Address: b.Server.Address(), Store: "flooded",
			Writers: writers, Warmup: warmup(b.Duration), Duration: b.Duration}
		var flooded *Bench
		if by == within {
			if flooded, err = b.beside(ctx, "flooded"); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, flooded.Close()) }()
		}

		c := b.hireAt(ctx, len(stores), func(worker, i int) time.Duration {
			return (time.Duration(i*len(stores)+worker) * time.Second) /
				time.Duration(steady*len(stores))
		}, func(ctx context.Context, worker, i int) error {
			return create(ctx, stores[worker].Store, object.Prefix, object.Name("steady", i))
		})
		var quiet, disturbed []window
		var floods []float64
		for i := 0; i < turnsTaken && err == nil; i++ {
			var w window
			if w, err = c.measure("no flood", b.Duration); err != nil {
				break
			}
			quiet = append(quiet, w)
			spec.Group = fmt.Sprintf("flood%d-", i)
			var rate float64
			if by == burning {
				w, err = c.burn(ctx, b.Duration)
			} else {
				w, rate, err = c.flood(ctx, flooded, spec)
			}
			if err == nil {
				disturbed, floods = append(disturbed, w), append(floods, rate)
			}
		}
		if err = errors.Join(err, c.dismiss()); err != nil {
			return nil, err
		}
		latencies := func(windows []window) (p50, p99 float64) {
			var all measure.Latencies
			for _, w := range windows {
				all = append(all, c.load(w).Latencies...)
			}
			return measure.Milliseconds(all.Percentile(50)), measure.Milliseconds(all.Percentile(99))
		}
		m := Metrics{}
		if by != burning {
			m["flood"] = measure.Median(floods)
		}
		m["quiet_p50"], m["quiet_p99"] = latencies(quiet)
		m["p50"], m["p99"] = latencies(disturbed)
		m["p99_growth"] = m["p99"] / m["quiet_p99"]
		return m, nil
	}
}

// burn uses all processors meanwhile.
func (c *crew) burn(ctx context.Context, d time.Duration) (w window, err error) {
	ctx, stop := context.WithCancel(ctx)
	var burners []*exec.Cmd
	for range runtime.NumCPU() {
		cmd := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		if err = cmd.Start(); err != nil {
			break
		}
		burners = append(burners, cmd)
	}
	if err == nil {
		w, err = c.measure("burn", d)
	}
	stop()
	for _, cmd := range burners {
		_ = cmd.Wait() // it was killed
	}
	return w, err
}

// flood creates objects in a store, as the spec says, or in a process of its own if the store is
// nil. It returns the measured time, and how many creates there were in a second.
func (c *crew) flood(ctx context.Context, store *Bench, spec ReplicaSpec) (w window, rate float64,
	err error) {
	c.bench.Progress("flood")
	if store == nil {
		r, err := runReplicas(ctx, []ReplicaSpec{spec})
		if err != nil {
			return w, 0, err
		}
		return window{from: time.Unix(0, r[0].Window[0]), to: time.Unix(0, r[0].Window[1])},
			total(r), nil
	}
	flood := store.hire(ctx, spec.Writers, store.creating(spec.Group))
	w, err = c.measure("flood", spec.Duration)
	err = errors.Join(err, flood.dismiss())
	return w, flood.load(w).Throughput(), err
}

// threeStores compares three processes that write to stores of their own with one process.
func threeStores(ctx context.Context, b *Bench) (Metrics, error) {
	spec := ReplicaSpec{Target: b.Target.Name(), Address: b.Server.Address(), Store: "store-0",
		Warmup: warmup(b.Duration), Duration: b.Duration, Writers: 192}
	one, three := []ReplicaSpec{spec}, make([]ReplicaSpec, 3)
	for i := range three {
		three[i] = spec
		three[i].Store, three[i].Writers = fmt.Sprintf("store-%d", i), 64
		if err := b.Target.CreateStore(ctx, spec.Address, three[i].Store); err != nil {
			return nil, err
		}
	}
	var scaling, singles, sums []float64
	for turn := range turnsTaken {
		rate := func(what string, specs []ReplicaSpec) (float64, error) {
			b.Progress("%s, %d of %d", what, turn+1, turnsTaken)
			for i := range specs {
				specs[i].Group = fmt.Sprintf("%d-%d-%d-", len(specs), turn, i)
			}
			r, err := runReplicas(ctx, specs)
			return total(r), named(what, err)
		}
		single, err := rate("one process", one)
		if err != nil {
			return nil, err
		}
		sum, err := rate("three processes", three)
		if err != nil {
			return nil, err
		}
		scaling, singles, sums = append(scaling, sum/single), append(singles, single),
			append(sums, sum)
	}
	return Metrics{"scaling": measure.Median(scaling), "throughput": measure.Median(sums),
		"single_throughput": measure.Median(singles)}, nil
}

// manyStores lets writers create objects in stores of one process.
func manyStores(number, writers int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (_ Metrics, err error) {
		creates := make([]func(context.Context, int, int) error, number)
		for i := range creates {
			var store *Bench
			if store, err = b.beside(ctx, fmt.Sprintf("store-%d", i)); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, store.Close()) }()
			creates[i] = store.creating("w")
		}
		load, err := b.drive(ctx, "creating in all stores", number*writers,
			func(ctx context.Context, worker, i int) error {
				return creates[worker%number](ctx, worker, i)
			})
		return load.metrics(), err
	}
}

// thousand measures what stores need that nobody uses.
func thousand(size int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (m Metrics, err error) {
		n, name := b.Size(size), func(i int) string { return fmt.Sprintf("store-%d", i) }
		began := time.Now()
		for i := range n {
			b.Progress("creating stores: %d of %d", i, n)
			if err := b.Target.CreateStore(ctx, b.Server.Address(), name(i)); err != nil {
				return nil, err
			}
		}
		m = Metrics{"create": measure.Milliseconds(time.Since(began)) / float64(n)}
		before, err := b.takeStock()
		if err != nil {
			return nil, err
		}
		var stores []*Bench
		defer func() {
			b.Progress("closing stores")
			for _, s := range stores {
				err = errors.Join(err, s.Close())
			}
		}()
		for i := range n {
			b.Progress("opening stores: %d of %d", i, n)
			began := time.Now()
			s, err := b.openBeside(ctx, name(i))
			if err != nil {
				return nil, err
			}
			stores = append(stores, s)
			m["open_last"] = measure.Milliseconds(time.Since(began))
			if i == 0 {
				m["open_first"] = m["open_last"]
			}
			if err := create(ctx, s.Store, object.Prefix, "once"); err != nil {
				return nil, err
			}
		}

		b.Progress("all stores are idle")
		if err := rest(ctx, settling); err != nil {
			return nil, err
		}
		after, err := b.takeStock()
		if err != nil {
			return nil, err
		}
		from, err := b.statements(ctx)
		if err != nil {
			return nil, err
		}
		w, err := b.window(func() error { return rest(ctx, b.Duration) })
		if err != nil {
			return nil, err
		}
		to, err := b.statements(ctx)
		if err != nil {
			return nil, err
		}
		seconds := w.to.Sub(w.from).Seconds()
		if from > 0 {
			m["statements"] = float64(to-from) / seconds
		}
		m["cores_client"] = w.cpu.Client.Seconds() / seconds
		m["cores_server"] = w.cpu.Servers.Seconds() / seconds
		each := func(after, before int64) float64 {
			return float64(after-before) / float64(n)
		}
		m["heap"] = each(after.heap, before.heap) / 1e3
		m["memory"] = each(after.client, before.client) / 1e3
		m["memory_server"] = each(after.server, before.server) / 1e3
		m["goroutines"] = each(after.goroutines, before.goroutines)
		return m, nil
	}
}

// stock is what this process holds, and the servers, in bytes.
type stock struct{ heap, client, server, goroutines int64 }

func (b *Bench) takeStock() (s stock, err error) {
	runtime.GC()
	runtime.GC() // what finalizers have let go
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	if s.client, err = measure.Memory(nil); err != nil {
		return s, err
	}
	all, err := measure.Memory(b.Server.Processes())
	s.heap, s.server = int64(stats.HeapInuse), all-s.client
	s.goroutines = int64(runtime.NumGoroutine())
	return s, err
}

// statements is how many the server has executed, 0 if it does not count them.
func (b *Bench) statements(ctx context.Context) (int64, error) {
	if c, ok := b.Server.(target.Counter); ok {
		return c.Statements(ctx)
	}
	return 0, nil
}

// beside creates a store beside that of the bench, and opens it.
func (b *Bench) beside(ctx context.Context, name string) (*Bench, error) {
	if err := b.Target.CreateStore(ctx, b.Server.Address(), name); err != nil {
		return nil, err
	}
	return b.openBeside(ctx, name)
}

func (b *Bench) openBeside(ctx context.Context, name string) (*Bench, error) {
	client, err := b.Client.Beside(ctx, name)
	if err != nil {
		return nil, err
	}
	other := *b
	return &other, other.use(client)
}
