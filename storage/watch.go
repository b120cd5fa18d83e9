package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	apistorage "k8s.io/apiserver/pkg/storage"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// resultBuffer is how many events may wait for a reader, so that a burst does not cost a switch of
// goroutines per event.
const resultBuffer = 100

// watcher is one watch: a goroutine that first sends the initial state, if that is wanted, and then
// what mvcc hands out. It keeps nothing else: a reader that is too slow holds up its own goroutine
// alone, while mvcc remembers where it was.
//
// A bookmark follows every event that is not newer than it, since one goroutine sends both in the
// order in which mvcc hands them out.
type watcher struct {
	r      *objectStore
	ctx    context.Context
	cancel context.CancelFunc
	result chan watch.Event

	key  contract.Key
	opts apistorage.ListOptions
	// pred decides which objects are sent; everyone if it is all of them.
	pred     apistorage.SelectionPredicate
	everyone bool
	// revision is up to where the reader knows everything, as far as it was told.
	revision contract.Revision
	// concurrently: events are decoded by several goroutines.
	concurrently bool
}

// Watch begins a watch. Only what is wrong with the request itself is returned as an error;
// everything else is an event of type ERROR, after which the watch ends. A watch whose context ends
// just ends.
func (r *objectStore) Watch(ctx context.Context, key string,
	opts apistorage.ListOptions) (watch.Interface, error) {
	w, err := r.newWatcher(key, opts)
	if err != nil {
		return nil, err
	}
	initial := w.wantsInitialEvents()
	if w.revision == 0 && !initial {
		// The watch begins now, so that what is written after this function has returned is
		// certainly seen.
		if w.revision, err = r.mvcc.Head(ctx); err != nil {
			return nil, r.apiError(ctx, err)
		}
	}
	w.start(ctx, func() error { return w.run(initial) })
	return w, nil
}

// newWatcher returns a watcher that is not started. Its errors are about what is wrong with the
// request.
func (r *objectStore) newWatcher(key string, opts apistorage.ListOptions) (*watcher, error) {
	k, err := r.keys.prepare(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	revision, err := r.objects.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if int64(revision) < 0 {
		return nil, tooLargeRevision(revision)
	}
	if opts.ProgressNotify && r.newFunc == nil {
		return nil, apierrors.NewInternalError(errors.New("a watch of a store without NewFunc " +
			"cannot notify of its progress"))
	}
	return &watcher{
		r:            r,
		result:       make(chan watch.Event, resultBuffer),
		key:          k,
		opts:         opts,
		pred:         opts.Predicate,
		everyone:     opts.Predicate.Empty(),
		revision:     contract.Revision(revision),
		concurrently: utilfeature.DefaultFeatureGate.Enabled(features.ConcurrentWatchObjectDecode),
	}, nil
}

// start runs the watch. It ends when run returns, ctx ends, or the store is released.
func (w *watcher) start(ctx context.Context, run func() error) {
	w.ctx, w.cancel = context.WithCancel(ctx)
	stop := context.AfterFunc(w.r.lifetime, w.cancel)
	w.r.decoder.watchers.Add(1)
	go func() {
		defer close(w.result)
		defer w.r.decoder.watchers.Add(-1)
		defer stop()
		defer w.cancel()
		w.fail(run())
	}()
	// Whether a watch has caught up is not known. It is begun, and that is what admission of
	// requests wants to know.
	utilflowcontrol.WatchInitialized(ctx)
}

// wantsInitialEvents tells whether the watch begins with the current state: when asked for, and, as
// it always was, when no revision is named.
func (w *watcher) wantsInitialEvents() bool {
	if !utilfeature.DefaultFeatureGate.Enabled(features.WatchList) {
		return w.revision == 0
	}
	if w.opts.SendInitialEvents == nil {
		return w.revision == 0
	}
	return *w.opts.SendInitialEvents
}

// wantsInitialBookmark tells whether the end of the initial events is to be marked.
func (w *watcher) wantsInitialBookmark() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.WatchList) &&
		w.opts.SendInitialEvents != nil && *w.opts.SendInitialEvents && w.pred.AllowWatchBookmarks
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.result }
func (w *watcher) Stop()                          { w.cancel() }

func (w *watcher) run(initial bool) error {
	if initial {
		if err := w.sendInitial(); err != nil {
			return err
		}
	}
	events, err := w.begin()
	if err != nil {
		return err
	}
	defer events.Close()
	if w.opts.ProgressNotify {
		w.r.progress.join(events)
		defer w.r.progress.leave(events)
	}
	for {
		batch, err := patiently(w.ctx, func() (mvcc.Batch, error) { return events.Next(w.ctx) })
		if err != nil {
			return err
		}
		if err := w.sendBatch(batch.Events); err != nil {
			return err
		}
		if batch.Requested && w.opts.ProgressNotify && batch.Progress > w.revision {
			etcdmetrics.RecordEtcdBookmark(w.r.name)
			if err := w.bookmark(batch.Progress, false); err != nil {
				return err
			}
		}
	}
}

