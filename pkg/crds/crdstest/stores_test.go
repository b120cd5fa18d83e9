package crdstest_test

import (
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// TestStoreFor: the objects of a definition can be kept in a store of their own. Namespaces,
// snapshots and restarts know of them.
func TestStoreFor(t *testing.T) {
	dir := t.TempDir()
	s := crdstest.Start(t, testkit.Options{Dir: dir, Storage: func(o *options.StorageOptions) {
		o.StoreFor = []string{"example.com/gadgets=gadgets"}
	}})
	define(t, s, "example.com")
	n, err := newTeam(t, s)
	if err != nil {
		t.Fatal(err)
	}
	objects := dynamic.NewForConfigOrDie(s.Config).Resource(gadgets).Namespace(n.Name)
	if _, err := objects.Create(t.Context(), gadget("one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	usage, _, err := storage.MeasureStore(t.Context(), storage.Config{Store: "gadgets",
		URL:     "sqlite://" + filepath.Join(dir, "state.db"),
		Drivers: []storage.Driver{sqlite.Driver}})
	if err != nil || usage.Objects != 1 {
		t.Errorf("the store has %d objects, %v", usage.Objects, err)
	}
	before := s.Snapshot()
	if err := kubernetes.NewForConfigOrDie(s.Config).CoreV1().Namespaces().Delete(t.Context(), n.Name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	goneWith(t, s, n.Name, objects)
	s.Rollback(before)
	if _, err := objects.Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	s.Stop()
	_, err = crdstest.Launch(t.Context(), testkit.Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(),
		"the objects of example.com/gadgets are kept in the store \"gadgets\", not in \"default\": "+
			"give --store-for example.com/gadgets=gadgets") {
		t.Errorf("a server that is told nothing of it: %v", err)
	}
}
