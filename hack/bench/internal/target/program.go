package target

import (
	"context"
	"errors"
	"fmt"
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

// Programs says where the server programs are.
type Programs struct {
	// Etcd and Kine are the programs that are built from the modules in peers.
	Etcd, Kine string
	// Postgres is the directory of Postgres' programs. The others are the servers' programs. Empty:
	// not installed.
	Postgres, MariaDB, MariaDBInstall, MySQL string
}

// FindPrograms looks for the database servers that are installed on this machine.
func FindPrograms() Programs {
	var p Programs
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			p.Postgres = filepath.Dir(path)
		}
	}
	if dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin"); err == nil && p.Postgres == "" &&
		len(dirs) > 0 {
		major := func(dir string) int {
			n, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
			if err != nil {
				return 0
			}
			return n
		}
		p.Postgres = slices.MaxFunc(dirs, func(a, b string) int { return major(a) - major(b) })
	}
	p.MariaDB, p.MariaDBInstall = look("mariadbd"), look("mariadb-install-db")
	if mysqld := look("mysqld"); mysqld != "" {
		version, err := exec.Command(mysqld, "--no-defaults", "--version").Output()
		if err == nil && !strings.Contains(string(version), "MariaDB") {
			p.MySQL = mysqld
		}
	}
	return p
}

// look finds a program, also where only root's PATH has it.
func look(name string) string {
	for _, path := range []string{name, filepath.Join("/usr/sbin", name)} {
		if path, err := exec.LookPath(path); err == nil {
			return path
		}
	}
	return ""
}

// Missing says which program a target lacks, and is empty if it lacks none.
func (t Target) Missing(p Programs) string {
	switch {
	case t.Database == "postgres" && p.Postgres == "":
		return "postgres"
	case t.Database == "mariadb" && (p.MariaDB == "" || p.MariaDBInstall == ""):
		return "mariadbd and mariadb-install-db"
	case t.Database == "mysql" && p.MySQL == "":
		return "mysqld (MySQL's own)"
	}
	return ""
}

// program is a server process.
type program struct {
	args []string
	// dir is the working directory, and the place of the log.
	dir string
	// user runs it, if it is not nil.
	user *syscall.Credential
	// signal ends it in order.
	signal syscall.Signal

	cmd    *exec.Cmd
	exited chan struct{}
}

const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 2 * time.Minute
)

func (p *program) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "HOME="+p.dir, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.user}
	return cmd
}

// run runs a program that ends by itself.
func (p *program) run(args ...string) error {
	out, err := p.command(args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return nil
}

func (p *program) start() error {
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := p.command(p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(exited)
	}()
	p.cmd, p.exited = cmd, exited
	return nil
}

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) stop() error {
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(p.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("%s does not end", p.args[0]), p.cmd.Process.Kill())
	}
}

// await repeats a question until the server answers it, has ended, or the time is up.
func (p *program) await(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
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
		case <-p.exited:
			return fmt.Errorf("%s has ended; its log ends: %s", p.args[0], p.logEnd())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; its log ends: %s", p.args[0], err,
				p.logEnd())
		}
	}
}

func (p *program) logEnd() string {
	data, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil {
		return err.Error()
	}
	const end = 2000
	return string(data[max(0, len(data)-end):])
}

// asUser gives the directory to the first of these users that exists, and returns it. Servers that
// refuse to run as root need it; other users run them themselves.
func asUser(dir string, names ...string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			continue
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
	return nil, fmt.Errorf("the server does not run as root, and none of the users %s exists",
		strings.Join(names, ", "))
}

// freePort returns a TCP port of the loopback address that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// mkdir makes a subdirectory that other users may enter.
func mkdir(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.Mkdir(path, 0o755)
}
