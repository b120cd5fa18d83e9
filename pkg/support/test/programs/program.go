package programs

import (
	"context"
	"errors"
	"fmt"
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

// patience bounds the start and the end of a server.
const patience = 2 * time.Minute

// Program is a server program in a directory of its own. One goroutine at a time uses it.
type Program struct {
	// Dir is its directory. It holds the log.
	Dir string
	// Command starts the server. Signal ends it in order.
	Command []string
	Signal  syscall.Signal
	// Attributes are those of its processes. RunAs and the process group are added.
	Attributes syscall.SysProcAttr

	// cmd is the running server, and exited is closed when it has ended.
	cmd    *exec.Cmd
	exited chan struct{}
}

// RunAs makes the server run as the first of the users that exists, if this process is root:
// servers refuse to run as root. It hands the directory over.
func (p *Program) RunAs(names ...string) error {
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
		p.Attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return os.Chown(p.Dir, int(uid), int(gid))
	}
	return fmt.Errorf("servers do not run as root, and none of the users %s exists",
		strings.Join(names, ", "))
}

// Write puts a file into the directory that only the server may read, and returns its path.
func (p *Program) Write(name string, data []byte) (string, error) {
	path := filepath.Join(p.Dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return "", err
	}
	if c := p.Attributes.Credential; c != nil {
		return path, os.Chown(path, int(c.Uid), int(c.Gid))
	}
	return path, nil
}

// command prepares a program of the server.
func (p *Program) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), "HOME="+p.Dir, "LC_ALL=C")
	attributes := p.Attributes
	// A process group of its own: an interrupt on the terminal is for the tests, which then stop
	// their servers.
	attributes.Setpgid = true
	cmd.SysProcAttr = &attributes
	return cmd
}

// Run runs a program of the server to its end.
func (p *Program) Run(args ...string) error {
	out, err := p.command(args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, Tail(string(out)))
	}
	return nil
}

// Start starts the server. It does not wait until the server answers; see [Program.Await].
func (p *Program) Start() error {
	if p.Running() {
		return errors.New("the server is running")
	}
	log, err := os.OpenFile(filepath.Join(p.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := p.command(p.Command...)
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
	p.cmd, p.exited = cmd, exited
	return nil
}

// PID is the id of the server's process, which was started.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Running tells whether the server's process lives.
func (p *Program) Running() bool {
	if p.exited == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Await repeats a question until the server answers it, has ended, or the time is up.
func (p *Program) Await(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-retry.C:
			continue
		case <-p.exited:
		case <-ctx.Done():
		}
		return fmt.Errorf("%s does not answer: %w; its log ends: %s", p.Command[0], err, p.Log())
	}
}

// Stop ends the server in order, and waits for its end.
func (p *Program) Stop(ctx context.Context) error { return p.end(ctx, p.Signal) }

// Kill ends the server and all its processes as a power failure would. The parent is frozen first,
// so that it starts no more processes and does not tell the others: a process of Postgres that
// learned of its parent's death would finish what it does, and would show others a commit that its
// synchronous standby does not have.
func (p *Program) Kill(ctx context.Context) error {
	if !p.Running() {
		return nil
	}
	if err := p.Pause(); err != nil {
		return err
	}
	return p.end(ctx, syscall.SIGKILL)
}

// Pause freezes the server: connections stay open, and nothing answers until Resume.
func (p *Program) Pause() error {
	// The parent first, so that it starts no more children.
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return p.signalChildren(syscall.SIGSTOP)
}

// Resume ends a Pause.
func (p *Program) Resume() error {
	if err := p.signalChildren(syscall.SIGCONT); err != nil {
		return err
	}
	return p.cmd.Process.Signal(syscall.SIGCONT)
}

// end sends a signal to the server, and SIGKILL also to its children, and waits for their end.
func (p *Program) end(ctx context.Context, sig syscall.Signal) error {
	if !p.Running() {
		return nil
	}
	pids, err := children(p.PID())
	if err != nil {
		return err
	}
	if sig == syscall.SIGKILL {
		if err := p.signalChildren(sig); err != nil {
			return err
		}
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-p.exited:
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w", p.Command[0], ctx.Err())
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
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the processes of %s do not end: %w", p.Command[0], ctx.Err())
		}
	}
}

// signalChildren sends a signal to the processes that the server has started.
func (p *Program) signalChildren(sig syscall.Signal) error {
	pids, err := children(p.PID())
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

// Log returns the end of the server's log.
func (p *Program) Log() string {
	data, err := os.ReadFile(filepath.Join(p.Dir, "log"))
	if err != nil {
		return err.Error()
	}
	return Tail(string(data))
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

// FreePort finds a port that is free on 127.0.0.1. It is outside the range from which the system
// takes ports for outgoing connections, so that a server can be stopped and started again on it.
func FreePort() (int, error) {
	for range 100 {
		port := 12000 + rand.IntN(20000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no port between 12000 and 32000 is free on 127.0.0.1")
}

// Tail returns the last lines of an output.
func Tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
