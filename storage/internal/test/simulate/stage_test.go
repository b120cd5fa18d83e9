package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// stage is where a run is under way, in a bubble of synctest. The goroutine that drives it lets one
// stopped call or client go on at a time, and waits until all others are blocked again. So nothing
// happens at the same time as something else, but for what a single step sets off.
//
// Others see the changes of the driver when their call goes on. All else that they look at, or
// change themselves, is protected by mu, or is atomic.
type stage struct {
	servers []*server
	// record looks at what has happened, when nothing moves. violation is what the judge has
	// found, nil for nothing, and violate tells it of one. earlier returns what a standby has that
	// is so many versions behind.
	record    func()
	violation func() *violation
	violate   func(rule, format string, args ...any)
	earlier   func(n int) memdb.Version
	// turns counts the steps.
	turns turns
	// faults wait for the next call that they fit.
	faults []*action
	report report
	trace  []string
	// keep the trace, and its hash.
	keep bool
	// busy counts requests, processes that begin and end.
	busy int

	// mu protects the fields below.
	mu       sync.Mutex
	stops    []*stop
	arrivals map[string]int
	finished []finished
}

func (w *stage) begin(servers ...*server) {
	w.servers, w.arrivals = servers, map[string]int{}
	w.report.Kinds, w.report.Pairs = map[string]int{}, map[[2]string]bool{}
}

// on is the stage of a world.
func (w *stage) on() *stage { return w }

// found tells whether there was a violation.
func (w *stage) found() bool { return w.violation() != nil }

// carryOut does one action after the other, each with its steps, until there is a violation.
func (w *stage) carryOut(actions []action, act func(*action), turn func(*rand.Rand)) {
	for i := range actions {
		a := &actions[i]
		w.settle()
		if w.found() {
			break
		}
		w.turns.next()
		w.log("do %s", *a)
		act(a)
		r := rand.New(rand.NewPCG(a.Seed, 3))
		for range a.Then {
			turn(r)
		}
	}
	w.settle()
}

// request has a process carry out something in the end, again until it succeeds. failed is told of
// the errors.
func (w *stage) request(id int, what string, do func() error, failed func(error)) {
	if w.found() {
		return
	}
	var err error
	for range 20 {
		ended := false
		w.busy++
		go func() {
			e := do()
			w.later(what, func() { w.busy--; err, ended = e, true })
		}()
		if !w.drive(func() bool { return ended }) {
			w.violate("liveness", "%s of process %d does not end", what, id)
		}
		if w.found() || err == nil {
			return
		}
		failed(err)
		again := time.Now().Add(time.Second)
		w.drive(func() bool { return time.Now().After(again) })
	}
	w.violate("liveness", "%s of process %d fails for ever: %v", what, id, err)
}

// finish lets all calls that are under way fail, until nobody makes one any more, so that the
// bubble can end.
func (w *stage) finish() {
	for idle := 0; idle < 3; {
		w.settle()
		ready := w.ready()
		for _, st := range ready {
			w.release(st, st.c.broken(errors.New("the end")))
			w.settle()
		}
		if len(ready) == 0 {
			<-time.After(10 * time.Second)
			if w.busy == 0 {
				idle++
			}
		}
	}
}

// report counts.
type report struct {
	Runs, Operations, Acknowledged, Reads, Watches, Events, Commits int

	Faults, Losses, Fences, Turns int
	// Time is the time in the runs.
	Time  time.Duration
	Kinds map[string]int
	// Pairs are the kinds of faults that met in a run.
	Pairs map[[2]string]bool
	// Hash is of the trace.
	Hash uint64
}

// turns counts steps. Clients look at it at any time.
type turns struct{ n atomic.Int64 }

func (t *turns) next() { t.n.Add(1) }

// now is the number of the present step.
func (t *turns) now() int { return int(t.n.Load()) }

// stop is where a call waits until the world lets it go on.
type stop struct {
	c     *call
	place string
	order string
	life  int64 // the server's
	until time.Time
	held  bool // a zombie, which is let go on rarely
	go_   chan error
}

