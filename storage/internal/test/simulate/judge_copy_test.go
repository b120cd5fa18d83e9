package simulate

import (
	"slices"
	"testing"
	"testing/cryptotest"
	"testing/synctest"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// TestLostGroupComesBack is how a client can be told "nothing was written" of a write that is in
// the log after all, though mvcc is right:
//
//  1. A group is committed and visible, and its answer is lost. A copy of the database is made.
//  2. The database loses the group: MySQL's machine loses power before the commit is durable, or
//     an older copy takes its place. The process notices neither, as it has seen nothing that is
//     gone.
//  3. The process finds no trace of the group, and declares that it never will be done: it records
//     the token. That is true in this history.
//  4. The copy of the first step takes the database's place. It has the group, and not the record.
//  5. The client is told.
//
// Nothing in the copy tells that the record was there, so the judge asks no more than the truth of
// the third step. And it asks that: see node.undone.
func TestLostGroupComesBack(t *testing.T) {
	losses := map[string]func(w *world){
		"a power failure": func(w *world) { w.crash(false) },
		"an older copy":   func(w *world) { w.restore(1, false, 0) },
	}
	requests := map[string]func(*process){
		"creation":  func(p *process) { p.client(&action{Do: "create", N: 1}) },
		"overwrite": func(p *process) { p.client(&action{Do: "overwrite", N: 1}) },
	}
	for loss, lose := range losses {
		for request, begin := range requests {
			t.Run(request+" and "+loss, func(t *testing.T) {
				cryptotest.SetGlobalRandom(t, 1)
				synctest.Test(t, func(t *testing.T) { lostGroupComesBack(t, lose, begin) })
			})
		}
	}
}

func lostGroupComesBack(t *testing.T, lose func(*world), begin func(*process)) {
	w := newWorld(plan{Kind: "mysql", Processes: 1})
	p := w.processes[0]
	p.start()
	w.drive(func() bool { return p.state == up })
	begin(p)
	o := w.judge.ops[0]
	w.driveTo(t, "Commit", "flush")
	w.settle()
	before, copied := w.s.db.Version(), len(w.judge.states)-1
	if len(o.nodes) != 1 {
		t.Fatalf("the log has %d rows of the request", len(o.nodes))
	}
	lose(w)
	w.driveTo(t, "Commit", "request") // the next try
	n := o.nodes[0]
	if v := w.s.db.Version(); n.lost == "" || !slices.Contains(v.Aborted(), n.row.Token) {
		t.Fatalf("the group is lost: %q; recorded as not done are %v", n.lost, v.Aborted())
	}
	w.restore(len(w.judge.states)-1-copied, false, 0)
	if v := w.s.db.Version(); v.State().Head != before.State().Head || n.lost != "" {
		t.Fatalf("the copy is at %+v, and was at %+v", v.State().Head, before.State().Head)
	}
	w.drive(func() bool { return o.ended })
	if !o.refused && len(o.nodes) == 1 {
		t.Error("the request was not answered by its second group")
	}
	w.heal()
	w.end()
	if v := w.judge.violation; v != nil {
		t.Error(v)
	}
}

// driveTo lets the calls go on until the first one of a class is at a place.
func (w *world) driveTo(t *testing.T, class, place string) {
	t.Helper()
	if !w.drive(func() bool {
		return slices.ContainsFunc(w.ready(), func(st *stop) bool {
			return st.c.class == class && st.place == place
		})
	}) {
		t.Fatalf("no %s comes to the %s", class, place)
	}
}

// TestRefusedAndThere shows what the judge does not let pass: the group comes back, and no history
// has the record that it is not done; or the record is there, and the group as well.
func TestRefusedAndThere(t *testing.T) {
	for name, then := range map[string]func(w *world, o *op){
		"it was always there": func(*world, *op) {},
		"it came back": func(w *world, _ *op) {
			copied := len(w.judge.states) - 1
			w.crash(false)
			w.restore(len(w.judge.states)-1-copied, false, 0)
		},
		"it was done after the record": func(w *world, o *op) {
			// As if the group had not looked for its token.
			m := &w.judge.states[len(w.judge.states)-1]
			o.nodes[0].turn = m.turn + 1
			w.judge.declared[o.nodes[0].row.Token] = m.turn
		},
	} {
		t.Run(name, func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, 1)
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(plan{Kind: "mysql", Processes: 1})
				p := w.processes[0]
				p.start()
				w.drive(func() bool { return p.state == up })
				p.client(&action{Do: "create", N: 1})
				w.driveTo(t, "Commit", "flush")
				w.settle()
				o := w.judge.ops[0]
				then(w, o)
				o.end = w.turns.now()
				w.judge.written(o, contract.Outcome{}, mvcc.ErrOtherEra)
				w.end()
				if v := w.judge.violation; v == nil || v.rule != "refused" {
					t.Errorf("the judge says %v", v)
				}
			})
		})
	}
}
