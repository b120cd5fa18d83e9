package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/workload"
)

// WorkerCommand is the bench's command that runs [Work] on its standard input and output.
const WorkerCommand = "worker"

// Work runs the job that it reads from in, and reports to out. It gives up when in ends, which
// means that whoever asked is gone.
func Work(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var job Job
	dec := json.NewDecoder(in)
	if err := dec.Decode(&job); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	go func() {
		_ = dec.Decode(&struct{}{}) // nothing more comes: it returns when in ends
		cancel()
	}()
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	say := func(m Message) error {
		mu.Lock()
		defer mu.Unlock()
		return enc.Encode(m)
	}
	result, err := run(ctx, job, func(format string, args ...any) {
		// if nobody listens any more, in ends as well
		_ = say(Message{Progress: fmt.Sprintf(format, args...)})
	})
	if err != nil {
		return say(Message{Error: err.Error()})
	}
	return say(Message{Result: result})
}

func run(ctx context.Context, job Job, progress func(string, ...any)) (_ *Result, err error) {
	lines, err := workload.Find([]string{job.Line})
	if err != nil {
		return nil, err
	}
	targets, err := target.Find([]string{job.Target})
	if err != nil {
		return nil, err
	}
	if err := object.Use(job.Object); err != nil {
		return nil, err
	}
	line, t := lines[0], targets[0]
	r := &Result{Line: job.Line, Target: job.Target, Round: job.Round,
		Started: time.Now().UTC().Truncate(time.Second)}
	began := time.Now()
	progress("starting servers")
	server, err := t.Serve(ctx, job.Dir, job.Programs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if r.Settings, err = server.Settings(ctx); err != nil {
		return nil, err
	}
	config := workload.Config{Duration: job.Duration, Scale: job.Scale, Progress: progress}
	if job.Profiles != "" {
		p, err := newProfiler(job)
		if err != nil {
			return nil, err
		}
		config.Measuring = p.measuring
	}
	bench, err := workload.Open(ctx, config, t, server, line.Dial)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bench.Close()) }()
	if r.Metrics, err = line.Run(ctx, bench); err != nil {
		return nil, err
	}
	r.Seconds = time.Since(began).Round(time.Second).Seconds()
	return r, nil
}