// finished is what a client or a process has come to, to be looked at by the driver.
type finished struct {
	order string
	f     func()
}

// log adds a line to the trace.
func (w *stage) log(format string, args ...any) {
	if !w.keep {
		return
	}
	line := fmt.Sprintf("%d %s ", w.turns.now(), time.Now().Format("05.000")) +
		fmt.Sprintf(format, args...)
	h := fnv.New64a()
	fmt.Fprintf(h, "%d%s", w.report.Hash, line)
	w.report.Hash = h.Sum64()
	w.trace = append(w.trace, line)
}

// stop waits until the world lets the call go on, and returns what meets it there.
func (w *stage) stop(c *call, place string) error {
	st := &stop{c: c, place: place, life: c.life, go_: make(chan error)}
	w.mu.Lock()
	name := fmt.Sprintf("%d %d %s %s %s %s", c.b.p.id, c.b.life, c.b.s.label, c.method, place, c.detail)
	w.arrivals[name]++
	st.order = fmt.Sprintf("%s %d", name, w.arrivals[name])
	w.stops = append(w.stops, st)
	w.mu.Unlock()
	return <-st.go_
}

// later has the driver run f, in an order that does not depend on who came first.
func (w *stage) later(order string, f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished = append(w.finished, finished{order, f})
}

// settle waits until nothing moves, and looks at what has happened.
func (w *stage) settle() {
	for {
		synctest.Wait()
		w.record()
		w.mu.Lock()
		done := w.finished
		w.finished = nil
		w.mu.Unlock()
		if len(done) == 0 {
			return
		}
		slices.SortStableFunc(done, func(a, b finished) int { return cmp.Compare(a.order, b.order) })
		for _, d := range done {
			d.f()
		}
	}
}

// ready returns the stops that may go on, in order.
func (w *stage) ready() (ready []*stop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, st := range w.stops {
		client := st.place == "request" || st.place == "answer" || st.place == "notify"
		if now.Before(st.until) || client && st.c.b.p.paused && !st.c.alone.Load() {
			continue
		}
		ready = append(ready, st)
	}
	slices.SortFunc(ready, func(a, b *stop) int { return cmp.Compare(a.order, b.order) })
	return ready
}

// release lets a stop go on.
func (w *stage) release(st *stop, err error) {
	w.mu.Lock()
	w.stops = slices.DeleteFunc(w.stops, func(o *stop) bool { return o == st })
	w.mu.Unlock()
	w.log("%s %v", st.order, err)
	st.go_ <- err
}

// turn lets one thing happen.
func (w *stage) turn(r *rand.Rand) {
	w.settle()
	w.turns.next()
	ready := w.ready()
	for _, s := range w.servers {
		if s.relaxed.Load() && r.IntN(50) == 0 {
			s.flush()
		}
	}
	if len(ready) == 0 || r.IntN(10) == 0 {
		pauses := []time.Duration{1, 1, 5, 5, 20, 20, 100, 100, 500, 2000}
		d := pauses[r.IntN(len(pauses))] * time.Millisecond
		w.log("%s pass", d)
		<-time.After(d)
		return
	}
	// Zombies come late.
	weight := func(st *stop) int {
		if st.held || st.c.alone.Load() && st.c.class != "read" {
			return 1
		}
		return 12
	}
	sum := 0
	for _, st := range ready {
		sum += weight(st)
	}
	n := r.IntN(sum)
	for _, st := range ready {
		if n -= weight(st); n < 0 {
			w.meet(st)
			return
		}
	}
}

// places say where a fault meets a call.
var places = map[string]string{"refuse": "request", "lose": "request", "zombie": "request",
	"zombie late": "commit", "cut": "commit", "timeout": "lock", "full": "commit",
	"no answer": "answer", "hang": "request", "hang held": "commit", "slow": "answer",
	"stale": "request", "drop": "notify", "twice": "notify"}

