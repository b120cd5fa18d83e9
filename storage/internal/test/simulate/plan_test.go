package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// plan is a run: everything that is done to the processes and to the database, in order. The seed
// makes it once; a run that failed is shortened by leaving actions out.
type plan struct {
	// Kind is the database that is simulated: sqlite, postgres or mysql.
	Kind string
	// Processes is how many there are. Relaxed and Window are how the run begins: with relaxed
	// durability, and with compaction by time. Cache is how many bytes of rows a process keeps.
	Processes       int
	Relaxed, Window bool
	Cache           int
	// Indexes: an index is declared, dropped and built now and then.
	Indexes bool
	Actions []action
}

// action is what happens next, and how much time the world gets after it.
type action struct {
	// Do is what is done; see world.act.
	Do string
	// What is a fault of the network or the database that meets the next call of Method.
	What, Method string
	// On is the process, Key the key, and N a parameter.
	On, Key, N int
	// Then is how many turns follow, and Seed decides what they do.
	Then int
	Seed uint64
}

// String is the action as Go writes it.
func (a action) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "{Do: %q", a.Do)
	text := func(name, v string) {
		if v != "" {
			fmt.Fprintf(&b, ", %s: %q", name, v)
		}
	}
	number := func(name string, v int) {
		if v != 0 {
			fmt.Fprintf(&b, ", %s: %d", name, v)
		}
	}
	text("What", a.What)
	text("Method", a.Method)
	number("On", a.On)
	number("Key", a.Key)
	number("N", a.N)
	number("Then", a.Then)
	if a.Then != 0 {
		fmt.Fprintf(&b, ", Seed: %#x", a.Seed)
	}
	return b.String() + "}"
}

func (p plan) actions() []action { return p.Actions }

func (p plan) with(actions []action) plan {
	p.Actions = actions
	return p
}

func (p plan) simulate(t *testing.T, keep bool) *stage {
	return perform(t, keep, func(*testing.T) scene { return newWorld(p) })
}

// GoTest is a test that repeats the plan.
func (p plan) GoTest(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "func Test%s(t *testing.T) {\n\trepeat(t, plan{Kind: %q, Processes: %d, ", name,
		p.Kind, p.Processes)
	fmt.Fprintf(&b, "Relaxed: %t, Window: %t, Cache: %d, Indexes: %t, Actions: []action{\n",
		p.Relaxed, p.Window, p.Cache, p.Indexes)
	return b.String() + asGo(p.Actions)
}

// asGo ends the Go of a plan.
func asGo(actions []action) string {
	var b strings.Builder
	for _, a := range actions {
		fmt.Fprintf(&b, "\t\t%s,\n", a)
	}
	return b.String() + "\t}})\n}\n"
}

// What a client does, and how often.
var clientVerbs = []string{"update", "update", "update", "update", "create", "create", "overwrite",
	"stale", "stale", "delete", "delete", "expire", "get", "get", "get", "head", "list", "list",
	"listAt", "count", "watch", "watch", "watch", "unwatch", "compact", "compact", "sweep", "reap",
	"poison", "condition", "condition", "transaction", "transaction", "transaction"}

// faults are the kinds of faults. A run has some of them, so that each is met with and without the
// others.
var faults = []action{
	{Do: "fault", What: "refuse", Method: "Commit"},
	{Do: "fault", What: "refuse", Method: "Locked"},
	{Do: "fault", What: "refuse", Method: "read"},
	{Do: "fault", What: "lose", Method: "Commit"},
	{Do: "fault", What: "lose", Method: "Locked"},
	{Do: "fault", What: "lose", Method: "read"},
	{Do: "fault", What: "zombie", Method: "Commit"},
	{Do: "fault", What: "zombie late", Method: "Commit"},
	{Do: "fault", What: "zombie late", Method: "Locked"},
	{Do: "fault", What: "zombie", Method: "Sweep"},
	{Do: "fault", What: "cut", Method: "Commit"},
	{Do: "fault", What: "cut", Method: "Locked"},
	{Do: "fault", What: "timeout", Method: "Commit"},
	{Do: "fault", What: "timeout", Method: "Locked"},
	{Do: "fault", What: "full", Method: "Commit"},
	{Do: "fault", What: "no answer", Method: "Commit"},
	{Do: "fault", What: "no answer", Method: "Commit"},
	{Do: "fault", What: "no answer", Method: "Locked"},
	{Do: "fault", What: "no answer", Method: "Sweep"},
	{Do: "fault", What: "no answer", Method: "read"},
	{Do: "fault", What: "hang", Method: "Commit"},
	{Do: "fault", What: "hang", Method: "Locked"},
	{Do: "fault", What: "hang", Method: "read"},
	{Do: "fault", What: "slow", Method: "read"},
	{Do: "fault", What: "slow", Method: "Commit"},
	{Do: "fault", What: "stale", Method: "read"},
	{Do: "fault", What: "drop", Method: "notify"},
	{Do: "fault", What: "twice", Method: "notify"},
	{Do: "deaf"},
	{Do: "kill"},
	{Do: "stop"},
	{Do: "pause"},
	{Do: "crash"},
	{Do: "crash all"},
	{Do: "restore"},
	{Do: "restore"},
	{Do: "restore elsewhere"},
	{Do: "restore drill"},
	{Do: "promote"},
	{Do: "clock"},
	{Do: "relax"},
	{Do: "fence"},
}

// repairs undo what some faults begin.
var repairs = []action{{Do: "start"}, {Do: "resume"}, {Do: "hear"}, {Do: "tighten"}}

// newPlan makes the plan of a seed.
func newPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 18))
	p := plan{Kind: []string{"sqlite", "postgres", "mysql"}[r.IntN(3)], Processes: 1 + r.IntN(3),
		Relaxed: r.IntN(4) == 0, Window: r.IntN(3) == 0}
	var chosen []action
	for _, f := range faults {
		if r.IntN(4) == 0 {
			chosen = append(chosen, f)
		}
	}
	var verbs []string
	for _, v := range clientVerbs {
		if r.IntN(4) != 0 {
			verbs = append(verbs, v)
		}
	}
	verbs = append(verbs, "update", "get")
	quiet := 3 + r.IntN(20)    // client operations per fault
	patience := 2 + r.IntN(24) // turns per action
	keys := 1 + r.IntN(len(allKeys))
	for range 40 + r.IntN(120) {
		var a action
		switch n := r.IntN(quiet + 1); {
		case n == 0 && len(chosen) > 0:
			a = chosen[r.IntN(len(chosen))]
		case n == 1 && r.IntN(2) == 0:
			a = repairs[r.IntN(len(repairs))]
		case n == 2 && r.IntN(3) == 0:
			a = action{Do: "wait"}
		default:
			a = action{Do: verbs[r.IntN(len(verbs))]}
		}
		a.On, a.Key, a.N = r.IntN(p.Processes), r.IntN(keys), r.IntN(1000)
		a.Then, a.Seed = r.IntN(patience+1), r.Uint64()
		p.Actions = append(p.Actions, a)
	}
	p.Cache = []int{0, 1000, 1 << 20, 1 << 20}[r.IntN(4)]
	if p.Indexes = r.IntN(3) == 0; p.Indexes {
		for range 4 + r.IntN(12) {
			a := action{Do: []string{"declare", "build", "build", "build"}[r.IntN(4)],
				On: r.IntN(p.Processes), N: r.IntN(1000), Then: r.IntN(patience + 1), Seed: r.Uint64()}
			p.Actions = slices.Insert(p.Actions, r.IntN(len(p.Actions)), a)
		}
	}
	return p
}
