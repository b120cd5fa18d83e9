package dbserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// local is a server program of this machine, running in a temporary directory.
type local struct {
	dir  string
	port int
	cred *syscall.Credential
	// command starts the server, signal ends it in order.
	command []string
	signal  syscall.Signal

	// guard removes what is left of the server when leash is closed, which also happens when this
	// process ends.
	guard *exec.Cmd
	leash io.Closer

	// cmd is the running server, and exited is closed when it has ended.
	cmd    *exec.Cmd
	exited chan struct{}
}

// startLocal starts a server from the programs of this machine.
func startLocal(ctx context.Context, kind Kind, opts Options) (*Server, error) {
	programs := map[Kind]func(context.Context, *local, Options) (url, source string, err error){
		Postgres: postgresLocal,
		MariaDB:  mariadbLocal,
		MySQL:    mysqlLocal,
	}
	l, err := newLocal(string(kind), opts)
	if err != nil {
		return nil, err
	}
	url, source, err := programs[kind](ctx, l, opts)
	if err == nil {
		err = l.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, l.remove(ctx))
	}
	return &Server{Kind: kind, Source: source, URL: url, host: l}, nil
}

// newLocal makes the directory of a server, and its guard.
func newLocal(name string, opts Options) (*local, error) {
	dir, err := os.MkdirTemp(directory(opts), "rowkeeper-"+name+"-")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	l := &local{dir: dir, port: port}
	// The guard outlives this process, but not its end of the pipe: cat returns when nobody holds
	// the other end any more.
	l.guard = exec.Command("sh", "-c", `cat >/dev/null
pid=$(cat "$1/pid" 2>/dev/null) && kill -KILL "$pid" 2>/dev/null
i=0
while ! rm -rf "$1" 2>/dev/null && [ $i -lt 50 ]; do i=$((i + 1)); sleep 0.1; done`, "guard", dir)
	if l.leash, err = startGuard(l.guard); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return l, nil
}

// directory is where a server's directory is made: in memory, if it need not be durable and there
// is a gigabyte or two for it; "" stands for the default. Servers make hundreds of files per
// database.
func directory(opts Options) string {
	const shm, need = "/dev/shm", 2 << 30
	var fs syscall.Statfs_t
	if opts.Durable || syscall.Statfs(shm, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < need {
		return ""
	}
	return shm
}

// freePort finds a port that is free on 127.0.0.1. It is outside the range from which the system
// takes ports for outgoing connections, so that a server can be stopped and started again on it.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no port between 20000 and 32000 is free on 127.0.0.1")
}

// runAs makes the server run as the first of the users that exists, if this process is root, whom
// servers refuse. It hands the directory over.
func (l *local) runAs(names ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return err
		}
		l.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return os.Chown(l.dir, int(uid), int(gid))
	}
	return fmt.Errorf("servers do not run as root, and none of the users %s exists",
		strings.Join(names, ", "))
}

// write puts a file into the server's directory that only the server may read, and returns its
// path.
func (l *local) write(name string, data []byte) (string, error) {
	path := filepath.Join(l.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return "", err
	}
	if l.cred == nil {
		return path, nil
	}
	return path, os.Chown(path, int(l.cred.Uid), int(l.cred.Gid))
}

// cmdline prepares a program of the server.
func (l *local) cmdline(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = l.dir
	cmd.Env = append(os.Environ(), "HOME="+l.dir, "LC_ALL=C")
	// A process group of its own: an interrupt on the terminal is for the tests, which then stop
	// their servers.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: l.cred}
	return cmd
}

// run runs a program of the server to its end.
func (l *local) run(args ...string) error {
	out, err := l.cmdline(args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, tail(string(out)))
	}
	return nil
}

