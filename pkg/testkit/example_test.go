package testkit_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"

	"github.com/rowkeeper/rowkeeper/pkg/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// A test starts the API server of its author and talks to it.
func ExampleStart() {
	test := func(t *testing.T) {
		server := testkit.Start(t, testkit.API{
			Scheme:    apiserver.Scheme,
			Codecs:    apiserver.Codecs,
			NewConfig: func() *genericapiserver.RecommendedConfig { return apiserver.NewConfig().Generic },
			New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
				return (&apiserver.Config{Generic: c}).New()
			},
		}, testkit.Options{Database: testkit.Memory})
		client, err := dynamic.NewForConfig(server.Config)
		if err != nil {
			t.Fatal(err)
		}
		empty := server.Snapshot()
		t.Cleanup(func() { server.Rollback(empty) })
		_, err = client.Resource(apiserver.Scheme.PrioritizedVersionsForGroup("ci.rowkeeper.dev")[0].WithResource("pipelines")).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	testing.Main(nil, []testing.InternalTest{{Name: "TestPipelines", F: test}}, nil, nil) // what go test does
}
