package pipeline

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/validation"
	"github.com/rowkeeper/rowkeeper/pkg/registry/delegate"
)

// RunREST is the subresource pipelines/run: a PipelineRunRequest that is posted to it is answered
// by the PipelineRun that it has made.
//
// Admission sees that request, as with all subresources that make objects (pods/eviction, for one),
// and not the creation of a PipelineRun: policies and webhooks that concern runs have to match
// pipelines/run, too.
type RunREST struct {
	pipelines, runs *genericregistry.Store
	scheme          *runtime.Scheme
	fields          *managedfields.FieldManager
}

// NewRunREST returns the subresource. Runs are kept in the store of the resource pipelineruns, and
// types knows their structure.
func NewRunREST(scheme *runtime.Scheme, types managedfields.TypeConverter, pipelines,
	runs *genericregistry.Store) (*RunREST, error) {
	// A client that asks for a run manages its fields, as if it had created the run itself.
	fields, err := managedfields.NewDefaultFieldManager(
		types, runtime.UnsafeObjectConvertor(scheme), scheme, scheme,
		// No subresource: the run is created itself.
		v1.SchemeGroupVersion.WithKind("PipelineRun"), ci.SchemeGroupVersion, "",
		fieldpath.NewExcludeFilterSetMap(runs.GetResetFields()))
	if err != nil {
		return nil, fmt.Errorf("cannot manage the fields of runs: %w", err)
	}
	return &RunREST{pipelines: pipelines, runs: runs, scheme: scheme, fields: fields}, nil
}

var (
	_ rest.NamedCreater             = &RunREST{}
	_ rest.GroupVersionKindProvider = &RunREST{}
	_ rest.StorageMetadata          = &RunREST{}
)

// GroupVersionKind says that the body has another kind than the pipeline.
func (*RunREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return v1.SchemeGroupVersion.WithKind("PipelineRunRequest")
}

// ProducesObject says what the answer is, for the OpenAPI documents.
func (*RunREST) ProducesObject(string) any { return v1.PipelineRun{} }

// ProducesMIMETypes adds no media types.
func (*RunREST) ProducesMIMETypes(string) []string { return nil }

// New returns an empty request.
func (*RunREST) New() runtime.Object { return &ci.PipelineRunRequest{} }

// Destroy does nothing: what there is to release belongs to the resources.
func (*RunREST) Destroy() {}

// Create makes a run of the pipeline. The run belongs to the pipeline, and is deleted after it
// where a garbage collector runs.
func (r *RunREST) Create(ctx context.Context, name string, obj runtime.Object,
	createValidation rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object,
	error) {
	request, ok := obj.(*ci.PipelineRunRequest)
	if !ok {
		return nil,
			apierrors.NewBadRequest(fmt.Sprintf("the body is a %T, not a PipelineRunRequest", obj))
	}
	found, err := r.pipelines.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	p := found.(*ci.Pipeline)
	switch {
	case request.Name != "" && request.Name != name:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the request (%s) is not "+
			"that of the pipeline (%s)", request.Name, name))
	case request.Namespace != "" && request.Namespace != p.Namespace:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the namespace of the request (%s) is "+
			"not that of the pipeline (%s)", request.Namespace, p.Namespace))
	case p.DeletionTimestamp != nil:
		return nil, apierrors.NewConflict(ci.Resource("pipelines"), name,
			fmt.Errorf("the pipeline is being deleted"))
	}
	request.Name, request.Namespace = name, p.Namespace
	// The rules that are declared in v1 are checked here, since the request is not stored, which
	// would do so.
	var external v1.PipelineRunRequest
	if err := r.scheme.Convert(request, &external, nil); err != nil {
		return nil, err
	}
	errs := r.scheme.Validate(ctx, nil, &external, "run")
	errs = append(errs, validation.ValidatePipelineRunRequest(request, p)...)
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(ci.Kind("PipelineRunRequest"), name, errs)
	}
	if createValidation != nil {
		if err := createValidation(ctx, request); err != nil {
			return nil, err
		}
	}
	run := &ci.PipelineRun{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: name + "-",
			Namespace:    p.Namespace,
			Labels:       map[string]string{ci.PipelineLabel: name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p,
				v1.SchemeGroupVersion.WithKind("Pipeline"))},
		},
		Spec: ci.PipelineRunSpec{
			PipelineName:                  name,
			Branch:                        request.Spec.Branch,
			Parameters:                    request.Spec.Parameters,
			TerminationGracePeriodSeconds: v1.DefaultTerminationGracePeriodSeconds,
		},
	}
	managed := r.fields.UpdateNoErrors(&ci.PipelineRun{}, run, manager(request, options))
	ctx = delegate.Request(ctx, "create", v1.SchemeGroupVersion.WithResource("pipelineruns"),
		p.Namespace)
	return r.runs.Create(ctx, managed, rest.ValidateAllObjectFunc, options)
}

// manager names the client that asks for a run. One that does not name itself by the options is
// known by the user agent, from which the handler of the request has made the manager of the
// request's own fields.
func manager(request *ci.PipelineRunRequest, options *metav1.CreateOptions) string {
	if options != nil && options.FieldManager != "" {
		return options.FieldManager
	}
	for _, entry := range request.ManagedFields {
		if entry.Operation == metav1.ManagedFieldsOperationUpdate {
			return entry.Manager
		}
	}
	return "unknown" // a request that says nothing has no managed fields
}
