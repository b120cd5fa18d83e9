package pipeline

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/registry/scale"
	"github.com/rowkeeper/rowkeeper/pkg/registry/status"
)

// Storage is the resource pipelines with the subresources that are about pipelines alone. Those
// about their runs are [RunREST] and [RunsREST].
type Storage struct {
	Pipeline *REST
	Status   *status.REST
	Scale    *scale.REST[*ci.Pipeline]
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
	return &Storage{
		Pipeline: &REST{store},
		Status:   status.New(store, statusStrategy{s}),
		Scale:    newScale(store),
	}, nil
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
