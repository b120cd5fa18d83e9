package directory

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// endsAt makes what a directory does end at a step, as if the process did.
func endsAt(d *Directory, step string) {
	d.at = func(at string) error {
		if at == step {
			return errKilled
		}
		return nil
	}
}

// steps are those of a move in their order, and of its undoing.
var (
	moveSteps = []string{"begin", "close", "change", "open", "erase", "end"}
	undoSteps = []string{"empty", "reopen", "undone"}
)

// TestKills: a move that has ended at any step goes on when it is run again, or is undone if the
// directory was not changed; and so does an undoing.
func TestKills(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel() // it waits most of the time
			w := newWorld(t, of(kind)...)
			second := w.open()
			for i, step := range moveSteps {
				name := "s-" + step
				_, err := w.d.Create(w.ctx, name, "a")
				w.must(err)
				p := w.pool()
				at := w.put(p, name, "k", "v", 0)
				endsAt(second, step)
				if _, err := second.MoveTo(w.ctx, name, "b", MoveOptions{}); !errors.Is(err, errKilled) {
					t.Fatalf("a move that ends at %s: %v", step, err)
				}
				if opened, err := w.d.Undo(w.ctx, name); i < 3 { // the directory was not changed
					w.must(err)
					if opened != (step == "change") {
						t.Errorf("undone at %s: opened %t", step, opened)
					}
					w.row(name, Open, "a", 1)
					w.oneOpen(name)
					at = w.put(p, name, "k", "after the undoing", at)
					endsAt(second, step)
					if _, err := second.MoveTo(w.ctx, name, "b", MoveOptions{}); !errors.Is(err, errKilled) {
						t.Fatalf("a second move that ends at %s: %v", step, err)
					}
				} else if err == nil {
					t.Errorf("a move was undone at %s", step)
				}
				if _, err := w.d.MoveTo(w.ctx, name, "c", MoveOptions{}); err == nil {
					t.Errorf("a move at %s was led elsewhere", step)
				}
				if _, err := w.d.MoveTo(w.ctx, name, "b", MoveOptions{}); err != nil {
					t.Fatalf("a move that has ended at %s does not go on: %v", step, err)
				}
				w.row(name, Open, "b", 2)
				w.oneOpen(name)
				if kv := w.get(p, name, "k"); kv == nil || kv.Revision != at {
					t.Errorf("the key is %+v after an end at %s, want revision %d", kv, step, at)
				}
			}
			for _, step := range undoSteps {
				name := "u-" + step
				_, err := w.d.Create(w.ctx, name, "a")
				w.must(err)
				endsAt(second, "change")
				_, err = second.MoveTo(w.ctx, name, "b", MoveOptions{})
				endsAt(second, step)
				if _, undoing := second.Undo(w.ctx, name); !errors.Is(err, errKilled) ||
					!errors.Is(undoing, errKilled) {
					t.Fatalf("ended at %s: %v, %v", step, err, undoing)
				}
				if _, err := w.d.MoveTo(w.ctx, name, "b", MoveOptions{}); err == nil {
					t.Error("a move goes on that is being undone")
				}
				if _, err := w.d.Undo(w.ctx, name); err != nil {
					t.Fatalf("an undoing that has ended at %s does not go on: %v", step, err)
				}
				w.row(name, Open, "a", 1)
				w.oneOpen(name)
			}
		})
	}
}

// TestSleeper: a move that slept while it was undone does nothing any more, wherever it slept.
func TestSleeper(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	for _, step := range []string{"begin", "close", "change"} {
		name := "s-" + step
		_, err := w.d.Create(w.ctx, name, "a")
		w.must(err)
		wake := w.sleepAt(name, "b", step)
		_, err = w.d.Undo(w.ctx, name)
		w.must(err)
		p := w.pool()
		at := w.put(p, name, "k", "v", 0)
		if err := wake(); err == nil {
			t.Errorf("a move that slept at %s has ended", step)
		}
		w.oneOpen(name)
		if kv := w.get(p, name, "k"); kv == nil || kv.Revision != at {
			t.Errorf("the key is %+v, want revision %d", kv, at)
		}
		_, err = w.d.MoveTo(w.ctx, name, "b", MoveOptions{})
		w.must(err)
		w.oneOpen(name)
	}
}

