package garbagecollector

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// The kinds are discovered again soon after a definition has changed, since discovery may be
	// late, and then less and less often.
	firstDiscovery = 50 * time.Millisecond
	lastDiscovery  = 30 * time.Second
	// patience is for how long what waits for dependents waits for kinds that cannot be listed.
	patience = 30 * time.Second
	// absence is how often it is tried to watch a kind that is not served any more.
	absence = time.Second
)

// watched is a resource whose objects are followed. It is the store of the reflector that does so:
// what others keep in a cache is in the graph alone.
type watched struct {
	*term
	resource schema.GroupVersionResource
	kind     schema.GroupKind
	since    time.Time
	stop     context.CancelFunc
	synced   chan struct{} // closed when all objects are in the graph, or large and watched
	once     sync.Once
	// again is signalled when all objects of a large kind have to be looked at once more.
	again chan struct{}
}

var _ cache.ReflectorStore = &watched{}

func (w *watched) object(obj any) *object {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil
	}
	return newObject(w.resource, w.kind, o)
}

// Add implements cache.ReflectorStore.
func (w *watched) Add(obj any) error {
	if o := w.object(obj); o != nil {
		w.observe(o)
		w.definitionsChanged()
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (w *watched) Update(obj any) error { return w.Add(obj) }

// Delete implements cache.ReflectorStore.
func (w *watched) Delete(obj any) error {
	if o := w.object(obj); o != nil {
		w.forget(w.resource, o.uid)
		w.definitionsChanged()
	}
	return nil
}

// Replace takes a list of all objects.
func (w *watched) Replace(list []any, _ string) error {
	left := sets.New[types.UID]()
	w.mu.Lock()
	for uid := range w.graph.of[w.resource] {
		left.Insert(uid)
	}
	w.mu.Unlock()
	for _, obj := range list {
		if o := w.object(obj); o != nil {
			left.Delete(o.uid)
			w.observe(o)
		}
	}
	for uid := range left {
		w.forget(w.resource, uid)
	}
	w.once.Do(func() { close(w.synced) })
	w.definitionsChanged()
	return nil
}

// Resync implements cache.ReflectorStore.
func (w *watched) Resync() error { return nil }

func (w *watched) definitionsChanged() {
	if w.resource.Group == definitions.Group {
		w.rediscover()
	}
}

// follow watches the resource until the context ends.
func (w *watched) follow(ctx context.Context) {
	if w.isLarge(ctx) {
		w.followLarge(ctx)
	} else {
		w.followAll(ctx)
	}
}

// followAll keeps all objects in the graph.
func (w *watched) followAll(ctx context.Context) {
	objects := w.metadata.Resource(w.resource)
	list := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return whileServed(ctx, w, func() (*metav1.PartialObjectMetadataList, error) {
				return objects.List(ctx, o)
			})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return whileServed(ctx, w, func() (watch.Interface, error) {
				return objects.Watch(ctx, o)
			})
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(list, w.metadata),
		&metav1.PartialObjectMetadata{}, w, cache.ReflectorOptions{Name: component,
			TypeDescription: w.resource.String()}).RunWithContext(ctx)
}

// whileServed tries again as long as the resource is not served, as it may be in a moment, or until
// discovery says that it is gone.
func whileServed[T any](ctx context.Context, w *watched, do func() (T, error)) (T, error) {
	for {
		result, err := do()
		if !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
			return result, err
		}
		w.rediscover()
		select {
		case <-ctx.Done():
			return result, err
		case <-time.After(absence):
		}
	}
}

// rediscover has the kinds discovered again soon.
func (t *term) rediscover() {
	select {
	case t.changed <- struct{}{}:
	default: // it is about to
	}
}

