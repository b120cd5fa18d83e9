package conformance_test

import (
	"testing"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/conformance"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// The suite runs on a database in memory, an empty one for each of its tests. In a test, t is at
// hand.
func ExampleRun() {
	var t *testing.T
	conformance.Run(t, conformance.Config{Open: func(t *testing.T) *storage.Store {
		store, err := storage.Open(t.Context(), storage.Config{
			URL: "memory:", Drivers: []storage.Driver{sqlite.Driver}, Migrate: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return store
	}})
}
