package moves

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// prefix begins the keys, and valueBytes is how long their values are.
	prefix     = "/registry/things/"
	valueBytes = 1000
	// seeders create the objects, and writers write while they are moved.
	seeders, writers = 32, 4
	// watchers watch all of the time.
	watchers = 3
	// kills is how often a move is killed.
	kills = 10
)

// TestMoves moves what writers write, and watchers watch, until the source is fenced, or, if it is
// an etcd, until the writers are stopped.
//
// Each write that was confirmed is in the target, at its revision. Each watcher is told that it has
// to list, and lists what the writers have written. So none misses a change, and none goes back.
func TestMoves(t *testing.T) {
	for _, m := range []struct{ from, to string }{
		{"etcd", "rowkeeper-postgres"},
		{"kine-postgres", "rowkeeper-sqlite"},
		{"kine-sqlite", "rowkeeper-postgres"},
		{"kine-mariadb", "rowkeeper-sqlite"},
		{"rowkeeper-etcd-sqlite", "rowkeeper-mariadb"},
	} {
		t.Run(m.from+" to "+m.to, func(t *testing.T) {
			x := newRun(t, m.from, m.to)
			if m.from == "kine-sqlite" {
				x.fill() // each write is synced
			} else {
				x.seed()
			}
			load := x.load()
			following := x.start("move")
			following.until("the target has everything")
			x.Logf("copied and caught up after %s", following.took())
			load.pause(3 * time.Second)
			following.signal(syscall.SIGINT)
			following.wait(0)
			if m.from == "etcd" {
				load.stop()
			}
			began := time.Now()
			x.run("move", "--finish", "--still=2s")
			x.Logf("--finish took %s", time.Since(began).Round(time.Millisecond))
			load.stop()
			x.compare(load)
		})
	}
}

// TestKilled: a move that is killed again and again loses nothing.
func TestKilled(t *testing.T) {
	x := newRun(t, "kine-postgres", "rowkeeper-sqlite")
	x.fill()
	load := x.load()
	began := time.Now()
	// Killed at any time of the copy, of which it does a part each time.
	for n := range kills {
		p := x.start("move")
		p.after(time.Duration(rand.Int64N(int64(time.Second)*2)) + time.Second)
		p.signal(syscall.SIGKILL)
		p.wait(-1)
		x.Logf("killed %d times", n+1)
	}
	p := x.start("move")
	p.until("the target has everything")
	x.Logf("copied and caught up %s after the first start, with %d kills", time.Since(began).Round(
		time.Millisecond), kills)
	p.signal(syscall.SIGKILL)
	p.wait(-1)
	for range 3 {
		p := x.start("move", "--finish")
		p.after(time.Duration(rand.Int64N(int64(2 * time.Second))))
		if p.ended() {
			break // it was faster
		}
		p.signal(syscall.SIGKILL)
		p.wait(-1)
	}
	if !strings.Contains(x.said(), "the target can be used") {
		x.run("move", "--finish")
	}
	load.stop()
	x.compare(load)
}

// TestExport: a store goes into an etcd by a snapshot file, while the writers are stopped. It needs
// the program etcdutl.
func TestExport(t *testing.T) {
	utility, err := exec.LookPath("etcdutl")
	if err != nil {
		t.Skip("etcdutl is not installed")
	}
	x := newRun(t, "rowkeeper-etcd-postgres", "rowkeeper-sqlite")
	x.seed()
	load := x.load()
	load.pause(3 * time.Second)
	load.stop()
	began := time.Now()
	file, data := filepath.Join(x.dir, "snapshot.db"), filepath.Join(x.dir, "etcd-data")
	for _, command := range [][]string{
		{built(t).Rowkeeper, "etcd", "export", file, "--database=" + target.Source(x.from)},
		{utility, "snapshot", "restore", file, "--data-dir=" + data},
	} {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		t.Logf("%s %s: done after %s", filepath.Base(command[0]), command[1], time.Since(began).Round(
			time.Millisecond))
	}
	x.compareOn(load, func(address string) []string {
		port, err := programs.FreePort()
		must(t, err)
		return []string{built(t).Etcd, "--data-dir=" + data, "--log-level=warn",
			"--listen-client-urls=" + address, "--advertise-client-urls=" + address,
			fmt.Sprintf("--listen-peer-urls=http://127.0.0.1:%d", port)}
	})
}

