package storage

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func newPod() runtime.Object { return &example.Pod{} }

// inNamespaces and withoutNamespaces are the keys of a registry whose objects have namespaces, or
// have none.
func inNamespaces(o runtime.Object) (string, error) {
	accessor, err := meta.Accessor(o)
	return "/pods/" + accessor.GetNamespace() + "/" + accessor.GetName(), err
}

func withoutNamespaces(o runtime.Object) (string, error) {
	accessor, err := meta.Accessor(o)
	return "/nodes/" + accessor.GetName(), err
}

func TestScope(t *testing.T) {
	for _, tc := range []struct {
		name    string
		keyFunc func(runtime.Object) (string, error)
		newFunc func() runtime.Object
		want    Scope
	}{
		{"with namespaces", inNamespaces, newPod, Namespaced},
		{"without", withoutNamespaces, newPod, ClusterScoped},
		{"no key", func(runtime.Object) (string, error) { return "", errors.New("no") }, newPod, ""},
		{"another key", func(runtime.Object) (string, error) { return "/x", nil }, newPod, ""},
		{"no object", inNamespaces, func() runtime.Object { return &runtime.Unknown{} }, ""},
		{"no functions", nil, nil, ""},
	} {
		if got := scopeOf(tc.keyFunc, tc.newFunc); got != tc.want {
			t.Errorf("%s: the scope is %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestDirectoriesOfResources: a resource that is opened records its directory, for SQL.
func TestDirectoriesOfResources(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	s := openDatabase(t, d, mvcc.Config{})
	uncached := getter(t, s, RESTOptions{DisableWatchCache: true}).uncached
	for name, open := range map[string]struct {
		decorate generic.StorageDecorator
		keyFunc  func(runtime.Object) (string, error)
	}{"pods": {uncached, inNamespaces}, "nodes": {uncached, withoutNamespaces}} {
		config := storagebackend.NewDefaultConfig("/test", codec).
			ForResource(schema.GroupResource{Group: "example.com", Resource: name})
		_, destroy, err := open.decorate(config, "/example.com/"+name, open.keyFunc, newPod, nil, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer destroy()
	}
	want := []string{"/test/example.com/nodes/ example.com nodes Cluster",
		"/test/example.com/pods/ example.com pods Namespaced"}
	var got []string
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			got = nil
			err := RunQuery(ctx, Config{URL: d.URL, Drivers: []Driver{d.Driver}}, Query{SQL: "SELECT directory || ' ' || " +
				`"group" || ' ' || resource || ' ' || scope FROM rowkeeper_resource ORDER BY directory`},
				func(_ []string, values []any) error {
					if values != nil {
						got = append(got, values[0].(string))
					}
					return nil
				})
			return slices.Equal(got, want), err
		})
	if err != nil {
		t.Errorf("the directories are %q, want %q: %v", got, want, err)
	}
}
