// Package resource makes the registry.Store of a resource, for authors of registries. They give it
// what is particular about the resource: its names, its strategy, the fields to select by, and its
// table. Packages kinds, scale and builtin use it. The example makes its stores by hand, as authors
// of other servers do.
package resource

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage"
)

// Object is an API object of a Go type.
type Object interface {
	runtime.Object
	metav1.Object
}

// Strategy is what a store asks about the objects it writes. One that is a rest.ResetFieldsStrategy
// besides is asked for these fields, too.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
}

// Resource says what is particular about a resource of objects of type T.
type Resource[T Object] struct {
	// Name is the resource, such as pipelines, and Singular its name for one object.
	Name, Singular         schema.GroupResource
	ShortNames, Categories []string
	New                    func() T
	NewList                func() runtime.Object
	Strategy               Strategy
	Table                  rest.TableConvertor
	// Selectable adds the fields to select by, besides the name and the namespace. It may be nil.
	Selectable func(obj T, set fields.Set)
	// Indexes are declared at start if the database lacks them; see [storage.WithIndexes].
	Indexes []string
	// TTL is how many seconds an object is kept after it was written, 0 for ever. It may be nil.
	TTL func(obj T) uint64
	// Change changes the store before it is completed. It may be nil.
	Change func(*genericregistry.Store)
}

// Store is a resource's store, with the other names by which kubectl knows the resource.
type Store struct {
	*genericregistry.Store
	shortNames, categories []string
}

// ShortNames implements rest.ShortNamesProvider.
func (s *Store) ShortNames() []string { return s.shortNames }

// Categories implements rest.CategoriesProvider.
func (s *Store) Categories() []string { return s.categories }

// Store makes the store of the resource.
func (r *Resource[T]) Store(getter generic.RESTOptionsGetter) (*Store, error) {
	s := &genericregistry.Store{
		NewFunc:     func() runtime.Object { return r.New() },
		NewListFunc: r.NewList,
		PredicateFunc: func(label labels.Selector,
			field fields.Selector) apistorage.SelectionPredicate {
			return apistorage.SelectionPredicate{Label: label, Field: field, GetAttrs: r.attributes}
		},
		DefaultQualifiedResource:  r.Name,
		SingularQualifiedResource: r.Singular,
		CreateStrategy:            r.Strategy,
		UpdateStrategy:            r.Strategy,
		DeleteStrategy:            r.Strategy,
		TableConvertor:            r.Table,
	}
	if reset, ok := r.Strategy.(rest.ResetFieldsStrategy); ok {
		s.ResetFieldsStrategy = reset
	}
	if r.TTL != nil {
		s.TTLFunc = func(obj runtime.Object, _ uint64, _ bool) (uint64, error) {
			return r.TTL(obj.(T)), nil
		}
	}
	if r.Change != nil {
		r.Change(s)
	}
	if len(r.Indexes) > 0 {
		getter = storage.WithIndexes(getter, r.Indexes...)
	}
	if err := s.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter,
		AttrFunc: r.attributes}); err != nil {
		return nil, fmt.Errorf("cannot store %s: %w", r.Name, err)
	}
	return &Store{s, r.ShortNames, r.Categories}, nil
}

// attributes are what objects can be selected by.
func (r *Resource[T]) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	typed, ok := obj.(T)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not one of the %s", obj, r.Name)
	}
	set := fields.Set{"metadata.name": typed.GetName()}
	if r.Strategy.NamespaceScoped() {
		set["metadata.namespace"] = typed.GetNamespace()
	}
	if r.Selectable != nil {
		r.Selectable(typed, set)
	}
	return typed.GetLabels(), set, nil
}