// run is a test's source and target.
type run struct {
	*testing.T
	n       int
	dir     string
	from    target.Server
	to      target.Server
	client  *clientv3.Client
	kine    bool
	mu      sync.Mutex
	output  bytes.Buffer
	written ledger
}

func newRun(t *testing.T, from, to string) *run {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("ROWKEEPER_TEST_MOVES"))
	if err != nil || n < 1 {
		t.Skip("ROWKEEPER_TEST_MOVES does not say how many objects are moved")
	}
	p := built(t)
	//nolint:usetesting // the servers run as other users, who could not enter the test's own directory
	dir, err := os.MkdirTemp("", "rowkeeper-moves-*")
	must(t, err)
	must(t, os.Chmod(dir, 0o755)) // for the users that servers run as
	t.Cleanup(func() { os.RemoveAll(dir) })
	x := &run{T: t, n: n, dir: dir, written: ledger{keys: map[string]*write{}},
		kine: strings.HasPrefix(from, "kine")}
	serve := func(name string) target.Server {
		t.Helper()
		found, err := target.Find([]string{name})
		must(t, err)
		if missing := found[0].Missing(p); missing != "" {
			t.Skipf("%s is not installed", missing)
		}
		sub := filepath.Join(dir, name)
		must(t, os.Mkdir(sub, 0o755))
		s, err := found[0].Serve(t.Context(), sub, p)
		must(t, err)
		t.Cleanup(func() { _ = s.Stop() }) // a kine whose table is fenced may have ended
		return s
	}
	x.from, x.to = serve(from), serve(to)
	x.client, err = target.EtcdClient(x.from.Address())
	must(t, err)
	t.Cleanup(func() { x.client.Close() })
	return x
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// built builds the programs, once.
func built(t *testing.T) target.Programs {
	t.Helper()
	once.Do(func() {
		bin, err := filepath.Abs("../../../bin/peers")
		must(t, err)
		found = target.FindPrograms()
		found.Etcd, found.Kine = filepath.Join(bin, "etcd"), filepath.Join(bin, "kine")
		found.Rowkeeper = filepath.Join(bin, "rowkeeper")
		for _, b := range []struct{ program, module, pkg string }{
			{found.Etcd, "../peers/etcd", "go.etcd.io/etcd/server/v3"},
			{found.Kine, "../peers/kine", "github.com/k3s-io/kine"},
			{found.Rowkeeper, "../../..", "./cmd/rowkeeper"},
		} {
			out, err := exec.Command("go", "build", "-C", b.module, "-o", b.program, b.pkg).CombinedOutput()
			if err != nil {
				t.Fatalf("build %s: %v\n%s", b.pkg, err, out)
			}
		}
	})
	return found
}

var (
	once  sync.Once
	found target.Programs
)

// write is what the last confirmed write of a key has left, and what an unconfirmed one may have.
type write struct {
	revision int64 // 0 if it was deleted
	value    [sha256.Size]byte
	// doubt: a later write was not confirmed.
	doubt bool
}

// ledger is what was written. A key has one writer at a time.
type ledger struct {
	mu   sync.Mutex
	keys map[string]*write
}

func (l *ledger) put(key string, w write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys[key] = &w
}

func (l *ledger) get(key string) write {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.keys[key]; w != nil {
		return *w
	}
	return write{}
}

func keyOf(i int) string { return fmt.Sprintf("%sns-%d/%07d", prefix, i%100, i) }

func value(r *rand.Rand) []byte {
	b := make([]byte, valueBytes)
	for i := range b {
		b[i] = "abcdefghijklmnop"[r.IntN(16)]
	}
	return b
}

