package kinds_test

import (
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/kubectl"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

var v1 = schema.GroupVersion{Group: "example.com", Version: "v1"}

// start serves the example.
func start(t *testing.T, o testkit.Options) (*kinds.API, *testkit.Server) {
	t.Helper()
	api, err := kinds.New(example)
	if err != nil {
		t.Fatal(err)
	}
	if o.Database.URL == "" {
		o.Database = testkit.Memory
	}
	return api, testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, o)
}

// serve serves a group from memory.
func serve(t *testing.T, group kinds.Group) *testkit.Server {
	t.Helper()
	api, err := kinds.New(group)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{Database: testkit.Memory})
}

// TestIndexes: a server declares the indexes of its kinds, and builds them.
func TestIndexes(t *testing.T) {
	database := testkit.Database{URL: "sqlite://" + filepath.Join(t.TempDir(), "state.db"),
		Driver: sqlite.Driver}
	start(t, testkit.Options{Database: database})
	want := map[string]bool{"label:team": true, "field:spec.title": true}
	var found map[string]bool
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			all, err := storage.Indexes(ctx, storage.Config{URL: database.URL,
				Drivers: []storage.Driver{database.Driver}})
			found = map[string]bool{}
			for _, x := range all {
				if x.Resource == v1.WithResource("bookmarks").GroupResource() {
					found[x.Name] = x.Ready
				}
			}
			return maps.Equal(found, want), err
		}); err != nil {
		t.Errorf("the indexes and whether they are ready: %v, want %v, %v", found, want, err)
	}
}

func bookmarks(s *testkit.Server, version string) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(s.Config).Resource(v1.WithResource("bookmarks").GroupResource().WithVersion(version)).Namespace("default")
}

func bookmark(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1.String(), "kind": "Bookmark", "metadata": map[string]any{"name": name},
		"spec": spec,
	}}
}

