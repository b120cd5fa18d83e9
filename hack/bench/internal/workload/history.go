package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
)

func historyLines() []Line {
	measures := []Measure{
		{Key: "create_cpu_growth", Title: "CPU per create ÷ that of the fresh database", Unit: "×",
			Lower: true, Aim: limit(1.15, 1.15)},
		{Key: "create_time_growth", Title: "time per create ÷ that of the fresh database",
			Unit: "×", Lower: true, Aim: limit(1.15, 1.15)},
		{Key: "list_cpu_growth", Title: "CPU per list of 10,000 ÷ that of the fresh database",
			Unit: "×", Lower: true, Aim: limit(1.15, 1.15)},
		{Key: "list_time_growth", Title: "time per list of 10,000 ÷ that of the fresh database",
			Unit: "×", Lower: true, Aim: limit(1.15, 1.15)},
		{Key: "disk", Title: "disk per update ÷ size of the value, log included", Unit: "×",
			Lower: true, Aim: limit(1.8, 0)},
		{Key: "throughput", Title: "updates", Unit: "/s"},
	}
	keep := target.DialOptions{KeepHistory: true}
	return []Line{
		{Name: "history200k", Work: "after 200,000 updates that are not compacted", Dial: keep,
			Measures: measures, Run: history(200_000)},
		{Name: "history2m", Work: "after 2,000,000 updates that are not compacted", Dial: keep,
			Once: true, Measures: measures, Run: history(2_000_000)},
		{Name: "compaction", Work: "compaction of 200,000 replaced revisions, 16 writers",
			Dial: keep, Run: compaction(200_000, 16), Measures: []Measure{
				{Key: "throughput_kept", Title: "writers' throughput ÷ that without", Unit: "×",
					Aim: limit(0.75, 0.75)},
				{Key: "p99_growth", Title: "writers' p99 ÷ that without", Unit: "×", Lower: true,
					Aim: limit(3, 3)},
				{Key: "regrowth", Title: "growth on disk, beyond what it ever was, by as many " +
					"updates again ÷ the growth the first time", Unit: "×", Lower: true,
					Aim: limit(0.5, 0.5)},
				{Key: "seconds", Title: "time", Unit: "s", Lower: true},
				{Key: "quiet_throughput", Title: "writes without", Unit: "/s"},
				{Key: "throughput", Title: "writes meanwhile", Unit: "/s"},
				{Key: "p99", Title: "p99 meanwhile", Unit: "ms", Lower: true},
			}},
	}
}

// rewriters is how many writers make history.
const rewriters = 128

// rewrite makes n updates, which go round the objects.
func (b *Bench) rewrite(ctx context.Context, pods []*example.Pod, n int) error {
	_, err := b.rewriteMeasured(ctx, pods, n)
	return err
}

func (b *Bench) rewriteMeasured(ctx context.Context, pods []*example.Pod, n int) (Load, error) {
	workers := min(rewriters, len(pods))
	next := b.updating(pods, workers, true)
	rounds := make([]int, workers)
	return b.each(ctx, "updating", workers, n, func(ctx context.Context, worker, _ int) error {
		rounds[worker]++
		return next(ctx, worker, rounds[worker])
	})
}

// disk is the size of all that the target has stored, its log included, after a checkpoint.
func (b *Bench) disk(ctx context.Context) (int64, error) {
	if err := b.Server.Checkpoint(ctx); err != nil {
		return 0, err
	}
	var total int64
	for _, dir := range b.Server.DataDirs() {
		size, _, err := measure.DirSize(dir)
		if err != nil {
			return 0, err
		}
		total += size
	}
	return total, nil
}

// others begins the keys of objects that are not listed.
const others = "/others"

// costs are what a create and a list cost.
type costs struct{ create, list Load }

// costsNow measures them, creating objects that are not listed, in a group of their own.
func (b *Bench) costsNow(ctx context.Context, store storage.Interface, group string,
	listed int) (c costs, err error) {
	c.create, err = b.drive(ctx, "creating", 64, func(ctx context.Context, worker, i int) error {
		return create(ctx, store, others, object.Name(fmt.Sprintf("%s%03d", group, worker), i))
	})
	if err != nil {
		return c, err
	}
	c.list, err = b.repeat(ctx, "listing", func(ctx context.Context) error {
		_, err := list(ctx, b.Store, listOptions(0, ""), listed)
		return err
	})
	return c, err
}

