package core

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// object is an API object of a Go type.
type object interface {
	runtime.Object
	metav1.Object
}

// resource says what is particular about a resource. All functions may be nil but new, newList and name.
type resource[T object] struct {
	resource, singular schema.GroupResource
	shortNames         []string
	clusterScoped      bool
	new                func() T
	newList            func() runtime.Object
	// name checks names.
	name validation.ValidateNameFunc
	// prepare normalizes an object before it is validated. old is the zero value for one that is created.
	prepare func(obj, old T)
	// validate checks an object, and validateUpdate in addition what may not change. old is the zero value for one that is created.
	validate       func(obj, old T) field.ErrorList
	validateUpdate func(obj, old T) field.ErrorList
	// selectable adds the fields that can be selected by.
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

// strategy is the generic store's view of a resource.
type strategy[T object] struct {
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

func (s strategy[T]) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	errs := validation.ValidateObjectMetaAccessor(obj.(T), !s.clusterScoped, s.name, metadataPath)
	if s.validate != nil {
		var none T
		errs = append(errs, s.validate(obj.(T), none)...)
	}
	return errs
}

func (s strategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := validation.ValidateObjectMetaAccessorUpdate(obj.(T), old.(T), metadataPath)
	if s.validate != nil {
		errs = append(errs, s.validate(obj.(T), old.(T))...)
	}
	if s.validateUpdate != nil {
		errs = append(errs, s.validateUpdate(obj.(T), old.(T))...)
	}
	return errs
}

func (s strategy[T]) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (s strategy[T]) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (r resource[T]) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	typed, ok := obj.(T)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a %T", obj, r.new())
	}
	set := fields.Set{"metadata.name": typed.GetName()}
	if !r.clusterScoped {
		set["metadata.namespace"] = typed.GetNamespace()
	}
	if r.selectable != nil {
		r.selectable(typed, set)
	}
	return typed.GetLabels(), set, nil
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

// store is a resource's store, with the short names that kubectl knows the resource by.
type store struct {
	*genericregistry.Store
	shortNames []string
}

func (s *store) ShortNames() []string { return s.shortNames }

func (r resource[T]) store(getter generic.RESTOptionsGetter) (*store, error) {
	strategy := strategy[T]{Scheme, names.SimpleNameGenerator, r}
	s := &genericregistry.Store{
		NewFunc:     func() runtime.Object { return r.new() },
		NewListFunc: r.newList,
		PredicateFunc: func(label labels.Selector, field fields.Selector) apistorage.SelectionPredicate {
			return apistorage.SelectionPredicate{Label: label, Field: field, GetAttrs: r.attributes}
		},
		DefaultQualifiedResource:  r.resource,
		SingularQualifiedResource: r.singular,
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		TableConvertor:            r.table(),
	}
	if r.ttl > 0 {
		s.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return r.ttl, nil }
	}
	err := s.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: r.attributes})
	return &store{s, r.shortNames}, err
}
