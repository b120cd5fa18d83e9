package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// fault is something that goes wrong during a run, and is over when do returns.
type fault struct {
	name, about string
	// served faults need a database that is a server.
	served bool
	do     func(ctx context.Context, r *run) error
}

// faults are all faults. The first one is none, and the last one consists of others.
func faults() []fault {
	return []fault{
		{name: "none", about: "nothing goes wrong",
			do: func(context.Context, *run) error { return nil }},
		{name: "front-kill", about: "a front end is killed (SIGKILL) and started again",
			do: func(ctx context.Context, r *run) error { return r.kill(ctx, rand.IntN(len(r.fronts))) }},
		{name: "fronts-kill", about: "all front ends are killed and started again", do: killAll},
		{name: "front-pause", about: "a front end is frozen (SIGSTOP)", do: pauseFront},
		{name: "clients-cut", about: "the clients are cut off from a front end",
			do: func(ctx context.Context, r *run) error { return cut(ctx, r.front()) }},
		{name: "clients-blackhole", about: "what passes between clients and a front end in one " +
			"direction is dropped, and then the connections are cut",
			do: func(ctx context.Context, r *run) error { return blackhole(ctx, r.front(), 0) }},
		{name: "clients-slow", about: "what passes between clients and a front end is late",
			do: func(ctx context.Context, r *run) error { return slow(ctx, r.front(), 0) }},
		{name: "database-cut", about: "a front end is cut off from the database", served: true,
			do: func(ctx context.Context, r *run) error {
				i := rand.IntN(len(r.fronts))
				r.db.Network().Cut(i)
				hold(ctx)
				return r.db.Network().Heal(ctx, i)
			}},
		{name: "database-blackhole", about: "what passes between a front end and the database in one " +
			"direction is dropped, and then the connections are cut", served: true,
			do: func(ctx context.Context, r *run) error {
				return blackhole(ctx, r.db.Network(), rand.IntN(len(r.fronts)))
			}},
		{name: "database-slow", about: "what passes between a front end and the database is late",
			served: true,
			do: func(ctx context.Context, r *run) error {
				return slow(ctx, r.db.Network(), rand.IntN(len(r.fronts)))
			}},
		{name: "database-kill", about: "the database is killed (SIGKILL) and started again",
			served: true, do: killDatabase},
		{name: "database-pause", about: "the database is frozen", served: true, do: pauseDatabase},
		{name: "three", about: "three others, one after the other", do: three},
	}
}

// faultsFor are the faults that a kind of database can have.
func faultsFor(kind programs.Kind) (list []fault) {
	for _, f := range faults() {
		if !f.served || kind != programs.SQLite {
			list = append(list, f)
		}
	}
	return list
}

// hold lets a fault last for one to two and a half seconds: longer than clients wait.
func hold(ctx context.Context) {
	select {
	case <-time.After(time.Second + rand.N(1500*time.Millisecond)):
	case <-ctx.Done():
	}
}

// front is the network between clients and a front end.
func (r *run) front() *database.Network { return r.networks[rand.IntN(len(r.networks))] }

func (r *run) kill(ctx context.Context, i int) error {
	if _, err := r.fronts[i].End(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	return r.fronts[i].Restart(ctx, r.ready(i))
}

func killAll(ctx context.Context, r *run) error {
	for _, f := range r.fronts {
		if _, err := f.End(ctx, syscall.SIGKILL); err != nil {
			return err
		}
	}
	for i, f := range r.fronts {
		if err := f.Restart(ctx, r.ready(i)); err != nil {
			return err
		}
	}
	return nil
}

func pauseFront(ctx context.Context, r *run) error {
	i := rand.IntN(len(r.fronts))
	if err := r.fronts[i].Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	hold(ctx)
	return errors.Join(r.fronts[i].Signal(syscall.SIGCONT), r.ready(i)(ctx))
}

func cut(ctx context.Context, n *database.Network) error {
	n.Cut(0)
	hold(ctx)
	return n.Heal(ctx, 0)
}

func blackhole(ctx context.Context, n *database.Network, way int) error {
	if err := n.Add(way, "timeout", rand.IntN(2) == 0, `{"timeout":0}`); err != nil {
		return err
	}
	hold(ctx)
	// The bytes that were dropped are missing in the streams, so these connections are of no use
	// any more.
	n.Cut(way)
	return n.Heal(ctx, way)
}

func slow(ctx context.Context, n *database.Network, way int) error {
	for _, upstream := range []bool{true, false} {
		if err := n.Add(way, "latency", upstream, `{"latency":75,"jitter":50}`); err != nil {
			return err
		}
	}
	hold(ctx)
	return n.Heal(ctx, way)
}

func killDatabase(ctx context.Context, r *run) error {
	p := r.db.(database.Process)
	if err := p.Kill(ctx); err != nil {
		return err
	}
	return p.Start(ctx)
}

func pauseDatabase(ctx context.Context, r *run) error {
	p := r.db.(database.Process)
	if err := p.Pause(ctx); err != nil {
		return err
	}
	hold(ctx)
	return p.Resume(ctx)
}

func three(ctx context.Context, r *run) error {
	list := faultsFor(r.kind)
	list = list[1 : len(list)-1]
	for range 3 {
		f := list[rand.IntN(len(list))]
		if err := f.do(ctx, r); err != nil {
			return err
		}
		r.done = append(r.done, f.name)
	}
	return nil
}
