package builtin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerrors "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	registry "github.com/rowkeeper/rowkeeper/pkg/registry/resource"
)

var namespaces = resource[*corev1.Namespace]{
	resource: corev1.Resource("namespaces"), singular: corev1.Resource("namespace"),
	shortNames:    []string{"ns"},
	clusterScoped: true,
	new: func() *corev1.Namespace {
		return &corev1.Namespace{}
	}, newList: func() runtime.Object { return &corev1.NamespaceList{} },
	name: validation.ValidateNamespaceName, knownFinalizers: true,
	prepare: func(n, old *corev1.Namespace) {
		defaultNamespace(n) // whose name may have been generated
		if old != nil {
			n.Spec.Finalizers, n.Status = old.Spec.Finalizers, old.Status
			return
		}
		n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		for _, f := range n.Spec.Finalizers {
			if f == corev1.FinalizerKubernetes {
				return
			}
		}
		n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
	},
	validate: func(n, _ *corev1.Namespace) (errs field.ErrorList) {
		for _, f := range n.Spec.Finalizers {
			path := field.NewPath("spec", "finalizers")
			for _, message := range utilvalidation.IsQualifiedName(string(f)) {
				errs = append(errs, field.Invalid(path, f, message))
			}
			if !knownFinalizer(string(f)) {
				errs = append(errs, field.Invalid(path, f, finalizerMessage))
			}
		}
		if label := n.Labels[corev1.LabelMetadataName]; label != n.Name {
			errs = append(errs, field.Invalid(field.NewPath("metadata",
				"labels").Key(corev1.LabelMetadataName), label, fmt.Sprintf("must be %s", n.Name)))
		}
		return errs
	},
	selectable: func(n *corev1.Namespace, set fields.Set) {
		set["status.phase"] = string(n.Status.Phase)
	},
	columns: []metav1.TableColumnDefinition{{Name: "Status", Type: "string",
		Description: "Active, or Terminating while its content is deleted."}},
	cells: func(n *corev1.Namespace) []any { return []any{string(n.Status.Phase)} },
}

// namespaceREST is the resource namespaces. It has all that a store has, except for the deletion of
// many at a time: a user may easily delete more than they mean to.
//
// A namespace is deleted in two steps: the first request makes it Terminating, after which nothing
// can be created in it. Those who are named in spec.finalizers remove its content, and then their
// names, by the subresource finalize. When no name is left, the namespace is deleted.
type namespaceREST struct{ store *registry.Store }

var (
	_ rest.Storage              = &namespaceREST{}
	_ rest.Scoper               = &namespaceREST{}
	_ rest.Lister               = &namespaceREST{}
	_ rest.CreaterUpdater       = &namespaceREST{}
	_ rest.Patcher              = &namespaceREST{}
	_ rest.GracefulDeleter      = &namespaceREST{}
	_ rest.Watcher              = &namespaceREST{}
	_ rest.ShortNamesProvider   = &namespaceREST{}
	_ rest.SingularNameProvider = &namespaceREST{}
	_ rest.StorageWithReadiness = &namespaceREST{}
)

func (r *namespaceREST) New() runtime.Object     { return r.store.New() }
func (r *namespaceREST) NewList() runtime.Object { return r.store.NewList() }
func (r *namespaceREST) Destroy()                { r.store.Destroy() }
func (r *namespaceREST) NamespaceScoped() bool   { return false }
func (r *namespaceREST) ShortNames() []string    { return r.store.ShortNames() }
func (r *namespaceREST) GetSingularName() string { return r.store.GetSingularName() }
func (r *namespaceREST) ReadinessCheck() error   { return r.store.ReadinessCheck() }

func (r *namespaceREST) Get(ctx context.Context, name string,
	o *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, o)
}

func (r *namespaceREST) List(ctx context.Context,
	o *internalversion.ListOptions) (runtime.Object, error) {
	return r.store.List(ctx, o)
}

func (r *namespaceREST) Watch(ctx context.Context,
	o *internalversion.ListOptions) (watch.Interface, error) {
	return r.store.Watch(ctx, o)
}

func (r *namespaceREST) ConvertToTable(ctx context.Context, obj,
	o runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, o)
}

