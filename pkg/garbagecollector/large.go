package garbagecollector

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Database finds the dependents that are in no graph. A storage.Store is one.
type Database interface {
	// IndexOwners tells whether the objects of a resource are to be found by their owners. The
	// collector then keeps no graph of them. After an error, the collector asks the server for the
	// resource, and then this again.
	IndexOwners(context.Context, schema.GroupResource) (bool, error)
	// Dependents returns objects of such a resource that may name the owner in their metadata, of
	// those that have blockOwnerDeletion for it if blocking. It leaves out none that was there when
	// it was called. next is from where the call for more of them goes on, "" if there are no more.
	Dependents(_ context.Context, _ schema.GroupResource, owner types.UID, blocking bool,
		from string) (found []types.NamespacedName, next string, err error)
}

const (
	// pageSize is how many objects of a large kind are read at a time.
	pageSize = 500
	// queued is how many objects may wait for a worker before a walk waits for them, but no longer
	// than walkPause for each page: some may be tried again for long.
	queued    = 1_000
	walkPause = time.Second
	// recruiters is how many owners have their dependents looked for at a time.
	recruiters = 4
	// watchAgain is how long a large kind waits after its list has failed.
	watchAgain = time.Second
)

// isLarge tells whether the kind is a large one, and notes that, or false if the context has ended.
func (w *watched) isLarge(ctx context.Context) bool {
	if w.options.Database == nil {
		return false
	}
	for ctx.Err() == nil {
		large, err := w.options.Database.IndexOwners(ctx, w.resource.GroupResource())
		if err != nil {
			// The server may open a resource only when it is asked for it.
			if _, err = w.page(ctx, ""); err == nil {
				large, err = w.options.Database.IndexOwners(ctx, w.resource.GroupResource())
			}
		}
		if err != nil {
			w.postpone(ctx, err)
			continue
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if large && ctx.Err() == nil {
			w.graph.large.Insert(w.resource)
		}
		return large
	}
	return false
}

// largeKinds are the kinds that are too large for the graph, as far as that is known.
func (t *term) largeKinds() (large []*watched) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for resource := range t.graph.large {
		large = append(large, t.watched[resource])
	}
	return large
}

// followLarge watches a large kind until the context ends, from a moment on. What was there before
// is walked through meanwhile. If a watch can tell no more what has happened since it ended, nobody
// knows which objects are gone.
func (w *watched) followLarge(ctx context.Context) {
	objects := w.metadata.Resource(w.resource)
	from := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context,
		o metav1.ListOptions) (watch.Interface, error) {
		events, err := whileServed(ctx, w, func() (watch.Interface, error) {
			return objects.Watch(ctx, o)
		})
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			// As an error, it would be tried again for ever.
			status := apierrors.NewResourceExpired(err.Error()).Status()
			gone := make(chan watch.Event, 1)
			gone <- watch.Event{Type: watch.Error, Object: &status}
			return watch.NewProxyWatcher(gone), nil
		}
		return events, err
	}}
	for gap := w.late; ctx.Err() == nil; {
		page, err := w.page(ctx, "")
		var events *watchtools.RetryWatcher
		if err == nil {
			events, err = watchtools.NewRetryWatcherWithContext(ctx, page.ResourceVersion, from)
		}
		if err != nil {
			w.postpone(ctx, err)
			continue
		}
		if gap {
			w.doubt(w)
		}
		gap = true
		w.once.Do(func() { close(w.synced) })
		walking, stop := context.WithCancel(ctx)
		var walker sync.WaitGroup
		walker.Go(func() { w.walk(walking, page) })
		w.receive(ctx, events)
		stop()
		walker.Wait()
	}
}

// page reads a page of the kind.
func (w *watched) page(ctx context.Context, token string) (*metav1.PartialObjectMetadataList, error) {
	return whileServed(ctx, w, func() (*metav1.PartialObjectMetadataList, error) {
		return w.metadata.Resource(w.resource).List(ctx, metav1.ListOptions{Limit: pageSize,
			Continue: token})
	})
}

// postpone waits for a while, since something has failed.
func (w *watched) postpone(ctx context.Context, err error) {
	if ctx.Err() == nil {
		klog.FromContext(ctx).Info("The garbage collector cannot read a resource yet", "resource",
			w.resource, "reason", err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(watchAgain):
	}
}

// receive takes what a watch tells, until that can tell no more.
func (w *watched) receive(ctx context.Context, events *watchtools.RetryWatcher) {
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events.ResultChan():
			if !ok || e.Type == watch.Error {
				return
			}
			o := w.object(e.Object)
			switch {
			case o == nil || e.Type == watch.Bookmark:
				continue
			case e.Type == watch.Deleted:
				w.departed(o)
			default:
				w.observe(o)
			}
			w.definitionsChanged()
		}
	}
}

// walk has all objects of the kind looked at, beginning with a page, and again whenever nobody
// knows any more which owners are gone.
func (w *watched) walk(ctx context.Context, page *metav1.PartialObjectMetadataList) {
	for ctx.Err() == nil {
		if page == nil {
			page = w.patiently(ctx, "")
			continue
		}
		for i := range page.Items {
			w.consider(w.object(&page.Items[i]))
		}
		if page.Continue != "" {
			w.pause(ctx)
			page = w.patiently(ctx, page.Continue)
			continue
		}
		select {
		case <-ctx.Done():
		case <-w.again:
			page = nil
		}
	}
}

