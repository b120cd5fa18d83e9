package workload

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/apis/example"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
)

// updated is how many objects the update lines write to.
const updated = 10_000

// measures are shown for all lines that write flat out.
func measures(throughput, cpu *Aim) []Measure {
	return []Measure{
		{Key: "throughput", Title: "operations", Unit: "/s", Aim: throughput},
		{Key: "cpu", Title: "CPU per operation", Unit: "µs", Lower: true, Aim: cpu},
		{Key: "p50", Title: "p50", Unit: "ms", Lower: true},
		{Key: "p99", Title: "p99", Unit: "ms", Lower: true},
		{Key: "written", Title: "written to disks", Unit: "bytes", Lower: true},
	}
}

func writeLines() []Line {
	twice, half := ratio(2, 1.5), ratio(0.5, 0.7)
	return []Line{
		{Name: "create64", Work: "create, 64 writers", Measures: measures(twice, nil),
			Run: creates(64)},
		{Name: "create256", Work: "create, 256 writers", Measures: measures(twice, half),
			Run: creates(256)},
		{Name: "update64", Work: "GuaranteedUpdate, distinct keys, no cached object, 64 writers",
			Measures: measures(twice, nil), Run: updates(64, false)},
		{Name: "update256", Work: "GuaranteedUpdate, distinct keys, no cached object, 256 writers",
			Measures: measures(twice, half), Run: updates(256, false)},
		{Name: "updatecached64", Work: "GuaranteedUpdate, distinct keys, current cached object, " +
			"64 writers", Measures: measures(twice, nil), Run: updates(64, true)},
		{Name: "updatecached256", Work: "GuaranteedUpdate, distinct keys, current cached object, " +
			"256 writers", Measures: measures(twice, half), Run: updates(256, true)},
		{Name: "hotkey", Work: "GuaranteedUpdate of one key, 16 writers",
			Measures: measures(ratio(5, 5), nil), Run: hotKey(16)},
		{Name: "single", Work: "create, one writer", Run: single, Measures: []Measure{
			{Key: "over_commit", Title: "p50 ÷ p50 of the database's own single-row durable commit",
				Unit: "×", Lower: true, Aim: limit(1.3, 1.3)},
			{Key: "p50", Title: "p50", Unit: "ms", Lower: true},
			{Key: "p99", Title: "p99", Unit: "ms", Lower: true},
			{Key: "commit_p50", Title: "p50 of that commit", Unit: "ms", Lower: true},
			{Key: "over_append", Title: "p50 ÷ p50 of the least that a history consists of: a " +
				"lock, a row of the log, the key's row", Unit: "×", Lower: true},
			{Key: "append_p50", Title: "p50 of that", Unit: "ms", Lower: true},
		}},
	}
}

func creates(writers int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		load, err := b.drive(ctx, "creating", writers, b.creating("w"))
		return load.metrics(), err
	}
}

// creating is the operation that creates one object after the other, those of each worker next to
// each other.
func (b *Bench) creating(group string) func(ctx context.Context, worker, i int) error {
	return func(ctx context.Context, worker, i int) error {
		return create(ctx, b.Store, object.Prefix,
			object.Name(fmt.Sprintf("%s%03d", group, worker), i))
	}
}

func updates(writers int, cached bool) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		pods, err := b.loadPods(ctx, "update", b.Size(updated))
		if err != nil {
			return nil, err
		}
		load, err := b.drive(ctx, "updating", writers, b.updating(pods, writers, cached))
		return load.metrics(), err
	}
}

// updating is the operation that updates one of the objects after the other; each worker has its
// own.
func (b *Bench) updating(pods []*example.Pod, workers int, cached bool) func(ctx context.Context,
	worker, i int) error {
	return func(ctx context.Context, worker, i int) error {
		each := (len(pods)-worker-1)/workers + 1
		at := worker + i%each*workers
		var suggestion *example.Pod
		if cached {
			suggestion = pods[at]
		}
		out, err := update(ctx, b.Store, pods[at].Name, i+1, suggestion)
		if err == nil {
			pods[at] = out
		}
		return err
	}
}

func hotKey(writers int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		const name = "hot"
		if err := create(ctx, b.Store, object.Prefix, name); err != nil {
			return nil, err
		}
		load, err := b.drive(ctx, "updating one key", writers,
			func(ctx context.Context, worker, i int) error {
				// Every writer writes something else, so that no update is found to change nothing.
				_, err := update(ctx, b.Store, name, i*writers+worker, nil)
				return err
			})
		return load.metrics(), err
	}
}

// single measures one writer between two halves of the database's own commits, so that all see the
// same disk.
func single(ctx context.Context, b *Bench) (m Metrics, err error) {
	committer, err := b.Server.Committer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, committer.Close()) }()
	value := make([]byte, object.Bytes())
	var id int64
	half := *b
	half.Duration /= 2
	var commits, appends measure.Latencies
	raw := func() error {
		for _, kind := range []struct {
			what   string
			commit func(context.Context, int64, []byte) error
			into   *measure.Latencies
		}{{"committing rows", committer.Commit, &commits},
			{"appending to a history", committer.Append, &appends}} {
			load, err := half.drive(ctx, kind.what, 1, func(ctx context.Context, _, _ int) error {
				id++
				return kind.commit(ctx, id, value)
			})
			if err != nil {
				return err
			}
			*kind.into = append(*kind.into, load.Latencies...)
		}
		return nil
	}
	if err := raw(); err != nil {
		return nil, err
	}
	creates, err := b.drive(ctx, "creating", 1, b.creating("w"))
	if err != nil {
		return nil, err
	}
	if err := raw(); err != nil {
		return nil, err
	}
	m = creates.metrics()
	m["commit_p50"] = measure.Milliseconds(commits.Percentile(50))
	m["append_p50"] = measure.Milliseconds(appends.Percentile(50))
	m["over_commit"] = m["p50"] / m["commit_p50"]
	m["over_append"] = m["p50"] / m["append_p50"]
	return m, nil
}