func TestKubectl(t *testing.T) {
	_, s := start(t, testkit.Options{})
	kubeconfig := s.Kubeconfig(s.Config)
	for i, step := range []struct {
		args  string
		stdin string
		want  []string // in what is printed
		fails bool
	}{
		{"apply -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"},
			"spec": {"url": "http://go.dev/doc", "tags": [{"name": "a"}]}}`,
			[]string{"Warning: spec.url: pages without TLS", "bookmark.example.com/go created"},
			false},
		{"get bm", "", []string{"NAME TITLE TAGS AGE", "go go.dev 1 "}, false},
		{"get pages -o wide", "", []string{"NAME TITLE TAGS AGE URL", "http://go.dev/doc"}, false},
		{"apply -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"},
			"spec": {"url": "https://go.dev/doc", "tags": [{"name": "a"}, {"name": "b", "weight": 2}]}}`,
			[]string{"bookmark.example.com/go configured"}, false},
		{"get bm go -o jsonpath={.metadata.generation},{.spec.tags[*].name}", "", []string{"2,a b"},
			false},
		{"apply --server-side --field-manager other -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"},
			"spec": {"tags": [{"name": "c", "weight": 3}]}}`, []string{"serverside-applied"}, false},
		// Tags are merged by name.
		{"get bm go -o jsonpath={.spec.tags[*].name}", "", []string{"a b c"}, false},
		{"apply --server-side --field-manager third -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"},
			"spec": {"tags": [{"name": "c", "weight": 4}]}}`, []string{`conflict with "other"`}, true},
		{"explain bookmarks.spec", "", []string{"GROUP: example.com", "KIND: Bookmark",
			"VERSION: v1", "url <string> -required-", "Where the bookmark leads."}, false},
		{"explain bookmarks.spec.children.children.tags", "",
			[]string{"FIELD: tags <[]Tag>", "weight <integer>"}, false},
		{"explain bookmarks.metadata.finalizers", "",
			[]string{"Must be empty before the object is deleted"}, false},
		{"explain bookmarks --api-version example.com/v1alpha1", "",
			[]string{"address <string> -required-"}, false},
		{"create -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "x"}, "spec": {"url": "https://go.dev", "ulr": "x"}}`,
			[]string{`unknown field "spec.ulr"`}, true},
		{"create -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "x"}, "spec": {"url": "nowhere"}}`,
			[]string{"spec.url: Invalid value", "has to be a URL with a host"}, true},
		{"create -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "X"}, "spec": {"url": "https://go.dev"}}`,
			[]string{"metadata.name: Invalid value", "RFC 1123 subdomain"}, true},
		{"create -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"generateName": "X_"}, "spec": {"url": "https://go.dev"}}`,
			[]string{"metadata.generateName: Invalid value", "RFC 1123 subdomain"}, true},
		{"create -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"generateName": "made-"}, "spec": {"url": "https://go.dev"}}`,
			[]string{"bookmark.example.com/made-", "created"}, false},
		{"delete bm --field-selector metadata.name!=go", "",
			[]string{`bookmark.example.com "made-`}, false},
		{"patch bm go --subresource status --type merge -p", `{"status": {"reachable": true}}`,
			[]string{"status.checked: Required value"}, true},
		{"patch bm go --subresource status --type merge -p",
			`{"spec": {"url": "https://other"}, "status": {"reachable": true, "checked": "2026-01-02T03:04:05Z"}}`, []string{"patched"}, false},
		{"patch bm go --type merge -p", `{"status": {"reachable": false}}`,
			[]string{"patched (no change)"}, false},
		{"get bm go -o jsonpath={.spec.url},{.status.reachable},{.metadata.generation}", "",
			[]string{"https://go.dev/doc,true,3"}, false},
		{"patch bm go --type strategic -p",
			`{"spec": {"tags": [{"name": "a", "$patch": "delete"}]}}`, []string{"patched"}, false},
		{"get bm go -o jsonpath={.spec.tags[*].name}", "", []string{"b c"}, false},
		{"get bm --field-selector spec.title=go.dev", "", []string{"go go.dev 2"}, false},
		{"get bm --field-selector spec.title=other", "", []string{"No resources found"}, false},
		{"get bm --field-selector spec.url=other", "",
			[]string{`bookmarks cannot be selected by "spec.url"`}, true},
		{"get bookmarks.v1alpha1.example.com go -o jsonpath={.kind},{.address},{.rest.title},{.status.reachable}", "", []string{"Bookmark,https://go.dev/doc,go.dev,true"}, false},
		{"get bookmarks.v1alpha1.example.com -o jsonpath={.kind},{.items[0].apiVersion},{.items[0].address}", "", []string{"List,example.com/v1alpha1,https://go.dev/doc"}, false},
		{"create -f -",
			`{"apiVersion": "example.com/v1alpha1", "kind": "Bookmark", "metadata": {"name": "old"}, "address": "https://old.example"}`, []string{"created"}, false},
		// The title has the default of the version to which it was converted.
		{"get bm old", "", []string{"old old.example 0"}, false},
		{"api-resources --api-group example.com", "",
			[]string{"bookmarks bm example.com/v1 true Bookmark"}, false},
		{"diff -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "old"}, "spec": {"url": "https://new.example", "title": "old.example"}}`,
			[]string{"- url: https://old.example", "+ url: https://new.example"}, true},
		{"delete bm --all", "", []string{`bookmark.example.com "go" deleted`,
			`bookmark.example.com "old" deleted`}, false},
	} {
		args := strings.Fields(step.args)
		if args[len(args)-1] == "-p" {
			args = append(args, step.stdin)
		}
		out, err := kubectl.Run(t, kubeconfig, step.stdin, args...)
		if (err != nil) != step.fails {
			t.Errorf("step %d: kubectl %s: %v\n%s", i, step.args, err, out)
		}
		for _, want := range step.want {
			if !strings.Contains(out, want) {
				t.Errorf("step %d: kubectl %s prints\n%s\nwithout %q", i, step.args, out, want)
			}
		}
	}
}

// TestTypedClient reads and watches by a client of the author's own, without generated code.
func TestTypedClient(t *testing.T) {
	api, s := start(t, testkit.Options{})
	config := rest.CopyConfig(s.Config)
	config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/apis", &v1,
		api.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	at := func(r *rest.Request) *rest.Request { return r.Namespace("default").Resource("bookmarks") }
	made := &Bookmark{}
	err = at(client.Post()).Body(&Bookmark{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: BookmarkSpec{URL: "https://go.dev"}}).Do(t.Context()).Into(made)
	if err != nil || made.UID == "" || made.Spec.Title != "go.dev" {
		t.Fatalf("created %+v, %v", made, err)
	}
	list := &kinds.List[Bookmark]{}
	if err := at(client.Get()).Do(t.Context()).Into(list); err != nil || len(list.Items) != 1 ||
		list.Items[0].Name != "a" {
		t.Fatalf("listed %+v, %v", list, err)
	}
	w, err := at(client.Get()).VersionedParams(&metav1.ListOptions{Watch: true,
		ResourceVersion: list.ResourceVersion}, metav1.ParameterCodec).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := at(client.Delete()).Name("a").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Deleted ||
		e.Object.(*Bookmark).Spec.URL != "https://go.dev" {
		t.Errorf("watched %+v", e)
	}
}

