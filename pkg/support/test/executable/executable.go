// Package executable starts programs for a test, keeps what they print, and ends them with the
// test. It is for tests and tools of Rowkeeper's own.
package executable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// grace is how long Stop waits for a program to end by itself.
const grace = time.Minute

// Spec says what is run.
type Spec struct {
	// Name is what messages call it, and the name of its log.
	Name string
	// Command is the program and its arguments, Env its whole environment, Dir the directory that
	// it is started in.
	Command []string
	Env     []string
	Dir     string
	// Logs is the directory of the file NAME.log, to which everything is appended that the program
	// prints.
	Logs string
	// Attributes may have a root directory, credentials and namespaces.
	Attributes syscall.SysProcAttr
}

// Process is a program that was started.
type Process struct {
	spec   Spec
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a program.
func Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(filepath.Join(spec.Logs, spec.Name+".log"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", spec.Name, err)
	}
	defer log.Close()
	// Not by exec.Command, which would look for the program outside the root directory that it will
	// have.
	cmd := &exec.Cmd{Path: spec.Command[0], Args: spec.Command, Env: spec.Env, Dir: spec.Dir,
		Stdout: log, Stderr: log}
	attributes := spec.Attributes
	// An interrupt on the terminal is for the test.
	attributes.Setpgid = true
	endWithParent(&attributes)
	cmd.SysProcAttr = &attributes
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, cmd: cmd, exited: make(chan struct{})}
	go func() {
		// How it ended is in ProcessState.
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// Exited is closed when the program has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Result tells how a program has ended that has.
func (p *Process) Result() string { return p.cmd.ProcessState.String() }

// ExitCode is that of a program that has ended, -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal. A program that has ended gets none.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.spec.Name, err)
	}
	return nil
}

// Kill ends the program at once, and waits for its end.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.exited
	return nil
}

// Stop asks the program to end, and waits for its end. One that does not end is killed, which is an
// error.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s has not ended %s after SIGTERM", p.spec.Name, grace),
			p.Kill())
	}
}

// WaitFor asks every 50 ms until the answer is nil, the program has ended, or ctx ends; then the
// last answer is part of the error.
func (p *Process) WaitFor(ctx context.Context, what string,
	ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.exited:
			return fmt.Errorf("%s has ended (%s) before it was %s; its log ends:\n%s", p.spec.Name,
				p.Result(), what, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not %s: %w; its log ends:\n%s", p.spec.Name, what,
				err, p.Tail())
		}
	}
}

// Log returns everything that programs of this name have printed.
func (p *Process) Log() string {
	content, err := os.ReadFile(filepath.Join(p.spec.Logs, p.spec.Name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// Tail returns the last lines of the log.
func (p *Process) Tail() string {
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

// CPUSoFar is the processor time that a program has taken which runs.
func (p *Process) CPUSoFar() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return 0, err
	}
	// After the name, which is in parentheses, come the state and the fields from the fourth on.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the processor time of %s: %w", p.spec.Name, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100, nil // Linux counts in hundredths for users
}

// CPU is the processor time that the program and its children have taken until it ended.
func (p *Process) CPU() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}
