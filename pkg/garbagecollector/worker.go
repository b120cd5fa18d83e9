package garbagecollector

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
)

const (
	// A request that failed is tried again after firstRetry at first, and after lastRetry in the
	// end.
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Minute
	// remembered is how many owners are remembered that are gone.
	remembered = 10_000
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// term is what a collector knows and does while it is the one that collects.
type term struct {
	*Collector
	queue  workqueue.TypedRateLimitingInterface[types.UID]
	events record.EventRecorder
	// owners are those whose dependents of large kinds have to be looked at.
	owners workqueue.TypedRateLimitingInterface[types.UID]
	// worked is signalled when a worker has looked at an object.
	worked chan struct{}

	// gone are owners that were seen to go. A restore may bring them back, so none of them is
	// taken to be absent for that alone. One that was seen again is forgotten.
	gone *lru.Cache
	// left are others that were seen to go, which may have dependents of large kinds.
	left *lru.Cache
	// changed is signalled when the kinds that are served may be others.
	changed chan struct{}
	// first is closed when the kinds that were served at the beginning are watched.
	first chan struct{}

	mu    sync.Mutex
	graph *graph
	// parked are objects with an owner of a kind that is not served. parkedLarge says that there
	// are such of large kinds, which are not remembered.
	parked      sets.Set[types.UID]
	parkedLarge bool
	// unproven are objects that are in the graph, and may be gone without an event to come.
	unproven sets.Set[types.UID]
	// failing are owners whose dependents could not be looked for, and missed says that there are
	// more of them.
	failing sets.Set[types.UID]
	missed  bool
	// served is what is served, and discoveries how often that has changed.
	served      *served
	discoveries int
	watched     map[schema.GroupVersionResource]*watched
	// anew says that a kind has to be watched anew, though it was served all the time.
	anew bool
}

func newTerm(c *Collector) *term {
	queue := func() workqueue.TypedRateLimitingInterface[types.UID] {
		return workqueue.NewTypedRateLimitingQueue(workqueue.
			NewTypedItemExponentialFailureRateLimiter[types.UID](firstRetry, lastRetry))
	}
	return &term{Collector: c, graph: newGraph(), parked: sets.New[types.UID](),
		unproven: sets.New[types.UID](), failing: sets.New[types.UID](), queue: queue(), owners: queue(),
		worked: make(chan struct{}, 1),
		gone:   lru.New(remembered), left: lru.New(remembered), changed: make(chan struct{}, 1), first: make(chan struct{}),
		watched: map[schema.GroupVersionResource]*watched{}}
}

// observe takes an object as a watch tells it.
func (t *term) observe(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.see(o)
}

// see is observe for a caller that has the lock.
func (t *term) see(o *object) {
	t.gone.Remove(o.identity)
	t.left.Remove(o.identity)
	t.take(o)
}

// take puts an object into the graph. Of a large kind, it stays there only if there is something to
// do with it. The caller has the lock.
func (t *term) take(o *object) {
	before := t.graph.objects[o.uid]
	look := t.graph.observe(o)
	if t.graph.passes(o) && !look.Has(o.uid) && (before == nil || !t.graph.passes(before)) {
		t.graph.unlink(o)
		t.unproven.Delete(o.uid)
	}
	t.enqueue(look)
	if o.begins(before) {
		t.recruit(o.uid)
	}
}

// forget takes away an object that was deleted.
func (t *term) forget(resource schema.GroupVersionResource, uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(resource, uid)
}

// drop is forget for a caller that has the lock.
func (t *term) drop(resource schema.GroupVersionResource, uid types.UID) {
	o, look := t.graph.forget(resource, uid)
	if o == nil {
		return
	}
	for _, in := range []sets.Set[types.UID]{t.parked, t.unproven, t.graph.wanted} {
		in.Delete(uid)
	}
	switch {
	case o.orphans || len(look) > 0:
		t.gone.Add(o.identity, o)
	case t.graph.large.Len() > 0:
		t.left.Add(o.identity, o)
	}
	t.enqueue(look)
	t.recruit(uid)
}

// release takes an object of a large kind out of the graph when there is nothing more to do with
// it. It does not if the object was put into the queue again meanwhile.
func (t *term) release(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.graph.objects[uid]
	if o == nil || !t.graph.passes(o) || t.graph.wanted.Has(uid) {
		return
	}
	t.graph.unlink(o)
	look := sets.New[types.UID]()
	t.graph.freed(o, look)
	t.enqueue(look)
}

// enqueue has objects looked at. The caller has the lock.
func (t *term) enqueue(look sets.Set[types.UID]) {
	for uid := range look {
		if o := t.graph.objects[uid]; o != nil && t.graph.passes(o) {
			t.graph.wanted.Insert(uid)
		}
		t.queue.Add(uid)
	}
}

// next works on one object, until there are no more.
func (t *term) next(ctx context.Context) bool {
	uid, quit := t.queue.Get()
	if quit {
		return false
	}
	defer t.queue.Done(uid)
	done, err := t.look(ctx, uid)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		klog.FromContext(ctx).Info("Garbage cannot be collected yet", "uid", uid, "reason", err)
		t.queue.AddRateLimited(uid)
	case !done:
		t.queue.AddRateLimited(uid)
	default:
		t.queue.Forget(uid)
		t.release(uid)
	}
	t.signal()
	return true
}

