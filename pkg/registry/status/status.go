// Package status is for authors of registries. It serves the status of objects as a subresource, so
// that those who write the spec and those who write the status have different rights, and never
// overwrite each other's part.
package status

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// REST is the subresource status of some resource.
type REST struct {
	store genericregistry.Store
}

var (
	_ rest.Patcher             = &REST{}
	_ rest.ResetFieldsStrategy = &REST{}
	_ rest.TableConvertor      = &REST{}
)

// Strategy says what an update of the status may change.
type Strategy interface {
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// New returns the subresource of a resource.
func New(resource *genericregistry.Store, strategy Strategy) *REST {
	r := &REST{store: *resource}
	r.store.UpdateStrategy = strategy
	r.store.ResetFieldsStrategy = strategy
	return r
}

// New returns an empty object.
func (r *REST) New() runtime.Object { return r.store.New() }

// Destroy does nothing: what there is to release belongs to the resource.
func (*REST) Destroy() {}

// Get returns the whole object.
func (r *REST) Get(ctx context.Context, name string,
	options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update changes the status. It never creates an object.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc,
	_ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, createValidation, updateValidation, false, options)
}

// GetResetFields returns what an update of the status does not change.
func (r *REST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable prints the object as the resource does.
func (r *REST) ConvertToTable(ctx context.Context, obj,
	options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}

// Fields names top-level fields in each version, for GetResetFields.
func Fields(versions []schema.GroupVersion,
	names ...string) map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, name := range names {
		set.Insert(fieldpath.MakePathOrDie(name))
	}
	fields := make(map[fieldpath.APIVersion]*fieldpath.Set, len(versions))
	for _, version := range versions {
		fields[fieldpath.APIVersion(version.String())] = set
	}
	return fields
}
