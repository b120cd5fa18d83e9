package crds

import (
	"context"
	"fmt"
	"path"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/pkg/crds/internal/builtin"
)

// namespaceGuard keeps objects out of namespaces that are gone.
//
// Admission looks at the namespace before webhooks are called, which may take half a minute. The
// namespace may be deleted meanwhile, found to be empty, and be gone before the object is written,
// which would then be in no namespace. So the namespace is read once more, from the database, after
// the object was committed:
//
//   - If it is Active then, it was not deleted before the object was there. A later deletion lists
//     its content after that, and sees the object.
//   - Otherwise the object may have come after the last look at the namespace's content. It is
//     deleted again, and the client is told what admission would have said.
//
// So an object whose creation was acknowledged is never left behind, whatever time anything takes,
// with any number of servers, and whatever their clocks say. Left behind is only one that was not
// acknowledged, if the server dies, or loses the database, between the commit and the look, while
// somebody deletes the namespace. Two things are outside of this: a user who takes the finalizer
// kubernetes from a namespace by hand, and stores that an author makes with a getter that is not
// the configuration's.
type namespaceGuard struct {
	namespaces atomic.Pointer[rest.Getter]
	// quotas bound what is in a namespace. They look after the commit, too. They may be nil.
	quotas *builtin.Quotas
}

// guardWait bounds how long the namespace is asked for, and an object deleted, that is written
// already, whatever the client's own deadline is.
const guardWait = 10 * time.Second

// check returns why there must not be an object in a namespace.
func (g *namespaceGuard) check(ctx context.Context, resource schema.GroupResource, namespace,
	name string) error {
	getter := g.namespaces.Load()
	if getter == nil {
		return nil // the server is not made yet
	}
	obj, err := (*getter).Get(ctx, namespace, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// It is the namespace that is not found, not the resource of the request.
		return apierrors.NewNotFound(corev1.Resource("namespaces"), namespace)
	}
	if err != nil {
		return err
	}
	n, err := meta.Accessor(obj)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("a namespace is a %T", obj))
	}
	if n.GetDeletionTimestamp() == nil {
		return nil
	}
	refusal := apierrors.NewForbidden(resource, name,
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated",
			namespace))
	refusal.ErrStatus.Details.Causes = append(refusal.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", namespace),
		Field:   "metadata.namespace",
	})
	return refusal
}

// guardedGetter guards the stores that it describes.
type guardedGetter struct {
	generic.RESTOptionsGetter
	guard *namespaceGuard
	// definitions guards the objects of definitions. It is nil for others.
	definitions *definitionGuard
}

func (g guardedGetter) GetRESTOptions(resource schema.GroupResource,
	example runtime.Object) (generic.RESTOptions, error) {
	o, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return o, err
	}
	decorate := o.Decorator
	o.Decorator = func(config *storagebackend.ConfigForResource, prefix string,
		key func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		attributes apistorage.AttrFunc, triggers apistorage.IndexerFuncs, indexers *cache.Indexers,
	) (apistorage.Interface, factory.DestroyFunc, error) {
		store, destroy, err := decorate(config, prefix, key, newFunc, newListFunc, attributes,
			triggers, indexers)
		if err != nil {
			return nil, nil, err
		}
		return guardedStore{store, g.guard, g.definitions, resource, newFunc}, destroy, nil
	}
	return o, nil
}

// guardedStore looks at the namespaces, and the definitions, of what it has created.
type guardedStore struct {
	apistorage.Interface
	guard       *namespaceGuard
	definitions *definitionGuard
	resource    schema.GroupResource
	newFunc     func() runtime.Object
}

func (s guardedStore) Create(ctx context.Context, key string, obj, out runtime.Object,
	ttl uint64) error {
	definition, err := s.definitions.await(ctx, s.resource, path.Base(key))
	if err != nil {
		return err
	}
	if err := s.Interface.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	return s.keep(ctx, key, obj, definition)
}

// GuaranteedUpdate may create, too, for a PUT or an apply.
func (s guardedStore) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object,
	ignoreNotFound bool, preconditions *apistorage.Preconditions, update apistorage.UpdateFunc,
	cached runtime.Object,
) error {
	if !ignoreNotFound {
		if err := s.definitions.changes(ctx, s.resource, key); err != nil {
			return err
		}
		return s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions,
			update, cached)
	}
	created := false
	var definition types.UID
	err := s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions,
		func(existing runtime.Object, m apistorage.ResponseMeta) (runtime.Object, *uint64, error) {
			if created = m.ResourceVersion == 0; created {
				var err error
				definition, err = s.definitions.await(ctx, s.resource, path.Base(key))
				if err != nil {
					return nil, nil, err
				}
			}
			return update(existing, m)
		}, cached)
	if err != nil || !created {
		return err
	}
	return s.keep(ctx, key, out, definition)
}

func (s guardedStore) Delete(ctx context.Context, key string, out runtime.Object,
	preconditions *apistorage.Preconditions, validate apistorage.ValidateObjectFunc,
	cached runtime.Object, o apistorage.DeleteOptions) error {
	if err := s.definitions.changes(ctx, s.resource, key); err != nil {
		return err
	}
	if err := s.Interface.Delete(ctx, key, out, preconditions, validate, cached, o); err != nil {
		return err
	}
	s.deleted(out)
	return nil
}

// deleted tells the quotas that an object is gone.
func (s guardedStore) deleted(obj runtime.Object) {
	if o, err := meta.Accessor(obj); err == nil && o.GetNamespace() != "" {
		s.guard.quotas.Deleted(s.resource, o.GetNamespace())
	}
}

// keep deletes an object that has just been created again if its namespace, its definition or a
// quota does not take it, and returns why.
func (s guardedStore) keep(ctx context.Context, key string, created runtime.Object,
	definition types.UID) error {
	object, err := meta.Accessor(created)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardWait)
	defer cancel()
	within, is := "definition", "still there"
	refusal := s.definitions.check(ctx, s.resource, definition, object.GetName())
	if refusal == nil && object.GetNamespace() != "" {
		within = "namespace"
		refusal = s.guard.check(ctx, s.resource, object.GetNamespace(), object.GetName())
	}
	if refusal == nil && object.GetNamespace() != "" {
		within, is = "quota", "exceeded"
		refusal = s.guard.quotas.Check(ctx, s.resource, object.GetNamespace(), object.GetName())
	}
	switch {
	case refusal == nil:
		return nil
	case !apierrors.IsNotFound(refusal) && !apierrors.IsForbidden(refusal):
		return apierrors.NewTimeoutError(fmt.Sprintf("%s %q was created, but whether its "+
			"%s is %s cannot be told: %v; look whether it is there",
			s.resource, object.GetName(), within, is, refusal), 0)
	}
	uid := object.GetUID()
	err = s.Interface.Delete(ctx, key, s.newFunc(), &apistorage.Preconditions{UID: &uid},
		apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{})
	// If it is gone, or another one has its name, somebody else was faster.
	if err != nil && !apistorage.IsNotFound(err) && !apistorage.IsInvalidObj(err) {
		return apierrors.NewInternalError(fmt.Errorf("%s %q was created, its %s does not take it, "+
			"and it cannot be deleted: %w", s.resource, object.GetName(), within, err))
	}
	return refusal
}
