package v1

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned/scheme"
)

// PipelineExpansion has the subresources of pipelines that are not like objects.
type PipelineExpansion interface {
	// CreateRun makes a run of the pipeline.
	CreateRun(ctx context.Context, pipeline string, request *v1.PipelineRunRequest, options metav1.CreateOptions) (*v1.PipelineRun, error)
	// ListRuns lists the runs of the pipeline.
	ListRuns(ctx context.Context, pipeline string, options *v1.PipelineRunsOptions) (*v1.PipelineRunList, error)
}

func (c *pipelines) CreateRun(ctx context.Context, pipeline string, request *v1.PipelineRunRequest, options metav1.CreateOptions) (*v1.PipelineRun, error) {
	run := &v1.PipelineRun{}
	err := c.GetClient().Post().
		Namespace(c.GetNamespace()).
		Resource("pipelines").
		Name(pipeline).
		SubResource("run").
		VersionedParams(&options, scheme.ParameterCodec).
		Body(request).
		Do(ctx).
		Into(run)
	return run, err
}

func (c *pipelines) ListRuns(ctx context.Context, pipeline string, options *v1.PipelineRunsOptions) (*v1.PipelineRunList, error) {
	runs := &v1.PipelineRunList{}
	err := c.GetClient().Get().
		Namespace(c.GetNamespace()).
		Resource("pipelines").
		Name(pipeline).
		SubResource("runs").
		VersionedParams(options, scheme.ParameterCodec).
		Do(ctx).
		Into(runs)
	return runs, err
}
