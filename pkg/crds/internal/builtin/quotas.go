package builtin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/kubernetes/pkg/quota/v1/install"
)

// Quotas bounds how many objects of a kind a namespace has, as its ResourceQuotas say.
//
// Upstream's plugin admits: it adds what is created to the quota's status, which other servers
// change at the same time, and lets a creation pass when that is written. Then the object is
// committed, or is not, as when its name is taken. So the status has to be corrected, after
// deletions, too. Every server does so: it counts the keys in the database and writes the status
// that it has read. If another one was faster, that is a conflict, and it looks again. Nobody
// leads.
//
// A correction may come between the admission and the commit of an object, and then leaves it out.
// So objects are counted once more after the commit, by [Quotas.Check]. The order of commits is one
// for all servers: whoever finds no more objects than the quota allows has not exceeded it,
// whatever the status says, and an object that was acknowledged is never beyond a quota that its
// server knew of. Until the next correction, other creations may be admitted that are then refused.
//
// A quota is in force when its spec has been copied to its status, as in a cluster, and each server
// has heard of it. A moment after it was made or changed, another server may still go by what was
// there before.
//
// Upstream's controller counts what informers have seen, which may be less than what is there, and
// starts informers of all kinds. It learns of new kinds every 30 seconds. Here the keys tell, of
// kinds that no server here knows, too.
type Quotas struct {
	client    corev1client.ResourceQuotasGetter
	lister    corelisters.ResourceQuotaLister
	synced    cache.InformerSynced
	count     atomic.Pointer[Count]
	evaluator func() resourcequota.Evaluator
	registry  quota.Registry
	queue     workqueue.TypedRateLimitingInterface[string]

	mu sync.Mutex
	// watched has the quotas that there are, by the keys of the queue.
	watched map[string]*watchedQuota
}

// watchedQuota is what decides when a quota's use is counted.
type watchedQuota struct {
	// changed is when the status was seen to change last, as by an admission, whose object may not
	// be committed yet.
	changed time.Time
	// since is when it was first asked for a count after the last one. It is zero if nobody has.
	since time.Time
	// again is how many times it was counted after the last change.
	again int
}

// Count counts the objects of a resource in a namespace. It must not miss what any server has
// committed before.
type Count func(ctx context.Context, resource schema.GroupResource, namespace string) (int64, error)

const (
	// quotaSettles is for how long a quota's status has to be unchanged before it is corrected:
	// so long takes a creation from its admission to its commit.
	quotaSettles = 100 * time.Millisecond
	// quotaPatience is after which time it is corrected all the same.
	quotaPatience = time.Second
	// quotaResync is how often every quota is looked at: a server may end between a deletion and
	// the correction.
	quotaResync = 5 * time.Minute
	// quotaWorkers is how many quotas are looked at at a time. They wait for the database.
	quotaWorkers = 5
	// quotaWithin bounds each look at the quotas, and each write.
	quotaWithin = 10 * time.Second
)

// quotaAgain are the times after which a quota that was right is counted once more. What is written
// below the servers, such as a restore, may take some time, and nobody tells of it.
var quotaAgain = []time.Duration{time.Second, 10 * time.Second}

// NewQuotas makes an informer, which the caller starts. The client must not be slowed down: each
// creation in a namespace with quotas asks twice. stop ends what admits.
func NewQuotas(client corev1client.ResourceQuotasGetter,
	informer coreinformers.ResourceQuotaInformer, stop <-chan struct{}) (*Quotas, error) {
	evaluators, err := evaluators(nil)
	if err != nil {
		return nil, err
	}
	q := &Quotas{client: client, lister: informer.Lister(), synced: informer.Informer().HasSynced,
		registry: allKinds{generic.NewRegistry(evaluators)},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
		watched: map[string]*watchedQuota{}}
	q.evaluator = sync.OnceValue(func() resourcequota.Evaluator { // it logs when it ends
		return resourcequota.NewQuotaEvaluator(storedQuotas{client}, install.DefaultIgnoredResources(),
			q.registry, nil, nil, quotaWorkers, stop)
	})
	_, err = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    q.see,
		UpdateFunc: func(_, obj any) { q.see(obj) },
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				q.queue.Add(key)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot watch the quotas: %w", err)
	}
	return q, nil
}

