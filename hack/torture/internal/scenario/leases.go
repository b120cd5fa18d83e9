package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/check"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/etcdclient"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// lapsingLeases grants leases by several servers, each with a key, renews a third of them by any
// server, and lets all of them lapse. Servers are killed meanwhile, one after the other. The log's
// times are those of the database's clock, which is this machine's.
func lapsingLeases(ctx context.Context, e *Env) error {
	count := 1000
	if e.Long {
		count = 20_000
	}
	const workers = 256
	first := e.Rand.Int64N(1 << 40)
	leased := make([]check.Leased, count)
	var wg sync.WaitGroup
	for w := range workers {
		rng := rand.New(rand.NewPCG(e.Seed, uint64(first)+uint64(w)))
		wg.Go(func() {
			for i := w; i < count && ctx.Err() == nil; i += workers {
				leased[i] = e.lease(ctx, rng, first+int64(i))
			}
		})
	}
	for i := range e.Servers {
		e.Hold(ctx, 500*time.Millisecond, 5*time.Second)
		if _, err := e.Servers[i].End(ctx, sigkill); err != nil {
			return err
		}
		if err := e.restart(ctx, i); err != nil {
			return err
		}
	}
	wg.Wait()
	var left int64
	err := until(ctx, recoverWithin, func(ctx context.Context) (err error) {
		if left, err = e.Rows.Leases(ctx); err == nil && left > 0 {
			err = fmt.Errorf("%d leases and keys of leases are still there", left)
		}
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		e.Fail("leases", "all leases have lapsed: %v", err)
	}
	if err := e.Recorder.Sync(ctx); err != nil {
		return err
	}
	late, found := check.Leases(e.Recorder.Log(), leased)
	for _, v := range found {
		e.Fail(v.Rule, "%s", v.Text)
	}
	e.Note("%d leases lapsed, the last one within %.1f s of its time", count, late.Seconds())
	return nil
}

// lease grants a lease and attaches a key to it. Every third one is renewed, by whatever server,
// while half of its time is over. A call that fails is tried at another server, until it succeeds
// or the lease may have lapsed.
func (e *Env) lease(ctx context.Context, rng *rand.Rand, id int64) check.Leased {
	seconds := 3 + rng.Int64N(4)
	lasts := time.Duration(seconds) * time.Second
	began := time.Now()
	k := check.Leased{Key: fmt.Sprintf("leased/n/l%d", id), Earliest: began.Add(lasts)}
	try := func(f func(context.Context, *etcdclient.Endpoint) error) error {
		for {
			asked, cancel := context.WithTimeout(ctx, requestTimeout)
			err := f(asked, e.Targets[rng.IntN(len(e.Targets))].(*etcdclient.Endpoint))
			cancel()
			if err == nil || etcdclient.Ended(err) || ctx.Err() != nil ||
				time.Now().After(k.Earliest) {
				return err
			}
			Wait(ctx, 20*time.Millisecond)
		}
	}
	if try(func(ctx context.Context, s *etcdclient.Endpoint) error {
		return s.Grant(ctx, id, seconds)
	}) != nil {
		return k
	}
	o := history.Object{Key: k.Key, Value: fmt.Sprint("lease-", id), Image: "none"}
	k.Attached = try(func(ctx context.Context, s *etcdclient.Endpoint) error {
		return s.Attach(ctx, o, id)
	}) == nil
	if id%3 != 0 {
		return k
	}
	Wait(ctx, time.Until(began.Add(lasts/2)))
	_ = try(func(ctx context.Context, s *etcdclient.Endpoint) error {
		began := time.Now()
		renewed, err := s.Renew(ctx, id)
		if renewed {
			k.Earliest = began.Add(lasts)
		}
		return err
	}) // what was not renewed lapses the earlier
	return k
}
