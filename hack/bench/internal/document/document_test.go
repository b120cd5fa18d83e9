package document

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/runner"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/workload"
)

// results come from two rounds, in which the machine was not equally fast.
func results() *runner.Results {
	rs := &runner.Results{Runs: []runner.Run{{Commit: "abc", Rounds: 2, Scale: 1}}}
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
	text := Markdown(results(), nil, "## Findings\n")
	for _, want := range []string{
		"| create, 64 writers | operations | ≥ 2.00 × etcd; MySQL family ≥ 1.50 × etcd | 1,500/s | 3,750/s (2.50) ✓ | 2,100/s (1.40) ✗ |\n",
		"1 of 2 are met",
		"- rowkeeper-mariadb: durable\n",
		"## Findings",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
}

// TestPlots: charts are well-formed, and have a bar for each figure.
func TestPlots(t *testing.T) {
	plots := Plots(results())
	if len(plots) != 1 {
		t.Fatalf("%d plots, want that of the throughput", len(plots))
	}
	svg := plots[0].Chart.SVG()
	if n := strings.Count(svg, "<title>"); n != 3 {
		t.Errorf("%d bars, want 3", n)
	}
	for dec := xml.NewDecoder(strings.NewReader(svg)); ; {
		_, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
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