func (r *namespaceREST) Create(ctx context.Context, obj runtime.Object,
	validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	return r.store.Create(ctx, obj, validate, o)
}

func (r *namespaceREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceAllowCreate bool,
	o *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, forceAllowCreate, o)
}

// Delete makes a namespace Terminating, or deletes it if nobody has to finalize it any more.
func (r *namespaceREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if o == nil {
		o = &metav1.DeleteOptions{}
	}
	preconditions := &apistorage.Preconditions{}
	if o.Preconditions != nil {
		preconditions.UID, preconditions.ResourceVersion = o.Preconditions.UID,
			o.Preconditions.ResourceVersion
	}
	key, err := r.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, false, err
	}
	terminating := &corev1.Namespace{}
	err = r.store.Storage.GuaranteedUpdate(ctx, key, terminating, false, preconditions,
		apistorage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
			if err := validate(ctx, existing); err != nil {
				return nil, err
			}
			n := existing.(*corev1.Namespace)
			if n.DeletionTimestamp == nil {
				now := metav1.Now()
				n.DeletionTimestamp = &now
			}
			n.Status.Phase = corev1.NamespaceTerminating
			return n, nil
		}), dryrun.IsDryRun(o.DryRun), nil)
	if err != nil {
		return nil, false, storeerrors.InterpretDeleteError(storeerrors.InterpretUpdateError(err,
			corev1.Resource("namespaces"), name), corev1.Resource("namespaces"), name)
	}
	if len(terminating.Spec.Finalizers) > 0 || len(terminating.Finalizers) > 0 {
		return terminating, false, nil
	}
	// What has just been seen without finalizers is deleted, and nothing else. The client's own
	// conditions held in the first step, which has changed the version.
	o = o.DeepCopy()
	o.Preconditions = metav1.NewPreconditionDeleteOptions(string(terminating.UID)).Preconditions
	o.Preconditions.ResourceVersion = &terminating.ResourceVersion
	obj, deleted, err := r.store.Delete(ctx, name, validate, o)
	switch {
	case apierrors.IsNotFound(err):
		return terminating, true, nil // somebody else was faster
	case apierrors.IsConflict(err):
		// It was changed meanwhile. It is Terminating, and the controller ends it.
		return terminating, false, nil
	}
	return obj, deleted, err
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (r *namespaceREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{"v1": fieldpath.NewSet(fieldpath.MakePathOrDie("status"))}
}

// newNamespaces makes the resource namespaces and its subresources.
func newNamespaces(getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	s, err := namespaces.store(getter)
	if err != nil {
		return nil, err
	}
	finalized := func(_ context.Context, _ string, obj, _ runtime.Object) bool {
		n := obj.(*corev1.Namespace)
		return n.DeletionTimestamp != nil && len(n.Spec.Finalizers) == 0 && len(n.Finalizers) == 0
	}
	s.ShouldDeleteDuringUpdate = finalized

	status, finalize := namespaces, namespaces
	status.prepare = func(n, old *corev1.Namespace) { n.Spec.Finalizers = old.Spec.Finalizers }
	status.validateUpdate = func(n, _ *corev1.Namespace) field.ErrorList {
		path := field.NewPath("status", "phase")
		if (n.DeletionTimestamp == nil) != (n.Status.Phase == corev1.NamespaceActive) {
			if n.DeletionTimestamp == nil {
				return field.ErrorList{field.Invalid(path, n.Status.Phase,
					"may only be 'Active' if `deletionTimestamp` is empty")}
			}
			return field.ErrorList{field.Invalid(path, n.Status.Phase,
				"may only be 'Terminating' if `deletionTimestamp` is not empty")}
		}
		return nil
	}
	finalize.prepare = func(n, old *corev1.Namespace) { n.Status = old.Status }
	sub := func(r resource[*corev1.Namespace]) *subresource {
		store := *s.Store
		store.UpdateStrategy = strategy[*corev1.Namespace]{ObjectTyper: Scheme, resource: r}
		return &subresource{&store}
	}
	return map[string]rest.Storage{"namespaces": &namespaceREST{s},
		"namespaces/status": sub(status), "namespaces/finalize": sub(finalize)}, nil
}
