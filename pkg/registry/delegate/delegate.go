// Package delegate lets the handler of one resource use the registry of another one, for authors of
// registries. The example's pipelines/run creates PipelineRuns so.
package delegate

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Request returns the context of a request of its own for a resource, made on behalf of the one
// whose context is given. Stores and strategies ask the context what the request is about; a watch,
// for instance, sees only objects of the name that the request is for.
func Request(ctx context.Context, verb string, resource schema.GroupVersionResource,
	namespace string) context.Context {
	ctx = genericapirequest.WithNamespace(ctx, namespace)
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true,
		Verb:              verb,
		APIGroup:          resource.Group,
		APIVersion:        resource.Version,
		Namespace:         namespace,
		Resource:          resource.Resource,
	})
}

// Object returns the object of a watch event. A watch cache that has several watchers sends them an
// object that also keeps what it was encoded to.
func Object(e watch.Event) runtime.Object {
	if cached, ok := e.Object.(runtime.CacheableObject); ok {
		return cached.GetObject()
	}
	return e.Object
}
