package workload

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
)

// readable is how many objects the get lines read.
const readable = 10_000

func readLines() []Line {
	measures := func(throughput, p50 *Aim) []Measure {
		return []Measure{
			{Key: "p50", Title: "p50", Unit: "ms", Lower: true, Aim: p50},
			{Key: "throughput", Title: "operations", Unit: "/s", Aim: throughput},
			{Key: "p99", Title: "p99", Unit: "ms", Lower: true},
			{Key: "cpu", Title: "CPU per operation", Unit: "µs", Lower: true},
		}
	}
	raw, cached := measures(nil, ratio(1.2, 1.2)), measures(ratio(1, 1), nil)
	return []Line{
		{Name: "get1", Work: "get, raw, 1 reader", Measures: raw, Run: gets(1, false)},
		{Name: "get64", Work: "get, raw, 64 readers", Measures: raw, Run: gets(64, false)},
		{Name: "getcached1", Work: "get at resourceVersion 0 through the watch cache, 1 reader",
			Measures: cached, Run: gets(1, true)},
		{Name: "getcached64", Work: "get at resourceVersion 0 through the watch cache, 64 readers",
			Measures: cached, Run: gets(64, true)},
	}
}

func gets(readers int, cached bool) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (Metrics, error) {
		n := b.Size(readable)
		if err := b.load(ctx, b.Store, object.Prefix, "get", n); err != nil {
			return nil, err
		}
		store, options := b.Store, storage.GetOptions{}
		if cached {
			c, stop, err := watchCache(ctx, b.Store)
			if err != nil {
				return nil, err
			}
			defer stop()
			store, options.ResourceVersion = c, "0"
		}
		load, err := b.drive(ctx, "getting", readers,
			func(ctx context.Context, worker, i int) error {
				// A step that has no common divisor with the number of objects visits all of them,
				// and never the same twice in a row.
				name := object.Name("get", (worker*7919+i*104729)%n)
				return store.Get(ctx, object.Key(object.Prefix, name), options, &example.Pod{})
			})
		return load.metrics(), err
	}
}

// watchCache puts upstream's watch cache over a store, and waits until it is filled.
func watchCache(ctx context.Context, store storage.Interface) (storage.Interface, func(), error) {
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             store,
		Versioner:           store.Versioner(),
		GroupResource:       object.Resource,
		EventsHistoryWindow: 75 * time.Second,
		ResourcePrefix:      object.Prefix,
		KeyFunc:             object.KeyFunc,
		GetAttrsFunc:        object.Attributes,
		NewFunc:             object.Empty,
		NewListFunc:         object.EmptyList,
		Codec:               object.Codec(),
	})
	if err != nil {
		return nil, nil, err
	}
	delegator := cacher.NewCacheDelegator(cached, store)
	stop := func() {
		delegator.Stop()
		cached.Stop()
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !cached.Ready() {
		select {
		case <-look.C:
		case <-ctx.Done():
			stop()
			return nil, nil, fmt.Errorf("the watch cache is not ready: %w", ctx.Err())
		}
	}
	return delegator, stop, nil
}
