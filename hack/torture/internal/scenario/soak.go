package scenario

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// Sample is what the servers use at a time. Memory and goroutines are those of the server that has
// most.
type Sample struct {
	At time.Duration
	// Live is the memory that is in use after a garbage collection, Resident what the process has
	// of the machine (RssAnon), in bytes.
	Live, Resident float64
	Goroutines     float64
	// Connections are those of all servers to the database; Database is its size in bytes, without
	// what is free in it.
	Connections, Database float64
	// Median and P99 are latencies of the requests since the last sample, in seconds.
	Median, P99 float64
	Rate        float64
}

// soak samples the servers until the time is over.
func (e *Env) soak(ctx context.Context) ([]Sample, error) {
	interval := max(min(e.Soak/120, 15*time.Second), time.Second)
	began := time.Now()
	var samples []Sample
	seen := 0
	for time.Since(began) < e.Soak {
		Wait(ctx, interval)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s := Sample{At: time.Since(began)}
		for i := range e.Servers {
			if err := e.sample(ctx, i, &s); err != nil {
				return nil, err
			}
		}
		ops := e.History.Ops()
		var took []int64
		for _, op := range ops[seen:] {
			if op.Outcome == history.Done || op.Outcome == history.Refused {
				took = append(took, op.Return-op.Call)
			}
		}
		seen = len(ops)
		if len(took) > 0 {
			slices.Sort(took)
			s.Median, s.P99 = float64(took[len(took)/2])/1e9, float64(took[len(took)*99/100])/1e9
			s.Rate = float64(len(took)) / interval.Seconds()
		}
		samples = append(samples, s)
		if len(samples)%8 == 0 {
			e.Say("%s: %.1f MB live, %.1f MB resident, %.0f goroutines, %.0f connections, "+
				"database %.1f MB, p99 %.1f ms, %.0f requests/s", s.At.Round(time.Second),
				s.Live/1e6, s.Resident/1e6, s.Goroutines, s.Connections, s.Database/1e6,
				s.P99*1e3, s.Rate)
		}
	}
	return samples, nil
}

// sample adds a server to a sample.
func (e *Env) sample(ctx context.Context, i int, s *Sample) error {
	endpoint := e.Endpoints[i]
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	live, err := liveMemory(ctx, endpoint)
	if err != nil {
		return err
	}
	resident, err := residentMemory(e.Servers[i].Pid())
	if err != nil {
		return err
	}
	metrics, err := endpoint.Metrics(ctx)
	if err != nil {
		return err
	}
	s.Live, s.Resident = max(s.Live, live), max(s.Resident, resident)
	s.Goroutines = max(s.Goroutines, sum(metrics, "go_goroutines"))
	s.Connections += sum(metrics, "rowkeeper_pool_connections")
	s.Database = max(s.Database, sum(metrics, `rowkeeper_database_bytes{state="live"}`))
	return nil
}

// liveMemory has a server collect its garbage, and returns the bytes that are left.
func liveMemory(ctx context.Context, e *api.Endpoint) (float64, error) {
	profile, err := e.Read(ctx, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return 0, err
	}
	_, rest, found := bytes.Cut(profile, []byte("# HeapAlloc = "))
	if !found {
		return 0, fmt.Errorf("the heap profile has no HeapAlloc")
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return strconv.ParseFloat(string(line), 64)
}

// residentMemory is what a process has allocated of the machine's memory.
func residentMemory(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "RssAnon:" {
			kilobytes, err := strconv.ParseFloat(fields[1], 64)
			return kilobytes * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no RssAnon", pid)
}

// sum adds up the values of a metric, or of one of its series.
func sum(metrics []byte, name string) float64 {
	total := 0.0
	for lines := bufio.NewScanner(bytes.NewReader(metrics)); lines.Scan(); {
		rest, found := strings.CutPrefix(lines.Text(), name)
		if !found || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		if v, err := strconv.ParseFloat(rest[strings.LastIndex(rest, " ")+1:], 64); err == nil {
			total += v
		}
	}
	return total
}

// Growth is the ratio of the mean of a figure in the last quarter of a soak to that in the second
// one.
func Growth(samples []Sample, figure func(Sample) float64) float64 {
	mean := func(part []Sample) float64 {
		total := 0.0
		for _, s := range part {
			total += figure(s)
		}
		return total / float64(max(len(part), 1))
	}
	n := len(samples)
	return mean(samples[n*3/4:]) / cmp.Or(mean(samples[n/4:n/2]), 1)
}
