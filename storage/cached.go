package storage

import (
	"context"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// cachedStore is a store behind upstream's watch cache. Two things are better than in upstream,
// where the database is dear and keeps no history for a cache that begins anew:
//
//   - While the cache is being filled, lists and watches wait for it, in place of being answered by
//     429. It is filled when it is made, and again when its own watch of the database has ended:
//     after a fence, or after the process was paused for longer than the compaction window.
//   - A watch from before the cache's first event, such as any watch that resumes after a restart,
//     gets what it has missed from the log, in place of 410, and goes on from the cache.
type cachedStore struct {
	*cacher.CacheDelegator
	cache *cacher.Cacher
	log   *objectStore
	// mostReplayed is how many revisions, of all resources, a watch may be behind that is resumed
	// from the log.
	mostReplayed contract.Revision
}

const (
	// cacheWait bounds how long a request waits for the cache: the pause of one second that
	// upstream makes before it fills a cache again, and then some.
	cacheWait = 3 * time.Second
	// mostReplayed is some seconds of writes at full speed. To read more of the log for each watch
	// would cost the database more than the lists that their clients make otherwise.
	mostReplayed = 10_000
)

// GetList implements [apistorage.Interface].
func (s *cachedStore) GetList(ctx context.Context, key string, opts apistorage.ListOptions,
	list runtime.Object) error {
	if s.log.historyOf(ctx) != nil || sortOf(ctx) != nil && opts.Recursive {
		return s.log.GetList(ctx, key, opts, list)
	}
	if done, err := s.listByIndex(ctx, key, opts, list); done {
		return err
	}
	s.await(ctx)
	return s.CacheDelegator.GetList(ctx, key, opts, list)
}

// Watch implements [apistorage.Interface].
func (s *cachedStore) Watch(ctx context.Context, key string,
	opts apistorage.ListOptions) (watch.Interface, error) {
	s.await(ctx)
	w, err := s.CacheDelegator.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	w, tooOld := refused(w)
	if !tooOld {
		return w, nil
	}
	if resumed := s.resume(ctx, key, opts); resumed != nil {
		return resumed, nil
	}
	return w, nil
}

// await waits until the cache is filled. A cache that is not filled in time says so itself.
func (s *cachedStore) await(ctx context.Context) {
	if s.cache.Ready() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cacheWait)
	defer cancel()
	_ = s.cache.Wait(ctx)
}

// refused tells whether the cache has refused a watch as too old. It returns the watch, which can
// be given to the client in any case.
//
// Upstream's refusal is an event in a closed channel that has room for nothing else. The channels
// of other watches have room for ten events at least, so no event is taken from them.
func refused(w watch.Interface) (_ watch.Interface, tooOld bool) {
	if cap(w.ResultChan()) != 1 {
		return w, false
	}
	e, ok := <-w.ResultChan()
	again := make(chan watch.Event, 1)
	if ok {
		again <- e
	}
	close(again)
	status, isStatus := e.Object.(*metav1.Status)
	return watch.NewProxyWatcher(again), isStatus && e.Type == watch.Error &&
		status.Code == http.StatusGone
}

// resume begins a watch that the cache has refused. It is nil if the log cannot help either.
//
// No event is lost or doubled where the watch changes from the log to the cache: all up to
// w.revision were sent from the log, and the cache sends those after it.
func (s *cachedStore) resume(ctx context.Context, key string,
	opts apistorage.ListOptions) watch.Interface {
	w, err := s.log.newWatcher(key, opts)
	if err != nil {
		return nil
	}
	head, err := s.log.mvcc.Head(ctx)
	if err != nil || head-w.revision > s.mostReplayed ||
		w.revision < s.log.mvcc.CompactedRevision() {
		return nil
	}
	w.start(ctx, func() error {
		for {
			// The cache has refused the watch, so its first event is older than this head.
			if err := w.replay(head); err != nil {
				return err
			}
			s.await(w.ctx)
			opts.ResourceVersion = strconv.FormatInt(int64(w.revision), 10)
			cached, err := s.CacheDelegator.Watch(w.ctx, key, opts)
			if err != nil {
				return err
			}
			cached, tooOld := refused(cached)
			if !tooOld {
				return w.forward(cached)
			}
			// It was filled again, or has let go of events, in the meantime.
			if head, err = s.log.mvcc.Head(w.ctx); err != nil {
				return err
			}
		}
	})
	return w
}