// discover keeps track of the kinds that are served, until the context ends.
func (t *term) discover(ctx context.Context, running *sync.WaitGroup) {
	pause := firstDiscovery
	for {
		if err := t.update(ctx, running); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("The garbage collector cannot find out which kinds there "+
				"are yet", "reason", err)
		}
		timer := time.NewTimer(pause)
		pause = min(2*pause, lastDiscovery)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-t.changed:
			// More may change at once. A change during the next discovery is signalled again.
			timer.Reset(firstDiscovery)
			pause = firstDiscovery
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// update watches the kinds that there are, and no others.
func (t *term) update(ctx context.Context, running *sync.WaitGroup) error {
	now, err := t.askServed(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.served != nil && !t.anew && now.kinds.Equal(t.served.kinds) && maps.Equal(now.watched,
		t.served.watched) {
		return nil
	}
	t.anew = false
	for resource, w := range t.watched {
		if _, still := now.watched[resource]; !still {
			t.unwatch(w)
		}
	}
	for resource, kind := range now.watched {
		if t.watched[resource] != nil {
			continue
		}
		following, stop := context.WithCancel(ctx)
		w := &watched{term: t, resource: resource, kind: kind, stop: stop, since: time.Now(),
			synced: make(chan struct{}), again: make(chan struct{}, 1)}
		t.watched[resource] = w
		running.Go(func() { w.follow(following) })
	}
	if t.served == nil {
		close(t.first)
	}
	t.served = now
	t.discoveries++
	t.enqueue(t.parked)
	if t.parkedLarge {
		t.parkedLarge = false
		t.walkAgain(nil)
	}
	return nil
}

// unwatch ends the watching of a kind. Its objects may still be stored, and are not absent. The
// caller has the lock.
func (t *term) unwatch(w *watched) {
	w.stop()
	delete(t.watched, w.resource)
	for uid := range t.graph.of[w.resource] {
		_, look := t.graph.forget(w.resource, uid)
		t.graph.wanted.Delete(uid)
		t.unproven.Delete(uid)
		t.enqueue(look)
	}
	if t.graph.large.Has(w.resource) {
		t.graph.large.Delete(w.resource)
		t.doubt(w)
	}
}

// served is what discovery says.
type served struct {
	mapper  meta.RESTMapper
	kinds   sets.Set[schema.GroupVersionKind]
	watched map[schema.GroupVersionResource]schema.GroupKind
}

// answerTime is how long discovery may take.
const answerTime = 10 * time.Second

// askServed asks discovery. A question that has begun ends by itself: if it were given up, as when
// the server stops, the server would log that as an error.
func (t *term) askServed(ctx context.Context) (*served, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	groups, lists, err := discovery.ToServerResourcesInterfaceWithContext(t.discovery).
		ServerGroupsAndResourcesWithContext(ctx)
	if err != nil {
		return nil, err
	}
	s := &served{kinds: sets.New[schema.GroupVersionKind](),
		watched: map[schema.GroupVersionResource]schema.GroupKind{}}
	versions := map[string]*metav1.APIResourceList{}
	for _, list := range lists {
		versions[list.GroupVersion] = list
	}
	all := make([]*restmapper.APIGroupResources, 0, len(groups))
	taken := sets.New[schema.GroupResource]()
	for _, group := range groups {
		resources := map[string][]metav1.APIResource{}
		preferred := slices.Clone(group.Versions)
		slices.SortStableFunc(preferred, func(a, b metav1.GroupVersionForDiscovery) int {
			switch group.PreferredVersion.Version {
			case a.Version:
				return -1
			case b.Version:
				return 1
			}
			return 0
		})
		for _, v := range preferred {
			list := versions[v.GroupVersion]
			if list == nil {
				continue
			}
			resources[v.Version] = list.APIResources
			for _, r := range list.APIResources {
				gvr := schema.GroupVersionResource{Group: group.Name, Version: v.Version,
					Resource: r.Name}
				if strings.Contains(r.Name, "/") {
					continue
				}
				s.kinds.Insert(gvr.GroupVersion().WithKind(r.Kind))
				// Each is watched in the preferred one of the versions that have it.
				if !taken.Has(gvr.GroupResource()) && !t.ignore[gvr.GroupResource()] &&
					sets.New(r.Verbs...).HasAll("delete", "list", "watch") {
					taken.Insert(gvr.GroupResource())
					s.watched[gvr] = schema.GroupKind{Group: group.Name, Kind: r.Kind}
				}
			}
		}
		all = append(all, &restmapper.APIGroupResources{Group: *group,
			VersionedResources: resources})
	}
	s.mapper = restmapper.NewDiscoveryRESTMapper(all)
	return s, nil
}

// filled waits until the objects of all kinds are in the graph, or patience is over. It returns
// false if the context has ended.
func (t *term) filled(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-t.first:
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for _, w := range t.all() {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			klog.FromContext(ctx).Info("The garbage collector begins before it knows all objects",
				"missing", w.resource)
			return true
		case <-w.synced:
		}
	}
	return true
}

func (t *term) all() []*watched {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*watched, 0, len(t.watched))
	for _, w := range t.watched {
		all = append(all, w)
	}
	return all
}

// complete tells whether the objects of all kinds are in the graph, other than those of kinds that
// could not be listed for long.
func (t *term) complete() bool {
	t.mu.Lock()
	anew := t.anew
	t.mu.Unlock()
	if anew {
		return false // a kind is about to be watched anew
	}
	for _, w := range t.all() {
		select {
		case <-w.synced:
		default:
			if time.Since(w.since) < patience {
				return false
			}
		}
	}
	return true
}
