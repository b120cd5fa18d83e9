// Package feed puts a storage under upstream's watch cache in such a way that the cache can be
// stopped.
//
// A cache reads a watch of the storage and puts the events into a queue of 100, from which another
// goroutine gives them to the cache's own watches. Cacher.Stop ends that goroutine, and waits for
// the one that reads. If the queue is full then, the reader waits for room for ever, and so does
// Stop (cacher.go, processEvent and dispatchEvents, in k8s.io/apiserver 0.37). So the reader has
// to be ended first, while its events still find room.
package feed

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// Feed is the storage of a watch cache.
type Feed struct {
	apistorage.Interface

	// stopped ends when there are to be no watches any more.
	stopped context.Context
	stop    context.CancelFunc

	// mu is held to begin a watch, so that none begins after Stop.
	mu      sync.Mutex
	watches sync.WaitGroup
}

// New makes the feed of one cache.
func New(storage apistorage.Interface) *Feed {
	f := &Feed{Interface: storage}
	f.stopped, f.stop = context.WithCancel(context.Background())
	return f
}

// errStopped is of the kind that the reader, client-go's Reflector, tries again later without a
// word. The cache's own Stop, which follows, ends its wait. Every other error is logged as one.
var errStopped = apierrors.NewTooManyRequests("the watch cache is being stopped", 1)

// Watch implements [apistorage.Interface].
func (f *Feed) Watch(ctx context.Context, key string,
	opts apistorage.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	if f.stopped.Err() != nil {
		f.mu.Unlock()
		return nil, errStopped
	}
	f.watches.Add(1)
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	release := context.AfterFunc(f.stopped, cancel)
	end := func() {
		release()
		cancel()
		f.watches.Done()
	}
	w, err := f.Interface.Watch(ctx, key, opts)
	if err != nil {
		end()
		return nil, err
	}
	return &fed{w, sync.OnceFunc(func() { w.Stop(); end() })}, nil
}

// Stop ends the watches, and waits until their reader has dealt with all that it was sent. Call it
// before the cache's own Stop.
func (f *Feed) Stop() {
	f.mu.Lock()
	f.stop()
	f.mu.Unlock()
	f.watches.Wait()
}

// fed is a watch. Its reader, which is client-go's Reflector, stops it when it has dealt with the
// last event, and in every other case.
type fed struct {
	watch.Interface
	stop func()
}

func (w *fed) Stop() { w.stop() }
