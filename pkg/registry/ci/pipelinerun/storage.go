package pipelinerun

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/registry/status"
)

// Storage is the resource pipelineruns with its subresources.
type Storage struct {
	Run    *REST
	Status *status.REST
	Log    *LogREST
	Attach *AttachREST
}

// NewStorage returns the storage that optsGetter leads to. The pieces of the runs' logs are kept in the store of the resource logchunks. Whoever follows a
// log is sent away when stop is closed, so that the server can end.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter, logs *genericregistry.Store, stop <-chan struct{}) (*Storage, error) {
	s := newStrategy(scheme)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &ci.PipelineRun{} },
		NewListFunc:               func() runtime.Object { return &ci.PipelineRunList{} },
		PredicateFunc:             matchRun,
		DefaultQualifiedResource:  ci.Resource("pipelineruns"),
		SingularQualifiedResource: ci.Resource("pipelinerun"),

		CreateStrategy:      s,
		UpdateStrategy:      s,
		DeleteStrategy:      s,
		ResetFieldsStrategy: s,

		TableConvertor: tableConvertor(clock.RealClock{}),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: optsGetter,
		AttrFunc:    getAttrs,
		TriggerFunc: map[string]apistorage.IndexerFunc{pipelineField: pipelineOf},
		Indexers:    indexers(),
	}); err != nil {
		return nil, err
	}
	f := &follower{runs: store, logs: logs, stop: stop}
	return &Storage{
		Run:    &REST{store},
		Status: status.New(store, statusStrategy{s}),
		Log:    &LogREST{f},
		Attach: &AttachREST{f},
	}, nil
}

// REST is the resource pipelineruns.
type REST struct {
	*genericregistry.Store
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// ShortNames are what kubectl takes for "pipelineruns".
func (*REST) ShortNames() []string { return []string{"plr"} }

// Categories are the groups of resources that runs are listed with.
func (*REST) Categories() []string { return []string{"all", "ci"} }
