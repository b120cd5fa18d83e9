package fake

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/testing"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// CreateRun records the request. It answers with what a reactor returns.
func (c *fakePipelines) CreateRun(_ context.Context, pipeline string, request *v1.PipelineRunRequest, options metav1.CreateOptions) (*v1.PipelineRun, error) {
	obj, err := c.Fake.Invokes(testing.NewCreateSubresourceActionWithOptions(c.Resource(), pipeline, "run", c.Namespace(), request, options), &v1.PipelineRun{})
	if obj == nil {
		return nil, err
	}
	return obj.(*v1.PipelineRun), err
}

// ListRuns records the request. It answers with what a reactor returns.
func (c *fakePipelines) ListRuns(_ context.Context, pipeline string, _ *v1.PipelineRunsOptions) (*v1.PipelineRunList, error) {
	obj, err := c.Fake.Invokes(testing.NewGetSubresourceAction(c.Resource(), c.Namespace(), "runs", pipeline), &v1.PipelineRunList{})
	if obj == nil {
		return nil, err
	}
	return obj.(*v1.PipelineRunList), err
}
