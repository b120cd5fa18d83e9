package sqlite

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// markInFile reads the mark from the file itself, not through its log.
func markInFile(t *testing.T, path string) uint32 {
	t.Helper()
	header, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return binary.BigEndian.Uint32(header[60:])
}

// removeLog does what a cleaner does.
func removeLog(t *testing.T, path string) {
	t.Helper()
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLogLost(t *testing.T) {
	for _, test := range []struct {
		mark, bytes int64
		lost        bool
	}{
		{markClosed, 0, false},    // a clean close, or a file that was never written
		{markClosed, 4152, false}, // a clean close beside others
		{markOpening, 4152, false},
		{markOpen, 4152, false}, // in use, or after a kill
		{markOpening, 0, true},
		{markOpen, 0, true},
		{markLost, 0, true},
		{markLost, 4152, true}, // what was written since is no history
	} {
		if lost := logLost(test.mark, test.bytes); lost != test.lost {
			t.Errorf("mark %d, a log of %d bytes: %v", test.mark, test.bytes, lost)
		}
	}
}

// TestMark: the file itself is marked before the first commit, and until a clean close, whatever
// empties its log in between.
func TestMark(t *testing.T) {
	m := newMoving(t) // which has committed
	if mark := markInFile(t, m.path); mark == markClosed {
		t.Errorf("the file of a process that commits has the mark %d", mark)
	}
	c, err := m.b.commits.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if emptied, err := m.b.emptyLog(c); err != nil || !emptied {
		t.Errorf("the log was not emptied: %v", err)
	}
	m.b.commits.Put(c)
	if mark := markInFile(t, m.path); mark == markClosed || m.b.walSize() == 0 {
		t.Errorf("with a log that was emptied the file has the mark %d, and the log %d bytes",
			mark, m.b.walSize())
	}
	if err := m.b.Close(); err != nil {
		t.Fatal(err)
	}
	if mark := markInFile(t, m.path); mark != markClosed {
		t.Errorf("after a clean close the file has the mark %d", mark)
	}
	// A reader marks nothing, and leaves no log.
	b := open(t, "sqlite://"+m.path)
	if _, err := b.State(context.Background()); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if mark := markInFile(t, m.path); mark != markClosed {
		t.Errorf("after a read the file has the mark %d", mark)
	}
	if _, err := os.Stat(m.path + "-wal"); !os.IsNotExist(err) {
		t.Errorf("after a read there is a log: %v", err)
	}
}

// TestMarkBesideAReader: a reader that keeps the log from being copied stops no commit. When it is
// gone, the next commit marks the file.
func TestMarkBesideAReader(t *testing.T) {
	ctx := context.Background()
	url := fresh(t)
	path := strings.TrimPrefix(url, "sqlite://")
	b := open(t, url).(*backend)
	defer b.Close()
	f := filler{store: b, value: []byte("v")}
	err := b.Snapshot(ctx, func(context.Context, contract.Snapshot) error {
		f.grow(t, 3)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if mark := markInFile(t, path); mark != markClosed {
		t.Fatalf("the log was copied beside a reader: the file has the mark %d", mark)
	}
	f.update(t, 1)
	if mark := markInFile(t, path); mark == markClosed {
		t.Error("the file is not marked though the reader is gone")
	}
}

// TestMarkOfOthers: one process ends in order, and the others go on committing.
func TestMarkOfOthers(t *testing.T) {
	m := newMoving(t)
	other := open(t, "sqlite://"+m.path).(*backend)
	f := filler{store: other, value: []byte("of the other")}
	f.grow(t, 3)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := m.b.State(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	m.filler.seen = st.Head
	m.filler.update(t, 1)
	c, err := m.b.commits.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if mark, err := readMark(c); err != nil || mark != markOpen {
		t.Errorf("the mark is %d, %v", mark, err)
	}
	m.b.commits.Put(c)
	if mark := markInFile(t, m.path); mark == markClosed {
		t.Error("the file is not marked any more")
	}
}

// TestLogRemoved removes the log under a process that nobody shares the file with. Each operation
// notices, the log is saved, and the history goes on.
func TestLogRemoved(t *testing.T) {
	for name := range (&moving{}).operations() {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			removeLog(t, m.path)
			oneSentence(t, m.operations()[name](), contract.Fenced, m.path, "write-ahead log was removed")
			for name, op := range m.operations() {
				if err := op(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			mustBe(t, m.b, m.filler.keys[0], "after the copy")
			if id, err := m.b.Identity(context.Background()); err != nil || id.Moved() {
				t.Errorf("the identity is %+v, %v", id, err)
			}
			checkWhole(t, m.path)
		})
	}
}

// TestOnlyTheLogRemoved leaves the file beside the log, by which SQLite finds what is in it.
func TestOnlyTheLogRemoved(t *testing.T) {
	m := newMoving(t)
	if err := os.Remove(m.path + "-wal"); err != nil {
		t.Fatal(err)
	}
	oneSentence(t, m.operations()["Commit"](), contract.Fenced, m.path, "write-ahead log was removed")
	mustBe(t, m.b, m.filler.keys[0], "after the copy")
	m.filler.update(t, 1)
	checkWhole(t, m.path)
}

// TestLogRemovedBesideOthers: somebody else has the file open, without the log that was removed. So
// the log is not saved, and the process stops. The next start tells that writes are lost, and a
// backup is refused.
func TestLogRemovedBesideOthers(t *testing.T) {
	ctx := context.Background()
	m := newMoving(t)
	url := "sqlite://" + m.path
	removeLog(t, m.path)
	other := start(t, "lost", url)
	if other.lines.Scan(); other.lines.Text() != "lost: true" {
		t.Fatalf("who opens the file says %q", other.lines.Text())
	}
	oneSentence(t, m.operations()["Commit"](), contract.Fenced, m.path, "write-ahead log was removed")
	for range 2 {
		for name, op := range m.operations() {
			if err := op(); err == nil || contract.ClassOf(err) != contract.Invalid ||
				!strings.Contains(err.Error(), "restart the server") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := m.b.Close(); err != nil {
		t.Error(err)
	}
	other.kill()

	refusing := options(t)
	refusing.RefuseLost = true
	for range 2 {
		_, err := contract.OpenBackend(ctx, Driver, url, refusing)
		oneSentence(t, err, contract.Invalid, m.path+"-wal", "newest writes are lost", "start a server")
		migrate(t, url) // and what it writes does not hide the loss
	}
	b := open(t, url).(*backend)
	id, err := b.Identity(ctx)
	if err != nil || !id.Moved() {
		t.Fatalf("the identity of a file whose log is lost is %+v, %v", id, err)
	}
	m.b = b
	m.filler.store = b
	st := m.fence()
	if id, err = b.Identity(ctx); err != nil || id.Moved() {
		t.Errorf("the identity after the fence is %+v, %v", id, err)
	}
	m.filler.seen = st.Head
	m.filler.commit(t, []*contract.Mutation{{Key: "new", Value: []byte("v")}})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = openWith(t, url, refusing)
	defer b.Close()
	mustBe(t, b, "new", "v")
}

// TestLogRemovedAndAnother: somebody has gone on without the log that was removed, and is gone. The
// file is left to what they have written.
func TestLogRemovedAndAnother(t *testing.T) {
	m := newMoving(t)
	removeLog(t, m.path)
	w := start(t, "writer", "sqlite://"+m.path, "w")
	if !w.lines.Scan() {
		t.Fatal("the other process has not written")
	}
	w.kill()
	oneSentence(t, m.operations()["Commit"](), contract.Fenced, m.path, "write-ahead log was removed")
	mustBe(t, m.b, "own/w/000000", "w 0")
	mustBe(t, m.b, m.filler.keys[0], "before the copy")
	checkWhole(t, m.path)
}

// lostChild opens a file, says whether its log is lost, and keeps it open.
func lostChild(args []string) error {
	b, err := contract.OpenBackend(context.Background(), Driver, args[0], childOptions())
	if err != nil {
		return err
	}
	fmt.Println("lost:", b.(*backend).lost.Load())
	untilTold()
	return b.Close()
}

func openWith(t *testing.T, url string, opts contract.DriverOptions) *backend {
	t.Helper()
	b, err := contract.OpenBackend(context.Background(), Driver, url, opts)
	if err != nil {
		t.Fatal(err)
	}
	return b.(*backend)
}

// TestLogRemovedAfterAKill: a process was killed. With its log nothing is lost, however often
// others look at the file; without it that is told.
func TestLogRemovedAfterAKill(t *testing.T) {
	ctx := context.Background()
	for _, remove := range []bool{false, true} {
		t.Run(fmt.Sprintf("remove=%v", remove), func(t *testing.T) {
			url := fresh(t)
			path := strings.TrimPrefix(url, "sqlite://")
			w := start(t, "writer", url, "w")
			if !w.lines.Scan() {
				t.Fatal("the other process has not written")
			}
			w.kill()
			if remove {
				removeLog(t, path)
			}
			for range 2 {
				if _, err := Driver.Status(ctx, url, options(t)); err != nil {
					t.Error(err)
				}
				if _, err := Driver.Stores(ctx, url, options(t)); err != nil {
					t.Error(err)
				}
				migrate(t, url)
				if remove { // and only then: this copies and removes a log
					if mark := sqlQuery(t, path, selectMark); mark != fmt.Sprint(markLost) {
						t.Errorf("the mark is %s after migrations that might have written", mark)
					}
				}
				b := open(t, url).(*backend)
				id, err := b.Identity(ctx)
				if err != nil || b.lost.Load() != remove || remove && !id.Moved() {
					t.Errorf("lost: %v; the identity is %+v, %v", b.lost.Load(), id, err)
				}
				if st, err := b.State(ctx); err != nil || (st.Head.Revision > 1) == remove {
					t.Errorf("the state is %+v, %v", st, err)
				}
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
