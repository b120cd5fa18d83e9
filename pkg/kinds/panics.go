package kinds

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	registry "github.com/rowkeeper/rowkeeper/pkg/registry/resource"
	"github.com/rowkeeper/rowkeeper/pkg/registry/scale"
	"github.com/rowkeeper/rowkeeper/pkg/registry/status"
)

// resource is the resource itself, without subresources.
type resource struct{ *registry.Store }

var (
	_ rest.StandardStorage    = &resource{}
	_ rest.ShortNamesProvider = &resource{}
	_ rest.CategoriesProvider = &resource{}
)

// Create creates an object.
func (r *resource) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	o *metav1.CreateOptions) (created runtime.Object, err error) {
	defer explainPanic(ctx, r.Store.Store, &err)
	return r.Store.Create(ctx, obj, validate, o)
}

// Update updates an object.
func (r *resource) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceCreate bool,
	o *metav1.UpdateOptions,
) (updated runtime.Object, created bool, err error) {
	defer explainPanic(ctx, r.Store.Store, &err)
	return r.Store.Update(ctx, name, info, create, update, forceCreate, o)
}

// ConvertToTable prints objects.
func (r *resource) ConvertToTable(ctx context.Context, obj,
	options runtime.Object) (printed *metav1.Table, err error) {
	defer explainPanic(ctx, r.Store.Store, &err)
	return r.Store.ConvertToTable(ctx, obj, options)
}

// statusResource is the subresource status of a resource.
type statusResource struct {
	*status.REST
	store *genericregistry.Store
}

// Update updates the status of an object.
func (r *statusResource) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceCreate bool,
	o *metav1.UpdateOptions,
) (updated runtime.Object, created bool, err error) {
	defer explainPanic(ctx, r.store, &err)
	return r.REST.Update(ctx, name, info, create, update, forceCreate, o)
}

// scaleResource is the subresource scale of a resource.
type scaleResource[T registry.Object] struct {
	*scale.REST[T]
	store *genericregistry.Store
}

// Update updates the scale of an object.
func (r *scaleResource[T]) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceCreate bool,
	o *metav1.UpdateOptions,
) (updated runtime.Object, created bool, err error) {
	defer explainPanic(ctx, r.store, &err)
	return r.REST.Update(ctx, name, info, create, update, forceCreate, o)
}

// explainPanic is deferred by requests that call the author's functions. If one of them panics, the
// client is told so. Without it he would see that the connection is reset.
func explainPanic(ctx context.Context, store *genericregistry.Store, err *error) {
	panicked := recover()
	if panicked == nil {
		return
	}
	if is, ok := panicked.(error); ok && errors.Is(is, http.ErrAbortHandler) {
		panic(panicked) // which ends a request on purpose
	}
	klog.FromContext(ctx).Error(nil, "A function of a kind has panicked", "resource",
		store.DefaultQualifiedResource, "panic", panicked, "stack", string(debug.Stack()))
	*err = apierrors.NewInternalError(fmt.Errorf("a function of the resource %s has panicked, "+
		"where is in the server's log: %v", store.DefaultQualifiedResource, panicked))
}