// patiently reads a page, and tries it until that succeeds. It returns nil, for the first page, if
// the place is lost.
func (w *watched) patiently(ctx context.Context, token string) *metav1.PartialObjectMetadataList {
	for ctx.Err() == nil {
		page, err := w.page(ctx, token)
		if err == nil {
			return page
		}
		var status apierrors.APIStatus
		if apierrors.IsResourceExpired(err) && errors.As(err, &status) {
			// Its snapshot is gone. The server tells how to go on from there in the newest one.
			if token = status.Status().ListMeta.Continue; token == "" {
				return nil
			}
			continue
		}
		w.postpone(ctx, err)
	}
	return nil
}

// pause waits until few objects wait for a worker, or for long.
func (t *term) pause(ctx context.Context) {
	timer := time.NewTimer(walkPause)
	defer timer.Stop()
	for t.queue.Len() > queued {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-t.worked:
		}
	}
}

// consider takes an object as it was read, which may be long ago: a watch may have told more of it
// already.
func (t *term) consider(o *object) {
	if o == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.graph.objects[o.uid] != nil {
		t.enqueue(sets.New(o.uid))
		return
	}
	t.take(o)
	if o.deleted {
		// It stays in the graph until a watch tells that it is gone, which it may have done.
		t.unproven.Insert(o.uid)
		t.enqueue(sets.New(o.uid))
	}
}

// doubt has everything looked at that may have lost an owner of a kind without an event, or that
// may be gone itself.
func (t *term) doubt(w *watched) {
	t.mu.Lock()
	defer t.mu.Unlock()
	look := sets.New[types.UID]()
	for uid, o := range t.graph.objects {
		if o.resource == w.resource && o.deleted {
			t.unproven.Insert(uid)
			look.Insert(uid)
		}
		for i := range o.owners {
			if kindOf(&o.owners[i]) == w.kind && t.graph.standing(o, &o.owners[i]) != present {
				look.Insert(uid)
			}
		}
	}
	t.enqueue(look)
	for resource := range t.graph.large {
		if other := t.watched[resource]; other != w {
			select {
			case other.again <- struct{}{}:
			default: // it is about to
			}
		}
	}
}

// prove finds out whether an object is still there, if that is in doubt.
func (t *term) prove(ctx context.Context, o *object) (there bool, err error) {
	t.mu.Lock()
	doubtful := t.unproven.Has(o.uid)
	t.mu.Unlock()
	if !doubtful {
		return true, nil
	}
	now, err := t.live(ctx, o)
	if err != nil {
		return false, err
	}
	if now == nil {
		t.forget(o.resource, o.uid)
		return false, nil
	}
	// If it goes from now on, the watch tells that, and finds it in the graph.
	t.mu.Lock()
	t.unproven.Delete(o.uid)
	t.mu.Unlock()
	return true, nil
}

// recruit has those dependents of an owner looked at that are not in the graph. The caller has the
// lock.
func (t *term) recruit(owner types.UID) {
	if t.graph.large.Len() > 0 {
		t.owners.Add(owner)
	}
}

// nextOwner recruits the dependents of one owner, until there are no more.
func (t *term) nextOwner(ctx context.Context) bool {
	owner, quit := t.owners.Get()
	if quit {
		return false
	}
	defer t.owners.Done(owner)
	err := t.dependents(ctx, owner, false, func(o *object) bool {
		t.consider(o)
		t.pause(ctx)
		return true
	})
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		klog.FromContext(ctx).Info("Dependents cannot be found yet", "owner", owner, "reason", err)
		t.owners.AddRateLimited(owner)
	default:
		t.owners.Forget(owner)
	}
	return true
}

// dependents calls visit with each object of a large kind that refers to the owner, or blocks its
// deletion, as the object is in the database. visit returns false to end that.
func (t *term) dependents(ctx context.Context, owner types.UID, blocking bool,
	visit func(*object) bool) error {
	for _, w := range t.largeKinds() {
		for from, more := "", true; more; more = from != "" {
			names, next, err := t.options.Database.Dependents(ctx, w.resource.GroupResource(), owner,
				blocking, from)
			if err != nil {
				return err
			}
			for _, n := range names {
				o := &object{identity: identity{kind: w.kind, namespace: n.Namespace, name: n.Name},
					resource: w.resource}
				found, err := t.objects(o).Get(ctx, o.name, metav1.GetOptions{})
				if isAbsent(err) {
					continue
				}
				if err != nil {
					return err
				}
				if o = newObject(w.resource, w.kind, found); o.refers(owner, blocking) && !visit(o) {
					return nil
				}
			}
			from = next
		}
	}
	return nil
}

// refers tells whether an object has a reference to a UID, or one that blocks its deletion.
func (o *object) refers(owner types.UID, blocking bool) bool {
	for i := range o.owners {
		ref := &o.owners[i]
		if ref.UID == owner && (!blocking || ptr.Deref(ref.BlockOwnerDeletion, false)) {
			return true
		}
	}
	return false
}

// hasDependents tells whether an object of a large kind refers to the owner.
func (t *term) hasDependents(ctx context.Context, owner types.UID) (found bool, err error) {
	err = t.dependents(ctx, owner, false, func(*object) bool {
		found = true
		return false
	})
	return found, err
}

// isBlocked tells whether the deletion of an owner has to wait for an object of a large kind.
func (t *term) isBlocked(ctx context.Context, owner *object) (blocked bool, err error) {
	err = t.dependents(ctx, owner.uid, true, func(o *object) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		blocked = t.graph.blocks(o, owner)
		return !blocked
	})
	return blocked, err
}

// tells says that a watch tells when an owner of this kind, which is a large one, is deleted.
func (t *term) tells(kind schema.GroupKind) bool {
	for _, w := range t.largeKinds() {
		if w.kind != kind {
			continue
		}
		select {
		case <-w.synced:
			return true
		default:
		}
	}
	return false
}