// meet lets a stop go on with the fault that waits for it, if there is one.
func (w *stage) meet(st *stop) {
	c := st.c
	if c.b.p.cut && c.b.s == w.servers[0] && st.place == "request" {
		w.release(st, contract.Errorf(contract.Unavailable, "there is no way to the server"))
		return
	}
	i := slices.IndexFunc(w.faults, func(f *action) bool {
		what := f.What
		if what == "hang" && f.N%2 == 0 && f.Method != "read" {
			what = "hang held"
		}
		return f.Method == c.class && f.On == c.b.p.id && places[what] == st.place &&
			!c.alone.Load()
	})
	if i < 0 {
		w.release(st, nil)
		return
	}
	f := w.faults[i]
	w.faults = slices.Delete(w.faults, i, i+1)
	w.count(f.What + " " + f.Method)
	w.log("fault %s meets %s", f.What, st.order)
	err := fmt.Errorf("fault: %s", f.What)
	switch f.What {
	case "refuse":
		w.release(st, contract.Errorf(contract.Unavailable, "the connection was refused"))
	case "lose", "cut", "no answer":
		w.release(st, c.broken(err))
	case "zombie", "zombie late":
		st.held = true
		c.lost <- err
	case "timeout":
		w.release(st, contract.Errorf(contract.Transient, "the lock wait took too long"))
	case "full":
		w.release(st, contract.Errorf(contract.Full, "the disk is full"))
	case "hang":
		st.until = time.Now().Add(time.Duration(1+f.N%9) * time.Second)
	case "slow":
		st.until = time.Now().Add(time.Duration(1+f.N%400) * time.Millisecond)
	case "stale":
		c.stale = w.earlier(1 + f.N%5)
		w.release(st, nil)
	case "drop":
		w.release(st, err)
	case "twice":
		w.announceTo(c.b, c.revision)
		w.release(st, nil)
	}
}

// count counts a fault, and its pair with those before.
func (w *stage) count(kind string) {
	w.report.Faults++
	for other := range w.report.Kinds {
		w.report.Pairs[[2]string{min(kind, other), max(kind, other)}] = true
	}
	w.report.Kinds[kind]++
}

// disconnect ends all connections to a server as it was: calls that have not ended fail.
func (w *stage) disconnect(s *server, why string) {
	s.life.Add(1)
	for {
		w.settle()
		w.mu.Lock()
		var old []*stop
		for _, st := range w.stops {
			if st.c.b.s == s && st.life < s.life.Load() && st.place != "notify" {
				old = append(old, st)
			}
		}
		w.mu.Unlock()
		if len(old) == 0 {
			return
		}
		slices.SortFunc(old, func(a, b *stop) int { return cmp.Compare(a.order, b.order) })
		w.release(old[0], old[0].c.broken(errors.New(why)))
	}
}

// standby returns what a standby answers, if the call was led to one.
func (w *stage) standby(c *call) (st contract.State, ok bool) {
	if c.stale == (memdb.Version{}) {
		return st, false
	}
	st = c.stale.State()
	st.Writable = false
	return st, true
}

// listen sets the listener of a process.
func (w *stage) listen(b *backend, notify func(contract.Revision), status func(error)) {
	w.mu.Lock()
	b.notify, b.status = notify, status
	w.mu.Unlock()
	if status != nil {
		status(nil)
	}
}

func (w *stage) listens(b *backend) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return b.notify != nil
}

func (w *stage) announceTo(b *backend, r contract.Revision) {
	c := &call{b: b, method: "notify", class: "notify", detail: fmt.Sprint(r), life: b.s.life.Load(),
		revision: r}
	go func() {
		if w.stop(c, "notify") != nil {
			return
		}
		w.mu.Lock()
		notify := b.notify
		w.mu.Unlock()
		if notify != nil {
			notify(r)
		}
	}()
}

// drive lets everything go on without faults, until something is so. It returns false if that takes
// too long.
func (w *stage) drive(done func() bool) bool {
	deadline := time.Now().Add(3 * time.Minute)
	for {
		w.settle()
		if w.found() || done() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		w.turns.next()
		ready := w.ready()
		if len(ready) == 0 {
			<-time.After(5 * time.Millisecond)
		}
		for _, st := range ready {
			w.release(st, nil)
			w.settle()
			w.turns.next()
		}
	}
}
