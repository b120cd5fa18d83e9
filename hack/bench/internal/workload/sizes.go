package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
)

const (
	// liveBytes is how many bytes of objects live15g keeps.
	liveBytes = 15_000_000_000
	// pagesRead is how many pages of a list it reads.
	pagesRead = 20
	// smallKeys is how many keys keys100m writes if there is time.
	smallKeys = 100_000_000
)

func sizeLines() []Line {
	return []Line{
		{Name: "live15g", Work: "15 GB of objects, each updated once, and what follows on that",
			Once: true, Dial: target.DialOptions{KeepHistory: true}, Run: live,
			Measures: []Measure{
				{Key: "loading", Title: "creates while it is filled, 128 writers", Unit: "/s"},
				{Key: "rewriting", Title: "updates while it is filled, 128 writers", Unit: "/s"},
				{Key: "disk", Title: "disk ÷ size of all values, the replaced ones included",
					Unit: "×", Lower: true},
				{Key: "ready", Title: "restart until the first get", Unit: "ms", Lower: true},
				{Key: "page_p50", Title: "page of 500 p50", Unit: "ms", Lower: true},
				{Key: "create", Title: "creates, 64 writers", Unit: "/s"},
				{Key: "create_p99", Title: "create p99", Unit: "ms", Lower: true},
				{Key: "update", Title: "updates, 64 writers", Unit: "/s"},
				{Key: "update_p99", Title: "update p99", Unit: "ms", Lower: true},
				{Key: "lag_p50", Title: "10 watchers, 100 writes/s: event p50", Unit: "ms",
					Lower: true},
				{Key: "lag_p99", Title: "10 watchers, 100 writes/s: event p99", Unit: "ms",
					Lower: true},
				{Key: "compaction", Title: "compaction", Unit: "s", Lower: true},
				{Key: "meanwhile", Title: "updates meanwhile, 16 writers", Unit: "/s"},
				{Key: "memory", Title: "memory of the servers after it", Unit: "MB", Lower: true},
				{Key: "backup", Title: "backup", Unit: "s", Lower: true},
				{Key: "backup_size", Title: "backup ÷ size of the live values", Unit: "×",
					Lower: true},
				{Key: "restore", Title: "restore", Unit: "s", Lower: true},
			}},
		{Name: "keys100m", Work: "etcd's API: up to 100,000,000 keys with values of 64 bytes",
			Once: true, Only: speaksEtcd, Run: keys, Measures: []Measure{
				{Key: "keys", Title: "keys that were written in the time", Unit: ""},
				{Key: "first", Title: "in the first tenth of the time", Unit: "/s"},
				{Key: "last", Title: "in the last tenth", Unit: "/s"},
				{Key: "cpu", Title: "CPU for each, client and servers", Unit: "µs", Lower: true},
				{Key: "disk", Title: "disk for each", Unit: "bytes", Lower: true},
				{Key: "ready", Title: "restart until the first get", Unit: "ms", Lower: true},
				{Key: "get", Title: "gets, 64 readers", Unit: "/s"},
				{Key: "get_p99", Title: "get p99", Unit: "ms", Lower: true},
				{Key: "page_p50", Title: "page of 500 p50", Unit: "ms", Lower: true},
				{Key: "memory", Title: "memory of the servers", Unit: "MB", Lower: true},
			}},
	}
}

// timed is how long a call takes.
func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}

// liveRun is a run of the line live15g.
type liveRun struct {
	*Bench
	n int
	m Metrics
}

func live(ctx context.Context, b *Bench) (Metrics, error) {
	l := &liveRun{Bench: b, n: b.Size(liveBytes / object.Bytes()), m: Metrics{}}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{{"fill", l.fill}, {"restart", l.restart}, {"read pages", l.pages}, {"write", l.writes},
		{"compact", l.compact}, {"back up and restore", l.backup}} {
		if err := step.do(ctx); err != nil {
			return nil, named(step.what, err)
		}
	}
	return l.m, nil
}

func (l *liveRun) fill(ctx context.Context) error {
	load, err := l.each(ctx, "creating objects", loaders, l.n,
		func(ctx context.Context, _, i int) error {
			return create(ctx, l.Store, object.Prefix, object.Name("live", i))
		})
	if err != nil {
		return err
	}
	l.m["loading"] = load.Throughput()
	load, err = l.each(ctx, "updating", loaders, l.n, func(ctx context.Context, _, i int) error {
		_, err := update(ctx, l.Store, object.Name("live", i), 1, nil)
		return err
	})
	if err != nil {
		return err
	}
	l.m["rewriting"] = load.Throughput()
	size, err := l.disk(ctx)
	l.m["disk"] = float64(size) / float64(2*l.n*object.Bytes())
	return err
}

func (l *liveRun) restart(ctx context.Context) error {
	took, err := timed(func() error {
		if err := l.Reopen(ctx); err != nil {
			return err
		}
		return l.Store.Get(ctx, object.Key(object.Prefix, object.Name("live", l.n/2)),
			storage.GetOptions{}, &example.Pod{})
	})
	l.m["ready"] = measure.Milliseconds(took)
	return err
}

func (l *liveRun) pages(ctx context.Context) error {
	var all measure.Latencies
	token := ""
	for read := 0; read < min(pagesRead*pageSize, l.n); read += pageSize {
		took, err := timed(func() error {
			page, err := list(ctx, l.Store, listOptions(pageSize, token), min(pageSize, l.n-read))
			if err == nil {
				token = page.Continue
			}
			return err
		})
		if err != nil {
			return err
		}
		all = append(all, took)
	}
	l.m["page_p50"] = measure.Milliseconds(all.Percentile(50))
	return nil
}

