package simulate

import (
	"testing"
	"testing/cryptotest"
	"testing/synctest"
)

// TestLostAgainAfterAFence is a loss of history, which one process answers by a fence and another
// one has not noticed yet, and then a second loss: of what was written after the fence. The other
// process finds a fence that is beyond all that it has seen. It must not go over to that: the
// revisions after it were shown by the first process.
func TestLostAgainAfterAFence(t *testing.T) {
	losses := map[string]func(w *world, rows int){
		"failover":      func(w *world, rows int) { w.restore(rows, true, 0) },
		"power failure": func(w *world, _ int) { w.crash(false) },
	}
	for _, kind := range []string{"sqlite", "postgres", "mysql"} {
		for name, lose := range losses {
			if kind == "sqlite" && name == "power failure" {
				continue // it ends all processes
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				cryptotest.SetGlobalRandom(t, 1)
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(plan{Kind: kind, Processes: 2, Relaxed: true})
					lostAgain(t, w, lose)
				})
			})
		}
	}
}

func lostAgain(t *testing.T, w *world, lose func(w *world, rows int)) {
	first, other := w.processes[0], w.processes[1]
	write := func(p *process) {
		p.client(&action{Do: "overwrite", N: 1})
		o := w.judge.ops[len(w.judge.ops)-1]
		w.drive(func() bool { return o.ended })
	}
	first.start()
	other.start()
	w.drive(func() bool { return first.state == up && other.state == up })
	write(first)
	write(other)
	w.s.flush()

	other.paused = true
	lose(w, 0)
	write(first)
	w.settle()
	if r := w.judge.head.parent.row; !r.Marker() {
		t.Fatalf("the row before the head is %+v", r)
	}
	first.paused, other.paused = true, false
	lose(w, 1)
	if r := w.judge.head.row; !r.Marker() {
		t.Fatalf("the head is %+v", r)
	}
	write(other)
	first.paused = false
	w.heal()
	w.end()
	if v := w.judge.violation; v != nil {
		t.Error(v)
	}
}