// look does what is to be done with an object. done says that it is looked at again only when
// something has changed.
func (t *term) look(ctx context.Context, uid types.UID) (done bool, err error) {
	t.mu.Lock()
	v, known := t.graph.view(uid)
	t.parked.Delete(uid)
	t.graph.wanted.Delete(uid)
	mapper, discoveries := t.served.mapper, t.discoveries
	t.mu.Unlock()
	if !known {
		return true, nil
	}
	if right, err := t.prove(ctx, v.object); !right {
		return err == nil, err
	}
	for i := range v.owners {
		if v.standings[i] == released || v.standings[i] == unsure && t.hasLeft(v.object, &v.owners[i]) {
			now, err := t.read(ctx, mapper, v.object, &v.owners[i])
			switch {
			case meta.IsNoMatchError(err) || errors.Is(err, errForeign):
				now = unsure
			case err != nil:
				return false, err
			}
			v.standings[i] = now
		}
	}
	switch {
	case slices.Contains(v.standings, released):
		return true, t.strip(ctx, v.object, decide(v).strip)
	case v.orphaning():
		if !t.complete() {
			return false, nil
		}
		if v.dependents {
			return true, nil
		}
		if more, err := t.hasDependents(ctx, v.uid); more || err != nil {
			return false, err
		}
		return true, t.finalize(ctx, v.object, metav1.FinalizerOrphanDependents)
	case v.foreground():
		if !t.complete() {
			return false, nil
		}
		if v.blocked {
			return true, nil
		}
		if more, err := t.isBlocked(ctx, v.object); more || err != nil {
			return false, err
		}
		return true, t.finalize(ctx, v.object, metav1.FinalizerDeleteDependents)
	case v.deleted:
		return true, nil
	}
	return t.judge(ctx, v, mapper, discoveries)
}

// judge finds out how the owners of an object stand, and does what follows. The graph is believed
// that an owner is there, since nothing is deleted for that. All else is read.
func (t *term) judge(ctx context.Context, v view, mapper meta.RESTMapper,
	discoveries int) (done bool, err error) {
	done = true
	for i := range v.owners {
		if v.standings[i] == present {
			continue
		}
		standing, err := t.read(ctx, mapper, v.object, &v.owners[i])
		switch {
		case meta.IsNoMatchError(err):
			return t.park(v.uid, discoveries), nil
		case errors.Is(err, errForeign):
			t.report(ctx, v.object, &v.owners[i])
			return true, nil
		case err != nil:
			return false, err
		}
		v.standings[i] = standing
		if standing != absent && !t.knows(v.owners[i].UID) && !t.tells(kindOf(&v.owners[i])) {
			done = false // the watch has not told of it yet, and may never do
		}
		if standing == absent && v.elsewhere != nil && v.elsewhere.uid == v.owners[i].UID {
			t.report(ctx, v.object, &v.owners[i])
		}
	}
	if slices.Contains(v.standings, waiting) && !v.dependents {
		var err error
		if v.dependents, err = t.hasDependents(ctx, v.uid); err != nil {
			return false, err
		}
	}
	d := decide(v)
	if d.remove != "" {
		return true, t.remove(ctx, v.object, d.remove)
	}
	return done, t.strip(ctx, v.object, d.strip)
}

