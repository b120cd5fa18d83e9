package database

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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// program is a database server of this machine's programs.
type program struct {
	dir  string
	cred *syscall.Credential
	args []string
	cmd  *exec.Cmd
	done chan struct{}
}

// asUser hands a directory to a user, as whom servers run if this process is root, whom they
// refuse.
func asUser(dir, name string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, &Missing{fmt.Sprintf("there is no user %s: %v", name, err)}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		os.Chown(dir, int(uid), int(gid))
}

func (p *program) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "HOME="+p.dir, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred, Setpgid: true,
		Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (p *program) run(args ...string) error {
	out, err := p.command(args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return nil
}

func (p *program) start() error {
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = p.command(p.args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.done = make(chan struct{})
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	return nil
}

// kill ends the server and all its processes as a power failure would. The parent is frozen first,
// so that it starts no more processes and does not tell those that there are: a Postgres backend
// that learned of its parent's death would show others a commit that its synchronous standby does
// not have.
func (p *program) kill() error {
	if p.cmd == nil || p.cmd.Process == nil {
		return nil
	}
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	out, err := exec.Command("ps", "-o", "pid=", "--ppid", strconv.Itoa(p.cmd.Process.Pid)).Output()
	var none *exec.ExitError // ps finds none
	if err != nil && !errors.As(err, &none) {
		return fmt.Errorf("list the server's processes by ps: %w", err)
	}
	var children []int
	for _, word := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(word); err == nil {
			children = append(children, pid)
		}
	}
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, pid := range children {
			if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
	err = p.cmd.Process.Kill()
	<-p.done
	return err
}

// await repeats a question until the server answers it, has ended, or the time is up.
func (p *program) await(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
			continue
		case <-p.done:
		case <-ctx.Done():
		}
		log, _ := os.ReadFile(filepath.Join(p.dir, "log")) // if there is one
		return fmt.Errorf("%s does not answer: %w; its log ends: %s", p.args[0], err,
			log[max(0, len(log)-2000):])
	}
}

// Port finds a free port of 127.0.0.1, outside of the range from which the system takes ports for
// outgoing connections, so that it stays free while nobody listens.
func Port() (int, error) {
	for range 100 {
		port := 12000 + rand.IntN(8000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no port between 12000 and 20000 is free on 127.0.0.1")
}
