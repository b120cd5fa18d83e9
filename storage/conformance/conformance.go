// Package conformance is the judge of what a storage.Interface does: upstream's own suite,
// k8s.io/apiserver/pkg/storage/testing, run over a database, raw and below upstream's watch cache.
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Config{Open: func(t *testing.T) *storage.Store {
//			db, err := storage.Open(t.Context(), storage.Config{URL: "sqlite://" + t.TempDir() + "/state.db", Drivers: …, Migrate: true})
//			…
//			t.Cleanup(func() { db.Close() })
//			return db
//		}})
//	}
//
// Run it over your database after you change its configuration, or write a driver. It takes
// minutes: upstream's tests wait for what should not happen. Most of them run at once, as many as
// the flag -parallel of go test allows: -parallel 8 is much faster than the default, one for each
// core. Tests of the caller that run at the same time should not set feature gates.
//
// The tests are black boxes: they need no hook in the product. Raw bytes are seen by a transformer,
// the history is moved on by another store of the same database, requests to the database are
// counted by upstream's metrics, and those of the watch cache at its border to the store.
package conformance

import (
	"testing"

	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"

	"github.com/rowkeeper/rowkeeper/storage"
)

// Config says what to test.
type Config struct {
	// Open returns an empty database, which it closes when the test ends. Each of the suite's
	// functions has a database of its own. It may skip the test.
	Open func(t *testing.T) *storage.Store
}

// Run runs the whole suite as subtests.
func Run(t *testing.T, c Config) {
	t.Run("Raw", func(t *testing.T) { RunRaw(t, c) })
	t.Run("Cached", func(t *testing.T) { RunCached(t, c) })
	t.Run("CachedByList", func(t *testing.T) { RunCachedByList(t, c) })
}

// RunCachedByList is RunCached, but the watch caches are filled by a list instead of a watch.
func RunCachedByList(t *testing.T, c Config) {
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, false)
	RunCached(t, c)
}
