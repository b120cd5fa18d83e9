package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/workload"
)

// Plan is what is to be run.
type Plan struct {
	Lines   []workload.Line
	Targets []target.Target
	Rounds  int
	// Template has what all jobs share.
	Template Job
	// Dir is where each job gets a directory.
	Dir string
	// Log takes what the jobs' processes log.
	Log io.Writer
	// Screen shows progress.
	Screen *Screen
}

// jobs lists the runs: line by line, round by round, and in each round all targets, which take
// turns in being the first.
func (p Plan) jobs() []Job {
	var jobs []Job
	for _, line := range p.Lines {
		rounds := p.Rounds
		if line.Once {
			rounds = 1
		}
		targets := slices.DeleteFunc(slices.Clone(p.Targets), func(t target.Target) bool {
			return line.Only != nil && !line.Only(t)
		})
		for round := range rounds {
			for i := range targets {
				job := p.Template
				job.Line, job.Target, job.Round = line.Name, targets[(i+round)%len(targets)].Name(),
					round+1
				jobs = append(jobs, job)
			}
		}
	}
	return jobs
}

// Execute runs what has no result yet. It goes on after a failure, and returns all of them at the
// end.
func (p Plan) Execute(ctx context.Context, results *Results) error {
	jobs := slices.DeleteFunc(p.jobs(), func(j Job) bool {
		return results.Has(j.Line, j.Target, j.Round)
	})
	var failures []error
	for i, job := range jobs {
		if ctx.Err() != nil {
			break
		}
		title := fmt.Sprintf("[%d/%d] %s, %s, round %d", i+1, len(jobs), job.Line,
			job.Target, job.Round)
		began := time.Now()
		r, err := p.runJob(ctx, "", job, func(text string) { p.Screen.Progress(title + ": " + text) })
		if err != nil {
			failures = append(failures, fmt.Errorf("%s on %s, round %d: %w", job.Line, job.Target,
				job.Round, err))
			p.Screen.Line(title + ": FAILED: " + err.Error())
			continue
		}
		if err := results.Add(*r); err != nil {
			return err
		}
		p.Screen.Line(fmt.Sprintf("%s: %s (%s)", title, summary(*r),
			time.Since(began).Round(time.Second)))
	}
	return errors.Join(append(failures, ctx.Err())...)
}

// summary names the figures that are shown in the table.
func summary(r Result) string {
	lines, err := workload.Find([]string{r.Line})
	if err != nil {
		return err.Error()
	}
	text := ""
	for _, m := range lines[0].Measures {
		if value, ok := r.Metrics[m.Key]; ok {
			text += fmt.Sprintf(" %s=%.4g%s", m.Key, value, m.Unit)
		}
	}
	return text
}

// runJob runs a job in a process of its own, so that nothing is left of the run before: neither
// memory nor servers nor files. The process runs the program, "" for this one.
func (p Plan) runJob(ctx context.Context, program string, job Job,
	progress func(string)) (_ *Result, err error) {
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	job.Dir = filepath.Join(p.Dir, fmt.Sprintf("%s-%s-%d", job.Line, job.Target, job.Round))
	if err := os.Mkdir(job.Dir, 0o755); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(job.Dir)) }()

	cmd := exec.Command(program, WorkerCommand)
	cmd.Stderr = p.Log
	// The process and all servers that it starts are one group, which is ended below, however the
	// process ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err == nil {
			p.Screen.Line(fmt.Sprintf("%s on %s left processes behind; they were killed", job.Line,
				job.Target))
		}
	}()
	if err := json.NewEncoder(in).Encode(job); err != nil {
		return nil, errors.Join(err, cmd.Wait())
	}
	stop := context.AfterFunc(ctx, func() { _ = in.Close() }) // the process then ends in order
	defer stop()
	var last Message
	for dec := json.NewDecoder(out); ; {
		var m Message
		if err = dec.Decode(&m); err != nil {
			break
		}
		if m.Progress != "" {
			progress(m.Progress)
		} else {
			last = m
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	err = errors.Join(err, cmd.Wait())
	switch {
	case last.Error != "":
		return nil, errors.New(last.Error)
	case err != nil:
		return nil, err
	case last.Result == nil:
		return nil, errors.New("its process ended without a result")
	}
	return last.Result, nil
}
