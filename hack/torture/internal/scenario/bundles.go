package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/check"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/etcdclient"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/load"
)

const (
	// bundleCount is how many bundles there are: few, so that writers meet.
	bundleCount = 3
	// bundlesBack is how old the states are that are read.
	bundlesBack = 100
)

// bundles are the clients that write, read and watch bundles beside the load.
type bundles struct {
	judge  *check.Bundles
	values atomic.Int64
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// startBundles starts a client that writes and reads for each server, and one that watches.
func (e *Env) startBundles(ctx context.Context, targets []load.Endpoint) *bundles {
	b := &bundles{judge: check.NewBundles(etcdclient.BundleSize, e.History.FencesExpected)}
	ctx, b.cancel = context.WithCancel(ctx)
	for i, target := range targets {
		s, name := target.(*etcdclient.Endpoint), fmt.Sprint("server ", i)
		rng := rand.New(rand.NewPCG(e.Seed+1, uint64(i)))
		b.wg.Go(func() { b.client(ctx, rng, s, name) })
		b.wg.Go(func() { b.watch(ctx, s, name) })
	}
	return b
}

// stop ends the clients.
func (b *bundles) stop() {
	b.cancel()
	b.wg.Wait()
}

// client writes and reads until the context ends. What fails is tried again soon.
func (b *bundles) client(ctx context.Context, rng *rand.Rand, s *etcdclient.Endpoint, by string) {
	for ctx.Err() == nil {
		asked, cancel := context.WithTimeout(ctx, clientTimeout)
		err := errors.Join(b.write(asked, rng, s, by), b.read(asked, rng, s, by))
		cancel()
		if err != nil {
			Wait(ctx, 20*time.Millisecond)
		}
	}
}

func bundleOf(rng *rand.Rand) string { return fmt.Sprint("b", rng.IntN(bundleCount)) }

// write reads a bundle, and writes it if nobody has meanwhile.
func (b *bundles) write(ctx context.Context, rng *rand.Rand, s *etcdclient.Endpoint,
	by string) error {
	bundle := bundleOf(rng)
	after := b.judge.Newest(bundle)
	at, parts, err := s.ReadBundle(ctx, bundle, 0, 0)
	if err != nil {
		return err
	}
	b.judge.Read("a read of "+by, bundle, at, after, parts)
	how, value, was := etcdclient.BundleWrite(rng.IntN(int(etcdclient.BundleWrites))),
		fmt.Sprint("v", b.values.Add(1)), int64(0)
	if len(parts) > 0 {
		was = parts[0].Revision
	} else {
		how %= etcdclient.DeleteRange // there is nothing to delete
	}
	after = b.judge.Newest(bundle)
	done, at, parts, err := s.WriteBundle(ctx, bundle, value, was, how)
	if err != nil {
		return err
	}
	if done {
		if how >= etcdclient.DeleteRange {
			value = ""
		}
		b.judge.Wrote("a transaction of "+by, bundle, value, at)
		after = at
	}
	b.judge.Read("a transaction of "+by, bundle, at, after, parts)
	return nil
}

// read reads a bundle at the newest revision, or an older one, in pages or at once. An older one
// may be compacted, or a lost one; that fails.
func (b *bundles) read(ctx context.Context, rng *rand.Rand, s *etcdclient.Endpoint,
	by string) error {
	bundle := bundleOf(rng)
	after := b.judge.Newest(bundle)
	at, page := int64(0), rng.Int64N(etcdclient.BundleSize)
	if rng.IntN(2) == 0 {
		at, after = max(after-rng.Int64N(bundlesBack), 0), 0
	}
	at, parts, err := s.ReadBundle(ctx, bundle, at, page)
	if err != nil {
		return err
	}
	b.judge.Read(fmt.Sprintf("a read of %s in pages of %d", by, page), bundle, at, after, parts)
	return nil
}

// watch watches all bundles, and goes on where it has ended.
func (b *bundles) watch(ctx context.Context, s *etcdclient.Endpoint, by string) {
	for next := int64(0); ctx.Err() == nil; {
		next, _ = s.WatchBundles(ctx, next, func(bundle string, parts []check.Part) {
			b.judge.Seen("a watch of "+by, bundle, parts)
		}) // it ends with each fault
		Wait(ctx, 20*time.Millisecond)
	}
}
