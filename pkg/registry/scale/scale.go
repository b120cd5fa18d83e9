// Package scale is for authors of registries. It serves the scale of objects as a subresource, by
// which "kubectl scale" and autoscalers change the number of their replicas.
package scale

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/rowkeeper/rowkeeper/pkg/registry/resource"
)

// AddToScheme registers the kind Scale, which many groups share. It has no form of its own inside.
func AddToScheme(scheme *runtime.Scheme) {
	for _, version := range []string{autoscalingv1.SchemeGroupVersion.Version,
		runtime.APIVersionInternal} {
		scheme.AddKnownTypes(schema.GroupVersion{Group: autoscalingv1.GroupName, Version: version},
			&autoscalingv1.Scale{})
	}
}

// Fields says what of an object of type T is its scale.
type Fields[T resource.Object] struct {
	// Get returns the replicas that are wanted, and the replicas that there are.
	Get func(T) (autoscalingv1.ScaleSpec, autoscalingv1.ScaleStatus)
	// Set sets the replicas that are wanted.
	Set func(obj T, replicas int32)
	// Paths say for every version, such as example.com/v1, where it has the replicas that are
	// wanted, so that who manages the one manages the other. A version that has none has nil.
	Paths managedfields.ResourcePathMappings
	// Version is one that has a path. Changes by requests of others that have none are noted in it.
	Version schema.GroupVersion
}

// REST is the subresource scale of a resource of objects of type T.
type REST[T resource.Object] struct {
	store  *genericregistry.Store
	fields Fields[T]
}

var (
	_ rest.Patcher                  = &REST[*metav1.PartialObjectMetadata]{}
	_ rest.GroupVersionKindProvider = &REST[*metav1.PartialObjectMetadata]{}
	_ rest.TableConvertor           = &REST[*metav1.PartialObjectMetadata]{}
)

// New returns the subresource of a resource.
func New[T resource.Object](resource *genericregistry.Store, fields Fields[T]) *REST[T] {
	return &REST[T]{resource, fields}
}

// GroupVersionKind says that a scale belongs to another group than the object.
func (*REST[T]) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// New returns an empty scale.
func (*REST[T]) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy does nothing: what there is to release belongs to the resource.
func (*REST[T]) Destroy() {}

// Get returns the scale of an object.
func (r *REST[T]) Get(ctx context.Context, name string,
	options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.store.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return r.of(obj)
}

// Update changes the scale of an object. It never creates an object.
func (r *REST[T]) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc,
	_ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, _, err := r.store.Update(ctx, name, &update[T]{r, info}, r.ofScale(createValidation),
		r.ofScales(updateValidation), false, options)
	if err != nil {
		return nil, false, err
	}
	scale, err := r.of(obj)
	return scale, false, err
}

// ConvertToTable prints the scale as objects without columns of their own are.
func (*REST[T]) ConvertToTable(ctx context.Context, obj,
	options runtime.Object) (*metav1.Table, error) {
	return rest.NewDefaultTableConvertor(autoscalingv1.Resource("scales")).ConvertToTable(ctx,
		obj, options)
}

// of returns the scale of an object.
func (r *REST[T]) of(obj runtime.Object) (*autoscalingv1.Scale, error) {
	o, ok := obj.(T)
	if !ok {
		return nil, fmt.Errorf("%T is not one of the %s", obj, r.store.DefaultQualifiedResource)
	}
	managed, err := managedfields.NewScaleHandler(o.GetManagedFields(), schema.GroupVersion{},
		r.fields.Paths).ToSubresource()
	if err != nil {
		return nil, fmt.Errorf("the managed fields of %s %q cannot be those of its scale: %w",
			r.store.DefaultQualifiedResource, o.GetName(), err)
	}
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{
		Name:              o.GetName(),
		Namespace:         o.GetNamespace(),
		UID:               o.GetUID(),
		ResourceVersion:   o.GetResourceVersion(),
		CreationTimestamp: o.GetCreationTimestamp(),
		ManagedFields:     managed,
	}}
	scale.Spec, scale.Status = r.fields.Get(o)
	return scale, nil
}

// update makes an update of an object of an update of its scale.
type update[T resource.Object] struct {
	rest *REST[T]
	info rest.UpdatedObjectInfo
}

func (u *update[T]) Preconditions() *metav1.Preconditions { return u.info.Preconditions() }

func (u *update[T]) UpdatedObject(ctx context.Context,
	old runtime.Object) (runtime.Object, error) {
	before, err := u.rest.of(old)
	if err != nil {
		return nil, err
	}
	obj, err := u.info.UpdatedObject(ctx, before)
	if err != nil {
		return nil, err
	}
	scale, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is a %T, not a Scale", obj))
	}
	if errs := validation.ValidateNonnegativeField(int64(scale.Spec.Replicas),
		field.NewPath("spec", "replicas")); len(errs) > 0 {
		return nil,
			apierrors.NewInvalid(autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(),
				scale.Name, errs)
	}
	o := old.DeepCopyObject().(T)
	if scale.ResourceVersion != "" {
		// The client's precondition, if it has one, is about the object.
		o.SetResourceVersion(scale.ResourceVersion)
	}
	u.rest.fields.Set(o, scale.Spec.Replicas)
	managed, err := managedfields.NewScaleHandler(o.GetManagedFields(), u.rest.version(ctx),
		u.rest.fields.Paths).ToParent(scale.ManagedFields)
	o.SetManagedFields(managed)
	return o, err
}

// version returns the one in which the change is noted.
func (r *REST[T]) version(ctx context.Context) schema.GroupVersion {
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		version := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		if r.fields.Paths[version.String()] != nil {
			return version
		}
	}
	return r.fields.Version
}

// ofScale lets admission, which expects scales here, check an object.
func (r *REST[T]) ofScale(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		scale, err := r.of(obj)
		if err != nil {
			return err
		}
		return validate(ctx, scale)
	}
}

func (r *REST[T]) ofScales(validate rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, obj, old runtime.Object) error {
		scale, err := r.of(obj)
		if err != nil {
			return err
		}
		before, err := r.of(old)
		if err != nil {
			return err
		}
		return validate(ctx, scale, before)
	}
}