// seed creates the objects.
func (x *run) seed() {
	x.Helper()
	began := time.Now()
	var g sync.WaitGroup
	failed := make(chan error, seeders)
	for s := range seeders {
		g.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(s)))
			for i := s; i < x.n; i += seeders {
				if err := x.set(x.Context(), keyOf(i), value(r)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	g.Wait()
	close(failed)
	must(x.T, <-failed)
	x.Logf("created %d objects in %s", x.n, time.Since(began).Round(time.Millisecond))
}

// fill creates the objects in kine's table, in PostgreSQL or SQLite: a million by way of kine would
// take half an hour.
func (x *run) fill() {
	x.Helper()
	began := time.Now()
	source, name := strings.TrimPrefix(target.Source(x.from), "kine:"), "pgx"
	place := func(n int) string { return fmt.Sprintf("$%d", n) }
	if file, ok := strings.CutPrefix(source, "sqlite://"); ok {
		file, _, _ = strings.Cut(file, "?")
		source, name = "file:"+file+"?_pragma=busy_timeout(30000)", "sqlite"
		place = func(int) string { return "?" }
	}
	db, err := sql.Open(name, source)
	must(x.T, err)
	defer db.Close()
	tx, err := db.BeginTx(x.Context(), nil)
	must(x.T, err)
	defer tx.Rollback()
	const rows = 500
	for from := 0; from < x.n; from += rows {
		var text []string
		var args []any
		for i := from; i < min(from+rows, x.n); i++ {
			text = append(text, fmt.Sprintf("(%s, 1, 0, 0, 0, 0, %s)", place(len(args)+1),
				place(len(args)+2)))
			args = append(args, keyOf(i), filled(i))
		}
		_, err := tx.ExecContext(x.Context(), "INSERT INTO kine (name, created, deleted, "+
			"create_revision, prev_revision, lease, value) VALUES "+strings.Join(text, ", "), args...)
		must(x.T, err)
	}
	must(x.T, tx.Commit())
	found, err := db.QueryContext(x.Context(), "SELECT id, name FROM kine WHERE created = 1")
	must(x.T, err)
	defer found.Close()
	for found.Next() {
		var w write
		var key string
		must(x.T, found.Scan(&w.revision, &key))
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		i, err := strconv.Atoi(key[len(key)-7:])
		must(x.T, err)
		w.value = sha256.Sum256(filled(i))
		x.written.put(key, w)
	}
	must(x.T, found.Err())
	x.Logf("created %d objects in kine's table in %s", x.n, time.Since(began).Round(time.Millisecond))
}

// filled is the value of an object that fill has created.
func filled(i int) []byte { return value(rand.New(rand.NewPCG(3, uint64(i)))) }

// set writes a key as kube-apiserver does: at the revision that it has.
func (x *run) set(ctx context.Context, key string, value []byte) error {
	was := x.written.get(key)
	res, err := x.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", was.revision)).
		Then(clientv3.OpPut(key, string(value))).Else(clientv3.OpGet(key)).Commit()
	return x.done(ctx, key, write{value: sha256.Sum256(value)}, was, res, err)
}

func (x *run) remove(ctx context.Context, key string) error {
	was := x.written.get(key)
	res, err := x.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", was.revision)).
		Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key)).Commit()
	return x.done(ctx, key, write{revision: -1}, was, res, err)
}

func (x *run) done(ctx context.Context, key string, w, was write, res *clientv3.TxnResponse, err error) error {
	switch {
	case err != nil:
		was.doubt = true
		x.written.put(key, was)
		return err
	case !res.Succeeded:
		return fmt.Errorf("%s is not at revision %d", key, was.revision)
	case w.revision < 0:
		w.revision = 0
	default:
		w.revision = res.Header.Revision
		if was.revision == 0 && x.kine {
			// kine tells another revision of a key that it has created again. And if its database
			// refuses a creation, as SQLite does when it was locked for long, it may confirm that.
			got, err := x.client.Get(context.WithoutCancel(ctx), key)
			if err != nil {
				was.doubt = true
				x.written.put(key, was)
				return err
			}
			if len(got.Kvs) == 0 {
				x.Logf("kine has confirmed that it has created %s, and has not", key)
				return nil
			}
			w.revision = got.Kvs[0].ModRevision
		}
	}
	x.written.put(key, w)
	return nil
}

