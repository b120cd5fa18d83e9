package sqlite

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

// children are what this test binary does when it is started by itself, as another process.
var children = map[string]func(args []string) error{
	"writer":   writerChild,
	"once":     onceChild,
	"fill":     fillChild,
	"open":     openChild,
	"lost":     lostChild,
	"mounted":  mountedChild,
	"begin":    beginChild,
	"fulldisk": func(args []string) error { return fullDiskChild(args) },
	"healdisk": func(args []string) error { return healDiskChild(args) },
}

const childEnv = "ROWKEEPER_SQLITE_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		if err := children[role](os.Args[1:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is this binary as another process; its lines are read by the test.
type child struct {
	*exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func command(role string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

func start(t testing.TB, role string, args ...string) *child {
	t.Helper()
	cmd := command(role, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, in, bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	return c
}

// kill kills the process, if it is still there, and waits for its end.
func (c *child) kill() {
	if c.ProcessState == nil {
		_ = c.Process.Kill()
		_ = c.Wait() // says that it was killed
	}
}

// untilTold waits until standard input ends.
func untilTold() { _, _ = io.Copy(io.Discard, os.Stdin) }

// childOptions are those of a process without a test.
func childOptions() contract.DriverOptions { return contract.DriverOptions{Timeout: 30 * time.Second} }

// writerChild commits groups until its standard input ends or it is killed: keys of its own, and
// one that all writers fight for. It prints each accepted write after its commit returned.
func writerChild(args []string) error {
	url, name := args[0], args[1]
	ctx := context.Background()
	b, err := contract.OpenBackend(ctx, Driver, url, childOptions())
	if err != nil {
		return err
	}
	st, err := b.State(ctx)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		untilTold()
		close(ended)
	}()
	seen, hot := st.Head, contract.Revision(0)
	for i := 0; ; i++ {
		select {
		case <-ended:
			fmt.Println("done")
			return b.Close()
		default:
		}
		ms := []*contract.Mutation{
			{Key: contract.Key(fmt.Sprintf("own/%s/%06d", name, i)),
				Value: fmt.Appendf(nil, "%s %d", name, i)},
			{Key: "hot", Expect: hot, Value: fmt.Appendf(nil, "%s %d", name, i)},
		}
		token := newToken()
		r, err := b.Commit(ctx, &contract.Group{Token: token, Seen: seen, Mutations: ms})
		if contract.ClassOf(err) == contract.Transient && err != nil {
			continue
		}
		if err != nil {
			return err
		}
		seen, hot = r.State.Head, r.Outcomes[1].Revision
		for j, o := range r.Outcomes {
			if o.Accepted {
				fmt.Printf("%d %s %x\n", o.Revision, ms[j].Key, token)
			}
		}
	}
}

// acknowledged is a line of a writer.
type acknowledged struct {
	key   contract.Key
	token string
}

// read reads a writer's lines until it ends, and returns what was acknowledged. Each line goes to
// each, too.
func (c *child) read(each func(n int)) (map[contract.Revision]acknowledged, error) {
	acks := map[contract.Revision]acknowledged{}
	for c.lines.Scan() {
		line := strings.Fields(c.lines.Text())
		if len(line) == 1 && line[0] == "done" {
			break
		}
		if len(line) != 3 {
			if strings.HasPrefix(c.lines.Text(), "error:") {
				return acks, fmt.Errorf("the writer says %q", c.lines.Text())
			}
			break // the last line of a killed process may be torn
		}
		revision, err := strconv.ParseInt(line[0], 10, 64)
		if err != nil || len(line[2]) != 32 {
			break
		}
		acks[contract.Revision(revision)] = acknowledged{contract.Key(line[1]), line[2]}
		each(len(acks))
	}
	return acks, c.lines.Err()
}

// checkLog checks that the log is dense and has what was acknowledged. It returns the number of its
// rows.
func checkLog(t *testing.T, b contract.Backend, acks map[contract.Revision]acknowledged,
	complete bool) int {
	t.Helper()
	tail, err := b.Tail(context.Background(), 1, 1<<30, contract.PrevOfAll)
	if err != nil {
		t.Fatal(err)
	}
	last := map[contract.Key]contract.Revision{}
	found := 0
	for i, row := range tail.Rows {
		if row.Revision != contract.Revision(i+1) {
			t.Fatalf("row %d of the log has revision %d", i, row.Revision)
		}
		if row.Prev != last[row.Key] && !row.Marker() {
			t.Fatalf("row %d replaced %d, but %q was at %d", row.Revision, row.Prev, row.Key,
				last[row.Key])
		}
		last[row.Key] = row.Revision
		if ack, ok := acks[row.Revision]; ok {
			found++
			if ack.key != row.Key || ack.token != fmt.Sprintf("%x", row.Token) {
				t.Fatalf("row %d is %q with token %x, but %+v was acknowledged", row.Revision,
					row.Key, row.Token, ack)
			}
		}
	}
	if found != len(acks) {
		t.Fatalf("%d of %d acknowledged writes are in the log", found, len(acks))
	}
	if complete && len(tail.Rows) != len(acks)+1 {
		t.Fatalf("the log has %d rows, but %d writes were acknowledged", len(tail.Rows), len(acks))
	}
	return len(tail.Rows)
}

// TestKill kills a writing process with SIGKILL again and again: nothing that it has acknowledged
// is missing.
func TestKill(t *testing.T) {
	url := fresh(t)
	all := map[contract.Revision]acknowledged{}
	for round := range 5 {
		w := start(t, "writer", url, fmt.Sprint(round))
		acks, err := w.read(func(n int) {
			if n == 50+round*30 {
				_ = w.Process.Kill() // what it has printed already is read
			}
		})
		w.kill()
		if err != nil {
			t.Fatal(err)
		}
		if len(acks) < 50 {
			t.Fatalf("the writer wrote %d rows", len(acks))
		}
		for r, a := range acks {
			if _, twice := all[r]; twice {
				t.Fatalf("revision %d was given twice", r)
			}
			all[r] = a
		}
		b := open(t, url)
		rows := checkLog(t, b, all, false)
		// At most the group at which it was killed is there without having been acknowledged, in
		// each round.
		if extra := rows - 1 - len(all); extra > 2*(round+1) {
			t.Errorf("the log has %d rows that nobody was told of", extra)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestProcesses lets several processes write at once while this one follows the log by polling:
// dense, in order, nothing lost, and nobody is left to wait.
func TestProcesses(t *testing.T) {
	const writers, enough = 3, 200
	url := fresh(t)
	b := open(t, url)
	defer b.Close()
	var (
		wg      sync.WaitGroup
		acks    [writers]map[contract.Revision]acknowledged
		errs    [writers]error
		reached sync.WaitGroup
	)
	reached.Add(writers)
	var procs []*child
	for i := range writers {
		procs = append(procs, start(t, "writer", url, fmt.Sprint(i)))
	}
	for i, w := range procs {
		wg.Go(func() {
			acks[i], errs[i] = w.read(func(n int) {
				if n == enough {
					reached.Done()
				}
			})
			if len(acks[i]) < enough {
				reached.Done()
			}
		})
	}
	go func() {
		reached.Wait()
		for _, w := range procs {
			w.in.Close()
		}
	}()
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()

	// Follow as the tailer does.
	ctx := context.Background()
	from, deadline := contract.Revision(1), time.Now().Add(time.Minute)
	follow := func() {
		for {
			tail, err := b.Tail(ctx, from, 500, contract.PrevOfDeletions)
			if err != nil {
				t.Fatal(err)
			}
			for i, row := range tail.Rows {
				if row.Revision != from+contract.Revision(i) {
					t.Fatalf("after %d the log goes on with %d", from+contract.Revision(i)-1,
						row.Revision)
				}
			}
			from += contract.Revision(len(tail.Rows))
			if len(tail.Rows) < 500 {
				return
			}
		}
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-tick.C:
		}
		if time.Now().After(deadline) {
			t.Fatal("the writers did not get on")
		}
		changed, err := b.(contract.Poller).Changed(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if changed {
			follow()
		}
	}
	all := map[contract.Revision]acknowledged{}
	for i := range writers {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if err := procs[i].Wait(); err != nil {
			t.Fatal(err)
		}
		for r, a := range acks[i] {
			if _, twice := all[r]; twice {
				t.Fatalf("revision %d was given twice", r)
			}
			all[r] = a
		}
		t.Logf("writer %d: %d writes", i, len(acks[i]))
	}
	if rows := checkLog(t, b, all, true); contract.Revision(rows) != from-1 {
		t.Errorf("the log has %d rows, and %d were followed", rows, from-1)
	}
}

// onceChild commits one key and keeps the database open until its input ends.
func onceChild(args []string) error {
	b, err := contract.OpenBackend(context.Background(), Driver, args[0], childOptions())
	if err != nil {
		return err
	}
	st, err := b.State(context.Background())
	if err != nil {
		return err
	}
	_, err = b.Commit(context.Background(), &contract.Group{Token: newToken(), Seen: st.Head,
		Mutations: []*contract.Mutation{{Key: contract.Key(args[1])}}})
	if err != nil {
		return err
	}
	fmt.Println("committed")
	untilTold()
	return b.Close()
}

// TestTwoBackendsOfOneProcess: closing one must not take the other's locks away, as POSIX locks
// belong to the process.
func TestTwoBackendsOfOneProcess(t *testing.T) {
	url := fresh(t)
	one, two := open(t, url), open(t, url)
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	blocked := make(chan struct{})
	release := make(chan struct{})
	held := make(chan error, 1)
	go func() {
		held <- one.(*backend).write(context.Background(), func(*sqlite3.Conn) (bool, error) {
			close(blocked)
			<-release
			return false, nil
		})
	}()
	<-blocked
	// Another process cannot write while this one holds the commit lock.
	w := start(t, "once", url+"?busy_timeout=50ms", "k")
	if w.lines.Scan(); !strings.Contains(w.lines.Text(), "locked by another program") {
		t.Errorf("the other process says %q", w.lines.Text())
	}
	w.kill()
	close(release)
	if err := <-held; err != nil {
		t.Fatal(err)
	}
}

// openChild opens a database and says how that went.
func openChild(args []string) error {
	b, err := contract.OpenBackend(context.Background(), Driver, args[0], childOptions())
	if err == nil {
		err = b.Close()
	}
	if err != nil {
		fmt.Printf("%v: %v\n", contract.ClassOf(err), err)
		return nil
	}
	fmt.Println("ok")
	return nil
}

// TestMountedFile: a file that is mounted without its directory is refused, and a mounted directory
// is not.
func TestMountedFile(t *testing.T) {
	path := strings.TrimPrefix(fresh(t), "sqlite://")
	cmd := command("mounted", path, t.TempDir())
	cmd.Stderr = nil
	if !privateMounts(cmd) {
		t.Skip("this system has no name spaces in which a test may mount a file")
	}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "cannot mount") || errors.Is(err, syscall.EPERM) ||
		errors.Is(err, syscall.ENOSPC) {
		t.Skipf("a test may not mount a file here: %v %s", err, out)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if lines := strings.Split(string(out), "\n"); len(lines) != 3 || lines[0] != "ok" ||
		!strings.Contains(lines[1], "is mounted without its directory") {
		t.Errorf("the process says %q", lines)
	}
}

// mountedChild opens the file by its directory, mounted elsewhere, and mounted by itself.
func mountedChild(args []string) error {
	path, dir := args[0], args[1]
	if err := mountFile(filepath.Dir(path), dir); err != nil {
		return fmt.Errorf("cannot mount: %w", err)
	}
	name := filepath.Join(dir, filepath.Base(path))
	if err := openChild([]string{"sqlite://" + name}); err != nil {
		return err
	}
	if err := mountFile(path, name); err != nil {
		return fmt.Errorf("cannot mount: %w", err)
	}
	return openChild([]string{"sqlite://" + name})
}

// beginChild does what a server does when it starts, several times at once.
func beginChild(args []string) error {
	begun := make(chan error)
	for range 4 {
		go func() { begun <- begin(args[0]) }()
	}
	var errs []error
	for range 4 {
		errs = append(errs, <-begun)
	}
	return errors.Join(errs...)
}

func begin(url string) error {
	ctx := context.Background()
	if _, err := Driver.Migrate(ctx, url, childOptions()); err != nil {
		return err
	}
	b, err := contract.OpenBackend(ctx, Driver, url, childOptions())
	if err != nil {
		return err
	}
	for {
		var st contract.State
		if st, err = b.State(ctx); err != nil {
			break
		}
		_, err = b.Commit(ctx, &contract.Group{Token: newToken(), Seen: st.Head,
			Mutations: []*contract.Mutation{{Key: contract.Key(rand.Text())}}})
		if err == nil || contract.ClassOf(err) != contract.Transient {
			break
		}
	}
	return errors.Join(err, b.Close())
}

// TestBeginTogether starts on no file in several processes, several times in each.
func TestBeginTogether(t *testing.T) {
	for range 3 {
		url := "sqlite://" + filepath.Join(t.TempDir(), "state.db")
		var outs [4]strings.Builder
		var cmds []*exec.Cmd
		for i := range outs {
			cmd := command("begin", url)
			cmd.Stdout = &outs[i]
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			cmds = append(cmds, cmd)
		}
		for i, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, outs[i].String())
			}
		}
		b := open(t, url)
		if n, _, err := b.Count(context.Background(), "\x00", "\xff\xff", 0, 0); err != nil || n != 16 {
			t.Errorf("%d keys were written, %v, want 16", n, err)
		}
		if rows := checkLog(t, b, nil, false); rows != 17 {
			t.Errorf("the log has %d rows", rows)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// asNobody runs the child as a user without rights, since root may write everything.
func asNobody(t *testing.T, role string, args ...string) string {
	t.Helper()
	cmd := command(role, args...)
	if os.Getuid() == 0 {
		// Nobody may not enter the directory where go test has put this binary.
		exe, err := os.ReadFile(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		dir := publicDir(t)
		cmd.Path = filepath.Join(dir, "child")
		if err := os.WriteFile(cmd.Path, exe, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.Dir = dir
		setUser(cmd, 65534)
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// publicDir is a temporary directory that everybody may enter.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rowkeeper-sqlite-") //nolint:usetesting // only this user may enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPermissions(t *testing.T) {
	for _, test := range []struct {
		name            string
		file, dir       os.FileMode
		class, sentence string
	}{
		{"all", 0o666, 0o777, "ok", ""},
		{"a read-only file", 0o444, 0o777, "read-only: ",
			"cannot be written: give this user write permission"},
		{"a read-only directory", 0o666, 0o555, "read-only: ",
			"check the permissions of the file and its directory"},
		{"an unreadable file", 0o000, 0o777, "denied: ",
			"check the permissions of the file and its directory"},
		{"an unreadable directory", 0o666, 0o000, "denied: ",
			"may not be read: check its permissions"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(publicDir(t), "data")
			if err := os.Mkdir(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "state.db")
			filled(t, path, 3)
			for name, mode := range map[string]os.FileMode{path: test.file, dir: test.dir} {
				if err := os.Chmod(name, mode); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() {
				if err := os.Chmod(dir, 0o777); err != nil {
					t.Error(err)
				}
			})
			got := asNobody(t, "open", "sqlite://"+path)
			if !strings.HasPrefix(got, test.class) || !strings.Contains(got, test.sentence) {
				t.Errorf("opening it says %q", got)
			}
			t.Log(got)
		})
	}
}
