// Package process is for tests of projects whose versions of k8s.io differ from Rowkeeper's. It
// starts an API server as a process, and imports nothing but the standard library: it is a module
// of its own, which adds nothing to the versions of a project.
//
//	func TestController(t *testing.T) {
//		server := process.Start(t, process.Options{})
//		config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig)
//		…
//	}
//
// The program is rowkeeper, with CustomResourceDefinitions, or any other server of package kinds.
// It has a directory and a database of its own, and a port that is free.
//
// Projects with the same versions as Rowkeeper use packages testkit and crds/crdstest, whose
// servers run inside the test and start ten times faster.
package process

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Options say which server to start. The zero value is that of the program rowkeeper.
type Options struct {
	// Program is the file of the server's program. Default: the one that the environment variable
	// ROWKEEPER names, or else rowkeeper in one of the directories of PATH.
	Program string
	// Args are flags of its command serve. Default: --enable-crds. A --database is the caller's: it
	// is not emptied. Without one, the server has a SQLite file below Dir.
	Args []string
	// Dir is the directory for the server's files. Default: a new one, which Stop removes.
	Dir string
	// Stderr gets the server's log. Default: the end of it is a part of the errors.
	Stderr io.Writer
}

// Server is a server that runs.
type Server struct {
	// Kubeconfig is the name of the administrator's kubeconfig.
	Kubeconfig string

	cmd    *exec.Cmd
	remove string // the directory that Stop removes, or empty
	log    *tail
	ended  chan struct{} // closed when the process has ended
	err    error         // why it ended; valid after ended

	mu sync.Mutex
	// stopped: the caller has ended the server, and knows how that went. Protected by mu.
	stopped bool
}

// Start starts a server, waits until it is ready, and stops it when the test ends. It fails the
// test if that is not possible.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startWait)
	defer cancel()
	s, err := Launch(ctx, o)
	if err != nil {
		t.Fatalf("cannot start the API server: %v", err)
	}
	t.Cleanup(func() {
		t.Helper()
		if err := s.Stop(); err != nil {
			t.Errorf("cannot stop the API server: %v", err)
		}
	})
	return s
}

const (
	startWait = time.Minute
	// stopWait is how long a server may take to end that was asked to.
	stopWait = 20 * time.Second
	// ready begins the line that the program prints when it serves.
	ready = "The kubeconfig is "
)

// Launch starts a server and waits until it is ready, or until ctx ends. It is for programs without
// a test at hand, such as TestMain or a suite of Ginkgo. The caller calls [Server.Stop].
func Launch(ctx context.Context, o Options) (s *Server, err error) {
	program, err := o.program()
	if err != nil {
		return nil, err
	}
	s = &Server{log: &tail{}, ended: make(chan struct{})}
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "rowkeeper-process-"); err != nil {
			return nil, err
		}
		s.remove = dir
	}
	args := o.Args
	if args == nil {
		args = []string{"--enable-crds"}
	}
	args = append([]string{"serve", "--secure-port=0", "--data-dir=" + dir}, args...)
	// The server does not end with the context: that is for the start.
	s.cmd = exec.Command(program, args...)
	s.cmd.Stderr = io.MultiWriter(s.log, cmp.Or(o.Stderr, io.Discard))
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot start %s: %w", program, err), s.clean())
	}
	kubeconfig := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if file, ok := strings.CutPrefix(lines.Text(), ready); ok {
				kubeconfig <- file
				break
			}
		}
		_, _ = io.Copy(io.Discard, out)
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	select {
	case s.Kubeconfig = <-kubeconfig:
		return s, nil
	case <-s.ended:
		return nil, errors.Join(s.died(), s.clean())
	case <-ctx.Done():
		err := fmt.Errorf("%s was not ready in time: %w%s", program, context.Cause(ctx), s.log)
		return nil, errors.Join(err, s.Kill())
	}
}

// program finds the file of the server's program.
func (o Options) program() (string, error) {
	name := cmp.Or(o.Program, os.Getenv("ROWKEEPER"), "rowkeeper")
	file, err := exec.LookPath(name)
	if err == nil {
		file, err = filepath.Abs(file)
	}
	if err != nil {
		return "", fmt.Errorf("cannot find the program of the API server: %w; name it by "+
			"Options.Program or the environment variable ROWKEEPER, or install it by go install "+
			"github.com/rowkeeper/rowkeeper/cmd/rowkeeper@latest", err)
	}
	return file, nil
}

// Stop stops the server, and waits until it has ended. Requests that are under way are finished. It
// is an error if the server had ended by itself. After Stop or Kill it does nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	select {
	case <-s.ended:
		s.stopped = true
		return errors.Join(s.died(), s.clean())
	default:
	}
	if s.cmd.Process.Signal(os.Interrupt) != nil {
		return s.kill() // Windows has no interrupts for other processes
	}
	select {
	case <-s.ended:
	case <-time.After(stopWait):
		err := fmt.Errorf("the server did not end within %v of an interrupt%s", stopWait, s.log)
		return errors.Join(err, s.kill())
	}
	s.stopped = true
	if s.err != nil {
		return errors.Join(s.died(), s.clean())
	}
	return s.clean()
}

// Kill ends the server at once, as a crash would, and waits until it has ended. If it has ended
// already, Kill does nothing.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

// kill is Kill. mu is held.
func (s *Server) kill() error {
	s.stopped = true
	err := s.cmd.Process.Kill()
	<-s.ended
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	return errors.Join(err, s.clean())
}

// died says how the server has ended.
func (s *Server) died() error {
	if s.err == nil {
		return fmt.Errorf("the server has ended%s", s.log)
	}
	return fmt.Errorf("the server has ended: %w%s", s.err, s.log)
}

// clean removes the directory if it is not the caller's.
func (s *Server) clean() error {
	if s.remove == "" {
		return nil
	}
	return os.RemoveAll(s.remove)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

// tailBytes is enough for the error that a program ends with, and what led to it.
const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-tailBytes):]
	return len(p), nil
}

// String is for the end of an error.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.kept) == 0 {
		return ""
	}
	return "; its log ends:\n" + string(bytes.TrimSpace(t.kept))
}
