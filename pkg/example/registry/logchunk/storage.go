// Package logchunk keeps the pieces of the logs of runs.
package logchunk

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/validation"
	"github.com/rowkeeper/rowkeeper/storage"
)

// strategy says what happens to a piece on its way into the store. That its content cannot be
// changed is declared in v1.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	rest.DeclarativeValidation
}

var (
	_ rest.RESTCreateStrategy = strategy{}
	_ rest.RESTUpdateStrategy = strategy{}
)

func (strategy) NamespaceScoped() bool                                            { return true }
func (strategy) AllowCreateOnUpdate(context.Context) bool                         { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool                    { return true }
func (strategy) Canonicalize(runtime.Object)                                      {}
func (strategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateLogChunk(obj.(*ci.LogChunk))
}

func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateLogChunkUpdate(obj.(*ci.LogChunk), old.(*ci.LogChunk))
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// runField is the field by which the watch cache indexes pieces, for lists and for watches, and by
// which the database does.
const runField = "spec.runName"

func runOf(obj runtime.Object) string { return obj.(*ci.LogChunk).Spec.RunName }

func getAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	l, ok := obj.(*ci.LogChunk)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a LogChunk", obj)
	}
	selectable := generic.AddObjectMetaFieldsSet(make(fields.Set, 3), &l.ObjectMeta, true)
	selectable[runField] = l.Spec.RunName
	return l.Labels, selectable, nil
}

// REST is the resource logchunks.
type REST struct {
	*genericregistry.Store
}

var _ rest.StandardStorage = &REST{}

// NewStorage returns the storage that optsGetter leads to.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter) (*REST, error) {
	s := strategy{scheme, names.SimpleNameGenerator, rest.DeclarativeValidation{Scheme: scheme}}
	store := &genericregistry.Store{
		NewFunc:     func() runtime.Object { return &ci.LogChunk{} },
		NewListFunc: func() runtime.Object { return &ci.LogChunkList{} },
		PredicateFunc: func(label labels.Selector,
			field fields.Selector) apistorage.SelectionPredicate {
			return apistorage.SelectionPredicate{Label: label, Field: field, GetAttrs: getAttrs,
				IndexFields: []string{runField}}
		},
		DefaultQualifiedResource:  ci.Resource("logchunks"),
		SingularQualifiedResource: ci.Resource("logchunk"),

		CreateStrategy: s,
		UpdateStrategy: s,
		DeleteStrategy: s,

		TableConvertor: tableConvertor,
	}
	err := store.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: storage.WithIndexes(optsGetter, "field:"+runField),
		AttrFunc:    getAttrs,
		TriggerFunc: map[string]apistorage.IndexerFunc{runField: runOf},
		Indexers: &cache.Indexers{
			apistorage.FieldIndex(runField): func(obj any) ([]string, error) {
				l, ok := obj.(*ci.LogChunk)
				if !ok {
					return nil, fmt.Errorf("%T is not a LogChunk", obj)
				}
				return []string{runOf(l)}, nil
			},
		},
	})
	return &REST{store}, err
}