var errForeign = errors.New("an object without a namespace cannot belong to one that has one")

// read finds out how an owner stands.
func (t *term) read(ctx context.Context, mapper meta.RESTMapper, o *object,
	ref *metav1.OwnerReference) (standing, error) {
	kind := kindOf(ref)
	version := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).Version
	missing := absent
	if t.hasLeft(o, ref) {
		missing = released
	}
	mapping, err := mapper.RESTMapping(kind, version)
	if meta.IsNoMatchError(err) && t.undefined(ctx, o, ref) {
		return missing, nil
	}
	if err != nil {
		return unsure, err
	}
	var objects metadata.ResourceInterface = t.metadata.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if o.namespace == "" {
			return unsure, errForeign
		}
		objects = t.metadata.Resource(mapping.Resource).Namespace(o.namespace)
	}
	// Without a resourceVersion this is a read of the database.
	found, err := objects.Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case isAbsent(err), err == nil && found.UID != ref.UID:
		return missing, nil
	case err != nil:
		return unsure, err
	}
	owner := newObject(mapping.Resource, kind, found)
	switch {
	case owner.orphans:
		return released, nil
	case owner.foreground():
		return waiting, nil
	}
	return present, nil
}

// isAbsent tells whether an error says that there is no such object. If the kind is not served, in
// the moment in which its definition changes, the path is not found either.
func isAbsent(err error) bool {
	_, noPath := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	return apierrors.IsNotFound(err) && !noPath
}

// seenToGo returns an owner, in the namespace or in none, as it was when it went, or nil.
func (t *term) seenToGo(o *object, ref *metav1.OwnerReference) *object {
	for _, namespace := range []string{o.namespace, ""} {
		i := identity{kind: kindOf(ref), namespace: namespace, name: ref.Name, uid: ref.UID}
		for _, seen := range []*lru.Cache{t.gone, t.left} {
			if o, ok := seen.Get(i); ok {
				return o.(*object)
			}
		}
	}
	return nil
}

// hasLeft tells whether an owner was seen to leave its dependents without an owner.
func (t *term) hasLeft(o *object, ref *metav1.OwnerReference) bool {
	owner := t.seenToGo(o, ref)
	return owner != nil && owner.orphans
}

// undefined tells whether an owner, whose kind is not served, went with the definition of its kind:
// it was seen to go, and there is no such definition in the database.
func (t *term) undefined(ctx context.Context, o *object, ref *metav1.OwnerReference) bool {
	owner := t.seenToGo(o, ref)
	if owner == nil {
		return false
	}
	_, err := t.metadata.Resource(definitions).Get(ctx, owner.resource.GroupResource().String(),
		metav1.GetOptions{})
	return isAbsent(err)
}

func (t *term) knows(uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.graph.objects[uid] != nil
}

// park keeps an object until other kinds are served, unless they are by now.
func (t *term) park(uid types.UID, discoveries int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.discoveries != discoveries {
		return false
	}
	if o := t.graph.objects[uid]; o != nil && t.graph.passes(o) {
		t.parkedLarge = true
	} else {
		t.parked.Insert(uid)
	}
	return true
}

