package builtin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// NamespaceController deletes the content of namespaces that are Terminating, of whatever resources
// there are, and then lets the namespaces go.
//
// Every replica may run one. One that is late finds that the namespace was let go by another one,
// and perhaps created anew, and leaves it alone: objects are deleted by their UID, after it was
// seen that the namespace in which they were found is still the one that is deleted.
type NamespaceController struct {
	client   kubernetes.Interface
	metadata metadata.Interface
	lister   corelisters.NamespaceLister
	synced   cache.InformerSynced
	queue    workqueue.TypedRateLimitingInterface[string]
	stored   Stored
	// defined tells whether the resources of a group come from definitions.
	defined func(group string) bool
	// settle is for how long after the deletion of a namespace another server may not know of it,
	// and create objects in it.
	settle time.Duration
}

// What is left in a namespace is looked for again after this time at first, and after at most this
// time in the end.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// SettleTime is how long a namespace stays Terminating at least where there may be several servers,
// as in a cluster.
const SettleTime = 5 * time.Second

// Stored returns the resources of which anything is stored in a namespace. It must not miss what
// was acknowledged before the call by any server, whether or not this one serves the resource.
type Stored func(ctx context.Context, namespace string) ([]schema.GroupResource, error)

// NewNamespaceController makes a controller that works when it is run. It lets a namespace go when
// nothing was stored in it at a time that is later than the deletion by settle. Of the resources
// that come from definitions it lists those of which something is stored in the namespace.
func NewNamespaceController(client kubernetes.Interface, metadata metadata.Interface,
	informer coreinformers.NamespaceInformer, stored Stored, defined func(group string) bool,
	settle time.Duration) (*NamespaceController, error) {
	c := &NamespaceController{
		stored: stored, defined: defined, settle: settle,
		client: client, metadata: metadata, lister: informer.Lister(),
		synced: informer.Informer().HasSynced,
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
	}
	look := func(obj any) {
		if n, ok := obj.(*corev1.Namespace); ok && n.DeletionTimestamp != nil {
			c.queue.Add(n.Name)
		}
	}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look,
		UpdateFunc: func(before, after any) {
			// A change of the status, which is of this controller's making, is no reason to look
			// again at once.
			a, b := before.(*corev1.Namespace), after.(*corev1.Namespace)
			if a.UID != b.UID || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
				!slices.Equal(a.Spec.Finalizers, b.Spec.Finalizers) ||
				!slices.Equal(a.Finalizers, b.Finalizers) {
				look(after)
			}
		}})
	return c, err
}

const (
	// namespaceWorkers is how many namespaces are emptied at a time. They wait for the database,
	// and for webhooks that convert.
	namespaceWorkers = 10
	// contentsAtOnce is how many resources of a namespace are emptied at a time. A definition's
	// webhook may convert the objects of many resources.
	contentsAtOnce = 16
	// contentPage is how many objects are listed at a time.
	contentPage = 500
	// listWithin is how long a list may take. One that takes longer waits for a webhook that
	// converts, and others are not to wait for it. A deletion that takes longer and fails has
	// waited for a webhook of admission, and the deletions after it would wait as long.
	listWithin = 3 * time.Second
)

// Run works until the context ends.
func (c *NamespaceController) Run(ctx context.Context) {
	defer c.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), c.synced) {
		return
	}
	for range namespaceWorkers {
		go func() {
			for c.next(ctx) {
			}
		}()
	}
	<-ctx.Done()
}

func (c *NamespaceController) next(ctx context.Context) bool {
	name, quit := c.queue.Get()
	if quit {
		return false
	}
	defer c.queue.Done(name)
	done, err := c.sync(ctx, name)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		klog.FromContext(ctx).Info("The content of a namespace cannot be deleted yet", "namespace",
			name, "reason", err)
		c.queue.AddRateLimited(name)
	case !done:
		c.queue.AddRateLimited(name)
	default:
		c.queue.Forget(name)
	}
	return true
}

