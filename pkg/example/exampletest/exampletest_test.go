package exampletest

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/databases"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
	"github.com/rowkeeper/rowkeeper/storage/storagetest"
)

func pipelines(config *rest.Config) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(config).Resource(civ1.SchemeGroupVersion.WithResource("pipelines")).Namespace("default")
}

func pipeline(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": civ1.SchemeGroupVersion.String(), "kind": "Pipeline",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"steps": []any{map[string]any{"name": "build", "image": "golang",
			"command": []any{"go", "build"}}}},
	}}
}

func create(t testing.TB, c dynamic.ResourceInterface, name string) *unstructured.Unstructured {
	t.Helper()
	p, err := c.Create(t.Context(), pipeline(name), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func names(t testing.TB, c dynamic.ResourceInterface) string {
	t.Helper()
	list, err := c.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range list.Items {
		names = append(names, p.GetName())
	}
	return strings.Join(names, " ")
}

func TestDatabases(t *testing.T) {
	sources := map[string]func(*testing.T) testkit.Database{
		"temporary file": func(*testing.T) testkit.Database { return testkit.Database{} },
		"memory":         func(*testing.T) testkit.Database { return testkit.Memory },
	}
	for _, kind := range databases.Kinds() { // by URL
		sources[string(kind)] = func(t *testing.T) testkit.Database { return databases.New(t, kind) }
	}
	for name, database := range sources {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			s := Start(t, testkit.Options{Database: db})
			c := pipelines(s.Config)
			create(t, c, "a")
			if got := names(t, c); got != "a" {
				t.Errorf("listed %q, want a", got)
			}
			before := s.Snapshot()
			create(t, c, "b")
			if err := c.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			s.Rollback(before)
			if got := names(t, c); got != "a" {
				t.Errorf("after a rollback: %q, want a", got)
			}
			// A watch that is still open does not keep the server from stopping.
			if _, err := c.Watch(t.Context(), metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			s.Stop()
			if _, err := c.List(t.Context(), metav1.ListOptions{}); err == nil {
				t.Error("a stopped server answers")
			}
			if err := s.Store.Ready(t.Context()); err == nil {
				t.Error("the database is open after its server has stopped")
			}
		})
	}
}

// A hundred servers run side by side in one process, and none has another's objects. Sixteen start
// at a time: if all did, each would take as long as all together, which with the race detector, on
// a busy machine, comes near to the time that Start gives a server.
func TestServersAreIndependent(t *testing.T) {
	clients, busy := make([]dynamic.ResourceInterface, 100), make(chan struct{}, 16)
	each := func(do func(i int, name string)) {
		t.Helper()
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				busy <- struct{}{}
				defer func() { <-busy }() // also if do fails, which ends only this goroutine
				do(i, "of-"+strconv.Itoa(i))
			})
		}
		group.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	each(func(i int, name string) {
		clients[i] = pipelines(Start(t, testkit.Options{Database: testkit.Memory}).Config)
		create(t, clients[i], name)
	})
	each(func(i int, name string) {
		if got := names(t, clients[i]); got != name {
			t.Errorf("listed %q, want %s", got, name)
		}
	})
}

func TestUsers(t *testing.T) {
	s := Start(t, testkit.Options{Database: testkit.Memory})
	create(t, pipelines(s.Config), "a")
	rule := func(verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{civ1.SchemeGroupVersion.Group},
			Resources: []string{"pipelines"}}
	}
	named := rule("get")
	named.ResourceNames = []string{"b"}
	for _, tc := range []struct {
		name         string
		rules        []rbacv1.PolicyRule
		reads, lists bool
	}{
		{"nobody", nil, false, false},
		{"reader", []rbacv1.PolicyRule{rule("get")}, true, false},
		{"lister", []rbacv1.PolicyRule{rule("list"), rule("get")}, true, true},
		{"named", []rbacv1.PolicyRule{named}, false, false},
		{"all", []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"},
			Resources: []string{"*"}}}, true, true},
		{"subresource", []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"},
			Resources: []string{"pipelines/status"}}}, false, false},
	} {
		c := pipelines(s.ConfigFor(testkit.User{Name: tc.name, Rules: tc.rules}))
		_, err := c.Get(t.Context(), "a", metav1.GetOptions{})
		if tc.reads && err != nil || !tc.reads && !apierrors.IsForbidden(err) {
			t.Errorf("%s reads: %v", tc.name, err)
		}
		_, err = c.List(t.Context(), metav1.ListOptions{})
		if tc.lists && err != nil || !tc.lists && !apierrors.IsForbidden(err) {
			t.Errorf("%s lists: %v", tc.name, err)
		}
	}
	stranger := rest.CopyConfig(s.Config)
	stranger.BearerToken = "unknown"
	if _, err := pipelines(stranger).Get(t.Context(), "a",
		metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("an unknown token: %v, want 401", err)
	}
}

