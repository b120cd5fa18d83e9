// Package pipelinepolicy keeps the policies for pipelines. The admission plugin of the same name
// enforces them.
package pipelinepolicy

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/validation"
)

// strategy says what happens to a policy on its way into the store.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	rest.DeclarativeValidation
}

var (
	_ rest.RESTCreateStrategy = strategy{}
	_ rest.RESTUpdateStrategy = strategy{}
)

func (strategy) NamespaceScoped() bool                         { return false }
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
func (strategy) Canonicalize(runtime.Object)                   {}

func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	obj.(*ci.PipelinePolicy).Generation = 1
}

func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, was := obj.(*ci.PipelinePolicy), old.(*ci.PipelinePolicy)
	if !equality.Semantic.DeepEqual(p.Spec, was.Spec) {
		p.Generation = was.Generation + 1
	}
}

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidatePipelinePolicy(obj.(*ci.PipelinePolicy))
}

func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidatePipelinePolicyUpdate(obj.(*ci.PipelinePolicy),
		old.(*ci.PipelinePolicy))
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func getAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	p, ok := obj.(*ci.PipelinePolicy)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a PipelinePolicy", obj)
	}
	return p.Labels, generic.ObjectMetaFieldsSet(&p.ObjectMeta, false), nil
}

// REST is the resource pipelinepolicies.
type REST struct {
	*genericregistry.Store
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// ShortNames are what kubectl takes for "pipelinepolicies".
func (*REST) ShortNames() []string { return []string{"plp"} }

// Categories are the groups of resources that policies are listed with.
func (*REST) Categories() []string { return []string{"ci"} }

// NewStorage returns the storage that optsGetter leads to.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter) (*REST, error) {
	s := strategy{scheme, names.SimpleNameGenerator, rest.DeclarativeValidation{Scheme: scheme}}
	store := &genericregistry.Store{
		NewFunc:     func() runtime.Object { return &ci.PipelinePolicy{} },
		NewListFunc: func() runtime.Object { return &ci.PipelinePolicyList{} },
		PredicateFunc: func(label labels.Selector,
			field fields.Selector) apistorage.SelectionPredicate {
			return apistorage.SelectionPredicate{Label: label, Field: field, GetAttrs: getAttrs}
		},
		DefaultQualifiedResource:  ci.Resource("pipelinepolicies"),
		SingularQualifiedResource: ci.Resource("pipelinepolicy"),

		CreateStrategy: s,
		UpdateStrategy: s,
		DeleteStrategy: s,

		TableConvertor: tableConvertor,
	}
	err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: optsGetter,
		AttrFunc: getAttrs})
	return &REST{store}, err
}