// sync deletes what is in a namespace. done says that there is nothing more to do.
func (c *NamespaceController) sync(ctx context.Context, name string) (done bool, err error) {
	n, err := c.lister.Get(name)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil || n.DeletionTimestamp == nil {
		return err == nil, err
	}
	if len(n.Spec.Finalizers) == 0 && len(n.Finalizers) == 0 {
		// Whoever removed the last finalizer, or asked for the deletion, did not get to the end.
		return c.end(ctx, n)
	}
	if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return true, nil
	}
	// The timestamp is cut to a second.
	early := c.settle
	if early > 0 {
		early = time.Until(n.DeletionTimestamp.Add(c.settle + time.Second))
	}
	problems := &contentProblems{}
	resources, err := c.resources(ctx)
	if err != nil {
		problems.discovery = err
	}
	stored, err := c.stored(ctx, name)
	if err != nil {
		return false, err
	}
	// A webhook that does not convert keeps a resource from being listed, in every namespace.
	resources = slices.DeleteFunc(resources, func(r schema.GroupVersionResource) bool {
		return c.defined(r.Group) && !slices.Contains(stored, r.GroupResource())
	})
	// Events come last, since deletions may cause some.
	last := slices.IndexFunc(resources, isEvents)
	if last < 0 {
		last = len(resources)
	}
	contents := append(c.empty(ctx, resources[:last], n), c.empty(ctx, resources[last:], n)...)
	for i, r := range resources {
		left, err := contents[i].left, contents[i].err
		if errors.Is(err, errLetGo) {
			return true, nil
		}
		if err != nil {
			problems.deletion = append(problems.deletion,
				fmt.Errorf("%s: %w", r.GroupResource(), err))
		}
		if left > 0 {
			problems.remaining = append(problems.remaining,
				fmt.Sprintf("%s has %d resource instances", r.GroupResource(), left))
		}
	}
	if !problems.any() {
		// Discovery says which resources can be deleted, but not that there are no others: a new
		// definition may have objects before discovery has it, and longer if another server created
		// it.
		stored, err := c.stored(ctx, name)
		if err != nil {
			return false, err
		}
		for _, r := range stored {
			problems.remaining = append(problems.remaining,
				fmt.Sprintf("%s has resource instances, and is not discovered here", r))
		}
	}
	if problems.any() {
		return false, errors.Join(problems.err(), c.report(ctx, n, problems))
	}
	if early > 0 {
		c.queue.AddAfter(name, early)
		return true, nil
	}
	finalized := n.DeepCopy()
	finalized.Spec.Finalizers = slices.DeleteFunc(finalized.Spec.Finalizers,
		func(f corev1.FinalizerName) bool {
			return f == corev1.FinalizerKubernetes
		})
	if _, err := c.client.CoreV1().Namespaces().Finalize(ctx, finalized,
		metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) &&
		!apierrors.IsConflict(err) {
		return false, err
	} else if apierrors.IsConflict(err) {
		return false, nil // what has changed is seen in a moment
	}
	return true, nil
}

// end deletes a namespace that nobody has to finalize any more, if it is still the one that was
// seen.
func (c *NamespaceController) end(ctx context.Context, n *corev1.Namespace) (done bool, err error) {
	seen := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &n.UID,
		ResourceVersion: &n.ResourceVersion}}
	err = c.client.CoreV1().Namespaces().Delete(ctx, n.Name, seen)
	switch {
	case err == nil || apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsConflict(err):
		return false, nil // what has changed is seen in a moment
	}
	return false, err
}

// resources are those that namespaces have objects of. They come together with an error if some
// groups cannot say what they have.
func (c *NamespaceController) resources(
	ctx context.Context) ([]schema.GroupVersionResource, error) {
	server := discovery.ToServerResourcesInterfaceWithContext(c.client.Discovery())
	lists, err := server.ServerPreferredNamespacedResourcesWithContext(ctx)
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"delete", "list"}},
		lists)
	set, parseErr := discovery.GroupVersionResources(lists)
	if parseErr != nil {
		return nil, parseErr
	}
	resources := make([]schema.GroupVersionResource, 0, len(set))
	for r := range set {
		resources = append(resources, r)
	}
	// In a constant order, with the Events at the end.
	slices.SortFunc(resources, func(a, b schema.GroupVersionResource) int {
		if isEvents(a) != isEvents(b) {
			if isEvents(a) {
				return 1
			}
			return -1
		}
		return strings.Compare(a.String(), b.String())
	})
	return resources, err
}

func isEvents(r schema.GroupVersionResource) bool { return r.Resource == "events" }

// emptied is what has become of a namespace's objects of a resource.
type emptied struct {
	left int
	err  error
}

// empty deletes a namespace's objects of several resources. One that hangs holds up no other.
func (c *NamespaceController) empty(ctx context.Context, resources []schema.GroupVersionResource,
	n *corev1.Namespace) []emptied {
	contents := make([]emptied, len(resources))
	var group errgroup.Group
	group.SetLimit(contentsAtOnce)
	for i, r := range resources {
		group.Go(func() error {
			contents[i].left, contents[i].err = c.deleteAll(ctx, r, n)
			return nil
		})
	}
	_ = group.Wait() // each has an error of its own
	return contents
}

// errSlow says that a deletion has failed after it had waited for long.
var errSlow = errors.New("others are tried later")

// errLetGo says that another replica has deleted the namespace.
var errLetGo = errors.New("the namespace is not the one that is deleted any more")

// deleteAll deletes a namespace's objects of a resource, and returns how many are left, such as
// those with finalizers. A resource may go while its objects are deleted, and they with it.
func (c *NamespaceController) deleteAll(ctx context.Context, r schema.GroupVersionResource,
	n *corev1.Namespace) (left int, err error) {
	objects := c.metadata.Resource(r).Namespace(n.Name)
	var failed []error
	for from := ""; ; {
		list, err := listPage(ctx, objects, from)
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, errors.Join(append(failed, err)...)
		}
		if len(list.Items) == 0 {
			break
		}
		err = c.deletePage(ctx, objects, list.Items, n)
		if errors.Is(err, errLetGo) {
			return 0, err
		} else if err != nil {
			failed = append(failed, err)
		}
		if from = list.Continue; from == "" || errors.Is(err, errSlow) {
			break
		}
	}
	list, err := listPage(ctx, objects, "")
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, errors.Join(append(failed, err)...)
	}
	return len(list.Items) + int(ptr.Deref(list.RemainingItemCount, 0)), errors.Join(failed...)
}