func TestAuthorizer(t *testing.T) {
	onlyAlice := authorizer.AuthorizerFunc(func(_ context.Context,
		a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == "alice" {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionDeny, "not alice", nil
	})
	s := Start(t, testkit.Options{Database: testkit.Memory, Authorizer: onlyAlice})
	create(t, pipelines(s.ConfigFor(testkit.User{Name: "alice"})), "a")
	if _, err := pipelines(s.ConfigFor(testkit.User{Name: "bob"})).Get(t.Context(), "a",
		metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("bob: %v, want forbidden", err)
	}
}

func TestRollback(t *testing.T) {
	s := Start(t, testkit.Options{})
	client := dynamic.NewForConfigOrDie(s.Config)
	c := pipelines(s.Config)
	kept, deleted := create(t, c, "kept"), create(t, c, "deleted")
	before := s.Snapshot()

	var mu sync.Mutex
	events := map[watch.EventType]string{}
	note := func(what watch.EventType, obj any) {
		mu.Lock()
		defer mu.Unlock()
		if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = unknown.Obj
		}
		events[what] += obj.(*unstructured.Unstructured).GetName() + " "
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informer := factory.ForResource(civ1.SchemeGroupVersion.WithResource("pipelines")).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { note(watch.Added, obj) },
		UpdateFunc: func(_, obj any) { note(watch.Modified, obj) },
		DeleteFunc: func(obj any) { note(watch.Deleted, obj) },
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer has no list")
	}

	create(t, c, "new")
	if err := c.Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Rollback(before)
	if got := names(t, c); got != "deleted kept" {
		t.Errorf("after the rollback: %q", got)
	}
	for _, was := range []*unstructured.Unstructured{kept, deleted} {
		is, err := c.Get(t.Context(), was.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if is.GetUID() != was.GetUID() {
			t.Errorf("%s has another UID", was.GetName())
		}
	}
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			added := strings.Fields(events[watch.Added])
			return len(added) == 4 && added[2] == "new" && added[3] == "deleted" &&
				events[watch.Deleted] == "deleted new ", nil
		})
	if err != nil {
		t.Errorf("the informer saw %v", events)
	}
}

func TestDirectoryOutlivesServers(t *testing.T) {
	dir := t.TempDir()
	s := Start(t, testkit.Options{Dir: dir})
	was := create(t, pipelines(s.Config), "a")
	s.Stop()
	s = Start(t, testkit.Options{Dir: dir})
	is, err := pipelines(s.Config).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || is.GetResourceVersion() != was.GetResourceVersion() {
		t.Errorf("after a restart: %v, %v", is, err)
	}
}

func TestReplicas(t *testing.T) {
	dir := t.TempDir()
	database := testkit.Database{URL: "sqlite://" + dir + "/state.db", Driver: sqlite.Driver}
	one := Start(t, testkit.Options{Database: database, Prefix: "/registry"})
	two := Start(t, testkit.Options{Database: database, Prefix: "/registry"})
	other := Start(t, testkit.Options{Database: database})
	create(t, pipelines(one.Config), "a")
	if got := names(t, pipelines(two.Config)); got != "a" {
		t.Errorf("the replica lists %q", got)
	}
	if got := names(t, pipelines(other.Config)); got != "" {
		t.Errorf("a server with another prefix lists %q", got)
	}
}

func TestSharedDatabaseIsLeftEmpty(t *testing.T) {
	database := testkit.Database{URL: "sqlite://" + t.TempDir() + "/state.db",
		Driver: sqlite.Driver}
	s := Start(t, testkit.Options{Database: database})
	create(t, pipelines(s.Config), "a")
	s.Stop()
	store, err := storage.Open(t.Context(),
		storage.Config{URL: database.URL, Drivers: []storage.Driver{sqlite.Driver}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	before, err := store.CurrentRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := storagetest.Restore(t.Context(), store, storagetest.Nothing("/")); err != nil {
		t.Fatal(err)
	}
	if after, err := store.CurrentRevision(t.Context()); err != nil || after != before {
		t.Errorf("the server has left objects: revision %d, then %d, %v", before, after, err)
	}
}

func TestKubeconfig(t *testing.T) {
	s := Start(t, testkit.Options{Database: testkit.Memory})
	file := s.Kubeconfig(s.ConfigFor(testkit.User{Name: "someone",
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{"*"},
			Resources: []string{"*"}}}}))
	if content, err := os.ReadFile(file); err != nil ||
		bytes.Contains(content, []byte(s.Config.BearerToken)) {
		t.Errorf("the kubeconfig: %v; it must not have the administrator's token", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, pipelines(config)); got != "" {
		t.Errorf("listed %q", got)
	}
}
