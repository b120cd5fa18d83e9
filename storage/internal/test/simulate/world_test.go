package simulate

import (
	"cmp"
	"context"
	"encoding/binary"
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
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// world is a run under way, in a bubble of synctest. The goroutine that drives it lets one stopped
// call or client go on at a time, and waits until all others are blocked again. So nothing happens
// at the same time as something else, but for what a single step sets off.
//
// Others see the changes of the driver when their call goes on. All else that they look at, or
// change themselves, is protected by mu, or is atomic.
type world struct {
	plan      plan
	s         *server
	processes []*process
	judge     judge
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

func newWorld(p plan) *world {
	w := &world{plan: p, s: newServer(p.Kind, p.Relaxed), arrivals: map[string]int{}}
	w.report.Kinds, w.report.Pairs = map[string]int{}, map[[2]string]bool{}
	w.judge.begin(w)
	for i := range p.Processes {
		w.processes = append(w.processes, &process{w: w, id: i})
	}
	return w
}

// log adds a line to the trace.
func (w *world) log(format string, args ...any) {
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
func (w *world) stop(c *call, place string) error {
	st := &stop{c: c, place: place, life: c.life, go_: make(chan error)}
	w.mu.Lock()
	name := fmt.Sprintf("%d %d %s %s %s", c.b.p.id, c.b.life, c.method, place, c.detail)
	w.arrivals[name]++
	st.order = fmt.Sprintf("%s %d", name, w.arrivals[name])
	w.stops = append(w.stops, st)
	w.mu.Unlock()
	return <-st.go_
}

// later has the driver run f, in an order that does not depend on who came first.
func (w *world) later(order string, f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished = append(w.finished, finished{order, f})
}

// settle waits until nothing moves, and looks at what has happened.
func (w *world) settle() {
	for {
		synctest.Wait()
		w.judge.record()
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
func (w *world) ready() (ready []*stop) {
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
func (w *world) release(st *stop, err error) {
	w.mu.Lock()
	w.stops = slices.DeleteFunc(w.stops, func(o *stop) bool { return o == st })
	w.mu.Unlock()
	w.log("%s %v", st.order, err)
	st.go_ <- err
}

// turn lets one thing happen.
func (w *world) turn(r *rand.Rand) {
	w.settle()
	w.turns.next()
	ready := w.ready()
	if w.s.relaxed.Load() && r.IntN(50) == 0 {
		w.s.flush()
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
func (w *world) meet(st *stop) {
	c := st.c
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
		c.stale = w.judge.earlier(1 + f.N%5)
		w.release(st, nil)
	case "drop":
		w.release(st, err)
	case "twice":
		w.announceTo(c.b, c.revision)
		w.release(st, nil)
	}
}

// count counts a fault, and its pair with those before.
func (w *world) count(kind string) {
	w.report.Faults++
	for other := range w.report.Kinds {
		w.report.Pairs[[2]string{min(kind, other), max(kind, other)}] = true
	}
	w.report.Kinds[kind]++
}

// disconnect ends all connections to the server as it was: calls that have not ended fail.
func (w *world) disconnect(why string) {
	w.s.life.Add(1)
	for {
		w.settle()
		w.mu.Lock()
		var old []*stop
		for _, st := range w.stops {
			if st.life < w.s.life.Load() && st.place != "notify" {
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
func (w *world) standby(c *call) (st contract.State, ok bool) {
	if c.stale == (memdb.Version{}) {
		return st, false
	}
	st = c.stale.State()
	st.Writable = false
	return st, true
}

// listen sets the listener of a process.
func (w *world) listen(b *backend, notify func(contract.Revision), status func(error)) {
	w.mu.Lock()
	b.notify, b.status = notify, status
	w.mu.Unlock()
	if status != nil {
		status(nil)
	}
}

func (w *world) listens(b *backend) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return b.notify != nil
}

// announce tells the processes of a commit. A call that goes on runs it, so it sees what the
// driver has changed.
func (w *world) announce(r contract.Revision) {
	for _, p := range w.processes {
		if p.b != nil && w.listens(p.b) && !p.deaf {
			w.announceTo(p.b, r)
		}
	}
}

func (w *world) announceTo(b *backend, r contract.Revision) {
	c := &call{b: b, method: "notify", class: "notify", detail: fmt.Sprint(r), life: w.s.life.Load(),
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

// run carries out the plan, repairs everything, and looks whether all is well.
func (w *world) run() {
	for _, p := range w.processes {
		p.start()
	}
	r := rand.New(rand.NewPCG(1, 2))
	for n := 0; n < 400 && slices.ContainsFunc(w.processes, func(p *process) bool {
		return p.state != up
	}); n++ {
		w.turn(r)
	}
	for i := range w.plan.Actions {
		a := &w.plan.Actions[i]
		w.settle()
		if w.judge.violation != nil {
			break
		}
		w.turns.next()
		w.log("do %s", *a)
		w.act(a)
		r := rand.New(rand.NewPCG(a.Seed, 3))
		for range a.Then {
			w.turn(r)
		}
	}
	w.settle()
	if w.judge.violation == nil {
		w.heal()
	}
	w.end()
}

// close closes the store of a process that was killed: only its memory is still there.
func (w *world) close(s *mvcc.Engine) {
	w.busy++
	go func() {
		_ = s.Close()
		w.later("closed", func() { w.busy-- })
	}()
}

// drive lets everything go on without faults, until something is so. It returns false if that takes
// too long.
func (w *world) drive(done func() bool) bool {
	deadline := time.Now().Add(3 * time.Minute)
	for {
		w.settle()
		if w.judge.violation != nil || done() {
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

// request has a process carry out something in the end, again until it succeeds.
func (w *world) request(p *process, what string, f func(context.Context, *mvcc.Engine) error) {
	if w.judge.violation != nil {
		return
	}
	var err error
	for range 20 {
		ended := false
		w.busy++
		go func() {
			e := f(context.Background(), p.store)
			w.later(what, func() { w.busy--; err, ended = e, true })
		}()
		if !w.drive(func() bool { return ended }) {
			w.judge.violate("liveness", "%s of process %d does not end", what, p.id)
		}
		if w.judge.violation != nil || err == nil {
			return
		}
		w.judge.allowed(what, err)
		again := time.Now().Add(time.Second)
		w.drive(func() bool { return time.Now().After(again) })
	}
	w.judge.violate("liveness", "%s of process %d fails for ever: %v", what, p.id, err)
}

// heal repairs everything. Then all processes have to work, and to know the same.
func (w *world) heal() {
	w.log("heal")
	w.faults = nil
	for _, p := range w.processes {
		p.paused = false
		p.hear(true)
	}
	well := w.drive(func() bool {
		well := true
		for _, p := range w.processes {
			p.start()
			well = well && p.state == up && p.memory.pending == 0
		}
		return well
	})
	if !well {
		w.judge.violate("liveness", "a request or a start does not end")
	}
	for _, p := range w.processes {
		key := contract.Key(fmt.Sprintf("/heal/%d", p.id))
		w.request(p, "a write", func(ctx context.Context, s *mvcc.Engine) error {
			_, err := s.Commit(ctx, contract.Mutation{Key: key, Expect: contract.Any, Value: []byte("heal")})
			return err
		})
	}
	for _, p := range w.processes {
		w.request(p, "being ready", func(ctx context.Context, s *mvcc.Engine) error {
			return s.Ready(ctx)
		})
	}
	if w.judge.violation != nil {
		return
	}
	w.judge.ready()
	head := w.judge.head.rev()
	for _, p := range w.processes {
		for _, x := range p.memory.watches {
			x.w.RequestProgress(head)
		}
	}
	told := w.drive(func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, p := range w.processes {
			for _, x := range p.memory.watches {
				if !x.ended && x.progress < head {
					return false
				}
			}
		}
		return true
	})
	if !told {
		w.judge.violate("liveness", "a watch does not come to the head %d", head)
	}
	p := w.processes[0]
	var reaped time.Time
	w.request(p, "the last compaction", func(ctx context.Context, s *mvcc.Engine) error {
		reaped = w.s.now()
		if err := s.DeleteExpired(ctx); err != nil {
			return err
		}
		head, err := s.Head(ctx)
		if err != nil {
			return err
		}
		if err := s.Compact(ctx, head); err != nil {
			return err
		}
		return s.Sweep(ctx)
	})
	if w.judge.violation == nil {
		w.judge.swept(reaped)
	}
}

// end ends everything that is still there, so that the bubble can end.
func (w *world) end() {
	violation := w.judge.violation
	for _, p := range w.processes {
		p.paused = false
		p.kill()
	}
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
	if w.judge.violation == nil {
		w.judge.watches()
	}
	if violation != nil {
		w.judge.violation = violation
	}
}

// act does what an action says.
func (w *world) act(a *action) {
	p := w.processes[a.On%len(w.processes)]
	before := w.report.Faults
	switch a.Do {
	case "fault":
		w.faults = append(w.faults, a)
	case "wait":
		<-time.After(time.Duration(a.N*a.N/100) * time.Millisecond)
	case "start":
		p.start()
	case "kill":
		p.kill()
	case "stop":
		p.stop()
	case "pause":
		p.paused = true
	case "resume":
		p.paused = false
	case "deaf":
		p.hear(false)
	case "hear":
		p.hear(true)
	case "crash", "crash all":
		w.crash(a.Do == "crash all" || w.s.kind == "sqlite")
	case "restore":
		w.restore(a.N%40, false, 0)
	case "restore elsewhere":
		w.restore(a.N%40, true, 0)
	case "restore drill":
		w.restore(a.N%40, a.N%3 == 0, 1+a.N%4)
	case "promote":
		w.restore(a.N%4, true, 0)
	case "clock":
		w.s.newestTime()
		w.s.turnClock(time.Duration(a.N-500) * time.Minute)
	case "relax":
		w.s.relaxed.Store(true)
		w.judge.relax()
	case "tighten":
		w.s.relaxed.Store(false)
	default:
		p.client(a)
		return
	}
	if before == w.report.Faults && slices.ContainsFunc(faults, func(f action) bool {
		return f.Do == a.Do && a.Do != "fault"
	}) {
		w.count(a.Do)
	}
}

// crash takes the power from the server, and from the processes if they are on its machine.
func (w *world) crash(all bool) {
	if all {
		for _, p := range w.processes {
			p.kill()
		}
	}
	w.s.turnClock(outage)
	w.s.reboot()
	w.judge.goBack(*w.s.durable.Load(), "crash")
	w.disconnect("the power failed")
}

// outage is how long the database is away when it loses history. Fences of the same history that
// come faster than one in four seconds can come to the same revision: the jump of a fence is as far
// as the marker moves in that time.
const outage = time.Minute

// restore puts a copy in the database's place, which is some versions old, and was fenced somewhere
// else so many times.
func (w *world) restore(back int, elsewhere bool, fences int) {
	w.s.turnClock(outage)
	running := slices.ContainsFunc(w.processes, func(p *process) bool { return p.state == up })
	if elsewhere || !running {
		// Nobody would notice a copy with the same fingerprint if no process runs.
		w.s.rename()
	}
	w.judge.goBack(w.judge.earlier(back), "restore")
	for range fences {
		w.drill()
	}
	w.s.flush()
	w.disconnect("the database was restored")
}

// drill fences a copy of the database, without any of the processes, and puts it in its place.
func (w *world) drill() {
	ctx := context.Background()
	copied := memdb.New("sim", w.s.now)
	copied.Return(w.s.db.Version())
	b := copied.Open(contract.DriverOptions{})
	seen := copied.Version().State().Head
	f := contract.NewFence(seen, contract.Identity{Epoch: seen.Epoch})
	if len(w.judge.states)%2 == 0 {
		// By a clock that is wrong. A random number keeps such fences apart, by far more than is
		// written after them, see [contract.Fence.Marker]. So does this one, which can be repeated.
		f.Jump, f.PerSecond = f.Jump+contract.Revision(len(w.judge.states))<<16, 0
	}
	binary.BigEndian.PutUint64(f.Token[:], uint64(len(w.judge.states)))
	if _, err := contract.StartEpoch(ctx, b, f); err != nil {
		panic(err)
	}
	w.s.db.Return(copied.Version())
	w.judge.record()
}
