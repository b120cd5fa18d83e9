package pipeline

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/registry/delegate"
)

// RunsREST is the subresource pipelines/runs: the runs of one pipeline, of one branch or as
// selectors select if that is asked for, by pages. To watch them, watch pipelineruns.
type RunsREST struct {
	pipelines, runs *genericregistry.Store
}

var (
	_ rest.GetterWithOptions        = &RunsREST{}
	_ rest.GroupVersionKindProvider = &RunsREST{}
)

// NewRunsREST returns the subresource. Runs are kept in the store of the resource pipelineruns.
func NewRunsREST(pipelines, runs *genericregistry.Store) *RunsREST {
	return &RunsREST{pipelines: pipelines, runs: runs}
}

// GroupVersionKind says what the answer is.
func (*RunsREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return v1.SchemeGroupVersion.WithKind("PipelineRunList")
}

// New returns an empty list.
func (*RunsREST) New() runtime.Object { return &ci.PipelineRunList{} }

// Destroy does nothing: what there is to release belongs to the resources.
func (*RunsREST) Destroy() {}

// NewGetOptions returns empty parameters.
func (*RunsREST) NewGetOptions() (runtime.Object, bool, string) {
	return &ci.PipelineRunsOptions{}, false, ""
}

// Get lists the runs of the pipeline.
func (r *RunsREST) Get(ctx context.Context, name string,
	options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*ci.PipelineRunsOptions)
	if !ok {
		return nil, fmt.Errorf("%T are not the parameters of pipelines/runs", options)
	}
	if o.Limit < 0 {
		return nil, apierrors.NewBadRequest("limit must not be negative")
	}
	byLabel, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("labelSelector: %v", err))
	}
	byField, err := fields.ParseSelector(o.FieldSelector)
	if err == nil {
		byField,
			err = byField.Transform(ci.FieldLabelConversion(ci.SelectableFields["PipelineRun"]))
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("fieldSelector: %v", err))
	}
	found, err := r.pipelines.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	selected := fields.Set{"spec.pipelineName": name}
	if o.Branch != "" {
		selected["spec.branch"] = o.Branch
	}
	ctx = delegate.Request(ctx, "list", v1.SchemeGroupVersion.WithResource("pipelineruns"),
		found.(*ci.Pipeline).Namespace)
	return r.runs.List(ctx, &metainternalversion.ListOptions{
		LabelSelector: byLabel,
		FieldSelector: fields.AndSelectors(selected.AsSelector(), byField),
		Limit:         o.Limit,
		Continue:      o.Continue,
	})
}

// ConvertToTable prints the list as that of the resource pipelineruns.
func (r *RunsREST) ConvertToTable(ctx context.Context, obj,
	options runtime.Object) (*metav1.Table, error) {
	return r.runs.ConvertToTable(ctx, obj, options)
}