// evaluators are upstream's of all kinds that are more than counted, or have names of their own.
// Most of these kinds are not here, so that there are none of their objects.
func evaluators(list quota.ListerForResourceFunc) ([]quota.Evaluator, error) {
	// That of claims would start informers.
	claims := resourcev1.SchemeGroupVersion.WithResource("resourceclaims")
	return core.NewEvaluators(list, nil, func(r schema.GroupVersionResource) bool {
		return r != claims
	})
}

// allKinds knows how the objects of every kind are counted.
type allKinds struct{ quota.Registry }

func (r allKinds) Get(resource schema.GroupResource) quota.Evaluator {
	if known := r.Registry.Get(resource); known != nil {
		return known
	}
	return generic.NewObjectCountEvaluator(resource, nil, "")
}

// storedQuotas are what upstream's plugin reads and writes. It has been told by an informer whether
// there are any. It reads from the database, since another server may have written a moment ago.
type storedQuotas struct {
	client corev1client.ResourceQuotasGetter
}

var _ resourcequota.QuotaAccessor = storedQuotas{}

func (s storedQuotas) GetQuotas(namespace string) ([]corev1.ResourceQuota, error) {
	ctx, cancel := context.WithTimeout(context.Background(), quotaWithin)
	defer cancel()
	list, err := s.client.ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("error resolving quota: %w", err)
	}
	return list.Items, nil
}

func (s storedQuotas) UpdateQuotaStatus(q *corev1.ResourceQuota) error {
	ctx, cancel := context.WithTimeout(context.Background(), quotaWithin)
	defer cancel()
	_, err := s.client.ResourceQuotas(q.Namespace).UpdateStatus(ctx, q, metav1.UpdateOptions{})
	return err
}

// QuotaAdmission is upstream's plugin, which must be the last one: what others refuse after it has
// been counted.
type QuotaAdmission struct {
	*admission.Handler
	quotas *Quotas
}

var _ admission.ValidationInterface = QuotaAdmission{}

// Admission returns the plugin.
func (q *Quotas) Admission() QuotaAdmission {
	return QuotaAdmission{admission.NewHandler(admission.Create), q}
}

// Validate implements admission.ValidationInterface.
func (a QuotaAdmission) Validate(ctx context.Context, attributes admission.Attributes,
	_ admission.ObjectInterfaces) error {
	namespace := attributes.GetNamespace()
	if namespace == "" || attributes.GetKind().GroupKind() == corev1.SchemeGroupVersion.
		WithKind("Namespace").GroupKind() || a.quotas.none(namespace) {
		return nil
	}
	for {
		// Upstream's plugin gives up after some conflicts. What it has counted already is counted
		// twice then, until the next correction.
		err := a.quotas.evaluator().Evaluate(attributes)
		if !apierrors.IsConflict(err) || ctx.Err() != nil {
			return err
		}
	}
}

// none tells that a namespace is known to have no quotas.
func (q *Quotas) none(namespace string) bool {
	return q.synced() && len(q.known(namespace)) == 0
}

// known are a namespace's quotas that the informer has seen.
func (q *Quotas) known(namespace string) []*corev1.ResourceQuota {
	list, _ := q.lister.ResourceQuotas(namespace).List(labels.Everything()) // cannot fail
	return list
}

// Start says how objects are counted. Before, no quota is in force.
func (q *Quotas) Start(count Count) { q.count.Store(&count) }

