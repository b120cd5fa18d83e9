package v1

import (
	"k8s.io/client-go/rest"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned/scheme"
)

// PipelineRunExpansion has the subresources of runs that are not like objects.
type PipelineRunExpansion interface {
	// GetLogs returns a request for the run's log, to be read with Stream.
	GetLogs(run string, options *v1.PipelineRunLogOptions) *rest.Request
}

func (c *pipelineRuns) GetLogs(run string, options *v1.PipelineRunLogOptions) *rest.Request {
	return c.GetClient().Get().
		Namespace(c.GetNamespace()).
		Resource("pipelineruns").
		Name(run).
		SubResource("log").
		VersionedParams(options, scheme.ParameterCodec)
}
