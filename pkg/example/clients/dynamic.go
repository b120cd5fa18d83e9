package clients

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/pager"
)

// Pipelines is all that a dynamic client knows of the API.
var Pipelines = schema.GroupVersionResource{Group: "ci.rowkeeper.dev", Version: "v1",
	Resource: "pipelines"}

// Suspend suspends all pipelines that a label selector selects, without knowing their Go type, and
// returns how many there are.
func Suspend(ctx context.Context, client dynamic.Interface, namespace,
	selector string) (int, error) {
	pipelines := client.Resource(Pipelines).Namespace(namespace)
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object,
		error) {
		return pipelines.List(ctx, options)
	})
	n := 0
	err := list.EachListItem(ctx, metav1.ListOptions{LabelSelector: selector},
		func(obj runtime.Object) error {
			n++
			name := obj.(*unstructured.Unstructured).GetName()
			_, err := pipelines.Patch(ctx, name, types.MergePatchType,
				[]byte(`{"spec":{"suspended":true}}`), metav1.PatchOptions{})
			return err
		})
	return n, err
}
