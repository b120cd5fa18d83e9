package testkit

import (
	"context"
	"crypto/rand"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/garbagecollector"
	"github.com/rowkeeper/rowkeeper/pkg/options"
)

// collector is a garbage collector that is started and stopped. A nil one does nothing.
type collector struct {
	*garbagecollector.Collector
	running sync.WaitGroup
	cancel  context.CancelFunc
}

func (s *Instance) newCollector(stored *options.StorageOptions,
	c *genericapiserver.RecommendedConfig) (*collector, error) {
	o := garbagecollector.Options{Database: s.Store}
	if s.replicas {
		lock, release, err := garbagecollector.NewLock(stored, &c.Config, s.Store, rand.Text())
		if err != nil {
			return nil, err
		}
		s.atRelease(func() error {
			release()
			return nil
		})
		o.Lock = lock
	}
	made, err := garbagecollector.New(c.LoopbackClientConfig, o)
	return &collector{Collector: made, cancel: func() {}}, err
}

func (c *collector) start() {
	if c == nil {
		return
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	c.running.Go(func() { c.Run(ctx) })
}

func (c *collector) stop() {
	if c == nil {
		return
	}
	c.cancel()
	c.running.Wait()
}