func (l *local) start(ctx context.Context) error {
	if l.running(ctx) {
		return errors.New("the server is running")
	}
	log, err := os.OpenFile(filepath.Join(l.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := l.cmdline(l.command...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		// How it ended is in its log; that it ended is all that matters here.
		_ = cmd.Wait()
		close(exited)
	}()
	l.cmd, l.exited = cmd, exited
	return os.WriteFile(filepath.Join(l.dir, "pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

// running tells whether the server's process lives.
func (l *local) running(context.Context) bool {
	if l.exited == nil {
		return false
	}
	select {
	case <-l.exited:
		return false
	default:
		return true
	}
}

func (l *local) stop(ctx context.Context) error { return l.end(ctx, l.signal) }

func (l *local) kill(ctx context.Context) error {
	if !l.running(ctx) {
		return nil
	}
	// Postgres' processes would finish what they are doing when their parent is gone, and the
	// parent would start a recovery when they are: freeze it, then kill all of them.
	if err := l.pause(ctx); err != nil {
		return err
	}
	return l.end(ctx, syscall.SIGKILL)
}

func (l *local) pause(context.Context) error {
	// The parent first, so that it starts no more children.
	if err := l.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return l.signalChildren(syscall.SIGSTOP)
}

func (l *local) resume(context.Context) error {
	if err := l.signalChildren(syscall.SIGCONT); err != nil {
		return err
	}
	return l.cmd.Process.Signal(syscall.SIGCONT)
}

// end sends a signal to the server, and SIGKILL also to its children, and waits for their end.
func (l *local) end(ctx context.Context, sig syscall.Signal) error {
	if !l.running(ctx) {
		return nil
	}
	pids, err := children(l.cmd.Process.Pid)
	if err != nil {
		return err
	}
	if sig == syscall.SIGKILL {
		if err := l.signalChildren(sig); err != nil {
			return err
		}
	}
	if err := l.cmd.Process.Signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-l.exited:
	case <-ctx.Done():
		return fmt.Errorf("the server does not end: %w", ctx.Err())
	}
	// A cluster cannot be started again while one of its processes lives.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		processes, err := list()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(processes, func(p process) bool {
			return slices.Contains(pids, p.pid) && !p.zombie
		}) {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the server's processes do not end: %w", ctx.Err())
		}
	}
	return os.Remove(filepath.Join(l.dir, "pid"))
}

// signalChildren sends a signal to the processes that the server has started.
func (l *local) signalChildren(sig syscall.Signal) error {
	pids, err := children(l.cmd.Process.Pid)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// process is a process of this machine.
type process struct {
	pid, parent int
	// zombie: it has ended, and nobody has asked how.
	zombie bool
}

// list lists all processes.
func list() ([]process, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil, fmt.Errorf("list the processes by ps: %w", err)
	}
	var processes []process
	for line := range strings.Lines(string(out)) {
		var p process
		var stat string
		if _, err := fmt.Sscan(line, &p.pid, &p.parent, &stat); err != nil {
			return nil, fmt.Errorf("read the output of ps: %w", err)
		}
		p.zombie = strings.HasPrefix(stat, "Z")
		processes = append(processes, p)
	}
	return processes, nil
}

// children lists the processes that a process has started. Only Postgres starts any, one per
// connection.
func children(pid int) ([]int, error) {
	processes, err := list()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range processes {
		if p.parent == pid {
			pids = append(pids, p.pid)
		}
	}
	return pids, nil
}

func (l *local) remove(ctx context.Context) error {
	err := l.kill(ctx)
	if cerr := l.leash.Close(); cerr != nil && !errors.Is(cerr, os.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	// The guard removes the directory. It fails when there was no process left to kill, which is as
	// it should be.
	done := make(chan struct{})
	go func() { _ = l.guard.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(startTimeout):
		err = errors.Join(err, errors.New("the guard of the server does not end"))
	}
	return err
}

func (l *local) logs(context.Context) string {
	data, err := os.ReadFile(filepath.Join(l.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return tail(string(data))
}

// tail returns the last lines of an output.
func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
