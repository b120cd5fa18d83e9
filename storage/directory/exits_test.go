package directory

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// alone makes a store that belongs to no directory, with a key.
func (w *world) alone(in, name string) contract.Revision {
	w.Helper()
	c, err := w.databases.Config(in, name)
	w.must(err)
	_, err = database.CreateStore(w.ctx, c)
	w.must(err)
	s, err := database.Open(w.ctx, c, nil)
	w.must(err)
	at, err := database.Engine(s).Commit(w.ctx, contract.Mutation{Key: "k", Value: []byte("v")})
	w.must(err)
	w.must(s.Close())
	return at
}

// rebuild rebuilds the directory.
func (w *world) rebuild() {
	w.Helper()
	w.must(w.d.Rebuild(w.ctx, func(s string) { w.Log(s) }))
}

// has checks that a front end that begins now finds the key of a store.
func (w *world) has(name string, at contract.Revision) {
	w.Helper()
	if kv := w.get(w.pool(), name, "k"); kv == nil || kv.Revision != at {
		w.Errorf("%s has %+v, want revision %d", name, kv, at)
	}
}

// TestPlacedOver: a creation in the place of a store that is there already leaves nothing behind,
// and rebuild adds that store.
func TestPlacedOver(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	at := w.alone("a", "blue")
	if _, err := w.d.Create(w.ctx, "blue", "a"); err == nil || !strings.Contains(err.Error(), "rebuild") {
		t.Errorf("a creation over another store: %v", err)
	}
	w.rebuild()
	w.row("blue", Open, "a", 1)
	w.has("blue", at)

	// It was created by hand after the creation had begun, or the directory was lost before.
	endsAt(w.d, "create")
	if _, err := w.d.Create(w.ctx, "red", "a"); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	endsAt(w.d, "")
	at = w.alone("a", "red")
	if _, err := w.d.Create(w.ctx, "red", "a"); err == nil {
		t.Error("a creation over another store")
	}
	w.rebuild()
	w.row("red", Open, "a", 1)
	w.has("red", at)
}

// TestDropRefused: a drop that is refused leaves the store as it was.
func TestDropRefused(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	w.joined()
	if _, err := w.d.Drop(w.ctx, "other"); err == nil {
		t.Error("a store was dropped that keeps the resources of another one")
	}
	w.row("other", Open, "a", 1)
	w.put(w.pool(), "other", "k", "v", 0)
}

// TestUndoingLost: a directory that was lost in the middle of an undoing is rebuilt, and the
// undoing is ended.
func TestUndoingLost(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	written := map[string]contract.Revision{}
	for _, step := range undoSteps {
		_, err := w.d.Create(w.ctx, step, "a")
		w.must(err)
		written[step] = w.put(w.pool(), step, "k", "v", 0)
		endsAt(w.d, "change")
		if _, err := w.d.MoveTo(w.ctx, step, "b", MoveOptions{}); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		endsAt(w.d, step)
		if _, err := w.d.Undo(w.ctx, step); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
	}
	endsAt(w.d, "")
	w.rebuild() // which leaves what is in hand
	w.control.URL = dbtest.Open(t, dbtest.SQLite).URL
	w.d = w.open()
	w.rebuild()
	for _, step := range undoSteps {
		if r, err := w.d.Get(w.ctx, step); err != nil || r.State != Open {
			if _, err := w.d.Undo(w.ctx, step); err != nil {
				t.Errorf("the undoing that had ended at %s, as %s, does not go on: %v", step, r.State, err)
				continue
			}
		}
		w.row(step, Open, "a", 1)
		w.oneOpen(step)
		w.has(step, written[step])
		_, err := w.d.MoveTo(w.ctx, step, "b", MoveOptions{})
		w.must(err)
		w.has(step, written[step])
	}
}

// TestLeftBehind: what a move has begun in a database that could not be reached when the directory
// was rebuilt does not hinder the next move there.
func TestLeftBehind(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	_, err := w.d.Create(w.ctx, "blue", "a")
	w.must(err)
	gone := w.put(w.pool(), "blue", "gone", "v", 0)
	endsAt(w.d, "close")
	if _, err := w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	content, err := os.ReadFile(w.databases.file)
	w.must(err)
	w.must(os.WriteFile(w.databases.file, []byte(strings.Replace(string(content), "\nb ", "\n# ", 1)),
		0o600))
	w.control.URL = dbtest.Open(t, dbtest.SQLite).URL
	w.d = w.open()
	w.rebuild()
	w.row("blue", Open, "a", 1)
	w.must(os.WriteFile(w.databases.file, content, 0o600))
	s, release, err := w.pool().Use(w.ctx, "blue")
	w.must(err)
	_, err = database.Engine(s).Commit(w.ctx, contract.Mutation{Key: "gone", Delete: true, Expect: gone})
	w.must(err)
	release()
	at := w.put(w.pool(), "blue", "k", "v", 0)
	_, err = w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{})
	w.must(err)
	w.row("blue", Open, "b", 2)
	w.oneOpen("blue")
	w.has("blue", at)
	if kv := w.get(w.pool(), "blue", "gone"); kv != nil {
		t.Errorf("what was deleted is back: %+v", kv)
	}
}

// replaced puts a new database in the place of one that was lost.
func (w *world) replaced(name string) {
	w.Helper()
	content, err := os.ReadFile(w.databases.file)
	w.must(err)
	c, err := w.databases.Config(name, "")
	w.must(err)
	db := dbtest.Open(w.T, dbtest.SQLite)
	w.must(os.WriteFile(w.databases.file, []byte(strings.Replace(string(content), name+" "+c.URL,
		name+" "+db.URL, 1)), 0o600))
	c.URL = db.URL
	_, err = database.Migrate(w.ctx, c)
	w.must(err)
}

