package commands

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// TestIndexes declares indexes of a resource that a server serves, which builds them.
func TestIndexes(t *testing.T) {
	database := "sqlite://" + filepath.Join(t.TempDir(), "state.db")
	store, err := storage.Open(t.Context(), storage.Config{URL: database,
		Drivers: []storage.Driver{sqlite.Driver}, Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, destroy, err := store.Resource(storage.ResourceConfig{Codec: unstructured.UnstructuredJSONScheme,
		NewFunc:        func() runtime.Object { return &unstructured.Unstructured{} },
		ResourcePrefix: "/ci.example.com/pipelines",
		GroupResource:  schema.GroupResource{Group: "ci.example.com", Resource: "pipelines"}})
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		exit := Run(t.Context(), bookmarks(), append([]string{"indexes"}, append(args,
			"--database="+database)...), &out, &out)
		return exit, out.String()
	}
	const resource = "ci.example.com/pipelines"
	// The server records where the objects of the resource are, in the background.
	deadline := time.Now().Add(time.Minute)
	for exit := -1; exit != ExitOK; {
		var said string
		if exit, said = run("add", resource, "label:app"); exit != ExitOK && time.Now().After(deadline) {
			t.Fatal(said)
		}
	}
	for _, test := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"list"}, ExitOK, "label:app"},
		{[]string{"add", resource, "label:app"}, ExitFailure, "has the index label:app already"},
		{[]string{"add", resource, "field:spec.image"}, ExitOK, "declared the index field:spec.image"},
		{[]string{"add", resource, "app"}, ExitFailure, "an index is named after a label"},
		{[]string{"add", "example.com/others", "label:app"}, ExitFailure, "does not know"},
		{[]string{"add", resource, "label:app", "--storage-prefix=/mine"}, ExitFailure, "does not know below /mine/"},
		{[]string{"add", resource}, ExitUsage, "name a resource"},
		{[]string{"add", "a/b/c", "label:app"}, ExitUsage, "does not name a resource"},
		{[]string{"rebuild", resource, "label:app"}, ExitOK, "declared anew the index label:app"},
		{[]string{"rebuild", resource, "label:other"}, ExitFailure, "has no index label:other"},
		{[]string{"drop", resource, "label:app"}, ExitOK, "dropped the index label:app"},
		{[]string{"drop", resource, "label:app"}, ExitFailure, "has no index label:app"},
		{[]string{"list"}, ExitOK, "field:spec.image"},
	} {
		if exit, said := run(test.args...); exit != test.exit || !strings.Contains(said, test.want) {
			t.Errorf("%v exits with %d and says %q, want %d and %q", test.args, exit, said, test.exit,
				test.want)
		}
	}
	if _, said := run("list"); strings.Contains(said, "label:app") {
		t.Errorf("the dropped index is there: %s", said)
	}
}