// Check returns why an object must not stay that was committed: there are more of its resource than
// a quota allows. Its other errors say nothing about the object.
func (q *Quotas) Check(ctx context.Context, resource schema.GroupResource, namespace,
	name string) error {
	if q == nil || q.count.Load() == nil || ignored(resource) || q.none(namespace) {
		return nil
	}
	if q.synced() {
		if over, err := q.exceeded(ctx, q.known(namespace), resource); err != nil || over == "" {
			return err
		}
	}
	// The informer may be late, and the quota be a larger one.
	stored, err := storedQuotas{q.client}.GetQuotas(namespace)
	if err != nil {
		return err
	}
	quotas := make([]*corev1.ResourceQuota, len(stored))
	for i := range stored {
		quotas[i] = &stored[i]
	}
	over, err := q.exceeded(ctx, quotas, resource)
	if err != nil || over == "" {
		return err
	}
	return apierrors.NewForbidden(resource, name, errors.New(over))
}

func ignored(resource schema.GroupResource) bool {
	_, ok := install.DefaultIgnoredResources()[resource]
	return ok
}

// limited are the names by which a quota limits the objects of a resource.
func (q *Quotas) limited(is *corev1.ResourceQuota,
	resource schema.GroupResource) []corev1.ResourceName {
	evaluator := q.registry.Get(resource)
	// It depends on the object only where that is a pod, which are not here.
	if match, err := evaluator.Matches(is, nil); err != nil || !match {
		return nil
	}
	return evaluator.MatchingResources(quota.ResourceNames(is.Status.Hard))
}

// exceeded says in upstream's words which of a namespace's quotas does not allow as many objects of
// a resource as there are.
func (q *Quotas) exceeded(ctx context.Context, quotas []*corev1.ResourceQuota,
	resource schema.GroupResource) (string, error) {
	n := int64(-1) // not counted yet
	for _, quota := range quotas {
		for _, name := range q.limited(quota, resource) {
			if n < 0 {
				var err error
				if n, err = (*q.count.Load())(ctx, resource, quota.Namespace); err != nil {
					return "", err
				}
			}
			if hard := quota.Status.Hard[name]; hard.CmpInt64(n) < 0 {
				return fmt.Sprintf("exceeded quota: %s, requested: %s=1, used: %s=%d, limited: %s=%s",
					quota.Name, name, name, n-1, name, hard.String()), nil
			}
		}
	}
	return "", nil
}

// Deleted has the quotas corrected that limit the objects of a resource, one of which is gone.
func (q *Quotas) Deleted(resource schema.GroupResource, namespace string) {
	if q == nil {
		return
	}
	for _, quota := range q.known(namespace) {
		if len(q.limited(quota, resource)) > 0 {
			q.ask(namespace+"/"+quota.Name, false)
		}
	}
}

// see has a quota corrected that was seen.
func (q *Quotas) see(obj any) {
	is := obj.(*corev1.ResourceQuota)
	key := is.Namespace + "/" + is.Name
	q.ask(key, true)
	if unknown(is) {
		q.queue.Add(key)
	}
}

// unknown tells that a quota's status is not of its spec: the quota is new, or was changed.
func unknown(q *corev1.ResourceQuota) bool {
	return !apiequality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard)
}

// ask has a quota counted in a moment.
func (q *Quotas) ask(key string, changed bool) {
	now := time.Now()
	q.mu.Lock()
	w := q.watched[key]
	if w == nil {
		w = &watchedQuota{}
		q.watched[key] = w
	}
	if w.again = 0; changed {
		w.changed = now
	}
	if w.since.IsZero() {
		w.since = now
	}
	q.mu.Unlock()
	q.queue.AddAfter(key, quotaSettles)
}

// Run corrects quotas until the context ends.
func (q *Quotas) Run(ctx context.Context) {
	defer q.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), q.synced) {
		return
	}
	for range quotaWorkers {
		go func() {
			for q.next(ctx) {
			}
		}()
	}
	wait.UntilWithContext(ctx, func(context.Context) {
		for _, is := range q.known(metav1.NamespaceAll) {
			q.queue.Add(is.Namespace + "/" + is.Name)
		}
	}, quotaResync)
}

