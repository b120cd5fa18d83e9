// Mutants puts deliberate faults into the code, one by one, and lets the tests find them:
//
//	make mutants                                      all of them, in some hours
//	make mutants MUTANTS='-only "^I3 "'               those whose row in the table matches
//	make mutants MUTANTS='-results RESULTS.md'        writes the table, too
//
// A fault is a piece of a file and what stands in its place. The files stay as they are: the
// compiler gets the changed one by -overlay. Each fault has one place, by who has to find it:
//
//   - simulated.go: faults of the core, for the simulation (storage/internal/test/simulate). It makes
//     10,000 runs from the seed 1 at most, which take a minute where nothing else runs.
//   - storage.go: faults of the layer that knows Kubernetes, and those of the core that the
//     simulation does not come upon, for the fast tests of their package.
//   - drivers.go: faults of the SQL statements, for the suite that every database has to pass. They
//     are tried on the databases that ROWKEEPER_TEST_ONLY names, and on SQLite.
//   - quotas.go: faults of ResourceQuotas, for the tests of package crds.
//   - users.go: faults of the rows that say who has written.
//   - moved.go: faults of moves between databases, for the simulation of several of them, which makes
//     a quarter of the runs.
//   - collected.go: faults of the garbage collector, with kinds that are too large for its graph.
//
// Tests end at the first that fails. Before, they have to pass without a fault.
//
// A fault that nothing finds shows that a check is missing, or it says why nothing can find it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mutant is a deliberate fault: in a file, old is replaced by new.
type mutant struct {
	// breaks is the invariant, or the layer, and what says what is wrong.
	breaks, what   string
	file, old, new string
	// also are further replacements.
	also []string
	// in is the package whose tests have to find it, and tests a regular expression of their names.
	// A fault of the core has none if runs of the simulation have to.
	in, tests string
	// unseen says why the tests cannot find it, where that is so.
	unseen string
}

var (
	only    = flag.String("only", "", "a regular expression: only the faults whose row matches")
	runs    = flag.Int("runs", 10_000, "how many runs of the simulation look for each fault")
	results = flag.String("results", "", "write the table into this file")
	root    = flag.String("root", ".", "the repository")
)

// A program of tests that hangs has found something. The simulation's ends by itself.
const (
	patience           = 5 * time.Minute
	simulationPatience = 20 * time.Minute
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rowkeeper-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	table := &bytes.Buffer{}
	fmt.Fprint(table, "| breaks | fault | found by | operations | seconds |\n"+
		"| --- | --- | --- | --- | --- |\n")
	fmt.Print(table)
	sound := map[string]error{}
	var left []error
	for _, m := range all() {
		if !chosen.MatchString(m.breaks + " " + m.what) {
			continue
		}
		where := m.in + " " + m.tests
		if _, done := sound[where]; !done {
			sound[where] = m.without(ctx, dir)
		}
		found, err := finding{}, sound[where]
		if err == nil {
			found, err = m.look(ctx, dir)
		}
		switch {
		case errors.Is(err, errNotHere):
			found.by = "not tried: " + err.Error()
		case err != nil:
			found.by = "not tried"
			left = append(left, fmt.Errorf("%s: %w", m.what, err))
		case found.by == "" && m.unseen != "":
			found.by = "nothing: " + m.unseen
		case found.by == "":
			found.by = "NOTHING"
			left = append(left, fmt.Errorf("nothing finds %q: add the check that would", m.what))
		}
		row := fmt.Sprintf("| %s | %s | %s | %s | %.1f |\n", m.breaks, m.what, found.by,
			found.operations, found.after.Seconds())
		fmt.Print(row)
		table.WriteString(row)
	}
	if *results != "" {
		if err := os.WriteFile(*results, table.Bytes(), 0o600); err != nil {
			return err
		}
	}
	return errors.Join(left...)
}

// all are all faults.
func all() []mutant {
	var list []mutant
	for _, m := range simulated {
		m.file, m.in, m.tests = "storage/internal/"+m.file, simulation, cmp.Or(m.tests, one)
		list = append(list, m)
	}
	return slices.Concat(list, storage, drivers, quotas, users, moved, collected)
}

const simulation = "storage/internal/test/simulate"

// one and spread are the simulations of one database, and of stores that several databases have.
const one, spread = "^TestSimulation$", "^TestSpread$"

