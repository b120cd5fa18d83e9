package pipeline

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/rowkeeper/rowkeeper/pkg/apis/ci"
)

// Storage is the resource pipelines with its subresources.
type Storage struct {
	Pipeline *REST
	Status   *StatusREST
}

// NewStorage returns the storage that optsGetter leads to.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter) (*Storage, error) {
	s := newStrategy(scheme)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &ci.Pipeline{} },
		NewListFunc:               func() runtime.Object { return &ci.PipelineList{} },
		PredicateFunc:             matchPipeline,
		DefaultQualifiedResource:  ci.Resource("pipelines"),
		SingularQualifiedResource: ci.Resource("pipeline"),

		CreateStrategy:      s,
		UpdateStrategy:      s,
		DeleteStrategy:      s,
		ResetFieldsStrategy: s,

		TableConvertor: tableConvertor(clock.RealClock{}),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: optsGetter,
		AttrFunc:    getAttrs,
		TriggerFunc: map[string]apistorage.IndexerFunc{phaseField: phaseOf},
		Indexers:    indexers(),
	}); err != nil {
		return nil, err
	}
	forStatus := *store
	forStatus.UpdateStrategy = statusStrategy{s}
	forStatus.ResetFieldsStrategy = statusStrategy{s}
	return &Storage{Pipeline: &REST{store}, Status: &StatusREST{&forStatus}}, nil
}

// REST is the resource pipelines.
type REST struct {
	*genericregistry.Store
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// ShortNames are what kubectl takes for "pipelines".
func (*REST) ShortNames() []string { return []string{"pl"} }

// Categories are the groups of resources that pipelines are listed with.
func (*REST) Categories() []string { return []string{"all", "ci"} }

// StatusREST is the subresource pipelines/status.
type StatusREST struct {
	store *genericregistry.Store
}

var (
	_ rest.Patcher             = &StatusREST{}
	_ rest.ResetFieldsStrategy = &StatusREST{}
	_ rest.TableConvertor      = &StatusREST{}
)

// New returns an empty pipeline.
func (r *StatusREST) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the store belongs to REST.
func (*StatusREST) Destroy() {}

// Get returns the whole pipeline.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update changes the status. It never creates a pipeline.
func (r *StatusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, createValidation, updateValidation, false, options)
}

// GetResetFields returns what an update of the status does not change.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable prints the pipeline as the resource itself does.
func (r *StatusREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}
