package document

import (
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/runner"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/workload"
)

// results come from two rounds, in which the machine was not equally fast.
func results() *runner.Results {
	rs := &runner.Results{Runs: []runner.Run{{Commit: "abc", Scale: 1}}}
	for _, r := range []struct {
		target     string
		round      int
		throughput float64
	}{{"etcd", 1, 1000}, {"etcd", 2, 2000}, {"rowkeeper-postgres", 1, 2500}, {"rowkeeper-postgres",
		2, 5000}, {"rowkeeper-mariadb", 1, 1400}, {"rowkeeper-mariadb", 2, 2800}} {
		rs.Results = append(rs.Results, runner.Result{Line: "create64", Target: r.target,
			Round:   r.round,
			Metrics: workload.Metrics{"throughput": r.throughput}, Settings: []string{"durable"}})
	}
	return rs
}

func TestMarkdown(t *testing.T) {
	text := Markdown(results(), nil)
	for _, want := range []string{
		"| create, 64 writers | operations | ≥ 2.00 × etcd; MySQL family ≥ 1.50 × etcd | 1,500/s | 3,750/s (2.50) ✓ | 2,100/s (1.40) ✗ |\n",
		"Of 2 aims that this project set itself for the library, 1 are met",
		"- rowkeeper-mariadb: durable\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
}

// TestCommands: a report names each command once, without the paths of a machine.
func TestCommands(t *testing.T) {
	rs := results()
	rs.Runs = []runner.Run{
		{Command: `make bench-peers BENCH="-dir /data -rounds 3 --tidb=/opt/tidb -targets rowkeeper-tidb -lines single -out /tmp"`},
		{Command: `make bench-peers BENCH="-rounds 3 -targets rowkeeper-tidb -lines single"`},
		{Command: "make bench-peers", Scale: 1},
	}
	text := Markdown(rs, nil)
	want := "- command: `make bench-peers BENCH=\"-rounds 3 -targets rowkeeper-tidb -lines single\"`\n" +
		"- command: `make bench-peers`\n"
	if !strings.Contains(text, want) || strings.Count(text, "- command") != 2 {
		t.Errorf("the report has no %q:\n%s", want, text)
	}
}

// TestPlots: the library is beside etcd, and what is behind etcd's API beside etcd and kine.
func TestPlots(t *testing.T) {
	rs := results()
	bars := func(file string) (names []string) {
		t.Helper()
		for _, p := range Plots(rs) {
			if p.File == file {
				for _, s := range p.Chart.Series {
					names = append(names, s.Name)
				}
			}
		}
		return names
	}
	if n := len(Plots(rs)); n != 1 {
		t.Fatalf("%d plots, want that of the throughput", n)
	}
	for _, target := range []string{"kine-postgres", "rowkeeper-etcd-postgres"} {
		if names := bars("etcdapi.svg"); names != nil {
			t.Errorf("etcd's API has a plot of %v alone", names)
		}
		rs.Results = append(rs.Results, runner.Result{Line: "create64", Target: target, Round: 1,
			Metrics: workload.Metrics{"throughput": 700}})
	}
	for file, want := range map[string]string{
		"throughput.svg": "etcd rowkeeper-postgres rowkeeper-mariadb",
		"etcdapi.svg":    "etcd kine-postgres rowkeeper-etcd-postgres",
	} {
		if names := strings.Join(bars(file), " "); names != want {
			t.Errorf("%s has bars of %s, want %s", file, names, want)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1234567: "1,234,567", 999: "999", 42.25: "42.2",
		1.005: "1.00", 0.01234: "0.0123"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}
