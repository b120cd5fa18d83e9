package pipelinerun

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/validation"
	"github.com/rowkeeper/rowkeeper/pkg/registry/delegate"
	"github.com/rowkeeper/rowkeeper/pkg/registry/status"
)

// Storage is the resource pipelineruns with its subresources.
type Storage struct {
	Run    *REST
	Status *status.REST
	Log    *LogREST
	Attach *AttachREST
}

// NewStorage returns the storage that optsGetter leads to. Runs are checked against what is in the
// store of the resource pipelines. The pieces of the runs' logs are kept in the store of the
// resource logchunks. Clients that follow a log are sent away when stop is closed, so that the
// server can end.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter, pipelines,
	logs *genericregistry.Store, stop <-chan struct{},
) (*Storage, error) {
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
		Run:    &REST{Store: store, pipelines: pipelines},
		Status: status.New(store, statusStrategy{s}),
		Log:    &LogREST{f},
		Attach: &AttachREST{f},
	}, nil
}

// REST is the resource pipelineruns.
type REST struct {
	*genericregistry.Store
	pipelines *genericregistry.Store
}

// Create makes a run. Its parameters are checked as those of a request for a run are. If there is
// no such pipeline they cannot be: such a run is for its controller to fail.
func (r *REST) Create(ctx context.Context, obj runtime.Object,
	createValidation rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	return r.Store.Create(ctx, obj, func(ctx context.Context, obj runtime.Object) error {
		if err := r.checkParameters(ctx, obj.(*ci.PipelineRun)); err != nil {
			return err
		}
		if createValidation == nil {
			return nil
		}
		return createValidation(ctx, obj)
	}, options)
}

func (r *REST) checkParameters(ctx context.Context, run *ci.PipelineRun) error {
	ctx = delegate.Request(ctx, "get", v1.SchemeGroupVersion.WithResource("pipelines"), run.Namespace)
	p, err := r.pipelines.Get(ctx, run.Spec.PipelineName, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if errs := validation.ValidateParametersOf(p.(*ci.Pipeline),
		run.Spec.Parameters); len(errs) > 0 {
		return apierrors.NewInvalid(ci.Kind("PipelineRun"), run.Name, errs)
	}
	return nil
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