// load is writers and watchers.
type load struct {
	x      *run
	cancel context.CancelFunc
	group  sync.WaitGroup
	// seen is the newest revision that each watcher has seen of each key, with its value, nil if it
	// was deleted.
	seen [watchers]map[string]seen
	last [watchers]int64
	// unwatch ends the watchers.
	unwatch  context.CancelFunc
	watching sync.WaitGroup
	writes   atomic.Int64
}

type seen struct {
	revision int64
	value    [sha256.Size]byte
	deleted  bool
}

func (x *run) load() *load {
	x.Helper()
	l := &load{x: x}
	watching, unwatch := context.WithCancel(x.Context())
	l.unwatch = unwatch
	head, err := x.client.Get(x.Context(), prefix, clientv3.WithPrefix(), clientv3.WithLimit(1))
	must(x.T, err)
	for n := range watchers {
		l.seen[n] = map[string]seen{}
		events := x.client.Watch(watching, prefix, clientv3.WithPrefix(),
			clientv3.WithRev(head.Header.Revision+1))
		l.watching.Go(func() {
			for res := range events {
				for _, e := range res.Events {
					key, was := string(e.Kv.Key), l.seen[n][string(e.Kv.Key)]
					if e.Kv.ModRevision <= was.revision {
						x.Errorf("%s was at revision %d, and then at %d", key, was.revision,
							e.Kv.ModRevision)
					}
					l.seen[n][key] = seen{e.Kv.ModRevision, sha256.Sum256(e.Kv.Value),
						e.Type == clientv3.EventTypeDelete}
					l.last[n] = e.Kv.ModRevision
				}
			}
		})
	}
	ctx, cancel := context.WithCancel(x.Context())
	l.cancel = cancel
	for n := range writers {
		l.group.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(n)))
			for ctx.Err() == nil {
				i := r.IntN((x.n+x.n/10)/writers)*writers + n // some are new
				key := keyOf(i)
				bounded, done := context.WithTimeout(ctx, 5*time.Second)
				var err error
				if x.written.get(key).revision != 0 && r.IntN(10) == 0 {
					err = x.remove(bounded, key)
				} else {
					err = x.set(bounded, key, value(r))
				}
				done()
				if err != nil {
					if strings.Contains(err.Error(), "is not at revision") {
						x.Error(err)
					}
					return // the source was fenced, or the test has stopped the writers
				}
				l.writes.Add(1)
			}
		})
	}
	return l
}

// pause lets the load go on.
func (l *load) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.x.Context().Done():
	}
}

// stop stops the writers.
func (l *load) stop() {
	l.cancel()
	l.group.Wait()
}

// compare compares the target with what was written, and lets the watchers go on there.
func (x *run) compare(l *load) {
	x.Helper()
	x.compareOn(l, func(address string) []string {
		return []string{built(x.T).Rowkeeper, "etcd", "--database=" + x.to.Address(),
			"--listen-client-urls=" + address}
	})
}

