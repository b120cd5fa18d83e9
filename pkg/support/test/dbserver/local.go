package dbserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// local is a server program of this machine, running in a temporary directory.
type local struct {
	*programs.Program
	port int

	// guard removes what is left of the server when leash is closed, which also happens when this
	// process ends.
	guard *exec.Cmd
	leash io.Closer
}

// startLocal starts a server from the programs of this machine.
func startLocal(ctx context.Context, kind Kind, opts Options) (*Server, error) {
	prepare := map[Kind]func(*local, Options) (url, source string, err error){
		Postgres: postgresLocal,
		MariaDB:  mariadbLocal,
		MySQL:    mysqlLocal,
	}
	l, err := newLocal(string(kind), opts)
	if err != nil {
		return nil, err
	}
	url, source, err := prepare[kind](l, opts)
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
	port, err := programs.FreePort()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	l := &local{Program: &programs.Program{Dir: dir}, port: port}
	// The guard outlives this process, but not its end of the pipe: cat returns when nobody holds
	// the other end any more.
	l.guard = exec.Command("sh", "-c", `cat >/dev/null
pid=$(cat "$1/pid" 2>/dev/null) && kill -KILL "$pid" 2>/dev/null
i=0
while ! rm -rf "$1" 2>/dev/null && [ $i -lt 50 ]; do i=$((i + 1)); sleep 0.1; done`, "guard", dir)
	if l.leash, err = startLeashed(l.guard); err != nil {
		return nil, errors.Join(fmt.Errorf("start the guard of a server: %w", err),
			os.RemoveAll(dir))
	}
	return l, nil
}

// directory is where a server's directory is made, if the options do not say it: in memory, if it
// need not be durable and there is a gigabyte or two for it; "" stands for the default. Servers
// make hundreds of files per database.
func directory(opts Options) string {
	const shm, need = "/dev/shm", 2 << 30
	var fs syscall.Statfs_t
	if opts.Dir != "" {
		return opts.Dir
	}
	if opts.Durable || syscall.Statfs(shm, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < need {
		return ""
	}
	return shm
}

func (l *local) start(context.Context) error {
	if err := l.Start(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.Dir, "pid"), []byte(strconv.Itoa(l.PID())), 0o600)
}

func (l *local) stop(ctx context.Context) error { return l.ended(l.Stop(ctx)) }
func (l *local) kill(ctx context.Context) error { return l.ended(l.Kill(ctx)) }
func (l *local) pause(context.Context) error    { return l.Pause() }
func (l *local) resume(context.Context) error   { return l.Resume() }
func (l *local) running(context.Context) bool   { return l.Running() }
func (l *local) logs(context.Context) string    { return l.Log() }

// ended keeps the guard from killing a process that has the id of the server after it has ended.
func (l *local) ended(err error) error {
	if err == nil {
		err = os.RemoveAll(filepath.Join(l.Dir, "pid"))
	}
	return err
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