// listPage lists objects from a token on.
func listPage(ctx context.Context, objects metadata.ResourceInterface,
	from string) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	list, err := objects.List(ctx, metav1.ListOptions{Limit: contentPage, Continue: from})
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("its objects cannot be listed within %v: %w", listWithin, err)
	}
	return list, err
}

// lookEvery is how old the last look at a namespace may be when an object in it is deleted.
const lookEvery = 50 * time.Millisecond

// deletePage deletes objects that were listed. Beside a restore, which brings back objects with
// their UIDs, what remains is the moment after the namespace was read: if the restore brings back
// both, what is deleted within lookEvery is lost. Whoever wants to exclude that stops the servers
// first.
func (c *NamespaceController) deletePage(ctx context.Context, objects metadata.ResourceInterface,
	listed []metav1.PartialObjectMetadata, n *corev1.Namespace) error {
	background := metav1.DeletePropagationBackground
	var failed []error
	var looked time.Time
	// In any order, so that the next attempt begins with others than those that hang.
	for _, i := range rand.Perm(len(listed)) {
		// The namespace is looked at after the list: if it is the same then, all that was listed is
		// in it.
		if began := time.Now(); began.Sub(looked) > lookEvery {
			if err := c.stillDeleted(ctx, n); err != nil {
				return err
			}
			looked = began
		}
		o := metav1.DeleteOptions{PropagationPolicy: &background,
			Preconditions: &metav1.Preconditions{UID: &listed[i].UID}}
		began := time.Now()
		err := objects.Delete(ctx, listed[i].Name, o)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			continue
		}
		failed = append(failed, fmt.Errorf("%s: %w", listed[i].Name, err))
		if time.Since(began) > listWithin {
			failed = append(failed, errSlow)
			break
		}
	}
	return errors.Join(failed...)
}

// stillDeleted returns errLetGo if a namespace is not the one that is deleted any more.
func (c *NamespaceController) stillDeleted(ctx context.Context, n *corev1.Namespace) error {
	now, err := c.client.CoreV1().Namespaces().Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) ||
		err == nil && (now.UID != n.UID || now.DeletionTimestamp == nil) {
		return errLetGo
	}
	return err
}

// contentProblems are why a namespace is not empty.
type contentProblems struct {
	discovery error
	deletion  []error
	remaining []string
}

func (p *contentProblems) any() bool {
	return p.discovery != nil || len(p.deletion) > 0 || len(p.remaining) > 0
}

func (p *contentProblems) err() error {
	return errors.Join(append(slices.Clone(p.deletion), p.discovery)...)
}

// report says in the namespace's status what is left, as a cluster does.
func (c *NamespaceController) report(ctx context.Context, n *corev1.Namespace,
	p *contentProblems) error {
	reported := n.DeepCopy()
	set := func(kind corev1.NamespaceConditionType, wrong bool, reason, wrongReason, good string,
		wrongs string) {
		condition := corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse,
			Reason: reason, Message: good, LastTransitionTime: metav1.Now()}
		if wrong {
			condition.Status, condition.Reason, condition.Message = corev1.ConditionTrue,
				wrongReason, wrongs
		}
		i := slices.IndexFunc(reported.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == kind
		})
		if i < 0 {
			reported.Status.Conditions = append(reported.Status.Conditions, condition)
			return
		}
		if old := reported.Status.Conditions[i]; old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		reported.Status.Conditions[i] = condition
	}
	var undiscovered string
	if p.discovery != nil {
		undiscovered = p.discovery.Error()
	}
	var undeleted string
	if err := errors.Join(p.deletion...); err != nil {
		undeleted = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, p.discovery != nil, "ResourcesDiscovered",
		"DiscoveryFailed", "All resources successfully discovered", undiscovered)
	set(corev1.NamespaceDeletionContentFailure, len(p.deletion) > 0, "ContentDeleted",
		"ContentDeletionFailed", "All content successfully deleted, may be waiting on finalization",
		undeleted)
	set(corev1.NamespaceContentRemaining, len(p.remaining) > 0, "ContentRemoved",
		"SomeResourcesRemain", "All content successfully removed", "Some resources are remaining: "+
			strings.Join(p.remaining, ", "))
	if apiequality.Semantic.DeepEqual(reported.Status, n.Status) {
		return nil
	}
	_, err := c.client.CoreV1().Namespaces().UpdateStatus(ctx, reported, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // what has changed is seen in a moment
	}
	return err
}

// SystemNamespaces are those that are always there.
var SystemNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem}

// CreateSystemNamespaces creates those that are missing.
func CreateSystemNamespaces(ctx context.Context, client kubernetes.Interface) error {
	for _, name := range SystemNamespaces {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = client.CoreV1().Namespaces().Create(ctx,
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
				metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("cannot create the namespace %s: %w", name, err)
		}
	}
	return nil
}
