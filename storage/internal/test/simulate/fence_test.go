package simulate

import (
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
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

// TestFoundAfterAFence is a group whose answer is lost. Before its process looks for it, another
// process fences. The rows are found, and the writer is told. Then the rows and the fence are lost,
// and neither the fingerprint nor the boot tells. The process must not answer from before its own
// write.
func TestFoundAfterAFence(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, 1)
			synctest.Test(t, func(t *testing.T) {
				foundAfterAFence(t, newWorld(plan{Kind: kind, Processes: 2}))
			})
		})
	}
}

func foundAfterAFence(t *testing.T, w *world) {
	writer, other := w.processes[0], w.processes[1]
	writer.start()
	other.start()
	w.drive(func() bool { return writer.state == up && other.state == up })

	// only lets the calls of one process and one class go on, until done.
	only := func(p *process, class string, done func() bool) {
		t.Helper()
		for range 1000 {
			w.settle()
			if done() {
				return
			}
			w.turns.next()
			ready := w.ready()
			if len(ready) == 0 {
				<-time.After(5 * time.Millisecond)
			}
			for _, st := range ready {
				if st.c.b.p == &p.peer && (st.c.class == class || class == "") {
					w.meet(st)
					w.settle()
				}
			}
		}
		t.Fatal("it does not come to an end")
	}
	before := w.judge.head
	w.faults = append(w.faults, &action{Do: "fault", What: "no answer", Method: "Commit"})
	writer.client(&action{Do: "overwrite", N: 1})
	write := w.judge.ops[len(w.judge.ops)-1]
	only(writer, "Commit", func() bool { return len(w.faults) == 0 })
	if w.judge.head.parent != before {
		t.Fatalf("the head is %+v", w.judge.head.row)
	}
	other.client(&action{Do: "fence", N: 1})
	fence := w.judge.ops[len(w.judge.ops)-1]
	only(other, "", func() bool { return fence.ended })
	only(writer, "Locked", func() bool { return write.ended })

	back := len(w.judge.states) - 1
	for w.judge.states[back].head != before {
		back--
	}
	w.restore(len(w.judge.states)-1-back, false, 0)
	if w.judge.head != before {
		t.Fatalf("the head is %+v", w.judge.head.row)
	}
	writer.client(&action{Do: "get", N: 1})
	get := w.judge.ops[len(w.judge.ops)-1]
	w.drive(func() bool { return get.ended })
	w.heal()
	w.end()
	if v := w.judge.violation; v != nil {
		t.Error(v)
	}
}
