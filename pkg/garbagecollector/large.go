package garbagecollector

import (
	"context"
	"errors"
	"fmt"
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
	// queued is how many objects may wait for a worker, and kept how many of large kinds that are
	// not being deleted may be in the graph, before those who look for more of them wait. An object
	// that is being deleted may wait for one that is still to be found.
	queued = 1_000
	kept   = 10_000
	// failing is how many owners may be tried again whose dependents could not be looked for.
	// Beyond that, all objects are walked through when it is possible again.
	failing = 1_000
	// recruiters is how many owners have their dependents looked for at a time.
	recruiters = 4
	// watchAgain is how long a large kind waits after its list or its watch has failed.
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
	for gap := false; ctx.Err() == nil; {
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
			w.mu.Lock()
			w.doubt(w)
			w.mu.Unlock()
		}
		gap = true
		w.once.Do(func() { close(w.synced) })
		walking, stop := context.WithCancel(ctx)
		var walker sync.WaitGroup
		walker.Go(func() { w.walk(walking, page) })
		w.receive(ctx, events)
		stop()
		walker.Wait()
		breathe(ctx)
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
	breathe(ctx)
}

func breathe(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(watchAgain):
	}
}

// receive takes what a watch tells, until that can tell no more.
func (w *watched) receive(ctx context.Context, events *watchtools.RetryWatcher) {
	defer func() {
		events.Stop()
		<-events.Done()
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events.ResultChan():
			if !ok || e.Type == watch.Error {
				return
			}
			o := w.object(e.Object)
			if o == nil || e.Type == watch.Bookmark {
				continue
			}
			w.tell(ctx, o, e.Type == watch.Deleted)
			w.definitionsChanged()
		}
	}
}

// tell takes what the watch says of an object, unless the kind is not watched any more.
func (w *watched) tell(ctx context.Context, o *object, deleted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case !deleted:
		w.see(o)
	default:
		if w.graph.objects[o.uid] == nil {
			w.graph.link(o) // so that it is known who depends on it
		}
		w.drop(o.resource, o.uid)
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

// pause waits while many objects wait for a worker, or many of large kinds cannot be done with.
func (t *term) pause(ctx context.Context) {
	for waited := false; ; waited = true {
		t.mu.Lock()
		passing := t.graph.passing
		t.mu.Unlock()
		if t.queue.Len() <= queued && passing <= kept {
			if waited {
				t.signal() // somebody else may wait for the same
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.worked:
		}
	}
}

// signal tells that a worker has looked at an object.
func (t *term) signal() {
	select {
	case t.worked <- struct{}{}:
	default: // nobody has taken the last signal yet
	}
}

// consider takes an object of a large kind as it was read, which may be long ago: a watch may have
// told more of it already, or that it is gone. What is in the graph after that is read once more
// before it is believed.
func (t *term) consider(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.graph.large.Has(o.resource) {
		return // the kind is not watched any more, or not as a large one
	}
	if t.graph.objects[o.uid] == nil {
		t.take(o)
	}
	if t.graph.objects[o.uid] != nil {
		t.unproven.Insert(o.uid)
		t.enqueue(sets.New(o.uid))
	}
}

// doubt has everything looked at that may have changed, be gone or have lost an owner of a large
// kind without an event. The caller has the lock.
func (t *term) doubt(w *watched) {
	look := sets.New[types.UID]()
	for uid, o := range t.graph.objects {
		if o.resource == w.resource {
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
	t.walkAgain(w)
}

// walkAgain has all objects of large kinds looked at, other than those of one, which may be nil.
// The caller has the lock.
func (t *term) walkAgain(but *watched) {
	for resource := range t.graph.large {
		if w := t.watched[resource]; w != but {
			select {
			case w.again <- struct{}{}:
			default: // it is about to
			}
		}
	}
}

// prove reads an object of which the graph may know wrong, and tells whether it was right. If not,
// the graph is now, and the object is looked at again, if there is one.
func (t *term) prove(ctx context.Context, o *object) (right bool, err error) {
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
	t.mu.Lock()
	defer t.mu.Unlock()
	if now == nil {
		t.drop(o.resource, o.uid)
		return false, nil
	}
	// What changes from now on is told by a watch, which finds the object in the graph.
	t.unproven.Delete(o.uid)
	if t.graph.objects[o.uid] == o && now.version != o.version {
		t.take(now)
		t.enqueue(sets.New(o.uid))
		return false, nil
	}
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
	if ctx.Err() != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil && (t.failing.Has(owner) || t.failing.Len() < failing) {
		klog.FromContext(ctx).Info("Dependents cannot be found yet", "owner", owner, "reason", err)
		t.failing.Insert(owner)
		t.owners.AddRateLimited(owner)
		return true
	}
	t.owners.Forget(owner)
	t.failing.Delete(owner)
	if err != nil {
		t.missed = true
	} else if t.missed {
		t.missed = false
		t.walkAgain(nil)
	}
	return true
}

// dependents calls visit with each object of a large kind that refers to the owner, or blocks its
// deletion, as the object is in the database, until visit returns false. An object that the server
// cannot read for an error within it is left out, and is the error if visit has not ended it.
func (t *term) dependents(ctx context.Context, owner types.UID, blocking bool,
	visit func(*object) bool) error {
	var unreadable error
	for _, w := range t.largeKinds() {
		for from, more := "", true; more; more = from != "" {
			names, next, err := t.options.Database.Dependents(ctx, w.resource.GroupResource(), owner,
				blocking, from)
			if err != nil {
				w.checkLarge(ctx)
				return err
			}
			for _, n := range names {
				o := &object{identity: identity{kind: w.kind, namespace: n.Namespace, name: n.Name},
					resource: w.resource}
				found, err := t.objects(o).Get(ctx, o.name, metav1.GetOptions{})
				switch {
				case isAbsent(err):
					continue
				case apierrors.IsInternalError(err):
					unreadable = fmt.Errorf("%s %s: %w", w.resource.GroupResource(), n, err)
					continue
				case err != nil:
					return err
				}
				if o = newObject(w.resource, w.kind, found); o.refers(owner, blocking) && !visit(o) {
					return nil
				}
			}
			from = next
		}
	}
	return unreadable
}

// checkLarge has a kind whose index is gone watched anew: it may not be allowed to have one any
// more.
func (w *watched) checkLarge(ctx context.Context) {
	large, err := w.options.Database.IndexOwners(ctx, w.resource.GroupResource())
	if err != nil || large {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watched[w.resource] == w {
		w.unwatch(w)
		w.anew = true
		w.rediscover()
	}
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
	if apierrors.IsInternalError(err) {
		err = nil // what nobody can read keeps no owner: it is collected when somebody can
	}
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
