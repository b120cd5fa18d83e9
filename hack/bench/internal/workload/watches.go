package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
)

func watchLines() []Line {
	lag := func(p50, p99 *Aim) []Measure {
		return []Measure{
			{Key: "lag_p50", Title: "event after acknowledgement p50", Unit: "ms",
				Lower: true, Aim: p50},
			{Key: "lag_p99", Title: "event after acknowledgement p99", Unit: "ms",
				Lower: true, Aim: p99},
			{Key: "throughput", Title: "writes", Unit: "/s"},
			{Key: "cpu", Title: "CPU per write", Unit: "µs", Lower: true},
		}
	}
	fifth := ratio(0.2, 0.2)
	return []Line{
		{Name: "watch1", Work: "1 watcher, 16 writers flat out, same process",
			Measures: lag(ratio(1, 1), ratio(1, 1)), Run: watched(1, 0)},
		{Name: "watch100", Work: "100 watchers, 100 writes/s", Measures: lag(fifth, nil),
			Run: watched(100, 100)},
		{Name: "mixed", Work: "64 clients: 70 % update, 20 % get, 10 % create or delete; 10 " +
			"watchers", Run: mixed(64, 10), Measures: []Measure{
			{Key: "throughput", Title: "operations", Unit: "/s", Aim: ratio(2, 2)},
			{Key: "lag_p50", Title: "event after acknowledgement p50", Unit: "ms", Lower: true,
				Aim: fifth},
			{Key: "lag_p99", Title: "event after acknowledgement p99", Unit: "ms", Lower: true},
			{Key: "p50", Title: "operation p50", Unit: "ms", Lower: true},
			{Key: "cpu", Title: "CPU per operation", Unit: "µs", Lower: true},
		}},
		{Name: "replay", Work: "watch that catches up with 100,000 events", Run: replay(100_000),
			Measures: []Measure{
				{Key: "throughput", Title: "events", Unit: "/s", Aim: ratio(2, 2)},
				{Key: "cpu", Title: "CPU per event", Unit: "µs", Lower: true},
			}},
	}
}

// watched measures how long after its acknowledgement a write is seen by the watchers; rate is
// writes per second, 0 for as many as there can be.
func watched(watchers, rate int) func(context.Context, *Bench) (Metrics, error) {
	const writers = 16
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		pacing, rest := context.WithCancel(ctx)
		defer rest()
		wait := func() error { return nil }
		acks := newLedger(writers)
		return b.observed(ctx, watchers, acks, func() (*crew, window, error) {
			if rate > 0 {
				wait = newPace(pacing, rate).next
			}
			crew := b.hire(ctx, writers, func(ctx context.Context, worker, i int) error {
				if err := wait(); err != nil {
					return err
				}
				out, name := &example.Pod{}, object.Name(fmt.Sprintf("w%03d", worker), i)
				if err := b.Store.Create(ctx, object.Key(object.Prefix, name), object.New(name),
					out, 0); err != nil {
					return err
				}
				return acks.record(worker, out)
			})
			w, err := crew.measure("writing, watched", b.Duration)
			rest()
			return crew, w, err
		})
	}
}

// observed runs work while watchers look on, waits until they have seen everything, and adds the
// events' lags to the work's figures.
func (b *Bench) observed(ctx context.Context, watchers int, acks *ledger,
	work func() (*crew, window, error)) (_ Metrics, err error) {
	followers, err := b.followAll(ctx, watchers)
	defer func() { err = errors.Join(err, stopAll(followers)) }()
	if err != nil {
		return nil, err
	}
	crew, w, err := work()
	if err = errors.Join(err, crew.dismiss()); err != nil {
		return nil, err
	}
	if err := b.drain(ctx, followers, acks.last.Load()); err != nil {
		return nil, err
	}
	if err := stopAll(followers); err != nil {
		return nil, err
	}
	m := crew.load(w).metrics()
	var all measure.Latencies
	known := acks.all()
	for _, f := range followers {
		all = append(all, lags(known, f.seen, w)...)
	}
	if len(all) == 0 {
		return nil, errors.New("no event was seen in the measured time")
	}
	m["lag_p50"], m["lag_p99"] = measure.Milliseconds(all.Percentile(50)),
		measure.Milliseconds(all.Percentile(99))
	return m, nil
}

// mixed is what a busy API server does to its storage.
func mixed(clients, watchers int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		pods, err := b.loadPods(ctx, "mixed", b.Size(updated))
		if err != nil {
			return nil, err
		}
		acks := newLedger(clients)
		return b.observed(ctx, watchers, acks, func() (*crew, window, error) {
			// The names of the objects that each client has created and not yet deleted; it has one
			// at most.
			own := make([]string, clients)
			crew := b.hire(ctx, clients, func(ctx context.Context, client, i int) error {
				name := pods[rand.IntN(len(pods))].Name
				var out runtime.Object
				var err error
				switch dice := rand.IntN(100); {
				case dice < 70:
					out, err = update(ctx, b.Store, name, i*clients+client+1, nil)
				case dice < 90:
					return b.Store.Get(ctx, object.Key(object.Prefix, name), storage.GetOptions{},
						&example.Pod{})
				case own[client] == "":
					own[client] = object.Name(fmt.Sprintf("c%03d", client), i)
					out = &example.Pod{}
					err = b.Store.Create(ctx, object.Key(object.Prefix, own[client]),
						object.New(own[client]), out, 0)
				default:
					out = &example.Pod{}
					err = b.Store.Delete(ctx, object.Key(object.Prefix, own[client]), out, nil,
						storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
					own[client] = ""
				}
				if err != nil {
					return err
				}
				return acks.record(client, out)
			})
			w, err := crew.measure("mixed work", b.Duration)
			return crew, w, err
		})
	}
}

// replay measures how fast a watch from an old revision gets to the newest.
func replay(size int) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		n := b.Size(size)
		pods, err := b.loadPods(ctx, "replay", 1000)
		if err != nil {
			return nil, err
		}
		// The revision that the writers were told is taken, not the store's own answer: that of
		// kine may be older.
		from, err := newestOf(pods)
		if err != nil {
			return nil, err
		}
		if err := b.rewrite(ctx, pods, n); err != nil {
			return nil, err
		}
		until, err := newestOf(pods)
		if err != nil {
			return nil, err
		}
		if err := b.Reopen(ctx); err != nil {
			return nil, err
		}
		var f *follower
		w, err := b.window(func() error {
			var err error
			if f, err = follow(ctx, b.Store, object.Prefix, from); err != nil {
				return err
			}
			return b.drain(ctx, []*follower{f}, until)
		})
		if f != nil {
			err = errors.Join(err, f.stop())
		}
		if err != nil {
			return nil, err
		}
		if len(f.seen) != n {
			return nil, fmt.Errorf("the watch saw %d events instead of %d", len(f.seen), n)
		}
		return Metrics{
			"throughput": float64(n) / w.to.Sub(w.from).Seconds(),
			"cpu":        float64(w.cpu.Total().Microseconds()) / float64(n),
		}, nil
	}
}

// newestOf is the newest revision of objects.
func newestOf(pods []*example.Pod) (int64, error) {
	var newest int64
	for _, pod := range pods {
		revision, err := object.Revision(pod)
		if err != nil {
			return 0, err
		}
		newest = max(newest, revision)
	}
	return newest, nil
}
