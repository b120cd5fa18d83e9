// Package workload holds the lines of the bench: the work that is done to every target, written
// once against storage.Interface.
package workload

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
)

// Config says how a line is run.
type Config struct {
	// Duration is how long each measured phase lasts that has no size of its own.
	Duration time.Duration
	// Scale shrinks the sizes of lines, for a quick look: 1 is as the lines say.
	Scale float64
	// Progress is told what is going on.
	Progress func(format string, args ...any)
	// Measuring, if not nil, is called when a measured phase begins, and what it returns at its
	// end.
	Measuring func() (end func() error, err error)
}

// Bench is a target in use by one line.
type Bench struct {
	Config
	Target target.Target
	Server target.Server
	// Client and Store are open on Server. Store holds the objects below object.Prefix.
	Client target.Client
	Store  storage.Interface

	dial    target.DialOptions
	release func()
}

// Open connects to a server.
func Open(ctx context.Context, c Config, t target.Target, s target.Server,
	o target.DialOptions) (*Bench, error) {
	b := &Bench{Config: c, Target: t, Server: s, dial: o}
	return b, b.open(ctx)
}

func (b *Bench) open(ctx context.Context) error {
	client, err := b.Target.Dial(ctx, b.Server.Address(), b.dial)
	if err != nil {
		return err
	}
	return b.use(client)
}

// use begins to use a client.
func (b *Bench) use(client target.Client) error {
	store, release, err := client.Store(object.Prefix)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	b.Client, b.Store, b.release = client, store, release
	return nil
}

// Close releases the store and the client. The server goes on.
func (b *Bench) Close() error {
	b.release()
	return b.Client.Close()
}

// Reopen begins anew with what is stored: it restarts the server and connects again, so that
// nothing of the work before is in memory.
func (b *Bench) Reopen(ctx context.Context) error {
	b.Progress("restarting")
	if err := b.Close(); err != nil {
		return err
	}
	if err := b.Server.Restart(ctx); err != nil {
		return err
	}
	debug.FreeOSMemory()
	return b.open(ctx)
}

// Size is the number of objects or operations of a line, scaled; at least 100.
func (b *Bench) Size(n int) int { return max(int(float64(n)*b.Scale), min(n, 100)) }

// loaders is how many writers fill a database before something else is measured.
const loaders = 128

// load creates n objects.
func (b *Bench) load(ctx context.Context, store storage.Interface, prefix, group string,
	n int) error {
	_, err := b.each(ctx, "creating objects", loaders, n,
		func(ctx context.Context, _, i int) error {
			return create(ctx, store, prefix, object.Name(group, i))
		})
	return err
}

// loadPods creates n objects and returns them as they are stored.
func (b *Bench) loadPods(ctx context.Context, group string, n int) ([]*example.Pod, error) {
	pods := make([]*example.Pod, n)
	_, err := b.each(ctx, "creating objects", loaders, n,
		func(ctx context.Context, _, i int) error {
			pods[i] = &example.Pod{}
			name := object.Name(group, i)
			return b.Store.Create(ctx, object.Key(object.Prefix, name), object.New(name),
				pods[i], 0)
		})
	return pods, err
}

func create(ctx context.Context, store storage.Interface, prefix, name string) error {
	return store.Create(ctx, object.Key(prefix, name), object.New(name), &example.Pod{}, 0)
}

// update changes an object. suggestion is the caller's copy of it, or nil.
func update(ctx context.Context, store storage.Interface, name string, i int,
	suggestion *example.Pod) (*example.Pod, error) {
	out := &example.Pod{}
	if suggestion == nil {
		return out, store.GuaranteedUpdate(ctx, object.Key(object.Prefix, name), out, false, nil,
			object.Touch(i), nil)
	}
	// The store may change what it is given; the watch cache gives it a copy, too.
	return out, store.GuaranteedUpdate(ctx, object.Key(object.Prefix, name), out, false, nil,
		object.Touch(i), suggestion.DeepCopy())
}

// each runs n operations, shared by workers, and measures them.
func (b *Bench) each(ctx context.Context, what string, workers, n int,
	op func(ctx context.Context, worker, i int) error) (Load, error) {
	var next atomic.Int64
	c := b.hire(ctx, min(workers, n), func(ctx context.Context, worker, _ int) error {
		i := int(next.Add(1)) - 1
		if i >= n {
			return errDone
		}
		return op(ctx, worker, i)
	})
	w, err := c.window(func() error {
		return c.await(func() { b.Progress("%s: %d of %d", what, min(int(next.Load()), n), n) })
	})
	if err = errors.Join(err, c.dismiss()); err != nil {
		return Load{}, fmt.Errorf("%s: %w", what, err)
	}
	return c.load(w), nil
}

// drive lets workers repeat an operation, and measures them for the usual duration after they have
// warmed up.
func (b *Bench) drive(ctx context.Context, what string, workers int,
	op func(ctx context.Context, worker, i int) error) (Load, error) {
	c := b.hire(ctx, workers, op)
	w, err := c.measure(what, b.Duration)
	if err = errors.Join(err, c.dismiss()); err != nil {
		return Load{}, fmt.Errorf("%s: %w", what, err)
	}
	return c.load(w), nil
}

// Load is what workers did in a window of time.
type Load struct {
	Operations int
	Elapsed    time.Duration
	Latencies  measure.Latencies
	CPU        measure.CPU
	// Written is how many bytes client and servers have had written to disks.
	Written int64
}

// Throughput is operations per second.
func (l Load) Throughput() float64 { return float64(l.Operations) / l.Elapsed.Seconds() }

// CPUPerOperation is the processor time of client and server together, in microseconds.
func (l Load) CPUPerOperation() float64 {
	return float64(l.CPU.Total().Microseconds()) / float64(max(l.Operations, 1))
}

// metrics are the figures of a load under their usual names.
func (l Load) metrics() Metrics {
	return Metrics{
		"throughput": l.Throughput(),
		"p50":        measure.Milliseconds(l.Latencies.Percentile(50)),
		"p99":        measure.Milliseconds(l.Latencies.Percentile(99)),
		"cpu":        l.CPUPerOperation(),
		"cpu_client": float64(l.CPU.Client.Microseconds()) / float64(max(l.Operations, 1)),
		"cpu_server": float64((l.CPU.Total() - l.CPU.Client).Microseconds()) /
			float64(max(l.Operations, 1)),
		"written": float64(l.Written) / float64(max(l.Operations, 1)),
	}
}
