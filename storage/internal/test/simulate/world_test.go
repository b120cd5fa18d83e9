package simulate

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// world is a run of processes that use one database.
type world struct {
	stage
	plan      plan
	s         *server
	processes []*process
	judge     judge
}

func newWorld(p plan) *world {
	w := &world{plan: p, s: newServer("sim", p.Kind, p.Relaxed)}
	w.stage.begin(w.s)
	w.record, w.earlier = w.judge.record, w.judge.earlier
	w.violation, w.violate = func() *violation { return w.judge.violation }, w.judge.violate
	w.s.begun, w.s.wrote, w.s.announce = w.begun, w.wrote, w.announce
	w.judge.begin(w)
	for i := range p.Processes {
		w.processes = append(w.processes, &process{w: w, peer: peer{id: i}})
	}
	return w
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
	w.carryOut(w.plan.Actions, w.act, w.turn)
	if !w.found() {
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

// request is stage.request with the store of a process.
func (w *world) request(p *process, what string, f func(context.Context, *mvcc.Engine) error) {
	w.stage.request(p.id, what, func() error { return f(context.Background(), p.store) },
		func(err error) { w.judge.allowed(what, err) })
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

// end ends everything that is still there.
func (w *world) end() {
	violation := w.judge.violation
	for _, p := range w.processes {
		p.paused = false
		p.kill()
	}
	w.finish()
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
	w.disconnect(w.s, "the power failed")
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
	w.disconnect(w.s, "the database was restored")
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