// sleepAt makes a move of a store sleep at a step. It returns what wakes it and waits for its end.
func (w *world) sleepAt(name, to, step string) (wake func() error) {
	w.Helper()
	d, waked, ended, slept := w.open(), make(chan struct{}), make(chan error, 1), make(chan struct{})
	d.at = func(at string) error {
		if at == step {
			close(slept)
			<-waked
		}
		return nil
	}
	go func() {
		_, err := d.MoveTo(w.ctx, name, to, MoveOptions{})
		ended <- err
	}()
	<-slept
	return func() error {
		close(waked)
		return <-ended
	}
}

// TestLate: a move that slept until another process had ended it, and while the store has moved on,
// does nothing any more.
func TestLate(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	p := w.pool()
	for _, step := range []string{"begin", "close", "change", "open", "erase", "end"} {
		name := "s-" + step
		_, err := w.d.Create(w.ctx, name, "a")
		w.must(err)
		at := w.put(p, name, "k", "v", 0)
		wake := w.sleepAt(name, "b", step)
		_, err = w.d.MoveTo(w.ctx, name, "b", MoveOptions{})
		w.must(err)
		at = w.put(p, name, "k", "w", at)
		// Back to where it was, and all is there but the last step.
		endsAt(w.d, "open")
		if _, err := w.d.MoveTo(w.ctx, name, "a", MoveOptions{}); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		endsAt(w.d, "")
		if err := wake(); err == nil {
			t.Errorf("a move that slept at %s has ended", step)
		}
		_, err = w.d.MoveTo(w.ctx, name, "a", MoveOptions{})
		w.must(err)
		w.row(name, Open, "a", 3)
		w.oneOpen(name)
		if kv := w.get(p, name, "k"); kv == nil || kv.Revision != at {
			t.Errorf("after a sleep at %s the key is %+v, want revision %d", step, kv, at)
		}
	}
}

// TestEmptied: the late undoing and the late beginning of an earlier move do nothing to a store,
// whether it is the target of a later one or its source.
func TestEmptied(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	_, err := w.d.Create(w.ctx, "blue", "a")
	w.must(err)
	at := w.put(w.pool(), "blue", "k", "v", 0)
	endsAt(w.d, "change")
	if _, err := w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	earlier := contract.Home{Generation: 2, Move: "earlier", Attempt: 1, From: "a"}
	late := func() {
		b := w.backend("b", "blue")
		w.must(contract.EmptyFor(w.ctx, b, earlier))
		if _, err := contract.TakeFill(w.ctx, b, []byte("{}"), 0, earlier); !errors.Is(err, contract.ErrUndone) {
			t.Errorf("an earlier move that begins late: %v", err)
		}
	}
	late()
	endsAt(w.d, "")
	_, err = w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{})
	w.must(err)
	// The source of the next move has the generation that the target of the earlier one had.
	endsAt(w.d, "change")
	if _, err := w.d.MoveTo(w.ctx, "blue", "c", MoveOptions{}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	late()
	endsAt(w.d, "")
	_, err = w.d.MoveTo(w.ctx, "blue", "c", MoveOptions{})
	w.must(err)
	late()
	w.oneOpen("blue")
	if kv := w.get(w.pool(), "blue", "k"); kv == nil || kv.Revision != at {
		t.Errorf("the key is %+v, want revision %d", kv, at)
	}
}

// TestOutcomeAtSource: a group whose outcome was unknown when its store was closed is found there,
// as long as the source has its rows. One that is not there is never called "not done".
func TestOutcomeAtSource(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			w := newWorld(t, of(kind)...)
			_, err := w.d.Create(w.ctx, "blue", "a")
			w.must(err)
			b := w.backend("a", "blue")
			st, err := b.State(w.ctx)
			w.must(err)
			g := &contract.Group{Token: contract.NewToken(), Seen: st.Head, Mutations: []*contract.Mutation{
				{Key: "k", Value: []byte("v")}}}
			_, err = b.Commit(w.ctx, g)
			w.must(err)
			endsAt(w.d, "erase")
			if _, err := w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{}); !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			if r, err := contract.ResolveGroup(w.ctx, b, g.Token, g.Seen); err != nil || !r.Committed ||
				r.Aborted {
				t.Errorf("the group is %+v, %v", r, err)
			}
			if r, err := contract.ResolveGroup(w.ctx, b, contract.NewToken(), g.Seen); err != nil ||
				r.Committed || r.Aborted {
				t.Errorf("a group that is not there is %+v, %v", r, err)
			}
			endsAt(w.d, "")
			_, err = w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{})
			w.must(err)
			if r, err := contract.ResolveGroup(w.ctx, b, g.Token, g.Seen); err != nil || r.Committed ||
				r.Aborted {
				t.Errorf("a group that was erased is %+v, %v", r, err)
			}
		})
	}
}

