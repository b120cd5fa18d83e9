// Package server runs "rowkeeper serve", or another of its commands, as processes.
package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Server is a replica. One goroutine at a time starts and ends it.
type Server struct {
	Program string
	// Dir is where it keeps its certificates. Port is the same over restarts.
	Dir  string
	Port int
	Args []string
	Env  []string
	// Command is the command and what it needs to listen on Port. Without it: serve, with the
	// example API.
	Command []string
	// Wrapper is a command that ends by running the program, which it is given as its last
	// arguments.
	Wrapper []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
}

// New prepares a server.
func New(program, dir string, args ...string) (*Server, error) {
	port, err := programs.FreePort()
	return &Server{Program: program, Dir: dir, Port: port, Args: args}, err
}

// Address is where the server listens.
func (s *Server) Address() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

// Start starts the process. It does not wait until it serves.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	command := s.Command
	if len(command) == 0 {
		command = []string{"serve", "--example", "--secure-port=" + strconv.Itoa(s.Port)}
	}
	words := slices.Concat(s.Wrapper, []string{s.Program}, command, s.Args)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), s.Env...)
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	// It ends with this process, and an interrupt on the terminal is for this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(done)
	}()
	s.cmd, s.done = cmd, done
	return nil
}

// Running tells whether the process lives.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// Pid is the process's.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd.Process.Pid
}

// Signal sends a signal.
func (s *Server) Signal(signal syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd.Process.Signal(signal)
}

// End sends a signal and waits for the end. It returns the exit code, -1 after a signal that kills.
func (s *Server) End(ctx context.Context, signal syscall.Signal) (int, error) {
	if !s.Running() {
		return 0, nil
	}
	if err := s.Signal(signal); err != nil {
		return 0, err
	}
	select {
	case <-s.done:
		return s.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("the server does not end after %s: %w", signal, ctx.Err())
	}
}

// Restart starts the server again. If it does not stay up, because the database is away, it is
// started again until the context ends.
func (s *Server) Restart(ctx context.Context, ready func(context.Context) error) error {
	for {
		if !s.Running() {
			if err := s.Start(); err != nil {
				return err
			}
		}
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server is not ready: %w; it wrote: %s", err, s.Log())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Config is the administrator's, once the server has started.
func (s *Server) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("",
		filepath.Join(s.Dir, ".rowkeeper", "kubeconfig"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

func (s *Server) logFile() string { return filepath.Join(s.Dir, "log") }

// Log is the end of what the server wrote.
func (s *Server) Log() string {
	content, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// Build builds the program from the checkout into its directory bin/torture, where go build leaves
// it alone if it is up to date.
func Build(root string) (rowkeeper string, err error) {
	// It is run from other directories, and so is go build.
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	rowkeeper = filepath.Join(root, "bin", "torture", "rowkeeper")
	cmd := exec.Command("go", "build", "-o", rowkeeper, "./cmd/rowkeeper")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOWORK=") // the program is in the workspace
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/rowkeeper: %w\n%s", err, out)
	}
	return rowkeeper, nil
}