func TestTimeToLive(t *testing.T) {
	_, s := start(t, testkit.Options{FakeClock: true})
	c := bookmarks(s, "v1")
	for name, spec := range map[string]map[string]any{
		"short": {"url": "https://go.dev", "keepFor": "1m"},
		"long":  {"url": "https://go.dev", "keepFor": "1h"}, "kept": {"url": "https://go.dev"},
	} {
		if _, err := c.Create(t.Context(), bookmark(name, spec),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.Advance(30 * time.Second)
	if _, err := c.Get(t.Context(), "short", metav1.GetOptions{}); err != nil {
		t.Errorf("before its time: %v", err)
	}
	s.Advance(31 * time.Second)
	if _, err := c.Get(t.Context(), "short", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after its time: %v", err)
	}
	s.Advance(2 * time.Hour)
	list, err := c.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "kept" {
		t.Errorf("at last: %v, %v", list, err)
	}
	// The time cannot be taken away, which ValidateUpdate says.
	if _, err := c.Create(t.Context(), bookmark("timed", map[string]any{"url": "https://go.dev",
		"keepFor": "1h"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.Patch(t.Context(), "timed", types.MergePatchType,
		[]byte(`{"spec": {"keepFor": null}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "cannot be taken away") {
		t.Errorf("taking the time away: %v", err)
	}
}

// TestStoredVersion looks at what is in the database after writes in the other version.
func TestStoredVersion(t *testing.T) {
	_, s := start(t, testkit.Options{})
	_, err := bookmarks(s, "v1alpha1").Create(t.Context(),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1alpha1", "kind": "Bookmark",
			"metadata": map[string]any{"name": "a"}, "address": "https://go.dev",
		}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	is, err := bookmarks(s, "v1").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range is.GetManagedFields() {
		if entry.APIVersion != "example.com/v1alpha1" {
			t.Errorf("the writer's version is noted as %s", entry.APIVersion)
		}
	}
	if u, _, err := unstructured.NestedString(is.Object, "spec", "url"); u != "https://go.dev" ||
		err != nil {
		t.Errorf("in v1 the URL is %q, %v", u, err)
	}
}

// TestOpenAPI looks for what clients take from the documents.
func TestOpenAPI(t *testing.T) {
	_, s := start(t, testkit.Options{})
	client := dynamicREST(t, s)
	get := func(path string) map[string]any {
		t.Helper()
		content, err := client.Get().AbsPath(path).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		document := map[string]any{}
		if err := json.Unmarshal(content, &document); err != nil {
			t.Fatal(err)
		}
		return document
	}
	for path, at := range map[string][]string{
		"/openapi/v2":                           {"definitions"},
		"/openapi/v3/apis/example.com/v1":       {"components", "schemas"},
		"/openapi/v3/apis/example.com/v1alpha1": {"components", "schemas"},
	} {
		schemas, found, err := unstructured.NestedMap(get(path), at...)
		if !found || err != nil {
			t.Fatalf("%s has no schemas: %v", path, err)
		}
		kinds := 0
		for name, one := range schemas {
			if strings.Contains(name, "/") {
				t.Errorf("%s: a schema is named %s", path, name)
			}
			gvks, _, err := unstructured.NestedSlice(one.(map[string]any),
				"x-kubernetes-group-version-kind")
			if err != nil {
				t.Error(err)
			}
			for _, gvk := range gvks {
				if version := gvk.(map[string]any)["version"]; version == "__internal" {
					t.Errorf("%s: %s is of the internal version", path, name)
				}
				if gvk.(map[string]any)["kind"] == "Bookmark" {
					kinds++
				}
			}
		}
		if kinds == 0 {
			t.Errorf("%s does not know what a Bookmark is", path)
		}
	}
}

func dynamicREST(t *testing.T, s *testkit.Server) rest.Interface {
	t.Helper()
	config := dynamic.ConfigFor(s.Config)
	config.GroupVersion = &schema.GroupVersion{}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestGroupBesideOthers adds a group to a server of another making.
func TestGroupBesideOthers(t *testing.T) {
	api, err := kinds.New(example)
	if err != nil {
		t.Fatal(err)
	}
	s := exampletest.Start(t, testkit.Options{Database: testkit.Memory, Groups: []testkit.Group{{
		Scheme: api.Scheme, Codecs: api.Codecs, OpenAPI: api.OpenAPI,
		New: func(getter generic.RESTOptionsGetter) (*genericapiserver.APIGroupInfo, error) {
			infos, err := api.GroupInfos(getter)
			if err != nil {
				return nil, err
			}
			return infos[0], nil
		},
	}}})
	kubeconfig := s.Kubeconfig(s.Config)
	for _, step := range []struct{ args, stdin, want string }{
		{"apply --server-side -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"}, "spec": {"url": "https://go.dev", "tags": [{"name": "a"}]}}`, "serverside-applied"},
		{"get bm", "", "go go.dev 1"},
		{"explain bookmarks.spec.url", "", "Where the bookmark leads."},
		{"apply --server-side -f -",
			`{"apiVersion": "ci.rowkeeper.dev/v1", "kind": "Pipeline", "metadata": {"name": "go"},
			"spec": {"steps": [{"name": "build", "image": "golang", "command": ["go"]}]}}`, "serverside-applied"},
		{"get pipelines", "", "go Pending 1"},
		{"explain pipelines.spec.steps.image", "", "FIELD: image <string>"},
	} {
		if out, err := kubectl.Run(t, kubeconfig, step.stdin,
			strings.Fields(step.args)...); err != nil || !strings.Contains(out, step.want) {
			t.Errorf("kubectl %s: %v\n%s", step.args, err, out)
		}
	}
}

// Planet is of no namespace, and has neither status nor hooks.
type Planet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Moons int `json:"moons"`
}

func (p *Planet) DeepCopyObject() runtime.Object { return kinds.DeepCopy(p) }

func TestZeroKind(t *testing.T) {
	api, err := kinds.New(kinds.Group{Name: "sky.example.com", Versions: []string{"v1", "v2"},
		Kinds: []kinds.Definition{
			kinds.Define(kinds.Kind[Planet]{ClusterScoped: true}),
		}})
	if err != nil {
		t.Fatal(err)
	}
	s := testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{Database: testkit.Memory})
	kubeconfig := s.Kubeconfig(s.Config)
	for i, step := range []struct {
		args, stdin, want string
		fails             bool
	}{
		{"create -f -",
			`{"apiVersion": "sky.example.com/v1", "kind": "Planet", "metadata": {"name": "mars"}, "moons": 2}`, "planet.sky.example.com/mars created", false},
		{"get planets", "", "NAME AGE\nmars ", false},
		{"get planet.v2.sky.example.com mars -o jsonpath={.apiVersion},{.moons},{.metadata.generation}", "", "sky.example.com/v2,2,1", false},
		{"label planet mars kind=small", "", "labeled", false},
		{"get planet mars -o jsonpath={.metadata.generation}", "", "1", false},
		{"patch planet mars --type merge -p", `{"moons": 3}`, "patched", false},
		{"get planet mars -o jsonpath={.metadata.generation},{.moons}", "", "2,3", false},
		{"patch planet mars --subresource status --type merge -p", `{"moons": 4}`,
			"could not find the requested resource", true},
		{"get planets --field-selector metadata.name=venus", "", "No resources found", false},
	} {
		args := strings.Fields(step.args)
		if args[len(args)-1] == "-p" {
			args = append(args, step.stdin)
		}
		out, err := kubectl.Run(t, kubeconfig, step.stdin, args...)
		if (err != nil) != step.fails || !strings.Contains(out, step.want) {
			t.Errorf("step %d: kubectl %s: %v\n%s", i, step.args, err, out)
		}
	}
}

type bare struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

func (b *bare) DeepCopyObject() runtime.Object { return kinds.DeepCopy(b) }

// embedding has its metadata in another struct, and statusElsewhere its status.
type (
	metadata struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata,omitempty"`
	}
	embedding       struct{ metadata }
	statusElsewhere struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata,omitempty"`

		State string `json:"status"`
	}
)

func (e *embedding) DeepCopyObject() runtime.Object       { return kinds.DeepCopy(e) }
func (s *statusElsewhere) DeepCopyObject() runtime.Object { return kinds.DeepCopy(s) }

func TestBadInput(t *testing.T) {
	group := func(change func(*kinds.Group)) kinds.Group {
		g := kinds.Group{Name: "example.com", Versions: []string{"v1"},
			Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Planet]{})}}
		if change != nil {
			change(&g)
		}
		return g
	}
	kind := func(k kinds.Kind[Planet]) func(*kinds.Group) {
		return func(g *kinds.Group) { g.Kinds = []kinds.Definition{kinds.Define(k)} }
	}
	cell := func(p *Planet) any { return p.Moons }
	column := func(name, typ string, value func(*Planet) any) kinds.Kind[Planet] {
		return kinds.Kind[Planet]{Columns: []kinds.Column[Planet]{{Name: name, Type: typ,
			Value: value}}}
	}
	subresource := func(name string,
		of func(*genericregistry.Store) registryrest.Storage) kinds.Kind[Planet] {
		return kinds.Kind[Planet]{Subresources: map[string]func(*genericregistry.Store) registryrest.Storage{name: of}}
	}
	nothing := func(*genericregistry.Store) registryrest.Storage { return nil }
	same := kinds.Converted[Planet, Bookmark]("v1", func(*Bookmark, *Planet) error { return nil },
		func(*Planet, *Bookmark) error { return nil })
	for name, tc := range map[string]struct {
		groups []kinds.Group
		want   string
	}{
		"no group": {nil, "needs a group"},
		"no name": {[]kinds.Group{group(func(g *kinds.Group) { g.Name = "" })},
			"a group has no name"},
		"a bad name": {[]kinds.Group{group(func(g *kinds.Group) { g.Name = "Example" })},
			`cannot be named "Example"`},
		"a group twice": {[]kinds.Group{group(nil), group(nil)},
			"example.com is there twice"},
		"no version": {[]kinds.Group{group(func(g *kinds.Group) { g.Versions = nil })},
			"has no versions"},
		"a bad version": {[]kinds.Group{group(func(g *kinds.Group) { g.Versions = []string{"v1/"} })}, `cannot have a version "v1/"`},
		"a version twice": {[]kinds.Group{group(func(g *kinds.Group) {
			g.Versions = []string{"v1",
				"v1"}
		})}, "the version v1 twice"},
		"no kind": {[]kinds.Group{group(func(g *kinds.Group) { g.Kinds = nil })},
			"has no kinds"},
		"an empty definition":     {[]kinds.Group{group(func(g *kinds.Group) { g.Kinds = make([]kinds.Definition, 1) })}, "Define has not made"},
		"a kind twice":            {[]kinds.Group{group(func(g *kinds.Group) { g.Kinds = append(g.Kinds, kinds.Define(kinds.Kind[Planet]{Resource: "others"})) })}, "two kinds Planet"},
		"a resource twice":        {[]kinds.Group{group(func(g *kinds.Group) { g.Kinds = append(g.Kinds, kinds.Define(kinds.Kind[Planet]{Name: "PLANET"})) })}, "both the resource planets"},
		"metadata elsewhere":      {[]kinds.Group{group(func(g *kinds.Group) { g.Kinds = []kinds.Definition{kinds.Define(kinds.Kind[bare]{})} })}, "has to embed metav1.ObjectMeta"},
		"metadata in a part":      {[]kinds.Group{group(func(g *kinds.Group) { g.Kinds = []kinds.Definition{kinds.Define(kinds.Kind[embedding]{})} })}, "has to embed metav1.ObjectMeta itself"},
		"status elsewhere":        {[]kinds.Group{group(func(g *kinds.Group) { g.Kinds = []kinds.Definition{kinds.Define(kinds.Kind[statusElsewhere]{})} })}, "its field State has to be named Status"},
		"an unknown version":      {[]kinds.Group{group(kind(kinds.Kind[Planet]{Versions: []kinds.Version[Planet]{kinds.Converted[Planet, Bookmark]("v2", nil, nil)}}))}, "has the versions v2"},
		"only other types":        {[]kinds.Group{group(kind(kinds.Kind[Planet]{Versions: []kinds.Version[Planet]{same}}))}, "is converted in all versions"},
		"a conversion twice":      {[]kinds.Group{group(kind(kinds.Kind[Planet]{Versions: []kinds.Version[Planet]{same, same}}))}, "has the version v1 twice"},
		"a bad kind":              {[]kinds.Group{group(kind(kinds.Kind[Planet]{Name: "My Planet"}))}, `cannot be named "My Planet", give another Kind.Name`},
		"a kind of the machinery": {[]kinds.Group{group(kind(kinds.Kind[Planet]{Name: "WatchEvent"}))}, "needs the kind WatchEvent, which is there already"},
		"a list's kind": {[]kinds.Group{group(func(g *kinds.Group) {
			g.Kinds = append(g.Kinds, kinds.Define(kinds.Kind[Holder[int]]{Name: "PlanetList"}))
		})}, "needs the kind PlanetList, which is there already"},
		"a type twice": {[]kinds.Group{group(func(g *kinds.Group) {
			g.Kinds = append(g.Kinds,
				kinds.Define(kinds.Kind[Planet]{Name: "Moon"}))
		})},
			"the kind Moon of group example.com has the same type kinds_test.Planet as the kind " +
				"Planet of group example.com"},
		"a type in two groups": {[]kinds.Group{group(nil),
			group(func(g *kinds.Group) { g.Name = "other.example.com" })}, "the kind Planet of " +
			"group other.example.com has the same type kinds_test.Planet as"},
		"a bad resource":   {[]kinds.Group{group(kind(kinds.Kind[Planet]{Resource: "planets/status"}))}, `the kind Planet of group example.com cannot be the resource "planets/status": `},
		"a bad short name": {[]kinds.Group{group(kind(kinds.Kind[Planet]{ShortNames: []string{""}}))}, `cannot have the short name "": `},
		"a bad category":   {[]kinds.Group{group(kind(kinds.Kind[Planet]{Categories: []string{"A"}}))}, `cannot have the category "A": `},
		"a category twice": {[]kinds.Group{group(kind(kinds.Kind[Planet]{Categories: []string{"a",
			"a"}}))}, "has the category a twice"},
		"a needless name": {[]kinds.Group{group(kind(kinds.Kind[Planet]{ShortNames: []string{"planets"}}))}, "has the short name planets, which is its resource"},
		"two of one name": {[]kinds.Group{group(func(g *kinds.Group) {
			g.Kinds = append(g.Kinds,
				kinds.Define(kinds.Kind[Holder[int]]{Name: "Moon", ShortNames: []string{"planet"}}))
		})},
			"the resources of the kinds Planet and Moon of group example.com can both be called planet"},
		"a nameless column": {[]kinds.Group{group(kind(column("", "", cell)))},
			"has a column without a name"},
		"an empty column": {[]kinds.Group{group(kind(column("Moons", "", nil)))},
			"has the column Moons without a function for its cells"},
		"a bad column type": {[]kinds.Group{group(kind(column("Moons", "int", cell)))},
			`has the column Moons of type "int"`},
		"the age again": {[]kinds.Group{group(kind(column("AGE", "", cell)))},
			"has the column AGE by itself: leave it out"},
		"a column twice":       {[]kinds.Group{group(kind(kinds.Kind[Planet]{Columns: []kinds.Column[Planet]{{Name: "A", Value: cell}, {Name: "a", Value: cell}}}))}, "has the column a twice"},
		"a bad field":          {[]kinds.Group{group(kind(kinds.Kind[Planet]{Fields: map[string]func(*Planet) string{"moons=1": nil}}))}, `cannot be selected by "moons=1"`},
		"a field without code": {[]kinds.Group{group(kind(kinds.Kind[Planet]{Fields: map[string]func(*Planet) string{"moons": nil}}))}, "has no function for the field moons"},
		"an index of no field": {[]kinds.Group{group(kind(kinds.Kind[Planet]{Indexes: []string{"label:a", "field:moons"}}))}, "cannot have the index field:moons: give Kind.Fields a function for it"},
		"the name as field":    {[]kinds.Group{group(kind(kinds.Kind[Planet]{Fields: map[string]func(*Planet) string{"metadata.name": nil}}))}, "needs no function for metadata.name"},
		"a bad subresource":    {[]kinds.Group{group(kind(subresource("a/b", nothing)))}, `cannot have the subresource "a/b": `},
		"the status again":     {[]kinds.Group{group(kind(subresource("status", nothing)))}, "cannot have a subresource status of its own: give its type a field Status"},
		"no subresource":       {[]kinds.Group{group(kind(subresource("orbit", nil)))}, "has no function for the subresource orbit"},
		"no conversion":        {[]kinds.Group{group(kind(kinds.Kind[Planet]{Versions: make([]kinds.Version[Planet], 1)}))}, "has a Version that Converted has not made"},
		"converted from itself": {[]kinds.Group{group(func(g *kinds.Group) {
			g.Versions = []string{"v1", "v2"}
			nothing := func(*Planet, *Planet) error { return nil }
			kind(kinds.Kind[Planet]{Versions: []kinds.Version[Planet]{kinds.Converted("v2", nothing,
				nothing)}})(g)
		})}, "has in version v2 the same type kinds_test.Planet as the kind Planet of group " +
			"example.com"},
		"one type for two versions": {[]kinds.Group{group(func(g *kinds.Group) {
			g.Versions = []string{"v2", "v1", "v3"}
			again := kinds.Converted("v3", func(*Bookmark, *Planet) error { return nil },
				func(*Planet, *Bookmark) error { return nil })
			kind(kinds.Kind[Planet]{Versions: []kinds.Version[Planet]{same, again}})(g)
		})}, "has in version v3 the same type kinds_test.Bookmark as the kind Planet of group " +
			"example.com in version v1"},
		"no way back": {[]kinds.Group{group(func(g *kinds.Group) {
			g.Versions = []string{"v1", "v2"}
			kind(kinds.Kind[Planet]{Versions: []kinds.Version[Planet]{kinds.Converted("v2",
				func(*Bookmark, *Planet) error { return nil }, nil)}})(g)
		})}, "needs functions to convert"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := kinds.New(tc.groups...); err == nil ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want one with %q", err, tc.want)
			}
		})
	}
	api, err := kinds.New(group(nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.New(api.NewConfig()); err == nil ||
		!strings.Contains(err.Error(), "has no storage") {
		t.Errorf("without storage: %v", err)
	}
}

func TestDeepCopy(t *testing.T) {
	type part struct {
		Pointer  *int
		Map      map[string][]int
		Array    [2][]int
		Time     metav1.Time
		Quantity resource.Quantity
		Raw      *runtime.RawExtension
		Struct   struct{ Slice []string }
		Nil      *part2
	}
	one := 1
	obj := &part{
		Pointer: &one, Map: map[string][]int{"a": {1}}, Array: [2][]int{{1}, {2}},
		Time: metav1.Now(), Quantity: resource.MustParse("1.5Gi"),
		Raw: &runtime.RawExtension{Raw: []byte("{}")},
	}
	obj.Struct.Slice = []string{"x"}
	c := kinds.DeepCopy(obj)
	if !reflect.DeepEqual(c, obj) {
		t.Fatalf("%+v is not a copy of %+v", c, obj)
	}
	*c.Pointer = 2
	c.Map["a"][0] = 2
	c.Map["b"] = nil
	c.Array[0][0] = 2
	c.Quantity.Add(resource.MustParse("1"))
	c.Raw.Raw[0] = 'x'
	c.Struct.Slice[0] = "y"
	if one != 1 || obj.Map["a"][0] != 1 || len(obj.Map) != 1 || obj.Array[0][0] != 1 ||
		obj.Quantity.String() != "1536Mi" || obj.Raw.Raw[0] != '{' || obj.Struct.Slice[0] != "x" {
		t.Errorf("a change of the copy has changed the original: %+v", obj)
	}
	if kinds.DeepCopy[part](nil) != nil {
		t.Error("a copy of nothing is something")
	}
	list := &kinds.List[Bookmark]{Items: []Bookmark{{Spec: BookmarkSpec{Tags: []Tag{{Name: "a"}}}}}}
	list.DeepCopyObject().(*kinds.List[Bookmark]).Items[0].Spec.Tags[0].Name = "b"
	if list.Items[0].Spec.Tags[0].Name != "a" {
		t.Error("a change of the copied list has changed the original")
	}
}

type part2 struct{ Next *part2 }
