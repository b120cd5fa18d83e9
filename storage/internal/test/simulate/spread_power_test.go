package simulate

import (
	"context"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// hold lets all go on until a call is where it is to stay for long.
func (w *spread) hold(t *testing.T, is func(*stop) bool) (held *stop) {
	t.Helper()
	if !w.drive(func() bool {
		for _, st := range w.ready() {
			if is(st) {
				held = st
				st.until = time.Now().Add(time.Hour)
				return true
			}
		}
		return false
	}) || held == nil {
		t.Fatal("no call comes there")
	}
	return held
}

// until lets all go on until something is so.
func (w *spread) until(t *testing.T, done func() bool) {
	t.Helper()
	if !w.drive(done) || w.found() {
		t.Fatalf("it does not come to an end: %v", w.judge.violation)
	}
}

// staged runs a test on databases that show commits before they are durable. The store s1 is in b,
// and has a key.
func staged(t *testing.T, f func(t *testing.T, w *spread, first, second *member)) {
	cryptotest.SetGlobalRandom(t, 1)
	synctest.Test(t, func(t *testing.T) {
		w := newSpread(t, spreadPlan{Kinds: []string{"mysql", "mysql", "mysql"}})
		w.begin()
		w.request(w.members[admins], "a write", func(ctx context.Context, m *member) error {
			s, release, err := m.pool.Use(ctx, "s1")
			if err != nil {
				return err
			}
			defer release()
			_, err = database.Engine(s).Commit(ctx, contract.Mutation{Key: "/a/0", Expect: contract.Any,
				Value: []byte("heal")})
			return err
		})
		f(t, w, w.members[0], w.members[1])
		if !w.found() {
			w.heal()
		}
		w.end()
		if v := w.judge.violation; v != nil {
			t.Error(v)
		}
	})
}

// move moves s1 to the database c.
var moveS1 = &action{Do: "move", Key: 1, N: 2}

// TestPowerFailureOfAStep: a step of a move is visible, and not durable yet. Another process goes
// on with the move from there. Then the power fails. What the second process has done must not rest
// on a step that is lost.
func TestPowerFailureOfAStep(t *testing.T) {
	for name, step := range map[string]struct {
		// of is the database that fails, and store what is written there.
		of, store string
		// taken tells whether the step is visible, and after whether the second process has gone on
		// with the move from it.
		taken, after func(w *spread, y *story) bool
	}{
		"the row of the directory": {"a", contract.DefaultStore,
			func(w *spread, _ *story) bool { return w.members[0].working },
			func(_ *spread, y *story) bool { return y.place == nil }},
		"the closing of the source": {"b", "s1",
			func(_ *spread, y *story) bool { return y.place == nil },
			func(_ *spread, y *story) bool { return y.place != nil }},
		"the opening of the target": {"c", "s1",
			func(_ *spread, y *story) bool { return y.place != nil && y.place.database == "c" },
			func(w *spread, _ *story) bool { return !w.members[1].working }},
	} {
		t.Run(name, func(t *testing.T) {
			staged(t, func(t *testing.T, w *spread, first, second *member) {
				y := w.judge.stories["s1"]
				first.admin(moveS1)
				w.hold(t, func(st *stop) bool {
					s := st.c.b.s
					return st.c.b.p.id == first.id && st.place == "flush" && s.database == step.of &&
						s.store == step.store && step.taken(w, y)
				})
				second.admin(moveS1)
				w.until(t, func() bool { return step.after(w, y) })
				w.crash(w.databases[step.of])
			})
		})
	}
}

// TestPowerFailureOfAnUndoing: the source was opened again, which is visible and not durable yet.
// Another process goes on with the undoing.
func TestPowerFailureOfAnUndoing(t *testing.T) {
	staged(t, func(t *testing.T, w *spread, first, second *member) {
		y := w.judge.stories["s1"]
		first.admin(moveS1)
		w.until(t, func() bool { return y.place == nil })
		first.kill()
		first.start("a")
		w.until(t, func() bool { return w.up() })
		first.admin(&action{Do: "undo", Key: 1})
		w.hold(t, func(st *stop) bool {
			return st.c.b.p.id == first.id && st.place == "flush" && y.place != nil
		})
		second.admin(&action{Do: "undo", Key: 1})
		w.until(t, func() bool { return !second.working })
		w.crash(w.databases["b"])
	})
}

// TestLateTurn: a process reads how far a move is. Another one goes on until the source is closed,
// and ends. Then the first one takes its turn. It must not write over the record that tells who has
// closed the source.
func TestLateTurn(t *testing.T) {
	staged(t, func(t *testing.T, w *spread, first, second *member) {
		y := w.judge.stories["s1"]
		second.admin(moveS1)
		late := w.hold(t, func(st *stop) bool {
			return st.c.b.p.id == second.id && st.c.method == "Leases" && st.c.b.s.label == "c/s1"
		})
		first.admin(moveS1)
		w.until(t, func() bool { return y.place == nil })
		first.kill()
		late.until = time.Time{}
		w.until(t, func() bool { return !second.working })
	})
}
