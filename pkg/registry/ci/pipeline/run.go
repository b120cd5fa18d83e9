package pipeline

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/rowkeeper/rowkeeper/pkg/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/apis/ci/validation"
	"github.com/rowkeeper/rowkeeper/pkg/registry/inner"
)

// RunREST is the subresource pipelines/run: a PipelineRunRequest that is posted to it is answered by the PipelineRun that it has made.
//
// Admission sees that request, as with all subresources that make objects (pods/eviction, for one), and not the creation of a PipelineRun: policies and
// webhooks that concern runs have to match pipelines/run, too.
type RunREST struct {
	pipelines, runs *genericregistry.Store
	scheme          *runtime.Scheme
}

var (
	_ rest.NamedCreater             = &RunREST{}
	_ rest.GroupVersionKindProvider = &RunREST{}
	_ rest.StorageMetadata          = &RunREST{}
)

// GroupVersionKind says that the body is of another kind than the pipeline.
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

// Create makes a run of the pipeline. The run belongs to the pipeline, and is deleted after it where a garbage collector runs.
func (r *RunREST) Create(ctx context.Context, name string, obj runtime.Object, createValidation rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	request, ok := obj.(*ci.PipelineRunRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is a %T, not a PipelineRunRequest", obj))
	}
	found, err := r.pipelines.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	p := found.(*ci.Pipeline)
	switch {
	case request.Name != "" && request.Name != name:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the request (%s) is not that of the pipeline (%s)", request.Name, name))
	case request.Namespace != "" && request.Namespace != p.Namespace:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the namespace of the request (%s) is not that of the pipeline (%s)", request.Namespace, p.Namespace))
	case p.DeletionTimestamp != nil:
		return nil, apierrors.NewConflict(ci.Resource("pipelines"), name, fmt.Errorf("the pipeline is being deleted"))
	}
	request.Name, request.Namespace = name, p.Namespace
	// The rules that are declared in v1 are checked here, since the request is not stored, which would do so.
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
			GenerateName:    name + "-",
			Namespace:       p.Namespace,
			Labels:          map[string]string{ci.PipelineLabel: name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p, v1.SchemeGroupVersion.WithKind("Pipeline"))},
		},
		Spec: ci.PipelineRunSpec{
			PipelineName:                  name,
			Branch:                        request.Spec.Branch,
			Parameters:                    request.Spec.Parameters,
			TerminationGracePeriodSeconds: v1.DefaultTerminationGracePeriodSeconds,
		},
	}
	return r.runs.Create(inner.Request(ctx, "create", v1.SchemeGroupVersion.WithResource("pipelineruns"), p.Namespace), run, rest.ValidateAllObjectFunc, options)
}