// replay sends the events up to a revision, and perhaps some after it. Then it has sent all up to
// w.revision.
func (w *watcher) replay(until contract.Revision) error {
	events, err := w.begin()
	if err != nil {
		return err
	}
	defer events.Close()
	events.RequestProgress(until)
	for w.revision < until {
		batch, err := patiently(w.ctx, func() (mvcc.Batch, error) { return events.Next(w.ctx) })
		if err != nil {
			return err
		}
		if err := w.sendBatch(batch.Events); err != nil {
			return err
		}
		w.revision = batch.Progress
	}
	return nil
}

// forward sends the events of another watch until that ends.
func (w *watcher) forward(from watch.Interface) error {
	defer from.Stop()
	for e := range from.ResultChan() {
		if err := w.send(e); err != nil {
			return err
		}
	}
	return nil
}

// begin begins the watch of the engine. The engine can still tell what follows the revision before
// the compacted one, and etcd's API asks for that. To Kubernetes, a resourceVersion before the
// compacted one has expired.
func (w *watcher) begin() (*mvcc.Watcher, error) {
	if w.revision < w.r.mvcc.CompactedRevision() {
		return nil, contract.ErrCompacted
	}
	o := mvcc.WatchOptions{After: w.revision, AllPrev: !w.everyone, Progress: w.opts.ProgressNotify}
	if w.opts.Recursive {
		o.Prefix = w.key
	} else {
		o.Key = w.key
	}
	return w.r.mvcc.Watch(w.ctx, o)
}

// sendInitial sends the current state as ADDED events, and sets the revision to the snapshot's.
func (w *watcher) sendInitial() error {
	if w.revision > 0 {
		head, err := w.r.mvcc.Head(w.ctx)
		if err != nil {
			return err
		}
		if w.revision > head {
			return apistorage.NewTooLargeResourceVersionError(uint64(w.revision), uint64(head),
				int(wait.Jitter(time.Second, 3).Seconds()))
		}
	}
	r := listRange{start: w.key, end: database.After(w.key), from: w.key, recursive: w.opts.Recursive}
	if r.recursive {
		r.end = contract.PrefixEnd(w.key)
	}
	snapshot := contract.Revision(0)
	for chunk, err := range w.r.longChunks(w.ctx, r) {
		if err != nil {
			return err
		}
		snapshot = chunk.Revision
		for window := range slices.Chunk(chunk.KVs, decodeWindow) {
			for _, r := range w.decodeAll(len(window), func(i int) (watch.Event, error) {
				return w.initial(&window[i])
			}) {
				if err := w.sendDecoded(r); err != nil {
					return err
				}
			}
		}
	}
	w.revision = snapshot
	if w.wantsInitialBookmark() {
		return w.bookmark(snapshot, true)
	}
	return nil
}

func (w *watcher) bookmark(at contract.Revision, initial bool) error {
	if w.r.newFunc == nil {
		return errors.New("a store without NewFunc cannot send bookmarks")
	}
	obj := w.r.newFunc()
	if err := w.r.objects.versioner.UpdateObject(obj, uint64(at)); err != nil {
		return fmt.Errorf("a bookmark takes no resourceVersion: %w", err)
	}
	if initial {
		if err := apistorage.AnnotateInitialEventsEndBookmark(obj); err != nil {
			return fmt.Errorf("a bookmark takes no annotation: %w", err)
		}
	}
	w.revision = at
	return w.send(watch.Event{Type: watch.Bookmark, Object: obj})
}

// decodeWindow bounds how many events are decoded before they are sent.
const decodeWindow = 64

// eventsPerDecoder is how many events are worth a goroutine of their own.
const eventsPerDecoder = 4

// sendBatch sends the events in their order. They are decoded in windows.
func (w *watcher) sendBatch(events []*mvcc.Event) error {
	if len(events) == 0 {
		return nil
	}
	if n := w.r.sizes.Load(); n != nil {
		n.follow(events)
	}
	received := time.Now()
	for window := range slices.Chunk(events, decodeWindow) {
		for i, r := range w.decodeAll(len(window), func(i int) (watch.Event, error) {
			return w.event(window[i])
		}) {
			etcdmetrics.RecordEtcdEvent(w.r.name)
			if w.opts.RecordTimestamps && r.event.Object != nil {
				r.event.Object = &timedObject{Object: r.event.Object, received: received}
			}
			if err := w.sendDecoded(r); err != nil {
				return err
			}
			if r.event.Object != nil {
				w.revision = window[i].Revision
			}
		}
	}
	return nil
}

// decoded is an event as the reader sees it, without an object if it does not, or why it has none.
type decoded struct {
	event watch.Event
	err   error
}

// decodeAll decodes n events, concurrently if that is enabled.
func (w *watcher) decodeAll(n int, decode func(i int) (watch.Event, error)) []decoded {
	results := make([]decoded, n)
	worth := 1
	if w.concurrently {
		worth = n / eventsPerDecoder
	}
	inParallel(n, worth, func(i int) (goOn bool) {
		results[i].event, results[i].err = decode(i)
		return results[i].err == nil
	})
	return results // behind the first error, some may be empty
}

