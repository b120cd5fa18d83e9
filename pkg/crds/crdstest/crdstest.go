// Package crdstest is for authors of controllers and operators. It runs servers inside tests that
// serve CustomResourceDefinitions, Namespaces and a few other resources of the core API, as envtest
// runs kube-apiserver and etcd. A server starts in the process of the test, in a fraction of a
// second, and nothing has to be downloaded before.
//
//	server := crdstest.Start(t, testkit.Options{})
//	environment := &envtest.Environment{
//		UseExistingCluster: ptr.To(true),
//		Config:             server.Config,
//		CRDDirectoryPaths:  []string{"config/crd/bases"},
//	}
//
// installs a project's definitions and webhooks as before. Servers with groups of Go types have
// definitions besides with crds.Prepare in [testkit.Options.Definitions].
//
// What is served of the core API is in the documentation of package crds. Everything in the test
// kit works as for other servers: databases, snapshots, users.
package crdstest

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	openapicommon "k8s.io/kube-openapi/pkg/common"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// Start starts a server that has no groups of Go types, waits until it is ready, and stops it when
// the test ends. It fails the test if that is not possible.
func Start(t testing.TB, o testkit.Options) *testkit.Server {
	t.Helper()
	o.Definitions = crds.Prepare
	return testkit.Start(t, nothing(), o)
}

// Launch starts such a server for programs that have no test at hand; see [testkit.Launch].
func Launch(ctx context.Context, o testkit.Options) (*testkit.Instance, error) {
	o.Definitions = crds.Prepare
	return testkit.Launch(ctx, nothing(), o)
}

// nothing is an API without groups.
func nothing() testkit.API {
	scheme := runtime.NewScheme()
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, v1)
	scheme.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{},
		&metav1.APIGroup{}, &metav1.APIResourceList{})
	return testkit.API{
		Scheme: scheme,
		Codecs: serializer.NewCodecFactory(scheme),
		OpenAPI: func(openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
			return nil
		},
		New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer,
			error) {
			return c.Complete().New("test", genericapiserver.NewEmptyDelegate())
		},
	}
}
