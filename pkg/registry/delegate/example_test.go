package delegate_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/rowkeeper/rowkeeper/pkg/registry/delegate"
)

// The handler of a subresource lists objects of another resource, on behalf of its own request.
func ExampleRequest() {
	request := context.Background() // that of the handler
	runs := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "runs"}
	ctx := delegate.Request(request, "list", runs, "team")
	info, _ := genericapirequest.RequestInfoFrom(ctx)
	fmt.Println(info.Verb, info.Resource, genericapirequest.NamespaceValue(ctx))
	// Output: list runs team
}
