package workload

import (
	"context"
	"errors"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
)

const (
	// leased is the number of nodes of the largest cluster whose load was published. Each renews a
	// lease every leaseInterval.
	leased        = 130_000
	leaseInterval = 10 * time.Second
	// unleased is how many other objects there are.
	unleased = 1_000_000
	// renewers is how many goroutines renew. Each has so many leases that it begins a renewal every
	// 77 ms.
	renewers = 1000
)

func leaseLines() []Line {
	measures := []Measure{
		{Key: "throughput", Title: "renewals", Unit: "/s"},
		{Key: "p50", Title: "p50", Unit: "ms", Lower: true},
		{Key: "p99", Title: "p99", Unit: "ms", Lower: true, Aim: limit(1000, 0)},
		{Key: "max", Title: "longest", Unit: "ms", Lower: true},
		{Key: "cores_client", Title: "cores, server process", Lower: true},
		{Key: "cores_server", Title: "cores, database", Lower: true},
		{Key: "disk_early", Title: "database, after a fifth of the time", Unit: "MB", Lower: true},
		{Key: "log_early", Title: "its log", Unit: "MB", Lower: true},
		{Key: "disk_late", Title: "database, at the end", Unit: "MB", Lower: true},
		{Key: "log_late", Title: "its log", Unit: "MB", Lower: true},
		{Key: "load", Title: "objects loaded", Unit: "/s"},
	}
	window := target.DialOptions{Window: time.Minute}
	rowkeeper := func(t target.Target) bool { return t.Product == "rowkeeper" }
	return []Line{
		{Name: "leases", Work: "130,000 leases, each renewed every 10 s, beside 1,000,000 " +
			"objects; one minute of history", Once: true, Dial: window, Only: rowkeeper,
			Measures: measures, Run: leases(false)},
		{Name: "leasesapart", Work: "the same, with a store of their own for leases", Once: true,
			Dial: window, Only: rowkeeper, Measures: measures, Run: leases(true)},
	}
}

// leases renews leases at the rate that their number and interval ask for. A renewal is measured
// from the time when it is due. apart: they have a store of their own.
func leases(apart bool) func(context.Context, *Bench) (Metrics, error) {
	return func(ctx context.Context, b *Bench) (_ Metrics, err error) {
		n, renewing := b.Size(leased), b
		workers := min(renewers, n)
		if apart {
			if renewing, err = b.beside(ctx, "leases"); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, renewing.Close()) }()
		}
		store, release, err := b.Client.Store(others)
		if err != nil {
			return nil, err
		}
		defer release()
		began := time.Now()
		if err := b.load(ctx, store, others, "other", b.Size(unleased)); err != nil {
			return nil, err
		}
		pods, err := renewing.loadPods(ctx, "lease", n)
		if err != nil {
			return nil, err
		}
		m := Metrics{"load": float64(b.Size(unleased)+n) / time.Since(began).Seconds()}
		c := renewing.hireAt(ctx, workers, func(worker, i int) time.Duration {
			return time.Duration(float64(i*workers+worker) / float64(n) * float64(leaseInterval))
		}, renewing.updating(pods, workers, true))
		w, err := c.window(func() error {
			err := c.passAndLook(b.Duration/5, m, "early")
			return errors.Join(err, c.passAndLook(b.Duration*4/5, m, "late"))
		})
		if err = errors.Join(err, c.dismiss()); err != nil {
			return nil, err
		}
		load := c.load(w)
		for key, value := range load.metrics() {
			m[key] = value
		}
		m["max"] = measure.Milliseconds(load.Latencies.Percentile(100))
		m["cores_client"] = w.cpu.Client.Seconds() / load.Elapsed.Seconds()
		m["cores_server"] = w.cpu.Servers.Seconds() / load.Elapsed.Seconds()
		return m, nil
	}
}

// passAndLook waits for a time, and then looks how much disk the database occupies.
func (c *crew) passAndLook(d time.Duration, m Metrics, when string) error {
	if err := c.pass("renewing leases", d); err != nil {
		return err
	}
	var all, logs int64
	for _, dir := range c.bench.Server.DataDirs() {
		total, log, err := measure.DirSize(dir)
		if err != nil {
			return err
		}
		all, logs = all+total, logs+log
	}
	m["disk_"+when], m["log_"+when] = megabytes(all-logs), megabytes(logs)
	return nil
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