// TestKinds: a store moves through all kinds of databases, by the same steps.
func TestKinds(t *testing.T) {
	w := newWorld(t, dbtest.SQLite, dbtest.Postgres, dbtest.MariaDB, dbtest.MySQL, dbtest.SQLite)
	_, err := w.d.Create(w.ctx, "blue", "d")
	w.must(err)
	p := w.pool()
	written := map[string]contract.Revision{}
	for i := range 20 {
		key := fmt.Sprint("k", i)
		written[key] = w.put(p, "blue", key, strings.Repeat("v", i), 0)
	}
	last := int64(0)
	for i, to := range []string{"a", "b", "c", "d", "b", "a"} {
		m, err := w.d.MoveTo(w.ctx, "blue", to, MoveOptions{})
		w.must(err)
		for _, key := range slices.Sorted(maps.Keys(written)) {
			if kv := w.get(p, "blue", key); kv == nil || kv.Revision != written[key] {
				t.Errorf("in %s the key %s is %+v, want revision %d", to, key, kv, written[key])
			}
		}
		if m.Head <= last {
			t.Errorf("in %s the history begins at %d, after %d", to, m.Head, last)
		}
		key := fmt.Sprint("k", i)
		written[key] = w.put(p, "blue", key, to, written[key])
		last = int64(written[key])
	}
}

// TestRebuilt: what a directory has to say, by what databases have of a name.
func TestRebuilt(t *testing.T) {
	open, closed := contract.State{Head: contract.Position{Epoch: 1, Revision: 9}},
		contract.State{Head: contract.Position{Epoch: -1, Revision: 9}}
	for _, test := range []struct {
		name string
		all  []found
		want string
	}{
		{"an ordinary store", []found{{"a", contract.Home{}, open}}, "open a 1"},
		{"two of them", []found{{"a", contract.Home{}, open}, {"b", contract.Home{}, open}}, "error"},
		{"moved", []found{{"a", contract.Home{Generation: 1, Move: "m", To: "b"}, closed},
			{"b", contract.Home{Generation: 2, Move: "m", From: "a"}, open}}, "open b 2"},
		{"a source that was set back", []found{{"a", contract.Home{Generation: 1}, open},
			{"b", contract.Home{Generation: 2, Move: "m", From: "a"}, open}}, "open b 2, stale a"},
		{"copied", []found{{"a", contract.Home{Generation: 1}, open},
			{"b", contract.Home{Generation: 2, Move: "m", From: "a"}, closed}}, "moving a 1 to b"},
		{"closed", []found{{"b", contract.Home{Generation: 2, Move: "m", From: "a"}, closed},
			{"a", contract.Home{Generation: 1, Move: "m", To: "b"}, closed}}, "moving a 1 to b"},
		{"emptied", []found{{"b", contract.Home{Undone: "m"}, closed},
			{"a", contract.Home{Generation: 1, Move: "m", To: "b"}, closed}}, "undoing a 1 to b"},
		{"emptied by another one", []found{{"b", contract.Home{Undone: "l"}, closed},
			{"a", contract.Home{Generation: 1, Move: "m", To: "b"}, closed}}, "error"},
		{"another one of the name", []found{{"a", contract.Home{Generation: 3, Move: "m"}, closed},
			{"b", contract.Home{}, open}}, "open b 4"},
		{"the target is another one", []found{{"a", contract.Home{Generation: 1, Move: "m", To: "b"}, closed},
			{"b", contract.Home{}, open}}, "error"},
		{"undone", []found{{"b", contract.Home{Undone: "m"}, closed},
			{"a", contract.Home{Generation: 1, Undone: "m"}, open}}, "open a 1"},
		{"the target is lost", []found{{"a", contract.Home{Generation: 1, Move: "m", To: "b"}, closed}},
			"error"},
		{"the source is lost", []found{{"b", contract.Home{Generation: 2, Move: "m", From: "a"}, closed}},
			"error"},
		{"dropped", []found{{"a", contract.Home{Generation: 3, Move: "m"}, closed},
			{"b", contract.Home{Generation: 2, Move: "l", To: "a"}, closed}}, "dropped a 3"},
		{"dropped by hand", []found{{"a", contract.Home{}, closed}}, ""},
		{"one is older than the directory", []found{{"a", contract.Home{}, open},
			{"b", contract.Home{Generation: 1}, open}}, "error"},
	} {
		r, stale, err := rebuilt("blue", Row{}, test.all)
		is := strings.TrimSpace(fmt.Sprintf("%s %s", r.State, r.Database))
		if r.Generation > 0 {
			is += fmt.Sprint(" ", r.Generation)
		}
		if r.To != "" {
			is += " to " + r.To
		}
		for _, s := range stale {
			is += ", stale " + s.database
		}
		if err != nil {
			is = "error"
		} else if r.State != "" {
			if err := r.check(); err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
		}
		if is != test.want {
			t.Errorf("%s: %q, %v, want %q", test.name, is, err, test.want)
		}
	}
}

