package fake

import (
	"bytes"
	"io"
	"net/http"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	fakerest "k8s.io/client-go/rest/fake"
	"k8s.io/client-go/testing"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// GetLogs records the request. The log is empty.
func (c *fakePipelineRuns) GetLogs(run string, options *v1.PipelineRunLogOptions) *rest.Request {
	action := testing.GenericActionImpl{Value: options}
	action.Verb = "get"
	action.Namespace = c.Namespace()
	action.Resource = c.Resource()
	action.Subresource = "log"
	_, _ = c.Fake.Invokes(action, &v1.PipelineRun{})
	client := &fakerest.RESTClient{
		Client: fakerest.CreateHTTPClient(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(&bytes.Buffer{})}, nil
		}),
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		GroupVersion:         c.Kind().GroupVersion(),
		VersionedAPIPath:     "/apis/" + c.Kind().GroupVersion().String() + "/namespaces/" + c.Namespace() + "/pipelineruns/" + run + "/log",
	}
	return client.Request()
}