// compareOn compares what a server serves, which the command starts.
func (x *run) compareOn(l *load, command func(address string) []string) {
	x.Helper()
	l.unwatch()
	l.watching.Wait()
	port, err := programs.FreePort()
	must(x.T, err)
	address := fmt.Sprintf("http://127.0.0.1:%d", port)
	front := &programs.Program{Dir: x.dir, Signal: syscall.SIGTERM, Command: command(address)}
	must(x.T, front.Start())
	defer func() { _ = front.Stop(context.Background()) }()
	c, err := target.EtcdClient(address)
	must(x.T, err)
	defer c.Close()
	must(x.T, front.Await(x.Context(), func(ctx context.Context) error {
		_, err := c.Get(ctx, "/ready")
		return err
	}))
	now := map[string]seen{}
	var head int64
	for from, more := prefix, true; more; {
		page, err := c.Get(x.Context(), from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)),
			clientv3.WithLimit(5000), clientv3.WithRev(head))
		must(x.T, err)
		for _, kv := range page.Kvs {
			now[string(kv.Key)] = seen{kv.ModRevision, sha256.Sum256(kv.Value), false}
		}
		if head = page.Header.Revision; page.More {
			from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		}
		more = page.More
	}
	doubts, wrong := 0, 0
	for key, w := range x.written.keys {
		is, there := now[key]
		if w.doubt && (there && is.revision > w.revision || !there) {
			doubts++
			continue
		}
		if there != (w.revision != 0) || there && (is.revision != w.revision || is.value != w.value) {
			if wrong++; wrong < 10 {
				x.Errorf("%s was written at revision %d, and the target has it at %d", key, w.revision,
					is.revision)
			}
		}
	}
	for key := range now {
		if _, ok := x.written.keys[key]; !ok {
			x.Errorf("the target has %s, which nobody has written", key)
		}
	}
	for n := range watchers {
		// It resumes where it was, is told to list, and has what it lists before it watches on.
		ctx, cancel := context.WithTimeout(x.Context(), time.Minute)
		res := <-c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(max(l.last[n], 1)+1))
		cancel()
		if res.CompactRevision == 0 {
			x.Errorf("a watcher that has seen revision %d was not told to list: %+v", l.last[n], res)
		}
		if head <= l.last[n] {
			x.Errorf("the list is at revision %d, and a watcher has seen %d", head, l.last[n])
		}
		for key, s := range l.seen[n] {
			if is := now[key]; is.revision < s.revision && !s.deleted ||
				is.revision == s.revision && is.value != s.value {
				x.Errorf("%s goes back from revision %d to %d", key, s.revision, is.revision)
			} else if is.revision != 0 && s.deleted && is.revision < s.revision {
				x.Errorf("%s was deleted at revision %d, and comes back at %d", key, s.revision,
					is.revision)
			}
		}
	}
	ctx, cancel := context.WithTimeout(x.Context(), time.Minute)
	defer cancel()
	events := c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(head+1))
	put, err := c.Put(ctx, prefix+"after", "x")
	must(x.T, err)
	if res := <-events; len(res.Events) != 1 || res.Events[0].Kv.ModRevision != put.Header.Revision {
		x.Errorf("a watch on the target: %+v, %v", res, res.Err())
	}
	x.Logf("%d writes under load; the target has %d objects; %d writes in doubt", l.writes.Load(), len(now),
		doubts)
}

// process is a run of the program.
type process struct {
	x     *run
	cmd   *exec.Cmd
	began time.Time
	done  chan struct{}
	err   error
	lines chan string
}

// start starts "rowkeeper move".
func (x *run) start(args ...string) *process {
	x.Helper()
	args = append(args, "--from="+target.Source(x.from), "--to="+x.to.Address())
	p := &process{x: x, cmd: exec.Command(built(x.T).Rowkeeper, args...), began: time.Now(),
		done: make(chan struct{}), lines: make(chan string, 100)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	must(x.T, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p
}

// Write takes what the program says.
func (p *process) Write(b []byte) (int, error) {
	p.x.mu.Lock()
	p.x.output.Write(b)
	p.x.mu.Unlock()
	p.lines <- string(b)
	return len(b), nil
}

func (x *run) said() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.output.String()
}

// until waits until the program says something.
func (p *process) until(text string) {
	p.x.Helper()
	for {
		select {
		case line := <-p.lines:
			if strings.Contains(line, text) {
				return
			}
		case <-p.done:
			p.x.Fatalf("the program has ended: %v\n%s", p.err, p.x.said())
		case <-p.x.Context().Done():
			p.x.Fatal(p.x.Context().Err())
		}
	}
}

func (p *process) took() time.Duration { return time.Since(p.began).Round(time.Millisecond) }

func (p *process) after(d time.Duration) {
	select {
	case <-time.After(d):
	case <-p.done:
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) signal(s os.Signal) {
	p.x.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.x.Fatal(err)
	}
}

// wait waits until the program has ended with a code, -1 for a signal.
func (p *process) wait(code int) {
	p.x.Helper()
	<-p.done
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.x.Fatalf("the program has ended with %d, %v, want %d:\n%s", got, p.err, code, p.x.said())
	}
}

// run runs the program to its end.
func (x *run) run(args ...string) {
	x.Helper()
	p := x.start(args...)
	p.wait(0)
	x.mu.Lock()
	defer x.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(x.output.String()), "\n")
	x.Logf("%s", strings.Join(lines[max(0, len(lines)-3):], "\n"))
}
