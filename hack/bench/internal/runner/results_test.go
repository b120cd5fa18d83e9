package runner

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/workload"
)

func TestResultsResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	run := Run{Commit: "c", Duration: time.Second, Scale: 1}
	open := func() *Results {
		t.Helper()
		rs, err := OpenResults(path)
		if err != nil {
			t.Fatal(err)
		}
		return rs
	}
	rs := open()
	if err := rs.Begin(run); err != nil {
		t.Fatal(err)
	}
	if err := rs.Add(Result{Line: "create64", Target: "etcd", Round: 1,
		Metrics: workload.Metrics{"throughput": 7}}); err != nil {
		t.Fatal(err)
	}

	// The process ends while it writes the next one.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"result":{"line":"create64","target":"et`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	rs = open()
	if err := rs.Begin(run); err != nil {
		t.Fatal(err)
	}
	if !rs.Has("create64", "etcd", 1) || rs.Has("create64", "etcd", 2) {
		t.Errorf("the results are %+v", rs.Results)
	}
	if err := rs.Add(Result{Line: "create64", Target: "etcd", Round: 2}); err != nil {
		t.Fatal(err)
	}
	rs = open()
	if len(rs.Results) != 2 || rs.Results[0].Metrics["throughput"] != 7 ||
		!rs.Has("create64", "etcd", 2) {
		t.Errorf("the results are %+v", rs.Results)
	}
	for _, other := range []Run{{Commit: "d", Duration: time.Second, Scale: 1}, {Commit: "c",
		Duration: 2 * time.Second, Scale: 1}, {Commit: "c", Duration: time.Second, Scale: 0.5}} {
		if err := open().Begin(other); err == nil {
			t.Errorf("results of %+v are mixed with those of %+v", other, run)
		}
	}
}

// TestJobsTakeTurns: every target runs every line once in a round, another one is the first in the
// next, and lines that are run once are.
func TestJobsTakeTurns(t *testing.T) {
	lines := []workload.Line{{Name: "a"}, {Name: "b", Once: true},
		{Name: "c", Only: func(t target.Target) bool {
			return t.Product == "etcd"
		}}}
	targets, err := target.Find([]string{"etcd", "rowkeeper-sqlite"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, j := range (Plan{Lines: lines, Targets: targets, Rounds: 2}).jobs() {
		got = append(got, j.Line+" "+j.Target)
	}
	want := []string{"a etcd", "a rowkeeper-sqlite", "a rowkeeper-sqlite", "a etcd", "b etcd",
		"b rowkeeper-sqlite", "c etcd", "c etcd"}
	if len(got) != len(want) {
		t.Fatalf("jobs %q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("job %d is %q, want %q", i, got[i], want[i])
		}
	}
}
