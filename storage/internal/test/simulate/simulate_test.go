package simulate

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
)

var (
	budget = flag.Duration("sim.budget", 0, "simulate for this long, in place of -sim.runs")
	runs   = flag.Int("sim.runs", 400, "number of runs")
	seed   = flag.Uint64("sim.seed", 1, "the first run's seed; 0 takes one from the time")
	whole  = flag.Bool("sim.whole", false, "do not shorten a run that fails")
)

func TestMain(m *testing.M) {
	// One goroutine at a time: what a step sets off happens in the same order again.
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// simulate carries out a plan.
func simulate(t *testing.T, p plan, keep bool) (w *world) {
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(p)
		w.keep = keep
		began := time.Now()
		w.run()
		w.report.Runs, w.report.Turns, w.report.Time = 1, w.turns.now(), time.Since(began)
	})
	return w
}

// repeat carries out a plan that has failed once.
//
//nolint:unused // the tests that a failing run prints call it
func repeat(t *testing.T, p plan) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, 1)
	w := simulate(t, p, true)
	if testing.Verbose() {
		fmt.Println(strings.Join(w.trace, "\n"))
	}
	if v := w.judge.violation; v != nil {
		t.Errorf("%s\n%s", v, strings.Join(w.trace, "\n"))
	}
}

// TestSimulation makes runs from seeds, and shortens the first that fails.
func TestSimulation(t *testing.T) {
	fromSeeds(t, *runs, func(s uint64) (report, *violation) {
		w := simulate(t, newPlan(s), false)
		return w.report, w.judge.violation
	}, func(s uint64, v violation) {
		short := newPlan(s)
		try := func(actions []action) *violation {
			q := short
			q.Actions = actions
			return simulate(t, q, false).judge.violation
		}
		short.Actions, v = shrink(t, short.Actions, v, try)
		t.Logf("%s\n%s", &v, short.GoTest("Found"))
		for range 5 {
			if w := simulate(t, short, true); w.judge.violation != nil {
				w.tell(t)
				break
			}
		}
	})
}

// fromSeeds makes runs until one fails, and then calls failed.
func fromSeeds(t *testing.T, runs int, run func(seed uint64) (report, *violation),
	failed func(seed uint64, v violation)) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	total := report{Kinds: map[string]int{}, Pairs: map[[2]string]bool{}}
	began := time.Now()
	told := began
	for n := uint64(0); ; n++ {
		if *budget == 0 && n == uint64(runs) || *budget > 0 && time.Since(began) > *budget {
			break
		}
		s := first + n
		cryptotest.SetGlobalRandom(t, s)
		r, v := run(s)
		total.add(r)
		if v != nil {
			t.Errorf("seed %d (-sim.seed %d -sim.runs 1): %s", s, s, v)
			t.Logf("found after %d runs and %d operations", total.Runs, total.Operations)
			if !*whole {
				failed(s, *v)
			}
			return
		}
		if *budget > 0 && time.Since(told) > time.Minute {
			told = time.Now()
			fmt.Printf("seeds from %d: %s\n", first, total)
		}
	}
	t.Logf("seeds from %d: %s in %s", first, total, time.Since(began).Round(time.Millisecond))
}

// tell shows the last steps of a run.
func (w *stage) tell(t *testing.T) {
	t.Logf("its last steps:\n%s", strings.Join(w.trace[max(0, len(w.trace)-150):], "\n"))
}

func (r *report) add(o report) {
	r.Runs += o.Runs
	r.Operations += o.Operations
	r.Acknowledged += o.Acknowledged
	r.Reads += o.Reads
	r.Watches += o.Watches
	r.Events += o.Events
	r.Commits += o.Commits
	r.Faults += o.Faults
	r.Losses += o.Losses
	r.Fences += o.Fences
	r.Turns += o.Turns
	r.Time += o.Time
	for k, n := range o.Kinds {
		r.Kinds[k] += n
	}
	maps.Copy(r.Pairs, o.Pairs)
}

func (r report) String() string {
	kinds := make([]string, 0, len(r.Kinds))
	for _, k := range slices.Sorted(maps.Keys(r.Kinds)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", k, r.Kinds[k]))
	}
	return fmt.Sprintf("%d runs, %d operations (%d writes acknowledged, %d reads, %d watches with "+
		"%d events), %d commits, %d faults of %d kinds in %d pairs, %d losses of history, %d fences, "+
		"%d steps, %s of simulated time; %s", r.Runs, r.Operations, r.Acknowledged, r.Reads,
		r.Watches, r.Events, r.Commits, r.Faults, len(r.Kinds), len(r.Pairs), r.Losses, r.Fences,
		r.Turns, r.Time.Round(time.Second), strings.Join(kinds, ", "))
}

// shrink leaves out what the violation does not need.
func shrink(t *testing.T, actions []action, v violation,
	try func([]action) *violation) ([]action, violation) {
	deadline := time.Now().Add(20 * time.Second)
	fails := func(actions []action) bool {
		// The scheduler of goroutines does not do quite the same each time.
		for range 2 {
			cryptotest.SetGlobalRandom(t, 1)
			if found := try(actions); found != nil && found.rule == v.rule {
				v = *found
				return true
			}
		}
		return false
	}
	for size := len(actions) / 2; size > 0 && time.Now().Before(deadline); {
		smaller := false
		for from := 0; from < len(actions) && time.Now().Before(deadline); {
			fewer := slices.Delete(slices.Clone(actions), from, min(from+size, len(actions)))
			if fails(fewer) {
				actions, smaller = fewer, true
			} else {
				from += size
			}
		}
		if !smaller || size > 1 {
			size /= 2
		}
	}
	for i := range actions {
		for _, then := range []int{0, 1, 3} {
			quicker := slices.Clone(actions)
			if quicker[i].Then <= then {
				continue
			}
			quicker[i].Then = then
			if time.Now().Before(deadline) && fails(quicker) {
				actions = quicker
				break
			}
		}
	}
	return actions, v
}

// TestRepeatable says how many runs are the same, step by step, when they are made again.
func TestRepeatable(t *testing.T) {
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	same, of := 0, 20
	if testing.Short() {
		t.Skip("it takes a while, and tells only how much of a run repeats")
	}
	for range of {
		p := newPlan(r.Uint64())
		hash := func() uint64 {
			cryptotest.SetGlobalRandom(t, 1)
			return simulate(t, p, true).report.Hash
		}
		if one, again := hash(), hash(); one == again {
			same++
		}
	}
	t.Logf("%d of %d runs are the same", same, of)
	if same == 0 {
		t.Error("no run repeats from its seed")
	}
}
