package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/check"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/front"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/jumpingclock"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/plant"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/scenario"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

func TestMain(m *testing.M) {
	// The test runs itself as a server whose clock jumps, or that stores by etcd's API.
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		serve := jumpingclock.Serve
		if os.Getenv(front.ProgramEnv) != "" {
			serve = front.Serve
		}
		if err := serve(context.Background(), os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "serve:", err)
			os.Exit(1)
		}
		return
	}
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	os.Exit(m.Run())
}

var rowkeeper = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	return server.Build(root)
})

// seed is that of a run: TORTURE_SEED, or another one each time.
func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("TORTURE_SEED")
	if text == "" {
		return rand.Uint64N(1 << 32)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func words(env string) []string {
	return strings.FieldsFunc(os.Getenv(env), func(r rune) bool { return r == ',' || r == ' ' })
}

// tell tells a test's log what goes on.
type tell struct{ t *testing.T }

func (w tell) Write(p []byte) (int, error) {
	w.t.Log(string(bytes.TrimSpace(p)))
	return len(p), nil
}

// run runs a scenario. It skips the test where the database cannot be had.
func runTest(t *testing.T, c scenario.Config) *scenario.Result {
	t.Helper()
	if only := words("ROWKEEPER_TEST_ONLY"); len(only) > 0 &&
		!slices.Contains(only, string(c.Kind)) {
		t.Skipf("%s: ROWKEEPER_TEST_ONLY leaves it out", c.Kind)
	}
	var err error
	if c.Rowkeeper, err = rowkeeper(); err != nil {
		t.Fatal(err)
	}
	c.Seed, c.Progress = seed(t), tell{t}
	t.Logf("seed %d: TORTURE_SEED=%[1]d repeats it", c.Seed)
	result, err := scenario.Run(t.Context(), c)
	var missing *database.Missing
	if errors.As(err, &missing) && !slices.Contains(words("ROWKEEPER_TEST_REQUIRE"),
		string(c.Kind)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestTorture lets three servers and a handful of faults of all kinds go at each database.
func TestTorture(t *testing.T) {
	for _, kind := range programs.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s := scenario.Find("random").For(kind)
			result := runTest(t, scenario.Config{Scenario: s, Kind: kind, Operations: 3000,
				Faults: s.FaultCount(false), Servers: 3, Clients: 3})
			for _, v := range result.Report.Violations {
				t.Error(v)
			}
			if result.Report.Ops < 3000 || result.Report.Events == 0 || result.Report.Lists == 0 ||
				result.Faults != s.FaultCount(false) {
				t.Errorf("too little was checked: %+v", result.Report)
			}
		})
	}
}

// TestEtcdClients lets clients use etcd's API of two front ends on each database, with a handful of
// faults.
func TestEtcdClients(t *testing.T) {
	for _, kind := range programs.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			result := runTest(t, scenario.Config{Scenario: scenario.Find("random").For(kind),
				Kind: kind, Operations: 5000, Faults: 3, Servers: 2, Clients: 4, EtcdClients: true})
			for _, v := range result.Report.Violations {
				t.Error(v)
			}
			together := result.Report.Bundles
			if result.Report.Events == 0 || result.Report.Bookmarks == 0 ||
				result.Report.Lists == 0 || result.Faults != 3 || together.Writes < 50 ||
				together.Reads < 50 || together.Responses < 50 {
				t.Errorf("too little was checked: %+v", result.Report)
			}
		})
	}
}

// TestRestore lets an older dump be restored under running servers: what it forgives is forgiven,
// and nothing else. Another store of the database is not concerned.
func TestRestore(t *testing.T) {
	s := scenario.Find("restore").For(programs.SQLite)
	result := runTest(t, scenario.Config{Scenario: s, Kind: programs.SQLite, Operations: 2000,
		Faults: 2, Servers: 2, Clients: 4, Neighbour: true})
	for _, v := range result.Report.Violations {
		t.Error(v)
	}
	if result.Report.Fences != 2 || result.Report.Lost == 0 {
		t.Errorf("%d fences, %d acknowledged writes lost", result.Report.Fences, result.Report.Lost)
	}
}

