package builtin

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/utils/clock"

	registry "github.com/rowkeeper/rowkeeper/pkg/registry/resource"
	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// resource says what is particular about a resource. All functions may be nil but new, newList and
// name.
type resource[T registry.Object] struct {
	resource, singular schema.GroupResource
	shortNames         []string
	clusterScoped      bool
	new                func() T
	newList            func() runtime.Object
	// name checks names.
	name validation.ValidateNameFunc
	// prepare normalizes an object before it is validated. old is the zero value for one that is
	// created.
	prepare func(obj, old T)
	// validate checks an object, and validateUpdate in addition what may not change. old is the
	// zero value for one that is created.
	validate       func(obj, old T) field.ErrorList
	validateUpdate func(obj, old T) field.ErrorList
	// validateRequest checks what depends on the group of the request.
	validateRequest func(ctx context.Context, obj, old T) field.ErrorList
	// knownFinalizers refuses finalizers that are neither a cluster's own nor somebody's, as
	// example.com/name is.
	knownFinalizers bool
	// selectable adds the fields by which clients can select.
	selectable func(T, fields.Set)
	// columns and cells are those of the table between the name and the age.
	columns []metav1.TableColumnDefinition
	cells   func(T) []any
	// ttl is how many seconds an object is kept after it has been written. 0 means for ever.
	ttl uint64
	// createOnUpdate lets clients create by PUT.
	createOnUpdate bool
	// needsVersion refuses a PUT without a resourceVersion, for the same resources as in a cluster.
	needsVersion bool
}

// segmentName checks names that may be anything which fits into a path, such as system:discovery.
// Prefixes are for names that the server generates.
func segmentName(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// strategy is the generic store's view of a resource.
type strategy[T registry.Object] struct {
	runtime.ObjectTyper
	names.NameGenerator
	resource[T]
}

func (s strategy[T]) NamespaceScoped() bool                         { return !s.clusterScoped }
func (s strategy[T]) AllowCreateOnUpdate(context.Context) bool      { return s.createOnUpdate }
func (s strategy[T]) AllowUnconditionalUpdate(context.Context) bool { return !s.needsVersion }
func (s strategy[T]) Canonicalize(runtime.Object)                   {}

func (s strategy[T]) PrepareForCreate(_ context.Context, obj runtime.Object) {
	if s.prepare != nil {
		var none T
		s.prepare(obj.(T), none)
	}
}

func (s strategy[T]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	if s.prepare != nil {
		s.prepare(obj.(T), old.(T))
	}
}

var metadataPath = field.NewPath("metadata")

func (s strategy[T]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	errs := validation.ValidateObjectMetaAccessor(obj.(T), !s.clusterScoped, s.name, metadataPath)
	var none T
	return append(errs, s.check(ctx, obj.(T), none)...)
}

func (s strategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := validation.ValidateObjectMetaAccessorUpdate(obj.(T), old.(T), metadataPath)
	errs = append(errs, s.check(ctx, obj.(T), old.(T))...)
	if s.validateUpdate != nil {
		errs = append(errs, s.validateUpdate(obj.(T), old.(T))...)
	}
	return errs
}

// check is what is checked of an object that is created, and of one that is updated.
func (s strategy[T]) check(ctx context.Context, obj, old T) (errs field.ErrorList) {
	if s.knownFinalizers {
		errs = checkFinalizers(obj.GetFinalizers(), metadataPath.Child("finalizers"))
	}
	if s.validate != nil {
		errs = append(errs, s.validate(obj, old)...)
	}
	if s.validateRequest != nil {
		errs = append(errs, s.validateRequest(ctx, obj, old)...)
	}
	return errs
}

// knownFinalizer tells whether a finalizer is a cluster's own, or one such as example.com/name.
func knownFinalizer(name string) bool {
	return strings.Contains(name, "/") || name == string(corev1.FinalizerKubernetes) ||
		name == metav1.FinalizerOrphanDependents || name == metav1.FinalizerDeleteDependents
}

const finalizerMessage = "must name a domain, such as example.com/name, or be a cluster's own"

func checkFinalizers(names []string, path *field.Path) (errs field.ErrorList) {
	for i, name := range names {
		if !knownFinalizer(name) {
			errs = append(errs, field.Invalid(path.Index(i), name, finalizerMessage))
		}
	}
	return errs
}

func (s strategy[T]) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (s strategy[T]) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (r resource[T]) table() rest.TableConvertor {
	columns := append([]metav1.TableColumnDefinition{table.Name()}, r.columns...)
	return table.Convertor[T]{
		Columns: append(columns, table.Created()),
		Cells: func(obj T) []any {
			cells := []any{obj.GetName()}
			if r.cells != nil {
				cells = append(cells, r.cells(obj)...)
			}
			return append(cells, table.Age(obj.GetCreationTimestamp(), clock.RealClock{}))
		},
	}
}

// store makes the resource's store.
func (r resource[T]) store(getter generic.RESTOptionsGetter) (*registry.Store, error) {
	of := &registry.Resource[T]{
		Name:       r.resource,
		Singular:   r.singular,
		ShortNames: r.shortNames,
		New:        r.new,
		NewList:    r.newList,
		Strategy:   strategy[T]{Scheme, names.SimpleNameGenerator, r},
		Table:      r.table(),
		Selectable: r.selectable,
	}
	if r.ttl > 0 {
		of.TTL = func(T) uint64 { return r.ttl }
	}
	return of.Store(getter)
}
