// Package feed stands between package storage and upstream's watch cache. With it the cache can be
// stopped, and it keeps only once what the versions of a large object have in common.
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
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// Feed is the storage of a watch cache.
type Feed struct {
	apistorage.Interface
	// sharer may be nil.
	sharer Sharer

	// stopped ends when there are to be no watches any more.
	stopped context.Context
	stop    context.CancelFunc

	// mu is held to begin a watch, so that none begins after Stop.
	mu      sync.Mutex
	watches sync.WaitGroup
}

// Sharer is for large objects most of whose writes change little. A cache remembers the versions of
// some minutes, which are decoded one by one.
type Sharer interface {
	// Share lets an object have what it has in common with its previous version, which must not be
	// changed any more.
	Share(previous, next runtime.Object)
}

// New makes the feed of one cache.
func New(storage apistorage.Interface, sharer Sharer) *Feed {
	f := &Feed{Interface: storage, sharer: sharer}
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
	stop := sync.OnceFunc(func() { w.Stop(); end() })
	if f.sharer != nil {
		w = share(ctx, w, f.sharer)
	}
	return &fed{w, stop}, nil
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

// shared is a watch whose objects have passed a sharer.
type shared struct {
	watch.Interface
	events chan watch.Event
}

func (w *shared) ResultChan() <-chan watch.Event { return w.events }

// share ends with the watch, or when its reader stops it.
func share(ctx context.Context, w watch.Interface, sharer Sharer) *shared {
	s := &shared{w, make(chan watch.Event)}
	go func() {
		defer close(s.events)
		newest := map[types.UID]runtime.Object{} // the cache has them, too
		for e := range w.ResultChan() {
			switch object, uid := objectOf(e); e.Type {
			case watch.Added, watch.Modified, watch.Deleted:
				if previous := newest[uid]; previous != nil {
					sharer.Share(previous, object)
				}
				newest[uid] = object
				if e.Type == watch.Deleted {
					delete(newest, uid)
				}
			}
			select {
			case s.events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return s
}

// objectOf is the object of an event, which the storage may have wrapped, and its UID.
func objectOf(e watch.Event) (runtime.Object, types.UID) {
	object := e.Object
	if timed, ok := object.(apistorage.WatchEventWithRecordTime); ok {
		object = timed.Unwrap()
	}
	if o, err := meta.Accessor(object); err == nil {
		return object, o.GetUID()
	}
	return object, ""
}