// updatingAll updates objects all over the range, each worker its own.
func (l *liveRun) updatingAll(workers int) func(ctx context.Context, worker, i int) error {
	return func(ctx context.Context, worker, i int) error {
		each := (l.n-worker-1)/workers + 1
		at := worker + i*104_729%each*workers
		_, err := update(ctx, l.Store, object.Name("live", at), i+2, nil)
		return err
	}
}

func (l *liveRun) writes(ctx context.Context) error {
	const writers = 64
	created, err := l.drive(ctx, "creating", writers, l.creating("c"))
	if err != nil {
		return err
	}
	updated, err := l.drive(ctx, "updating", writers, l.updatingAll(writers))
	if err != nil {
		return err
	}
	for name, load := range map[string]Load{"create": created, "update": updated} {
		l.m[name] = load.Throughput()
		l.m[name+"_p99"] = measure.Milliseconds(load.Latencies.Percentile(99))
	}
	lag, err := watched(10, 100)(ctx, l.Bench)
	l.m["lag_p50"], l.m["lag_p99"] = lag["lag_p50"], lag["lag_p99"]
	return err
}

func (l *liveRun) compact(ctx context.Context) error {
	const writers = 16
	crew := l.hire(ctx, writers, l.updatingAll(writers))
	w, err := crew.window(func() error { return l.compactNow(ctx) })
	if err = errors.Join(err, crew.dismiss()); err != nil {
		return err
	}
	load := crew.load(w)
	l.m["compaction"], l.m["meanwhile"] = load.Elapsed.Seconds(), load.Throughput()
	used, err := measure.Memory(l.Server.Processes())
	l.m["memory"] = float64(used) / 1e6
	return err
}

func (l *liveRun) backup(ctx context.Context) (err error) {
	archiver, ok := l.Client.(target.Archiver)
	if !ok {
		return nil
	}
	dir, err := os.MkdirTemp(filepath.Dir(l.Server.DataDirs()[0]), "backup-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "backup")
	l.Progress("backing up")
	took, err := timed(func() error { return archiver.Backup(ctx, file) })
	if err != nil {
		return err
	}
	l.m["backup"] = took.Seconds()
	size, _, err := measure.DirSize(dir)
	if err != nil {
		return err
	}
	l.m["backup_size"] = float64(size) / float64(l.n*object.Bytes())
	// It is written to a log first, as one transaction.
	if free, err := measure.Free(dir); err != nil || free < int64(3*l.n*object.Bytes()) {
		l.Progress("there is no room to restore")
		return err
	}
	l.Progress("restoring")
	took, err = timed(func() error { return archiver.Restore(ctx, file) })
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	case err == nil:
		l.m["restore"] = took.Seconds()
	}
	return err
}

// keys writes small keys through etcd's API for as long as the line may take, and reads them.
func keys(ctx context.Context, b *Bench) (_ Metrics, err error) {
	c, err := target.EtcdClient(b.Server.Address())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	const writers = 256
	key := func(worker, i int) string { return fmt.Sprintf("/keys/%03d/%09d", worker, i) }
	value := strings.Repeat("v", 64)
	written := make([]int, writers)
	var first, last atomic.Int64
	began := time.Now()
	load, err := b.each(ctx, "writing keys", writers, b.Size(smallKeys),
		func(ctx context.Context, worker, _ int) error {
			passed := time.Since(began)
			if passed >= b.Duration {
				return errDone
			}
			if _, err := c.Put(ctx, key(worker, written[worker]), value); err != nil {
				return err
			}
			written[worker]++
			switch {
			case passed < b.Duration/10:
				first.Add(1)
			case passed >= b.Duration*9/10:
				last.Add(1)
			}
			return nil
		})
	if err != nil {
		return nil, err
	}
	n, tenth := float64(load.Operations), (b.Duration / 10).Seconds()
	m := Metrics{"keys": n, "first": float64(first.Load()) / tenth,
		"last": float64(last.Load()) / tenth, "cpu": load.CPUPerOperation()}
	size, err := b.disk(ctx)
	if err != nil {
		return nil, err
	}
	m["disk"] = float64(size) / n
	restarted, err := timed(func() error {
		if err := b.Server.Restart(ctx); err != nil {
			return err
		}
		_, err := c.Get(ctx, key(0, 0))
		return err
	})
	if err != nil {
		return nil, err
	}
	m["ready"] = measure.Milliseconds(restarted)
	var wrote []int // in a very short time, not every worker has
	for worker, n := range written {
		if n > 0 {
			wrote = append(wrote, worker)
		}
	}
	reading := *b
	reading.Duration = min(b.Duration, 10*time.Second)
	gets, err := reading.drive(ctx, "getting", 64, func(ctx context.Context, worker, i int) error {
		at := wrote[(worker+i*64)%len(wrote)]
		r, err := c.Get(ctx, key(at, i*104_729%written[at]))
		if err == nil && len(r.Kvs) != 1 {
			err = errors.New("a key is missing")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	m["get"], m["get_p99"] = gets.Throughput(), measure.Milliseconds(gets.Latencies.Percentile(99))
	pages, err := reading.repeat(ctx, "reading a page", func(ctx context.Context) error {
		_, err := c.Get(ctx, key(writers/2, 0), clientv3.WithRange("/keys0"),
			clientv3.WithLimit(pageSize))
		return err
	})
	if err != nil {
		return nil, err
	}
	m["page_p50"] = measure.Milliseconds(pages.Latencies.Percentile(50))
	used, err := measure.Memory(b.Server.Processes())
	m["memory"] = float64(used) / 1e6
	return m, err
}
