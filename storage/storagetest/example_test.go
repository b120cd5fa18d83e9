package storagetest_test

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
	"github.com/rowkeeper/rowkeeper/storage/storagetest"
)

// The writes of a test are undone: the objects are again those of before.
func ExampleRestore() {
	ctx := context.Background()
	store, err := storage.Open(ctx, storage.Config{URL: "memory:",
		Drivers: []storage.Driver{sqlite.Driver}, Migrate: true})
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
		log.Print(err)
		return
	}
	defer release()
	before, err := storagetest.Capture(ctx, store, "")
	if err != nil {
		log.Print(err)
		return
	}
	thing := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Thing",
		"metadata": map[string]any{"name": "one"},
	}}
	const key = "/example.com/things/one"
	if err := things.Create(ctx, key, thing, nil, 0); err != nil {
		log.Print(err)
		return
	}
	if err := storagetest.Restore(ctx, store, before); err != nil {
		log.Print(err)
		return
	}
	err = things.Get(ctx, key, apistorage.GetOptions{}, &unstructured.Unstructured{})
	fmt.Println("it is gone:", apistorage.IsNotFound(err))
	// Output: it is gone: true
}