func (q *Quotas) next(ctx context.Context) bool {
	key, quit := q.queue.Get()
	if quit {
		return false
	}
	defer q.queue.Done(key)
	switch err := q.sync(ctx, key); {
	case ctx.Err() != nil:
		return false
	case err != nil:
		klog.FromContext(ctx).Info("The use of a quota cannot be written yet", "quota", key,
			"reason", err)
		q.queue.AddRateLimited(key)
	default:
		q.queue.Forget(key)
	}
	return true
}

// sync corrects a quota's status, or puts it off.
func (q *Quotas) sync(ctx context.Context, key string) error {
	namespace, name, _ := strings.Cut(key, "/")
	is, err := q.lister.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.watched, key)
		return nil
	}
	if err != nil {
		return err
	}
	if after := q.early(key); after > 0 && !unknown(is) {
		q.queue.AddAfter(key, after)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, quotaWithin)
	defer cancel()
	used, err := q.used(ctx, is)
	if err != nil {
		return err
	}
	if !unknown(is) && quota.Equals(used, is.Status.Used) {
		q.right(key)
		return nil
	}
	corrected := is.DeepCopy()
	corrected.Status = corev1.ResourceQuotaStatus{Hard: is.Spec.Hard.DeepCopy(), Used: used}
	err = storedQuotas{q.client}.UpdateQuotaStatus(corrected)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		q.ask(key, false) // what has changed is seen in a moment
		return nil
	}
	return err
}

// early returns how long the correction of a quota has to be put off. If it has not to be, whoever
// asks for one from now on gets another one.
func (q *Quotas) early(key string) time.Duration {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.watched[key]
	if w == nil {
		return 0
	}
	after := quotaSettles - now.Sub(w.changed)
	if after > 0 && now.Sub(w.since) < quotaPatience {
		return after
	}
	w.since = time.Time{}
	return 0
}

// right has a quota counted later again that was found to be right.
func (q *Quotas) right(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.watched[key]; w != nil && w.again < len(quotaAgain) {
		q.queue.AddAfter(key, quotaAgain[w.again])
		w.again++
	}
}

// used counts the objects that a quota limits.
func (q *Quotas) used(ctx context.Context, is *corev1.ResourceQuota) (corev1.ResourceList, error) {
	list := func(resource schema.GroupVersionResource) (cache.GenericLister, error) {
		return counted{ctx: ctx, count: *q.count.Load(), resource: resource.GroupResource()}, nil
	}
	known, err := evaluators(list)
	if err != nil {
		return nil, err
	}
	registry := generic.NewRegistry(known)
	for name := range is.Spec.Hard {
		of, ok := strings.CutPrefix(string(name), "count/")
		resource := schema.ParseGroupResource(of)
		if ok && !ignored(resource) && registry.Get(resource) == nil {
			registry.Add(generic.NewObjectCountEvaluator(resource,
				generic.ListResourceUsingListerFunc(list, resource.WithVersion("")), ""))
		}
	}
	return quota.CalculateUsage(is.Namespace, is.Spec.Scopes, is.Spec.Hard, registry,
		is.Spec.ScopeSelector)
}

// counted lists as many objects as there are in a namespace. Upstream's evaluators look at what
// they are only where they are of kinds that are not here.
type counted struct {
	ctx       context.Context
	count     Count
	resource  schema.GroupResource
	namespace string
}

func (c counted) ByNamespace(namespace string) cache.GenericNamespaceLister {
	c.namespace = namespace
	return c
}

func (c counted) Get(string) (runtime.Object, error) {
	return nil, errors.New("objects are counted only")
}

func (c counted) List(labels.Selector) ([]runtime.Object, error) {
	n, err := c.count(c.ctx, c.resource, c.namespace)
	return make([]runtime.Object, n), err
}