func history(size int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		n, objects := b.Size(size), b.Size(10_000)
		store, release, err := b.Client.Store(others)
		if err != nil {
			return nil, err
		}
		defer release()
		pods, err := b.loadPods(ctx, "history", objects)
		if err != nil {
			return nil, err
		}
		fresh, err := b.costsNow(ctx, store, "a", objects)
		if err != nil {
			return nil, err
		}
		small, err := b.disk(ctx)
		if err != nil {
			return nil, err
		}
		load, err := b.rewriteMeasured(ctx, pods, n)
		if err != nil {
			return nil, err
		}
		large, err := b.disk(ctx)
		if err != nil {
			return nil, err
		}
		grown, err := b.costsNow(ctx, store, "b", objects)
		if err != nil {
			return nil, err
		}
		return Metrics{
			"create_cpu_growth":  grown.create.CPUPerOperation() / fresh.create.CPUPerOperation(),
			"create_time_growth": fresh.create.Throughput() / grown.create.Throughput(),
			"list_cpu_growth":    grown.list.CPUPerOperation() / fresh.list.CPUPerOperation(),
			"list_time_growth":   fresh.list.Throughput() / grown.list.Throughput(),
			"disk":               float64(large-small) / float64(n) / float64(object.Bytes()),
			"disk_bytes":         float64(large),
			"throughput":         load.Throughput(),
		}, nil
	}
}

// compaction gives up history while writers go on, and then looks whether the space is used again.
func compaction(size, writers int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		n := b.Size(size)
		pods, err := b.loadPods(ctx, "compacted", b.Size(10_000))
		if err != nil {
			return nil, err
		}
		empty, err := b.disk(ctx)
		if err != nil {
			return nil, err
		}
		if err := b.rewrite(ctx, pods, n); err != nil {
			return nil, err
		}
		full, err := b.disk(ctx)
		if err != nil {
			return nil, err
		}

		crew := b.hire(ctx, writers, b.updating(pods, writers, true))
		quiet, err := crew.measure("writing, before the compaction", b.Duration)
		var during window
		if err == nil {
			during, err = crew.window(func() error { return b.compactNow(ctx) })
		}
		if err = errors.Join(err, crew.dismiss()); err != nil {
			return nil, err
		}
		before, meanwhile := crew.load(quiet), crew.load(during)
		if meanwhile.Operations == 0 {
			return nil, errors.New("no write ended during the compaction")
		}

		// The writers have used some of the space already, and have replaced more: give up that,
		// too. From here on, nothing that is as large as the first history may make the files
		// larger than they have ever been, whether the server has kept them as they are or made
		// them smaller.
		highest, err := b.disk(ctx)
		if err != nil {
			return nil, err
		}
		if err := b.compactNow(ctx); err != nil {
			return nil, err
		}
		b.Progress("waiting for the server to clean up")
		if err := b.Server.Settle(ctx); err != nil {
			return nil, err
		}
		if err := b.rewrite(ctx, pods, n); err != nil {
			return nil, err
		}
		again, err := b.disk(ctx)
		if err != nil {
			return nil, err
		}
		p99 := func(l Load) float64 { return measure.Milliseconds(l.Latencies.Percentile(99)) }
		return Metrics{
			"throughput_kept":  meanwhile.Throughput() / before.Throughput(),
			"p99_growth":       p99(meanwhile) / p99(before),
			"regrowth":         max(0, float64(again-max(full, highest))/float64(full-empty)),
			"seconds":          meanwhile.Elapsed.Seconds(),
			"quiet_throughput": before.Throughput(),
			"throughput":       meanwhile.Throughput(),
			"p99":              p99(meanwhile),
		}, nil
	}
}

// compactNow gives up all history up to now.
func (b *Bench) compactNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	b.Progress("compacting")
	now, err := b.Store.GetCurrentResourceVersion(ctx)
	if err != nil {
		return err
	}
	return named("compact", b.Client.Compact(ctx, int64(now)))
}
