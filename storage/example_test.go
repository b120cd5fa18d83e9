package storage_test

import (
	"context"
	"fmt"
	"log"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// An object is written, changed and watched, without an API server. API servers use a
// RESTOptionsGetter instead.
func ExampleStore_Resource() {
	ctx := context.Background()
	store, err := storage.Open(ctx,
		storage.Config{URL: "memory:", Drivers: []storage.Driver{sqlite.Driver}, Migrate: true})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	things, release, err := store.Resource(storage.ResourceConfig{
		Codec:          unstructured.UnstructuredJSONScheme,
		NewFunc:        func() runtime.Object { return &unstructured.Unstructured{} },
		ResourcePrefix: "/example.com/things",
		GroupResource:  schema.GroupResource{Group: "example.com", Resource: "things"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer release()

	const key = "/example.com/things/default/one"
	thing := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Thing",
		"metadata": map[string]any{"namespace": "default", "name": "one"},
		"size":     "small",
	}}
	created := &unstructured.Unstructured{}
	if err := things.Create(ctx, key, thing, created, 0); err != nil {
		log.Fatal(err)
	}
	events, err := things.Watch(ctx, "/example.com/things", apistorage.ListOptions{
		ResourceVersion: created.GetResourceVersion(), Recursive: true,
		Predicate: apistorage.Everything})
	if err != nil {
		log.Fatal(err)
	}
	defer events.Stop()
	err = things.GuaranteedUpdate(ctx, key, &unstructured.Unstructured{}, false, nil,
		apistorage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			obj.(*unstructured.Unstructured).Object["size"] = "large"
			return obj, nil
		}), nil)
	if err != nil {
		log.Fatal(err)
	}
	event := <-events.ResultChan()
	seen := event.Object.(*unstructured.Unstructured)
	fmt.Println(event.Type, seen.GetName(), seen.Object["size"], "at revision",
		seen.GetResourceVersion())
	// Output: MODIFIED one large at revision 3
}
