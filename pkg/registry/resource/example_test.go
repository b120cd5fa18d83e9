package resource_test

import (
	"context"
	"fmt"
	"log"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/rowkeeper/rowkeeper/pkg/registry/resource"
)

// strategy accepts everything.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool                                            { return true }
func (strategy) AllowCreateOnUpdate(context.Context) bool                         { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool                    { return true }
func (strategy) Canonicalize(runtime.Object)                                      {}
func (strategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList         { return nil }
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string        { return nil }
func (strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// A resource of books. The server's configuration has the getter, which says where they are stored.
func ExampleResource() {
	var (
		scheme *runtime.Scheme
		getter generic.RESTOptionsGetter
	)
	books := resource.Resource[*metav1.PartialObjectMetadata]{
		Name:       schema.GroupResource{Group: "example.com", Resource: "books"},
		Singular:   schema.GroupResource{Group: "example.com", Resource: "book"},
		ShortNames: []string{"bk"},
		New:        func() *metav1.PartialObjectMetadata { return &metav1.PartialObjectMetadata{} },
		NewList:    func() runtime.Object { return &metav1.PartialObjectMetadataList{} },
		Strategy:   strategy{scheme, names.SimpleNameGenerator},
		Table:      rest.NewDefaultTableConvertor(schema.GroupResource{Resource: "books"}),
		Selectable: func(b *metav1.PartialObjectMetadata, set fields.Set) {
			set["metadata.uid"] = string(b.UID)
		},
	}
	store, err := books.Store(getter)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(store.ShortNames())
}