// TestDatabaseLost: the stores of a database that was lost are restored there, or are dropped and
// placed anew.
func TestDatabaseLost(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	for _, name := range []string{"blue", "red", "green"} {
		_, err := w.d.Create(w.ctx, name, "a")
		w.must(err)
		_, err = w.d.MoveTo(w.ctx, name, "b", MoveOptions{})
		w.must(err)
	}
	w.replaced("b")
	blue := w.alone("b", "blue") // as after a restore
	if err := w.d.Rebuild(w.ctx, func(string) {}); err == nil || !strings.Contains(err.Error(),
		"directory drop red") || strings.Contains(err.Error(), "blue") {
		t.Errorf("rebuilt: %v", err)
	}
	w.row("blue", Open, "b", 2)
	w.has("blue", blue)
	before := w.row("red", Open, "b", 2).Floor
	dropped, err := w.d.Drop(w.ctx, "red")
	w.must(err)
	if !dropped {
		t.Error("a store that is lost was dropped before")
	}
	_, err = w.d.Create(w.ctx, "red", "c")
	w.must(err)
	w.row("red", Open, "c", 3)
	if at := w.put(w.pool(), "red", "k", "v", 0); int64(at) <= before {
		t.Errorf("a new history begins at %d, and the floor is %d", at, before)
	}
}

// TestNeverWritten: a move that was killed when it had made the store of its target, and no more,
// does not keep a directory from being rebuilt.
func TestNeverWritten(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	_, err := w.d.Create(w.ctx, "blue", "a")
	w.must(err)
	at := w.put(w.pool(), "blue", "k", "v", 0)
	c, err := w.databases.Config("b", "blue")
	w.must(err)
	w.must(database.EnsureStore(w.ctx, c))
	w.control.URL = dbtest.Open(t, dbtest.SQLite).URL
	w.d = w.open()
	w.rebuild()
	w.row("blue", Open, "a", 1)
	_, err = w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{})
	w.must(err)
	w.oneOpen("blue")
	w.has("blue", at)
}

// TestDrainArrivals: a database is not drained while a store is on the way there.
func TestDrainArrivals(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	_, err := w.d.Create(w.ctx, "blue", "a")
	w.must(err)
	endsAt(w.d, "close")
	if _, err := w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	endsAt(w.d, "")
	if err := w.d.Drain(w.ctx, "b", MoveOptions{}, func(string, string, Moved) {}); err == nil ||
		!strings.Contains(err.Error(), "--undo") {
		t.Errorf("drained a database to which a store is moved: %v", err)
	}
}

// TestOtherGeneration: a store that is not what the directory says is not moved, and nothing is
// begun.
func TestOtherGeneration(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	_, err := w.d.Create(w.ctx, "blue", "a")
	w.must(err)
	_, err = w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{})
	w.must(err)
	w.replaced("b")
	at := w.alone("b", "blue")
	if _, err := w.d.MoveTo(w.ctx, "blue", "c", MoveOptions{}); err == nil || !strings.Contains(err.Error(),
		"rebuild") {
		t.Errorf("a store of another generation was moved: %v", err)
	}
	w.row("blue", Open, "b", 2)
	w.rebuild()
	_, err = w.d.MoveTo(w.ctx, "blue", "c", MoveOptions{})
	w.must(err)
	w.has("blue", at)
}

// TestSwapped: a line of the file with its fields swapped shows no password.
func TestSwapped(t *testing.T) {
	file := t.TempDir() + "/databases"
	w := &world{T: t}
	w.must(os.WriteFile(file, []byte("postgres://u:secret@h/d a\n"), 0o600))
	if _, err := ReadDatabases(file, Config{}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

// TestUndoneForGood: what was undone leaves an empty target and a source that is fenced. That move
// never changes either of them again, wherever its process slept.
func TestUndoneForGood(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	for _, step := range []string{"begin", "close", "change"} {
		_, err := w.d.Create(w.ctx, step, "a")
		w.must(err)
		p := w.pool()
		at := w.put(p, step, "k", "v", 0)
		w.must(p.Close()) // a front end would fence by itself what was not
		endsAt(w.d, step)
		if _, err := w.d.MoveTo(w.ctx, step, "b", MoveOptions{}); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		endsAt(w.d, "")
		r, err := w.d.Get(w.ctx, step)
		w.must(err)
		source := w.backend("a", step)
		before, err := source.State(w.ctx)
		w.must(err)
		_, err = w.d.Undo(w.ctx, step)
		w.must(err)
		target := w.backend("b", step)
		if err := contract.CloseFor(w.ctx, source, r.source()); !errors.Is(err, contract.ErrUndone) {
			t.Errorf("a move that was undone at %s closes its source: %v", step, err)
		}
		if _, err := contract.TakeFill(w.ctx, target, []byte("{}"), 0, r.target()); !errors.Is(err,
			contract.ErrUndone) {
			t.Errorf("a move that was undone at %s fills its target: %v", step, err)
		}
		st, err := source.State(w.ctx)
		w.must(err)
		if step == "change" && (st.Head.Epoch <= -before.Head.Epoch || st.Compacted != st.Head.Revision ||
			st.Head.Revision <= before.Head.Revision+1000) {
			t.Errorf("the source was at %+v when it was closed, and is opened at %+v", before, st)
		}
		h, st, err := contract.ReadHome(w.ctx, target)
		w.must(err)
		if u, _, err := target.Usage(w.ctx); err != nil || !st.Dropped() || u.Objects != 0 ||
			h.Generation != 0 {
			t.Errorf("after an undoing at %s the target holds %+v, with the home %+v, %v", step, u, h, err)
		}
		w.oneOpen(step)
		w.has(step, at)
	}
}