// TestScenarios runs scenarios that are not a part of the random one.
func TestScenarios(t *testing.T) {
	for _, tc := range []struct {
		name string
		kind programs.Kind
	}{
		{"clock-jumps", programs.SQLite},
		{"front-kill", programs.Postgres},
		{"stuck-watchers", programs.SQLite},
		{"many-watchers", programs.SQLite},
		{"hopping-watchers", programs.SQLite},
		{"burst", programs.SQLite},
		{"big-list", programs.SQLite},
		{"flood", programs.SQLite},
		{"database-away", programs.Postgres},
		{"database-clock", programs.MariaDB},
		{"log-removed", programs.SQLite},
		{"writes-refused", programs.SQLite},
		{"writes-refused", programs.Postgres},
		{"writes-refused", programs.MariaDB},
		{"writes-refused", programs.MySQL},
		{"password-rotated", programs.Postgres},
		{"password-rotated", programs.MySQL},
		{"leases", programs.SQLite},
	} {
		t.Run(tc.name+" "+string(tc.kind), func(t *testing.T) {
			kind, s := tc.kind, scenario.Find(tc.name).For(tc.kind)
			result := runTest(t, scenario.Config{Scenario: s, Kind: kind, Operations: 1000,
				Faults: s.FaultCount(false), Servers: 2, Clients: 3, Etcd: s.Front,
				EtcdClients: s.EtcdClients})
			for _, v := range result.Report.Violations {
				t.Error(v)
			}
			for _, n := range result.Notes {
				t.Log(n)
			}
		})
	}
}

// TestSilentLoss removes SQLite's log and the mark that tells of it: that nobody notices is found.
func TestSilentLoss(t *testing.T) {
	s := scenario.Find("log-removed").For(programs.SQLite)
	s.Fault = scenario.LogRemovedUnmarked
	result := runTest(t, scenario.Config{Scenario: s, Kind: programs.SQLite, Operations: 1000,
		Faults: 1, Servers: 2, Clients: 3})
	if !slices.ContainsFunc(result.Report.Violations, func(v check.Violation) bool {
		return v.Rule == "fence" && strings.Contains(v.Text, "no server noticed")
	}) {
		t.Errorf("a loss without a fence was not found: %v", result.Report.Violations)
	}
}

// TestPlantedTears gives clients of etcd connections that tear what belongs together: each bug is
// found.
func TestPlantedTears(t *testing.T) {
	for _, bug := range plant.EtcdBugs() {
		t.Run(string(bug), func(t *testing.T) {
			result := runTest(t, scenario.Config{Scenario: scenario.Find("steady"),
				Kind: programs.SQLite, Operations: 400, Servers: 1, Clients: 1, EtcdClients: true,
				Plant: bug})
			if !slices.ContainsFunc(result.Report.Violations, func(v check.Violation) bool {
				return v.Rule == "bundle"
			}) {
				t.Errorf("it was not found: %+v", result.Report)
			}
		})
	}
}

// TestPlanted puts a proxy that is wrong between clients and a server: each bug is found, by a rule
// that is for it.
func TestPlanted(t *testing.T) {
	rules := map[plant.Bug][]string{
		plant.DropEvent:         {"watch"},
		plant.ReorderEvents:     {"watch"},
		plant.RepeatEvent:       {"watch"},
		plant.BookmarkAhead:     {"watch"},
		plant.StaleList:         {"fresh"},
		plant.StaleGet:          {"linearizable"},
		plant.ListHole:          {"list"},
		plant.NeverWritten:      {"durable"},
		plant.WrittenLater:      {"durable"},
		plant.RefusedButWritten: {"durable"},
	}
	for _, bug := range plant.Bugs() {
		t.Run(string(bug), func(t *testing.T) {
			result := runTest(t, scenario.Config{Scenario: scenario.Find("steady"),
				Kind: programs.SQLite, Operations: 2500, Servers: 1, Clients: 8, Plant: bug})
			found := map[string]int{}
			for _, v := range result.Report.Violations {
				found[v.Rule]++
			}
			for _, rule := range rules[bug] {
				if found[rule] == 0 {
					t.Errorf("it was not found by %q: %v", rule, result.Report.Violations)
				}
			}
			t.Log(fmt.Sprint("found by ", found))
		})
	}
}