// report tells about a reference to an owner in another namespace, which owns nothing.
func (t *term) report(ctx context.Context, o *object, ref *metav1.OwnerReference) {
	klog.FromContext(ctx).Info("An object has an owner that is not in its namespace", "kind",
		o.kind, "object", klog.KRef(o.namespace, o.name), "ownerKind", ref.Kind, "owner", ref.Name,
		"ownerUID", ref.UID)
	t.mu.Lock()
	events := t.served.kinds.Has(corev1.SchemeGroupVersion.WithKind("Event"))
	t.mu.Unlock()
	if !events {
		return
	}
	about := &corev1.ObjectReference{APIVersion: o.resource.GroupVersion().String(),
		Kind: o.kind.Kind, Namespace: o.namespace, Name: o.name, UID: o.uid,
		ResourceVersion: o.version}
	// The reason is upstream's, for those who look for it.
	t.events.Eventf(about, corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"the owner %s %s with the UID %s is not in the namespace %q", ref.Kind, ref.Name, ref.UID,
		o.namespace)
}

// objects are where an object is.
func (t *term) objects(o *object) metadata.ResourceInterface {
	if o.namespace == "" {
		return t.metadata.Resource(o.resource)
	}
	return t.metadata.Resource(o.resource).Namespace(o.namespace)
}

// live reads an object anew, or returns nil if it is gone.
func (t *term) live(ctx context.Context, o *object) (*object, error) {
	found, err := t.objects(o).Get(ctx, o.name, metav1.GetOptions{})
	if isAbsent(err) || err == nil && found.UID != o.uid {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return newObject(o.resource, o.kind, found), nil
}

// remove deletes an object, if its references are the ones that were looked at. If it changes all
// the time, for other reasons, it is deleted nevertheless.
func (t *term) remove(ctx context.Context, o *object, policy metav1.DeletionPropagation) error {
	options := metav1.DeleteOptions{PropagationPolicy: &policy,
		Preconditions: &metav1.Preconditions{UID: &o.uid, ResourceVersion: &o.version}}
	err := t.objects(o).Delete(ctx, o.name, options)
	if apierrors.IsConflict(err) {
		now, liveErr := t.live(ctx, o)
		if liveErr != nil || now == nil {
			return liveErr
		}
		if !sameOwners(now.owners, o.owners) {
			return err // the watch tells of the others
		}
		options.Preconditions.ResourceVersion = nil
		err = t.objects(o).Delete(ctx, o.name, options)
	}
	if isAbsent(err) {
		return nil
	}
	return err
}

// strip removes references from an object.
func (t *term) strip(ctx context.Context, o *object, refs []metav1.OwnerReference) error {
	if len(refs) == 0 {
		return nil
	}
	return t.patch(ctx, o, func(o *object) (string, any, bool) {
		left := slices.DeleteFunc(slices.Clone(o.owners), func(ref metav1.OwnerReference) bool {
			return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool {
				return sameReference(r, ref)
			})
		})
		return "ownerReferences", left, len(left) < len(o.owners)
	})
}

// finalize removes a finalizer from an object that is deleted.
func (t *term) finalize(ctx context.Context, o *object, finalizer string) error {
	return t.patch(ctx, o, func(o *object) (string, any, bool) {
		left := slices.DeleteFunc(slices.Clone(o.finalizers), func(f string) bool {
			return f == finalizer
		})
		return "finalizers", left, len(left) < len(o.finalizers)
	})
}

// patch changes a field of an object's metadata, from the state that the graph has or, if the
// object has changed since, from what it is now.
func (t *term) patch(ctx context.Context, o *object,
	change func(*object) (field string, value any, needed bool)) error {
	for attempt := 0; ; attempt++ {
		field, value, needed := change(o)
		if !needed {
			return nil
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.uid,
			"resourceVersion": o.version, field: value}})
		if err != nil {
			return err
		}
		_, err = t.objects(o).Patch(ctx, o.name, types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: component})
		switch {
		case isAbsent(err):
			return nil
		case !apierrors.IsConflict(err) || attempt == 2:
			return err
		}
		now, err := t.live(ctx, o)
		if err != nil || now == nil {
			return err
		}
		o = now
	}
}

func sameReference(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.OwnerReference) bool {
		return sameReference(a, b) && ptr.Deref(a.BlockOwnerDeletion, false) ==
			ptr.Deref(b.BlockOwnerDeletion, false)
	})
}