func (w *watcher) sendDecoded(r decoded) error {
	if r.err != nil || r.event.Object == nil {
		return r.err
	}
	return w.send(r.event)
}

// initial makes an ADDED event of a row, if the reader sees its object.
func (w *watcher) initial(kv *mvcc.KeyValue) (watch.Event, error) {
	obj, err := w.r.objects.openNew(w.ctx, kv.Key, kv.Value, kv.Revision)
	kv.Value = nil
	if err != nil || !w.selects(obj) {
		return watch.Event{}, err
	}
	return watch.Event{Type: watch.Added, Object: obj}, nil
}

// event makes of a write what the watch's reader sees of it; it has no object if the reader sees
// nothing.
func (w *watcher) event(e *mvcc.Event) (watch.Event, error) {
	if e.Deleted {
		was, err := w.previous(e)
		if err != nil || !w.selects(was) {
			return watch.Event{}, err
		}
		return watch.Event{Type: watch.Deleted, Object: was}, nil
	}
	is, err := w.r.decoder.current(w.ctx, e)
	if err != nil {
		return watch.Event{}, err
	}
	if e.Prev == 0 {
		if !w.selects(is) {
			return watch.Event{}, nil
		}
		return watch.Event{Type: watch.Added, Object: is}, nil
	}
	if w.everyone {
		return watch.Event{Type: watch.Modified, Object: is}, nil
	}
	was, err := w.previous(e)
	if err != nil {
		return watch.Event{}, err
	}
	switch now, before := w.selects(is), w.selects(was); {
	case now && before:
		return watch.Event{Type: watch.Modified, Object: is}, nil
	case now:
		return watch.Event{Type: watch.Added, Object: is}, nil
	case before:
		return watch.Event{Type: watch.Deleted, Object: was}, nil
	}
	return watch.Event{}, nil
}

// patiently repeats a read for as long as the database is away. Ending a watch would help nobody: a
// watch cache would drop all of its clients.
func patiently[T any](ctx context.Context, read func() (T, error)) (T, error) {
	// The first attempt almost always succeeds and needs no machinery.
	value, err := read()
	if err == nil || !away(err) {
		return value, err
	}
	pauses := backoff.NewExponentialBackOff()
	pauses.MaxInterval = time.Second
	return backoff.Retry(ctx, func() (T, error) {
		value, err := read()
		if err != nil && !away(err) {
			err = backoff.Permanent(err)
		}
		return value, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
}

// away tells whether an error says that the database is not there, for now.
func away(err error) bool {
	var database *contract.Error
	return errors.As(err, &database) &&
		(database.Class == contract.Unavailable || database.Class == contract.ReadOnly)
}

// previous returns the object before the event, at the event's revision, as readers want to resume
// from there.
func (w *watcher) previous(e *mvcc.Event) (runtime.Object, error) {
	// The value may have to be read. While the database is away nothing else can be sent either, so
	// the watch waits for it rather than ending.
	value, err := patiently(w.ctx, func() ([]byte, error) { return w.r.mvcc.PrevValue(w.ctx, e) })
	if err != nil {
		return nil, err
	}
	obj, err := w.r.decoder.previous(w.ctx, e, value)
	var corrupt *corruptError
	if e.Deleted && errors.As(err, &corrupt) {
		return nil, corruptDeletion(corrupt)
	}
	return obj, err
}

func (w *watcher) selects(obj runtime.Object) bool {
	if w.everyone {
		return true
	}
	matched, err := w.pred.Matches(obj)
	return matched && err == nil
}

func (w *watcher) send(e watch.Event) error {
	select {
	case w.result <- e:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// fail tells the reader why the watch ends, unless that is its own doing or that of a server that
// shuts down.
func (w *watcher) fail(err error) {
	if err == nil || w.ctx.Err() != nil || errors.Is(err, contract.ErrClosed) {
		return
	}
	if errors.Is(err, contract.ErrCompacted) {
		err = apierrors.NewResourceExpired(watchExpired)
	} else {
		err = w.r.apiError(w.ctx, err)
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	object := status.Status()
	_ = w.send(watch.Event{Type: watch.Error, Object: &object})
}

// timedObject carries the time when the store learned of an event to the watch cache, which takes
// it off again.
type timedObject struct {
	runtime.Object
	received time.Time
}

var _ apistorage.WatchEventWithRecordTime = (*timedObject)(nil)

func (t *timedObject) RecordTime() time.Time  { return t.received }
func (t *timedObject) Unwrap() runtime.Object { return t.Object }

// GetObjectMeta lets the reflector see the object's metadata.
func (t *timedObject) GetObjectMeta() metav1.Object {
	m, err := meta.Accessor(t.Object)
	if err != nil {
		return nil
	}
	return m
}

func (t *timedObject) DeepCopyObject() runtime.Object {
	return &timedObject{Object: t.Object.DeepCopyObject(), received: t.received}
}