// TestRebuild: a directory that is lost in the middle of moves is rebuilt from the databases, and
// the moves go on.
func TestRebuild(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel() // it waits most of the time
			w := newWorld(t, of(kind)...)
			p := w.pool()
			names := append(slices.Clone(moveSteps), "stays", "gone")
			revisions := map[string]contract.Revision{}
			for _, name := range names {
				_, err := w.d.Create(w.ctx, name, "a")
				w.must(err)
				revisions[name] = w.put(p, name, "k", "v", 0)
				if name == "stays" {
					continue
				}
				if endsAt(w.d, name); name == "gone" {
					_, err = w.d.Drop(w.ctx, name)
					w.must(err)
				} else if _, err := w.d.MoveTo(w.ctx, name, "b", MoveOptions{}); !errors.Is(err, errKilled) {
					t.Fatal(err)
				}
			}
			c, err := w.databases.Config("c", "old")
			w.must(err)
			_, err = database.CreateStore(w.ctx, c)
			w.must(err)
			w.control.URL = dbtest.Open(t, kind).URL
			w.d = w.open()
			p = w.pool()
			var told []string
			w.must(w.d.Rebuild(w.ctx, func(s string) { told = append(told, s) }))
			if len(told) != len(names)+1 {
				t.Errorf("told %q", told)
			}
			if err := w.d.Rebuild(w.ctx, func(s string) { t.Errorf("again: %s", s) }); err != nil {
				t.Error(err)
			}
			w.row("stays", Open, "a", 1)
			w.row("gone", Dropped, "a", 1)
			w.row("old", Open, "c", 1)
			for _, name := range moveSteps {
				r, err := w.d.Get(w.ctx, name)
				w.must(err)
				if _, err := w.d.MoveTo(w.ctx, name, "b", MoveOptions{}); err != nil {
					t.Errorf("the move that had ended at %s, as %s, does not go on: %v", name, r.State, err)
					continue
				}
				w.row(name, Open, "b", 2)
				w.oneOpen(name)
				if kv := w.get(p, name, "k"); kv == nil || kv.Revision != revisions[name] {
					t.Errorf("%s has %+v", name, kv)
				}
			}
			_, err = w.d.MoveTo(w.ctx, "old", "a", MoveOptions{})
			w.must(err)
			var drained []string
			w.must(w.d.Drain(w.ctx, "a", MoveOptions{}, func(name, to string, _ Moved) {
				drained = append(drained, name)
			}))
			if slices.Sort(drained); !slices.Equal(drained, []string{"old", "stays"}) {
				t.Errorf("drained %q", drained)
			}
			loads, err := w.d.Loads(w.ctx)
			w.must(err)
			for _, l := range loads {
				if (l.Stores == 0) != (l.Database == "a") || l.Bytes == 0 {
					t.Errorf("the loads are %+v", loads)
				}
			}
		})
	}
}

