package sqlite

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// copyFile copies a file that no process has open.
func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// moving is an open store whose file is about to be moved, with the fingerprint recorded as a
// server does, a copy from the past, and writes after the copy.
type moving struct {
	*testing.T
	b          *backend
	path, copy string
	filler     filler
	// copied is the head that the copy has.
	copied contract.Position
}

func newMoving(t *testing.T) *moving {
	t.Helper()
	ctx := context.Background()
	m := &moving{T: t, path: filepath.Join(t.TempDir(), "state.db")}
	m.copy = m.path + ".copy"
	url := "sqlite://" + m.path
	migrate(t, url)
	b := open(t, url)
	id, err := b.Identity(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := contract.RecordFingerprint(ctx, b, id.Actual); err != nil {
		t.Fatal(err)
	}
	m.filler = filler{store: b, value: []byte("before the copy")}
	m.filler.grow(t, 300)
	m.copied = m.filler.seen
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	copyFile(t, m.path, m.copy)
	m.b = open(t, url).(*backend)
	t.Cleanup(func() { m.b.Close() })
	m.filler.store, m.filler.value = m.b, []byte("after the copy")
	m.filler.update(t, 100)
	return m
}

// operations are the backend's operations, each of which has to notice.
func (m *moving) operations() map[string]func() error {
	ctx := context.Background()
	b := m.b
	return map[string]func() error{
		"State": func() error { _, err := b.State(ctx); return err },
		"Get":   func() error { _, _, err := b.Get(ctx, "k"); return err },
		"Page": func() error {
			_, err := b.Page(ctx, contract.PageQuery{Start: "a", End: "z", Limit: 10})
			return err
		},
		"Tail": func() error {
			_, err := b.Tail(ctx, 1, 10, contract.PrevOfAll)
			return err
		},
		"Changed": func() error { _, err := b.Changed(ctx); return err },
		"Count":   func() error { _, _, err := b.Count(ctx, "a", "z", 0, 0); return err },
		"Values": func() error {
			_, _, err := b.Values(ctx, []contract.Revision{1})
			return err
		},
		"Expired": func() error { _, _, err := b.Expired(ctx, 10); return err },
		"FirstAt": func() error { _, err := b.FirstAt(ctx, 1); return err },
		"Compact": func() error { _, err := contract.RaiseCompacted(ctx, b, 1); return err },
		"Sweep":   func() error { _, _, err := contract.SweepBatch(ctx, b, 10); return err },
		"Resolve": func() error {
			_, err := contract.ResolveGroup(ctx, b, newToken(), m.filler.seen)
			return err
		},
		"RecordFingerprint": func() error { return contract.RecordFingerprint(ctx, b, "x") },
		"Size":              func() error { _, err := b.Size(ctx); return err },
		"Snapshot": func() error {
			return b.Snapshot(ctx, func(context.Context, contract.Snapshot) error { return nil })
		},
		"Commit": func() error {
			_, err := b.Commit(ctx, &contract.Group{Token: newToken(), Seen: m.filler.seen,
				Mutations: []*contract.Mutation{{Key: "new", Value: []byte("v")}}})
			return err
		},
	}
}

// fence does what the store does when it is told that the history is another one.
func (m *moving) fence() contract.State {
	m.Helper()
	ctx := context.Background()
	id, err := m.b.Identity(ctx)
	if err != nil {
		m.Fatal(err)
	}
	if id.Recorded == id.Actual {
		m.Errorf("the fingerprint of the other file is %q, as it was recorded", id.Actual)
	}
	st, err := contract.StartEpoch(ctx, m.b, contract.Fence{Seen: m.filler.seen, Token: newToken(),
		Jump: 1 << 32, Fingerprint: id.Actual})
	if err != nil {
		m.Fatal(err)
	}
	if st.Head.Epoch != m.filler.seen.Epoch+1 || st.Head.Revision != m.filler.seen.Revision+1<<32 {
		m.Errorf("the state after the fence is %+v, and %+v was seen before", st, m.filler.seen)
	}
	return st
}

// mustBe checks a key's value through the backend.
func mustBe(t *testing.T, b contract.Backend, key contract.Key, want string) {
	t.Helper()
	row, _, err := b.Get(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(row.Value); got != want {
		t.Errorf("key %q has the value %q, want %q", key, got, want)
	}
}

// TestReplaced puts a copy from the past in the place of the open file.
func TestReplaced(t *testing.T) {
	for name := range (&moving{}).operations() {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			if err := m.operations()["Changed"](); err != nil {
				t.Fatal(err)
			}
			if size := m.b.walSize(); size == 0 {
				t.Fatal("there is no write-ahead log to mix up")
			}
			rename(t, m.path, m.path+".old")
			rename(t, m.copy, m.path)
			oneSentence(t, m.operations()[name](), contract.Fenced, m.path, "replaced")
			// Until it is fenced, nothing is answered from the other file.
			for name, op := range m.operations() {
				if err := op(); contract.ClassOf(err) != contract.Fenced || err == nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			m.fence()
			// The other file has its own content, not pages of the old one's log, and takes writes.
			mustBe(t, m.b, m.filler.keys[0], "before the copy")
			st, err := m.b.State(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			m.filler.seen = st.Head
			m.filler.commit(t, []*contract.Mutation{{Key: "new", Value: []byte("v")}})
			checkWhole(t, m.path)
			// The old file is complete.
			checkWhole(t, m.path+".old")
			old := open(t, "sqlite://"+m.path+".old")
			defer old.Close()
			mustBe(t, old, m.filler.keys[0], "after the copy")
		})
	}
}

// checkWhole checks the structure of a file.
func checkWhole(t *testing.T, path string) {
	t.Helper()
	if got := sqlQuery(t, path, "PRAGMA integrity_check"); got != "ok" {
		t.Errorf("%s is damaged: %s", path, got)
	}
	if got := sqlQuery(t, path, selectDamage); got != "0" {
		t.Errorf("%s has lost a value", path)
	}
}

func TestRemoved(t *testing.T) {
	ctx := context.Background()
	m := newMoving(t)
	if err := os.Remove(m.path); err != nil {
		t.Fatal(err)
	}
	oneSentence(t, m.operations()["Get"](), contract.Fenced, m.path, "replaced or removed")
	for name, op := range m.operations() {
		if err := op(); contract.ClassOf(err) != contract.Invalid ||
			!strings.Contains(err.Error(), "there is no database file "+m.path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Somebody restores a copy: from here on it is as if the file had been replaced.
	rename(t, m.copy, m.path)
	for name, op := range m.operations() {
		if err := op(); contract.ClassOf(err) != contract.Fenced || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.fence()
	mustBe(t, m.b, m.filler.keys[0], "before the copy")
	if _, err := m.b.State(ctx); err != nil {
		t.Error(err)
	}
}

// TestReplacedByVacuumed puts a copy in the file's place that is not in WAL mode, as VACUUM INTO
// makes it: nobody migrates a file that servers serve.
func TestReplacedByVacuumed(t *testing.T) {
	m := newMoving(t)
	if mode := sqlQuery(t, m.copy, "PRAGMA journal_mode = DELETE"); mode != "delete" {
		t.Fatalf("the copy is in journal mode %q", mode)
	}
	rename(t, m.copy, m.path)
	for name, op := range m.operations() {
		if err := op(); contract.ClassOf(err) != contract.Fenced || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.fence()
	mustBe(t, m.b, m.filler.keys[0], "before the copy")
	if mode := sqlQuery(t, m.path, "PRAGMA journal_mode"); mode != "wal" {
		t.Errorf("the file is in journal mode %q", mode)
	}
}

// TestMovedAwayAndBack: the file itself comes back, so its history is the same.
func TestMovedAwayAndBack(t *testing.T) {
	m := newMoving(t)
	rename(t, m.path, m.path+".old")
	oneSentence(t, m.operations()["State"](), contract.Fenced, m.path)
	oneSentence(t, m.operations()["State"](), contract.Invalid, "there is no database file "+m.path)
	rename(t, m.path+".old", m.path)
	for name, op := range m.operations() {
		if err := op(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	mustBe(t, m.b, m.filler.keys[0], "after the copy")
}

func TestReplacedByAnotherStore(t *testing.T) {
	m := newMoving(t)
	another := m.path + ".another"
	filled(t, another, 3)
	rename(t, m.path, m.path+".old")
	rename(t, another, m.path)
	oneSentence(t, m.operations()["Get"](), contract.Fenced, m.path)
	for range 2 {
		oneSentence(t, m.operations()["Get"](), contract.Invalid, "one of another store",
			"put the right file back")
	}
	writeFile(t, another, "no database")
	rename(t, another, m.path)
	oneSentence(t, m.operations()["Get"](), contract.Invalid, "is not a SQLite database")
	rename(t, m.path+".old", m.path)
	if err := m.operations()["Get"](); err != nil {
		t.Error(err)
	}
}

// TestAnotherStoreIsNotTouched: what was put in the file's place by mistake is what it was when it
// is taken away again, also where a copy of ours would be changed to WAL mode.
func TestAnotherStoreIsNotTouched(t *testing.T) {
	for _, mode := range []string{"wal", "delete"} {
		t.Run(mode, func(t *testing.T) {
			m := newMoving(t)
			another := m.path + ".another"
			filled(t, another, 3)
			if got := sqlQuery(t, another, "PRAGMA journal_mode = "+mode); got != mode {
				t.Fatalf("the other file is in journal mode %q", got)
			}
			before, err := os.ReadFile(another)
			if err != nil {
				t.Fatal(err)
			}
			rename(t, m.path, m.path+".old")
			rename(t, another, m.path)
			oneSentence(t, m.operations()["Get"](), contract.Fenced, m.path)
			oneSentence(t, m.operations()["Get"](), contract.Invalid, "one of another store",
				"put the right file back")
			after, err := os.ReadFile(m.path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(after, before) {
				t.Errorf("the other store's file was changed")
			}
			rename(t, m.path, another)
			rename(t, m.path+".old", m.path)
			mustBe(t, m.b, m.filler.keys[0], "after the copy")
		})
	}
}

// TestSymbolicLink: the name is a link, which is made to point elsewhere.
func TestSymbolicLink(t *testing.T) {
	m := newMoving(t)
	m.b.Close()
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(m.path, link); err != nil {
		t.Fatal(err)
	}
	m.b = open(t, "sqlite://"+link).(*backend)
	m.filler.store = m.b
	m.filler.update(t, 10)
	if m.b.walSize() == 0 {
		t.Error("the write-ahead log is looked for in the wrong place")
	}
	if err := os.Symlink(m.copy, link+".new"); err != nil {
		t.Fatal(err)
	}
	rename(t, link+".new", link)
	oneSentence(t, m.operations()["Get"](), contract.Fenced, link)
	m.fence()
	mustBe(t, m.b, m.filler.keys[0], "before the copy")
}

// TestReplacedDuringCommit replaces the file while a commit waits for the lock: it was done, but in
// a file that nobody finds.
func TestReplacedDuringCommit(t *testing.T) {
	m := newMoving(t)
	ctx := context.Background()
	other := open(t, "sqlite://"+m.path).(*backend)
	holding, release := make(chan struct{}), make(chan struct{})
	held := make(chan error, 1)
	go func() {
		held <- other.write(ctx, func(*sqlite3.Conn) (bool, error) {
			close(holding)
			<-release
			return false, nil
		})
	}()
	<-holding
	committed := make(chan error, 1)
	asked := make(chan struct{})
	whenLogged(m.b, waiting, func() { close(asked) })
	go func() { committed <- m.operations()["Commit"]() }()
	<-asked
	rename(t, m.path, m.path+".old")
	rename(t, m.copy, m.path)
	close(release)
	oneSentence(t, <-committed, contract.Unknown, m.path, "replaced")
	if err := <-held; contract.ClassOf(err) != contract.Fenced {
		t.Errorf("the holder of the lock: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	m.fence()
	checkWhole(t, m.path)
	checkWhole(t, m.path+".old")
}

// TestForeignLog opens a copy from the past beside the write-ahead log of the file that it
// replaced, after a crash: SQLite would mix them silently.
func TestForeignLog(t *testing.T) {
	m := newMoving(t)
	m.b.Close()
	// A process that is killed leaves the log behind, with some pages; others were copied to the
	// file before.
	w := start(t, "fill", "sqlite://"+m.path)
	if w.lines.Scan(); w.lines.Text() != "filled" {
		t.Fatalf("the other process says %q", w.lines.Text())
	}
	w.kill()
	rename(t, m.path, m.path+".old")
	rename(t, m.copy, m.path)
	for range 2 {
		_, err := contract.OpenBackend(context.Background(), Driver, "sqlite://"+m.path, options(t))
		oneSentence(t, err, contract.Invalid, m.path, "may belong to another file", "remove "+m.path+"-wal")
		_, err = Driver.Migrate(context.Background(), "sqlite://"+m.path, options(t))
		oneSentence(t, err, contract.Invalid, m.path, "may belong to another file", "remove "+m.path+"-wal")
	}
	// The advice of the sentence helps: both files were left as they were.
	for _, suffix := range []string{"-wal", "-shm"} {
		rename(t, m.path+suffix, m.path+".old"+suffix)
	}
	for path, want := range map[string]string{m.path: "before the copy", m.path + ".old": "filled"} {
		checkWhole(t, path)
		b := open(t, "sqlite://"+path)
		mustBe(t, b, m.filler.keys[0], want)
		b.Close()
	}
}

// TestStaleLog restores a copy beside a write-ahead log that has all pages, as the one of a small
// database does: SQLite would read from the log what the copy was made to undo.
func TestStaleLog(t *testing.T) {
	m := newMoving(t)
	stale := m.path + ".log"
	copyFile(t, m.path+"-wal", stale) // as a process that is killed leaves it
	if err := m.b.Close(); err != nil {
		t.Fatal(err)
	}
	rename(t, m.copy, m.path)
	rename(t, stale, m.path+"-wal")
	_, err := contract.OpenBackend(context.Background(), Driver, "sqlite://"+m.path, options(t))
	oneSentence(t, err, contract.Invalid, m.path, "may belong to another file", "remove "+m.path+"-wal")
	if err := os.Remove(m.path + "-wal"); err != nil {
		t.Fatal(err)
	}
	b := open(t, "sqlite://"+m.path)
	defer b.Close()
	mustBe(t, b, m.filler.keys[0], "before the copy")
}

// TestRestoredTogether restores a copy that was made of an open file, as `.backup` makes it. It is
// migrated, and opened by several before one of them has fenced it.
func TestRestoredTogether(t *testing.T) {
	ctx := context.Background()
	for name, prepare := range map[string]func(m *moving){
		"of an open file": func(m *moving) {
			if err := os.Remove(m.copy); err != nil {
				t.Fatal(err)
			}
			sqlExec(t, m.path, "VACUUM INTO '"+m.copy+"'")
		},
		"of a closed file": func(*moving) {},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			prepare(m)
			if err := m.b.Close(); err != nil {
				t.Fatal(err)
			}
			rename(t, m.copy, m.path)
			url := "sqlite://" + m.path
			migrate(t, url)
			reader := open(t, url)
			defer reader.Close()
			migrate(t, url)
			m.b = open(t, url).(*backend)
			if m.b.lost.Load() {
				t.Error("a copy has lost no log")
			}
			err := m.b.write(ctx, func(*sqlite3.Conn) (bool, error) {
				b, err := contract.OpenBackend(ctx, Driver, url, options(t))
				if err == nil {
					err = b.Close()
				}
				return false, err
			})
			if err != nil {
				t.Errorf("beside a process that is about to fence: %v", err)
			}
			m.fence()
			for _, key := range []contract.Key{"new/1", "new/2"} { // the second one marks the file
				st, err := m.b.State(ctx)
				if err != nil {
					t.Fatal(err)
				}
				m.filler.seen, m.filler.store = st.Head, m.b
				m.filler.commit(t, []*contract.Mutation{{Key: key, Value: []byte("v")}})
			}
			if mark := markInFile(t, m.path); mark == markClosed {
				t.Error("the file is not marked")
			}
			open(t, url).Close()
		})
	}
}

// fillChild writes so much that a part of the log is copied to the file, and waits to be killed.
func fillChild(args []string) error {
	b, err := contract.OpenBackend(context.Background(), Driver, args[0], childOptions())
	if err != nil {
		return err
	}
	ctx := context.Background()
	page, err := b.Page(ctx, contract.PageQuery{Start: "\x00", End: "\xff", Limit: 1000})
	if err != nil {
		return err
	}
	for round := range 2 {
		if round == 1 {
			// Now the file has what was written until here.
			c, err := b.(*backend).commits.Get(ctx)
			if err != nil {
				return err
			}
			if _, err := c.EmptyLog(); err != nil {
				return err
			}
			b.(*backend).commits.Put(c)
		}
		st, err := b.State(ctx)
		if err != nil {
			return err
		}
		g := &contract.Group{Token: newToken(), Seen: st.Head}
		for i, row := range page.Rows {
			if round == 0 || i%10 == 0 {
				g.Mutations = append(g.Mutations, &contract.Mutation{Key: row.Key, Expect: row.Revision,
					Value: []byte("filled")})
			}
		}
		r, err := b.Commit(ctx, g)
		if err != nil {
			return err
		}
		for i, o := range r.Outcomes {
			if !o.Accepted {
				return fmt.Errorf("outcome %d of round %d is %+v", i, round, o)
			}
			if round == 0 {
				page.Rows[i].Revision = o.Revision
			}
		}
	}
	fmt.Println("filled")
	untilTold()
	return nil
}
