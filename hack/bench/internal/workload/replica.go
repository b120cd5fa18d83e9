package workload

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
)

// ReplicaCommand is the bench's command that runs [ServeReplica] on its standard input and output.
const ReplicaCommand = "replica"

// probePrefix begins the keys of the objects whose events are timed.
const probePrefix = "/probes"

// The two sides talk in gob, in this order: spec, connected, begin, newest probe of this replica,
// newest probe of all, result.
type (
	connected struct{ Ready bool }
	begin     struct{ Now bool }
	newest    struct{ Revision int64 }
)

// replicaProcess is a replica, seen from the line.
type replicaProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.ReadCloser
	enc *gob.Encoder
	dec *gob.Decoder
}

// runReplicas runs replicas side by side.
func runReplicas(ctx context.Context, specs []ReplicaSpec) (_ []ReplicaResult, err error) {
	var processes []*replicaProcess
	defer func() {
		for _, p := range processes {
			err = errors.Join(err, p.end(err != nil))
		}
	}()
	for _, spec := range specs {
		p, err := startReplica(ctx)
		if err != nil {
			return nil, err
		}
		processes = append(processes, p)
		if err := p.enc.Encode(spec); err != nil {
			return nil, err
		}
	}
	for _, p := range processes {
		if err := p.dec.Decode(&connected{}); err != nil {
			return nil, fmt.Errorf("a replica did not connect: %w", err)
		}
	}
	for _, p := range processes {
		if err := p.enc.Encode(begin{true}); err != nil {
			return nil, err
		}
	}
	var last newest
	for _, p := range processes {
		var own newest
		if err := p.dec.Decode(&own); err != nil {
			return nil, fmt.Errorf("a replica did not end its work: %w", err)
		}
		last.Revision = max(last.Revision, own.Revision)
	}
	results := make([]ReplicaResult, len(processes))
	for i, p := range processes {
		if err := p.enc.Encode(last); err != nil {
			return nil, err
		}
		if err := p.dec.Decode(&results[i]); err != nil {
			return nil, fmt.Errorf("a replica has no result: %w", err)
		}
	}
	return results, nil
}

func startReplica(ctx context.Context) (*replicaProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, ReplicaCommand)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &replicaProcess{cmd: cmd, in: in, out: out, enc: gob.NewEncoder(in),
		dec: gob.NewDecoder(out)}, cmd.Start()
}

// end waits for the process, which ends by itself unless something has failed.
func (p *replicaProcess) end(failed bool) error {
	if failed {
		_ = p.cmd.Process.Kill() // it may have ended
		_ = p.cmd.Wait()
		return nil
	}
	return errors.Join(p.in.Close(), p.cmd.Wait())
}

// ServeReplica is the main function of a replica's process.
func ServeReplica(ctx context.Context, in io.Reader, out io.Writer) error {
	enc, dec := gob.NewEncoder(out), gob.NewDecoder(in)
	r := &replica{
		ready: func() error {
			return errors.Join(enc.Encode(connected{true}), dec.Decode(&begin{}))
		},
		done: func(own int64) (int64, error) {
			var last newest
			err := errors.Join(enc.Encode(newest{own}), dec.Decode(&last))
			return last.Revision, err
		},
	}
	if err := dec.Decode(&r.spec); err != nil {
		return err
	}
	if err := r.run(ctx); err != nil {
		return err
	}
	return enc.Encode(r.result)
}

// replica is a replica, seen from its own process.
type replica struct {
	spec   ReplicaSpec
	result ReplicaResult
	// ready tells that this replica is connected, and returns when all are.
	ready func() error
	// done tells that this replica has written its last probe at a revision, and returns the newest
	// probe's of all replicas when all are done.
	done func(own int64) (last int64, err error)

	bench  *Bench
	probes storage.Interface
}

func (r *replica) run(ctx context.Context) (err error) {
	targets, err := target.Find([]string{r.spec.Target})
	if err != nil {
		return err
	}
	client, err := targets[0].Dial(ctx, r.spec.Address,
		target.DialOptions{Store: r.spec.Store})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	store, release, err := client.Store(object.Prefix)
	if err != nil {
		return err
	}
	defer release()
	probes, releaseProbes, err := client.Store(probePrefix)
	if err != nil {
		return err
	}
	defer releaseProbes()
	quiet := Config{Duration: r.spec.Duration, Scale: 1, Progress: func(string, ...any) {}}
	r.bench, r.probes = &Bench{Config: quiet, Server: elsewhere{}, Store: store}, probes
	if !r.spec.Watch {
		_, err := r.work(ctx)
		return err
	}

	now, err := store.GetCurrentResourceVersion(ctx)
	if err != nil {
		return err
	}
	f, err := follow(ctx, probes, probePrefix, int64(now))
	if err != nil {
		return err
	}
	last, err := r.work(ctx)
	if err == nil && last > 0 {
		err = r.bench.drain(ctx, []*follower{f}, last)
	}
	err = errors.Join(err, f.stop())
	r.result.Seen = f.seen
	return err
}

// work writes, and returns the newest probe's revision when all replicas are done.
func (r *replica) work(ctx context.Context) (last int64, err error) {
	if err := r.ready(); err != nil {
		return 0, err
	}
	pacing, stop := context.WithCancel(ctx)
	defer stop()
	const probers = 16
	acks := newLedger(probers)
	var crews []*crew
	if r.spec.Probes > 0 {
		turns := newPace(pacing, r.spec.Probes)
		crews = append(crews, r.bench.hire(ctx, probers,
			func(ctx context.Context, worker, i int) error {
				if err := turns.next(); err != nil {
					return err
				}
				out, name := &example.Pod{},
					object.Name(fmt.Sprintf("%sp%03d", r.spec.Group, worker), i)
				if err := r.probes.Create(ctx, object.Key(probePrefix, name), object.New(name), out,
					0); err != nil {
					return err
				}
				return acks.record(worker, out)
			}))
	}
	writers := r.bench.hire(ctx, r.spec.Writers, r.bench.creating(r.spec.Group))
	crews = append(crews, writers)
	err = rest(ctx, r.spec.Warmup)
	w, werr := writers.window(func() error { return rest(ctx, r.spec.Duration) })
	err = errors.Join(err, werr)
	stop()
	for _, c := range crews {
		err = errors.Join(err, c.dismiss())
	}
	if err != nil {
		return 0, err
	}
	load := writers.load(w)
	r.result = ReplicaResult{Operations: load.Operations, Elapsed: load.Elapsed,
		CPU: load.CPU.Client, Window: [2]int64{w.from.UnixNano(), w.to.UnixNano()}}
	for _, list := range acks.acks {
		r.result.Acks = append(r.result.Acks, list...)
	}
	return r.done(acks.last.Load())
}

// elsewhere is a server that another process has started and measures.
type elsewhere struct{ target.Server }

func (elsewhere) Processes() []int { return nil }