// TestSetBack: a front end does not use a store whose database or whose directory was set back.
func TestSetBack(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	_, err := w.d.Create(w.ctx, "blue", "a")
	w.must(err)
	r := w.row("blue", Open, "a", 1)
	_, err = w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{})
	w.must(err)
	_, err = w.d.MoveTo(w.ctx, "blue", "a", MoveOptions{})
	w.must(err)
	now := w.row("blue", Open, "a", 3)
	r.revision = now.revision
	_, err = w.d.write(w.ctx, r) // as a backup of the directory has it
	w.must(err)
	if _, _, err := w.pool().Use(w.ctx, "blue"); err == nil || !strings.Contains(err.Error(), "rebuild") {
		t.Errorf("a store of another generation: %v", err)
	}
	w.must(w.d.Rebuild(w.ctx, func(string) {}))
	w.row("blue", Open, "a", 3)
	w.put(w.pool(), "blue", "k", "v", 0)
}

// joined makes the store "blue" in the database "a", which keeps its leases in the store "other".
func (w *world) joined() {
	w.Helper()
	for _, name := range []string{"blue", "other"} {
		_, err := w.d.Create(w.ctx, name, "a")
		w.must(err)
	}
	c, err := w.databases.Config("a", "blue")
	w.must(err)
	s, err := database.Open(w.ctx, c, map[string]string{"leases": "other"})
	w.must(err)
	_, err = database.EngineFor(s, "leases", "/registry", "/registry/leases/")
	w.must(err)
	w.must(s.Close())
}

// TestRefused: what cannot move alone is refused before anything is done.
func TestRefused(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	w.joined()
	for _, name := range []string{"blue", "other"} {
		if _, err := w.d.MoveTo(w.ctx, name, "b", MoveOptions{}); err == nil ||
			!strings.Contains(err.Error(), "rowkeeper stores move leases --to blue") {
			t.Errorf("a move of %q: %v", name, err)
		}
		w.row(name, Open, "a", 1)
	}
	_, err := w.d.Create(w.ctx, "red", "a")
	w.must(err)
	if _, err := w.d.MoveTo(w.ctx, "red", "nowhere", MoveOptions{}); err == nil {
		t.Error("a move to a database without a URL")
	}
	c, err := w.databases.Config("b", "red")
	w.must(err)
	_, err = database.CreateStore(w.ctx, c)
	w.must(err)
	other, err := database.Open(w.ctx, c, nil)
	w.must(err)
	_, err = database.Engine(other).Commit(w.ctx, contract.Mutation{Key: "mine"})
	w.must(err)
	w.must(other.Close())
	if _, err := w.d.MoveTo(w.ctx, "red", "b", MoveOptions{}); !errors.Is(err, contract.ErrNotNew) {
		t.Errorf("a move onto another store: %v", err)
	}
	_, err = w.d.Undo(w.ctx, "red")
	w.must(err)
	if kv := w.get(w.pool(), "red", "k"); kv != nil {
		t.Errorf("%+v", kv)
	}
	c.Store = "red"
	if u, _, err := database.MeasureStore(w.ctx, c); err != nil || u.Objects != 1 {
		t.Errorf("the other store has %+v, %v", u, err)
	}
	c, err = w.databases.Config("a", "red")
	w.must(err)
	if _, err := database.DropStore(w.ctx, c); !errors.Is(err, contract.ErrOfDirectory) {
		t.Errorf("a drop beside the directory: %v", err)
	}
	for _, name := range []string{"default", "No_Name"} {
		if _, err := w.d.Create(w.ctx, name, "a"); err == nil {
			t.Errorf("a store %q was created", name)
		}
	}
}

// TestDatabases: what the file may hold, and no error shows a password.
func TestDatabases(t *testing.T) {
	file := t.TempDir() + "/databases"
	for content, want := range map[string]string{
		"a sqlite:a.db\nb postgres://u:secret@h/d\n": "",
		"a sqlite:a.db b\n":                          "3 fields",
		"a postgres://u:secret@h/d\na sqlite:b.db":   "twice",
		"A postgres://u:secret@h/d":                  "comes before its URL",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := ReadDatabases(file, Config{})
		if want == "" && err == nil {
			if _, err = d.Config("c", "x"); err == nil {
				t.Error("there is a database c")
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
}
