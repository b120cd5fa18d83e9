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

// scene is a world in which a run is under way.
type scene interface {
	on() *stage
	run()
}

// planned is a plan of runs.
type planned[P any] interface {
	actions() []action
	// with is the plan with other actions.
	with(actions []action) P
	// simulate carries it out. keep keeps the trace.
	simulate(t *testing.T, keep bool) *stage
	GoTest(name string) string
}

// perform carries out a run in a bubble.
func perform(t *testing.T, keep bool, begin func(t *testing.T) scene) (s *stage) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t)
		s = w.on()
		s.keep = keep
		began := time.Now()
		w.run()
		s.report.Runs, s.report.Turns, s.report.Time = 1, s.turns.now(), time.Since(began)
	})
	return s
}

// repeat carries out a plan that has failed once.
//
//nolint:unused // the tests that a failing run prints call it
func repeat[P planned[P]](t *testing.T, p P) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, 1)
	s := p.simulate(t, true)
	if testing.Verbose() {
		fmt.Println(strings.Join(s.trace, "\n"))
	}
	if v := s.violation(); v != nil {
		t.Errorf("%s\n%s", v, strings.Join(s.trace, "\n"))
	}
}

// TestSimulation makes runs from seeds, and shortens the first that fails.
func TestSimulation(t *testing.T) { fromSeeds(t, *runs, newPlan) }

// fromSeeds makes runs until one fails, and shortens that one.
func fromSeeds[P planned[P]](t *testing.T, runs int, newPlan func(seed uint64) P) {
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
		seed := first + n
		cryptotest.SetGlobalRandom(t, seed)
		s := newPlan(seed).simulate(t, false)
		total.add(s.report)
		if v := s.violation(); v != nil {
			t.Errorf("seed %d (-sim.seed %d -sim.runs 1): %s", seed, seed, v)
			t.Logf("found after %d runs and %d operations", total.Runs, total.Operations)
			if !*whole {
				shorten(t, newPlan(seed), *v)
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

// shorten leaves out of a plan what the violation does not need, and prints the rest as a test.
func shorten[P planned[P]](t *testing.T, p P, v violation) {
	actions, v := shrink(t, p.actions(), v, func(actions []action) *violation {
		return p.with(actions).simulate(t, false).violation()
	})
	p = p.with(actions)
	t.Logf("%s\n%s", &v, p.GoTest("Found"))
	for range 5 {
		if s := p.simulate(t, true); s.violation() != nil {
			s.tell(t)
			break
		}
	}
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
			return p.simulate(t, true).report.Hash
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