// apply makes the replacements. Each old text has to be there once.
func (m *mutant) apply(code string) (string, error) {
	pairs := append([]string{m.old, m.new}, m.also...)
	for i := 0; i < len(pairs); i += 2 {
		if n := strings.Count(code, pairs[i]); n != 1 {
			return "", fmt.Errorf("%q is in %s %d times", pairs[i], m.file, n)
		}
	}
	return strings.NewReplacer(pairs...).Replace(code), nil
}

// overlay writes the changed file, and the list for the compiler.
func (m *mutant) overlay(dir string) (string, error) {
	path, err := filepath.Abs(filepath.Join(*root, m.file))
	if err != nil {
		return "", err
	}
	code, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	mutated, err := m.apply(string(code))
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, []byte(mutated), 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return "", err
	}
	return overlay, os.WriteFile(overlay, list, 0o600)
}

// finding is what has found a fault, after how many operations of the simulation and how long.
type finding struct {
	by, operations string
	after          time.Duration
}

// without runs the tests without a fault. They have to pass, and not only to be skipped: that is
// errNotHere.
func (m *mutant) without(ctx context.Context, dir string) error {
	out, _, err := m.test(ctx, dir, "", 100)
	switch {
	case err != nil:
		return fmt.Errorf("without a fault, the tests %s of %s fail: %w\n%s", m.tests, m.in, err,
			tail(out))
	case !passed.Match(out):
		return errNotHere
	}
	return nil
}

var errNotHere = errors.New("ROWKEEPER_TEST_ONLY leaves its database out " +
	"(see hack/testbed/README.md)")

var (
	passed     = regexp.MustCompile(`(?m)^--- PASS: `)
	failed     = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	operations = regexp.MustCompile(`found after \d+ runs and (\d+) operations`)
	rule       = regexp.MustCompile(`-sim.runs 1\): ([a-z]+):`)
)

// look lets the tests look for the fault.
func (m *mutant) look(ctx context.Context, dir string) (f finding, err error) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return f, err
	}
	out, after, err := m.test(ctx, dir, overlay, *runs)
	f.after = after
	var exit *exec.ExitError
	if err == nil || !errors.As(err, &exit) {
		return f, err
	}
	f.by = "the program ends"
	if name := lowest(out); name != "" {
		f.by = name
	}
	if n := operations.FindSubmatch(out); n != nil {
		f.operations = string(n[1])
	}
	if r := rule.FindSubmatch(out); r != nil {
		f.by = "the simulation: " + string(r[1])
	}
	return f, nil
}

// lowest is the name of the first test that failed: a subtest, if there is one.
func lowest(out []byte) (name string) {
	for _, found := range failed.FindAllSubmatch(out, -1) {
		if n := string(found[1]); name == "" || strings.HasPrefix(n, name+"/") {
			name = n
		}
	}
	return name
}

// test builds and runs the tests.
func (m *mutant) test(ctx context.Context, dir, overlay string, runs int) (
	out []byte, after time.Duration, err error) {
	program := filepath.Join(dir, "mutant.test")
	flags := []string{"test", "-c", "-vet=off", "-o", program}
	if overlay != "" {
		flags = append(flags, "-overlay", overlay)
	}
	build := exec.CommandContext(ctx, "go", append(flags, "./"+m.in)...)
	build.Dir = *root
	build.Env = append(os.Environ(), "GOWORK=") // pkg/crds is in the workspace
	if out, err := build.CombinedOutput(); err != nil {
		return nil, 0, fmt.Errorf("it does not compile: %s", out)
	}
	flags = []string{"-test.v", "-test.short", "-test.failfast"}
	if m.in == simulation && (m.tests == one || m.tests == spread) {
		flags = append(flags, "-test.timeout", simulationPatience.String(), "-test.run",
			m.tests, "-sim.whole", "-sim.seed", "1", "-sim.runs", strconv.Itoa(runs))
	} else {
		flags = append(flags, "-test.timeout", patience.String(), "-test.run", m.tests)
	}
	test := exec.CommandContext(ctx, program, flags...)
	test.Dir = filepath.Join(*root, m.in)
	began := time.Now()
	out, err = test.CombinedOutput()
	return out, time.Since(began), err
}

func tail(out []byte) []byte { return out[max(0, len(out)-3000):] }
