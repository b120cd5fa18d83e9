package kubernetes

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/executable"
)

//go:embed conformance.txt
var conformance string

const (
	// These begin the sections of conformance.txt. A reason follows the last one.
	quickTests, slowTests, excludedTests = "run:", "run, slow:", "excluded: "

	// suites is how many processes run the tests that may run beside others. Most of them wait most
	// of the time.
	suites = 4
	// suiteTimeout is how long such a process may take. The longest of the tests takes ten minutes.
	suiteTimeout = 40 * time.Minute
)

// conformanceTests returns upstream's conformance tests by the sections of conformance.txt.
func conformanceTests(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	var section string
	for line := range strings.Lines(conformance) {
		name, isTest := strings.CutPrefix(line, "\t")
		name = strings.TrimSpace(name)
		switch {
		case name == "" || strings.HasPrefix(name, "#"):
		case !isTest:
			section = name
			reason, excluded := strings.CutPrefix(section, excludedTests)
			if section != quickTests && section != slowTests && (!excluded || reason == "") {
				t.Fatalf("conformance.txt has the section %q", section)
			}
		default:
			tests[section] = append(tests[section], name)
		}
	}
	return tests
}

// TestConformanceList: conformance.txt has each conformance test of this version of Kubernetes
// once, and no others, so that a test that a version adds is either run or excluded by somebody.
func TestConformanceList(t *testing.T) {
	module, err := exec.CommandContext(t.Context(), "go", "list", "-C", "../controlplane", "-m",
		"-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "test", "conformance",
		"testdata", "conformance.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var upstream []struct {
		Codename string `json:"codename"`
	}
	if err := yaml.Unmarshal(out, &upstream); err != nil {
		t.Fatal(err)
	}
	if len(upstream) == 0 {
		t.Fatal("Kubernetes has no conformance tests")
	}
	listed := map[string]int{}
	for _, names := range conformanceTests(t) {
		for _, name := range names {
			listed[name]++
		}
	}
	for _, test := range upstream {
		if n := listed[test.Codename]; n != 1 {
			t.Errorf("conformance.txt has this test %d times, want once: %s", n, test.Codename)
		}
		delete(listed, test.Codename)
	}
	for name := range listed {
		t.Errorf("conformance.txt has a test that Kubernetes does not have: %s", name)
	}
}

// TestConformance: upstream's conformance tests that need no node pass on each database that
// ROWKEEPER_E2E_CONFORMANCE lists; with -short only the quick ones run.
func TestConformance(t *testing.T) {
	list := os.Getenv("ROWKEEPER_E2E_CONFORMANCE")
	if list == "" {
		t.Skip("ROWKEEPER_E2E_CONFORMANCE lists no database; docs/contributing.md says more")
	}
	tests := conformanceTests(t)
	run := tests[quickTests]
	if !testing.Short() {
		run = slices.Concat(run, tests[slowTests])
	}
	for _, kind := range strings.Split(list, ",") {
		t.Run(kind, func(t *testing.T) {
			config := onRequired(t, kind)
			config.Controllers = []string{"*"}
			p := start(t, config)
			began := time.Now()
			reports := p.runConformance(t, run)
			t.Logf("the tests took %s", time.Since(began).Round(time.Second))
			for _, name := range run {
				t.Run(name, func(t *testing.T) {
					r, ok := reports[name]
					if !ok {
						t.Fatal("no report has it")
					}
					t.Logf("it took %s", r.RunTime.Round(100*time.Millisecond))
					if r.State != "passed" {
						t.Errorf("%s: %s\n%s", r.State, r.Failure.Message, r.Output)
					}
				})
			}
		})
	}
}

// report is what a report of Ginkgo says of a test.
type report struct {
	ContainerHierarchyTexts []string
	LeafNodeText            string
	LeafNodeType            string
	State                   string
	RunTime                 time.Duration
	Failure                 struct{ Message string }
	Output                  string `json:"CapturedGinkgoWriterOutput"`
}

func (r *report) name() string {
	texts := slices.Concat(r.ContainerHierarchyTexts, []string{r.LeafNodeText})
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), " ")
}

// runConformance runs tests, and returns their reports, if they were run.
func (p *plane) runConformance(t *testing.T, tests []string) map[string]*report {
	t.Helper()
	// The Ginkgo in e2e.test runs one test at a time. So several e2e.tests run, and after them one
	// with the tests that may not run beside others.
	var serial []string
	parallel := make([][]string, suites)
	for i, name := range tests {
		if strings.Contains(name, "[Serial]") {
			serial = append(serial, name)
			continue
		}
		parallel[i%suites] = append(parallel[i%suites], name)
	}
	all := map[string]*report{}
	var group sync.WaitGroup
	var mu sync.Mutex
	run := func(suite string, names []string) {
		reports, err := p.runSuite(t, suite, names)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, r := range reports {
			all[r.name()] = r
		}
	}
	for i, names := range parallel {
		group.Go(func() { run("e2e-"+strconv.Itoa(i+1), names) })
	}
	group.Wait()
	run("e2e-serial", serial)
	return all
}

// runSuite runs tests in one process, and returns their reports, if they were run. That a test
// fails is no error of it.
func (p *plane) runSuite(t *testing.T, suite string, tests []string) ([]*report, error) {
	file := filepath.Join(t.TempDir(), suite+".json")
	programs, err := filepath.Abs(*bin)
	if err != nil {
		return nil, err
	}
	command := []string{filepath.Join(programs, "e2e.test"), "--kubeconfig=" + p.Kubeconfig,
		"--kubectl-path=" + filepath.Join(programs, "kubectl"), "--provider=skeleton",
		// There are no nodes to wait for and to count.
		"--allowed-not-ready-nodes=-1", "--num-nodes=0",
		"--ginkgo.json-report=" + file, "--ginkgo.timeout=" + suiteTimeout.String()}
	for _, name := range tests {
		command = append(command, "--ginkgo.focus="+regexp.QuoteMeta(name)+"$")
	}
	e2e, err := executable.Start(executable.Spec{Name: suite, Command: command, Env: os.Environ(),
		Dir: filepath.Dir(file), Logs: p.Logs()})
	if err != nil {
		return nil, err
	}
	select {
	case <-e2e.Exited():
	case <-t.Context().Done():
		return nil, errors.Join(t.Context().Err(), e2e.Kill())
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s ended without a report (%s): %w; its log ends:\n%s", suite,
			e2e.Result(), err, e2e.Tail())
	}
	var whole []struct{ SpecReports []*report }
	if err := json.Unmarshal(content, &whole); err != nil {
		return nil, fmt.Errorf("the report of %s: %w", suite, err)
	}
	var reports []*report
	for _, part := range whole {
		for _, r := range part.SpecReports {
			switch {
			case r.LeafNodeType == "It" && r.State != "skipped":
				reports = append(reports, r)
			case r.LeafNodeType != "It" && r.State != "passed":
				return nil, fmt.Errorf("%s: %s %s: %s", suite, r.LeafNodeType, r.State,
					r.Failure.Message)
			}
		}
	}
	return reports, nil
}
