package workload

import (
	"context"
	"fmt"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
)

func replicaLines() []Line {
	return []Line{{
		Name: "replicas", Work: "three replicas, 64 writers on each", Run: replicas,
		// kine is one server, and SQLite one file: replicas of an API server share them through one
		// process.
		Only: func(t target.Target) bool {
			return t.Product == target.Baseline ||
				t.Product == "rowkeeper" && t.Database != "sqlite"
		},
		Measures: []Measure{
			{Key: "scaling", Title: "creates, 3 × 64 writers ÷ 1 × 192", Unit: "×",
				Aim: limit(0.9, 0.9)},
			{Key: "idle_lag_p50", Title: "another replica's event p50, idle", Unit: "ms",
				Lower: true, Aim: limit(1, 0)},
			{Key: "busy_lag_p50", Title: "another replica's event p50, under that load", Unit: "ms",
				Lower: true, Aim: limit(2, 0)},
			{Key: "idle_lag_p99", Title: "another replica's event p99, idle", Unit: "ms",
				Lower: true},
			{Key: "busy_lag_p99", Title: "another replica's event p99, under that load", Unit: "ms",
				Lower: true},
			{Key: "throughput", Title: "creates, 3 × 64", Unit: "/s"},
			{Key: "single_throughput", Title: "creates, 1 × 192", Unit: "/s"},
		},
	}}
}

// ReplicaSpec is what a process of its own is asked to do: the replica of an API server, without
// the server.
type ReplicaSpec struct {
	// Store is the one that it opens, "" for the default store.
	Target, Address, Store string
	// Group makes the names of this replica's objects its own.
	Group string
	// Writers create objects flat out. Probes are created at that rate per second, below a prefix
	// of their own, by other goroutines.
	Writers, Probes int
	// Watch follows the probes.
	Watch bool
	// Warmup passes between the start and the measured time.
	Warmup, Duration time.Duration
}

// ReplicaResult is what it did.
type ReplicaResult struct {
	Operations int
	Elapsed    time.Duration
	CPU        time.Duration
	// Acks and Seen are the probes that were acknowledged here, and the probes that were seen.
	// Window is the measured time, in nanoseconds of Unix time.
	Acks, Seen []moment
	Window     [2]int64
}

// replicas compares one replica with three, and measures how soon one sees what another has
// written.
func replicas(ctx context.Context, b *Bench) (Metrics, error) {
	spec := ReplicaSpec{Target: b.Target.Name(), Address: b.Server.Address(),
		Warmup: warmup(b.Duration), Duration: b.Duration}
	const probes = 100
	one, three, probing, following := spec, spec, spec, spec
	one.Writers, three.Writers = 192, 64
	probing.Probes, following.Watch = probes, true
	busyProbing, busyFollowing := probing, following
	busyProbing.Writers, busyFollowing.Writers = 64, 64

	m := Metrics{}
	for _, phase := range []struct {
		name  string
		specs []ReplicaSpec
		done  func([]ReplicaResult)
	}{
		{"one replica", []ReplicaSpec{one}, func(r []ReplicaResult) {
			m["single_throughput"] = total(r)
		}},
		{"three replicas", []ReplicaSpec{three, three, three}, func(r []ReplicaResult) {
			m["throughput"] = total(r)
		}},
		{"probes, idle", []ReplicaSpec{probing, following}, func(r []ReplicaResult) {
			m["idle_lag_p50"], m["idle_lag_p99"] = crossLag(r)
		}},
		{"probes, three replicas", []ReplicaSpec{busyProbing, busyFollowing, three},
			func(r []ReplicaResult) {
				m["busy_lag_p50"], m["busy_lag_p99"] = crossLag(r)
			}},
	} {
		b.Progress("%s", phase.name)
		for i := range phase.specs {
			phase.specs[i].Group = fmt.Sprintf("%c%d-", 'a'+len(m), i)
		}
		results, err := runReplicas(ctx, phase.specs)
		if err != nil {
			return nil, named(phase.name, err)
		}
		phase.done(results)
	}
	m["scaling"] = m["throughput"] / m["single_throughput"]
	return m, nil
}

func total(results []ReplicaResult) float64 {
	sum := 0.0
	for _, r := range results {
		sum += float64(r.Operations) / r.Elapsed.Seconds()
	}
	return sum
}

// crossLag is the p50 and p99 of the time from the first replica's acknowledgement to the second's
// event.
func crossLag(results []ReplicaResult) (p50, p99 float64) {
	acks := make(map[int64]int64)
	for _, m := range results[0].Acks {
		acks[m.Revision] = m.At
	}
	w := window{from: time.Unix(0, results[0].Window[0]), to: time.Unix(0, results[0].Window[1])}
	l := lags(acks, results[1].Seen, w)
	return measure.Milliseconds(l.Percentile(50)), measure.Milliseconds(l.Percentile(99))
}
