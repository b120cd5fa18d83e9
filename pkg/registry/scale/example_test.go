package scale_test

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/rowkeeper/rowkeeper/pkg/registry/scale"
)

// book is a kind with copies.
type book struct {
	metav1.PartialObjectMetadata
	copies, lent int32
}

// Books have copies. The store is the registry of the resource.
func ExampleNew() {
	var store *genericregistry.Store
	v1 := schema.GroupVersion{Group: "example.com", Version: "v1"}
	subresource := scale.New(store, scale.Fields[*book]{
		Get: func(b *book) (autoscalingv1.ScaleSpec, autoscalingv1.ScaleStatus) {
			return autoscalingv1.ScaleSpec{Replicas: b.copies},
				autoscalingv1.ScaleStatus{Replicas: b.lent}
		},
		Set: func(b *book, copies int32) { b.copies = copies },
		Paths: managedfields.ResourcePathMappings{
			v1.String(): fieldpath.MakePathOrDie("spec", "copies"),
		},
		Version: v1,
	})
	fmt.Println(subresource.GroupVersionKind(v1))
	// Output: autoscaling/v1, Kind=Scale
}
