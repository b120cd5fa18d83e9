package server

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/discovery"

	"github.com/rowkeeper/rowkeeper/pkg/garbagecollector"
	"github.com/rowkeeper/rowkeeper/pkg/internal/readiness"
	"github.com/rowkeeper/rowkeeper/storage"
)

// addCollector makes a server collect garbage while it serves. Of the replicas on a database one
// does so. The database of a data directory has one server.
func (m *standaloneMode) addCollector(server *genericapiserver.GenericAPIServer,
	c *genericapiserver.RecommendedConfig, store *storage.Store) error {
	o := garbagecollector.Options{Database: store}
	release := func() {}
	if !m.ownDatabase {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("cannot elect a garbage collector without a host name: %w", err)
		}
		o.Lock, release, err = garbagecollector.NewLock(m.Storage, &c.Config, store,
			host+"_"+uuid.NewString())
		if err != nil {
			return err
		}
	}
	collector, err := garbagecollector.New(c.LoopbackClientConfig, o)
	if err != nil {
		return err
	}
	// Hooks go on until the requests have been answered. The collector ends before.
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	const name = "garbage-collector"
	err = server.AddPostStartHook(name, func(hook genericapiserver.PostStartHookContext) error {
		discover, err := discovery.NewDiscoveryClientForConfig(hook.LoopbackClientConfig)
		if err != nil {
			return err
		}
		context.AfterFunc(hook, stop)
		running.Go(func() {
			defer release()
			// Before, it would not know of all kinds.
			if readiness.Await(ctx, discover, time.Duration(math.MaxInt64)) == nil {
				collector.Run(ctx)
			}
		})
		return nil
	})
	if err != nil {
		stop()
		return err
	}
	// The database is closed after the server has stopped.
	return server.AddPreShutdownHook(name, func() error {
		stop()
		running.Wait()
		return nil
	})
}
