package main

import (
	"errors"
	"path/filepath"
	"testing"

	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

// Two tenants have an object of the same name. A third one has none.
func TestTenants(t *testing.T) {
	url := "sqlite://" + filepath.Join(t.TempDir(), "tenants.db")
	if err := run(t.Context(), url, "blue", "green"); err != nil {
		t.Fatal(err)
	}
	config := storage.Config{URL: url, Drivers: drivers.All(), Migrate: true, Store: "red"}
	if _, err := storage.CreateStore(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string]int64{"blue": 1, "green": 1, "red": 0} {
		config.Store = tenant
		usage, _, err := storage.MeasureStore(t.Context(), config)
		if err != nil || usage.Objects != want {
			t.Errorf("%s has %d objects, %v, want %d", tenant, usage.Objects, err, want)
		}
	}
	var stored *apistorage.StorageError
	if err := run(t.Context(), url, "blue"); !errors.As(err, &stored) ||
		!apistorage.IsExist(stored) {
		t.Errorf("the second time: %v, want that the object exists", err)
	}
}
