// Tenants keeps the objects of each tenant in a store of its own, in one database. It uses the
// storage without an API server: a tenant's objects have names, revisions and a history that have
// nothing to do with those of another tenant.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

func main() {
	url := flag.String("database", "sqlite:tenants.db", "the database, by URL")
	flag.Parse()
	if err := run(context.Background(), *url, "blue", "green"); err != nil {
		log.Fatal(err)
	}
}

// run writes an object for each tenant.
func run(ctx context.Context, url string, tenants ...string) error {
	config := storage.Config{URL: url, Drivers: drivers.All(), Migrate: true}
	for _, tenant := range tenants {
		config.Store = tenant
		if _, err := storage.CreateStore(ctx, config); err != nil {
			return err
		}
	}
	stores, err := storage.OpenStores(ctx, config)
	if err != nil {
		return err
	}
	defer stores.Close()
	for _, tenant := range tenants {
		revision, err := write(ctx, stores, tenant)
		if err != nil {
			return fmt.Errorf("the tenant %s: %w", tenant, err)
		}
		fmt.Println("the color of", tenant, "is at revision", revision)
	}
	return nil
}

// write writes an object of a tenant, and returns its revision. The store is opened if it is not
// open yet. It is closed when nobody has used it for a minute.
func write(ctx context.Context, stores *storage.StorePool, tenant string) (string, error) {
	store, release, err := stores.Use(ctx, tenant)
	if err != nil {
		return "", err
	}
	defer release()
	colors, done, err := store.Resource(storage.ResourceConfig{
		Codec:          unstructured.UnstructuredJSONScheme,
		NewFunc:        func() runtime.Object { return &unstructured.Unstructured{} },
		ResourcePrefix: "/example.com/colors",
		GroupResource:  schema.GroupResource{Group: "example.com", Resource: "colors"},
	})
	if err != nil {
		return "", err
	}
	defer done()
	color := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Color",
		"metadata": map[string]any{"name": "mine"},
		"color":    tenant,
	}}
	if err := colors.Create(ctx, "/example.com/colors/mine", color, color, 0); err != nil {
		return "", err
	}
	return color.GetResourceVersion(), nil
}
