package commands

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1alpha1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/pipeline"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/crds"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// storeAsAnOlderServer stores pipelines as a server did whose newest version was v1alpha1.
func storeAsAnOlderServer(t *testing.T, url, prefix string, pipelines ...*ci.Pipeline) {
	t.Helper()
	store, err := storage.Open(t.Context(),
		storage.Config{URL: url, Drivers: []storage.Driver{sqlite.Driver}, Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	getter, err := storage.NewRESTOptionsGetter(store, storage.RESTOptions{
		Codec: apiserver.Codecs.LegacyCodec(v1alpha1.SchemeGroupVersion), Prefix: prefix,
		DisableWatchCache: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pipeline.NewStorage(apiserver.Scheme, getter)
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Pipeline.Destroy()
	for _, p := range pipelines {
		key, err := stored.Pipeline.KeyFunc(genericapirequest.WithNamespace(t.Context(),
			p.Namespace), p.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := stored.Pipeline.Storage.Create(t.Context(), key, p, &ci.Pipeline{}, 0,
			false); err != nil {
			t.Fatal(err)
		}
	}
}

// Objects are rewritten as they are, whatever admission would make of them, and refused ones do not
// keep the others from it.
func TestObjectsAreRewrittenAsTheyAre(t *testing.T) {
	const prefix = "/migrate"
	// The images are what the policy does not allow: the one would be changed, the other be
	// refused.
	old := func(name, image string, steps ...ci.Step) *ci.Pipeline {
		return &ci.Pipeline{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name),
				Generation: 1, Labels: map[string]string{"a": "b"}},
			Spec:   ci.PipelineSpec{Image: image, Steps: steps, MaxParallelRuns: 1},
			Status: ci.PipelineStatus{Phase: ci.PipelineReady},
		}
	}
	step := ci.Step{Name: "structured", Command: []string{"go", "test"},
		Env: []ci.EnvVar{{Name: "A", Value: "b"}}}
	database := testkit.Database{URL: "sqlite://" +
		filepath.ToSlash(filepath.Join(t.TempDir(), "state.db")), Driver: sqlite.Driver}
	storeAsAnOlderServer(t, database.URL, prefix,
		old("a-mirrored", "old.example.com/tool:1", step),
		old("b-invalid", "golang:1.26"), // a pipeline has at least one step
		old("c-banned", "old.example.com/banned/tool:1", step))
	s := exampletest.Start(t, testkit.Options{Database: database, Prefix: prefix})
	client := versioned.NewForConfigOrDie(s.Config).CiV1()
	_, err := client.PipelinePolicies().Create(t.Context(), &civ1.PipelinePolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "house-rules"},
		Spec: civ1.PipelinePolicySpec{
			BannedImages: []string{"new.example.com/banned/*"},
			Mirrors: []civ1.ImageMirror{{Prefix: "old.example.com/",
				Replacement: "new.example.com/"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The policy is in force when it changes a new pipeline.
	probe := &civ1.Pipeline{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: civ1.PipelineSpec{
		Image: "old.example.com/x:1", Steps: []civ1.Step{{Name: "a", Command: []string{"make"}}},
	}}
	if err := wait.PollUntilContextCancel(t.Context(), 1, true,
		func(ctx context.Context) (bool, error) {
			p, err := client.Pipelines("default").Create(ctx, probe,
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err == nil && p.Spec.Image == "new.example.com/x:1", err
		}); err != nil {
		t.Fatal(err)
	}
	get := func(name string) *civ1.Pipeline {
		t.Helper()
		p, err := client.Pipelines("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	migrate := func(wantOut, wantRefused, wantError string) {
		t.Helper()
		var out, refused bytes.Buffer
		err := (&migrateObjects{chunk: 1, groups: []string{ci.GroupName}, patience: time.Minute}).run(t.Context(),
			s.Config, &out, &refused)
		if err == nil || !strings.HasPrefix(err.Error(), wantError) {
			t.Errorf("the error is %v, want %q", err, wantError)
		}
		if !strings.Contains(out.String(), wantOut) || !strings.HasPrefix(refused.String(),
			wantRefused) || strings.Count(refused.String(), "\n") != 1 {
			t.Errorf("the report is\n%s%s\nwant %q and %q", &refused, &out, wantRefused, wantOut)
		}
	}
	const invalid = "pipelines.ci.rowkeeper.dev default/b-invalid was not rewritten: "
	before := map[string]*civ1.Pipeline{"a-mirrored": get("a-mirrored"),
		"b-invalid": get("b-invalid"), "c-banned": get("c-banned")}
	migrate("pipelines.ci.rowkeeper.dev: 2 of 3 objects rewritten, 1 refused\n", invalid,
		"1 objects were not rewritten")
	for name, was := range before {
		is := get(name)
		if rewritten := is.ResourceVersion != was.ResourceVersion; rewritten != (name != "b-invalid") {
			t.Errorf("%s: rewritten is %v", name, rewritten)
		}
		is.ResourceVersion = was.ResourceVersion
		if !equality.Semantic.DeepEqual(is, was) {
			t.Errorf("%s was changed:\n%s", name, diff.Diff(was, is))
		}
	}
	migrate("pipelines.ci.rowkeeper.dev: 0 of 3 objects rewritten, 1 refused\n", invalid,
		"1 objects were not rewritten")

	// Other patches are admitted as ever, whatever they say.
	for _, patch := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType} {
		p, err := client.Pipelines("default").Patch(t.Context(), "a-mirrored", patch, []byte("{}"),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || p.Spec.Image != "new.example.com/tool:1" {
			t.Errorf("%s: %v, %v", patch, p, err)
		}
	}
	if _, err := client.Pipelines("default").Patch(t.Context(), "a-mirrored",
		"application/vnd.rowkeeper.other", nil,
		metav1.PatchOptions{}); !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("another type of patch: %v", err)
	}
}

// Nothing that a server makes by itself is refused, whatever kind it is of, and however it is
// encoded.
func TestEveryKindIsRewrittenAsItIs(t *testing.T) {
	for name, binary := range map[string]bool{"JSON": false, "CBOR": true} {
		t.Run(name, func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
				features.CBORServingAndStorage, binary)
			testEveryKindIsRewrittenAsItIs(t)
		})
	}
}

func testEveryKindIsRewrittenAsItIs(t *testing.T) {
	s := exampletest.Start(t, testkit.Options{Extension: crds.Extension})
	client := dynamic.NewForConfigOrDie(s.Config)
	create := func(resource schema.GroupVersionResource, namespace, object string) {
		t.Helper()
		path := []string{"apis", resource.Group, resource.Version}
		if resource.Group == "" {
			path = []string{"api", resource.Version}
		}
		if namespace != "" {
			path = append(path, "namespaces", namespace)
		}
		// The object goes as it is: the dynamic client writes 1 for 1.0.
		err := kubernetes.NewForConfigOrDie(s.Config).RESTClient().Post().AbsPath(append(path,
			resource.Resource)...).
			SetHeader("Content-Type",
				"application/json").Body([]byte(object)).Do(t.Context()).Error()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"Secret", "ConfigMap", "ServiceAccount"} {
		create(schema.GroupVersionResource{Version: "v1", Resource: strings.ToLower(kind) + "s"},
			"default", `{"apiVersion":"v1","kind":"`+kind+
				`","metadata":{"name":"a","annotations":{"a":"b"}}}`)
	}
	definitions := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	create(definitions, "",
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"xs.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"xs","kind":"X"},"versions":[
			{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
				"properties":{"float":{"type":"number"},"old":{"type":"string"},"added":{"type":"integer"}}}}}}},
			{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
				"properties":{"float":{"type":"number"},"added":{"type":"integer"}}}}}}}]}}`)
	xs := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "xs"}
	eventually := func(what string, condition func() bool) {
		t.Helper()
		if err := wait.PollUntilContextCancel(t.Context(), time.Millisecond, true,
			func(context.Context) (bool, error) {
				return condition(), nil
			}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	eventually("the definition is served", func() bool {
		_, err := client.Resource(xs).Namespace("default").List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	create(xs, "default",
		`{"apiVersion":"example.com/v1","kind":"X","metadata":{"name":"a"},"spec":{"float":1.0,"old":"kept"}}`)

	patience := time.Minute
	migrate := func() (report, refused string, err error) {
		var out, named bytes.Buffer
		err = (&migrateObjects{chunk: 100, patience: patience}).run(t.Context(), s.Config, &out, &named)
		return out.String(), named.String(), err
	}
	want := func(objects map[string]string) {
		t.Helper()
		report, refused, err := migrate()
		if err != nil {
			t.Errorf("%v: %s", err, refused)
		}
		for resource, rewritten := range objects {
			if !strings.Contains(report, resource+": "+rewritten+" objects rewritten\n") {
				t.Errorf("not %s of the %s: %s", rewritten, resource, report)
			}
		}
	}
	// storedAs returns the version in which discovery says that objects of this version are stored.
	storedAs := func(version string) string {
		client := discovery.NewDiscoveryClientForConfigOrDie(s.Config)
		list, err := client.ServerResourcesForGroupVersion("example.com/" + version)
		if err != nil || len(list.APIResources) == 0 {
			return ""
		}
		return list.APIResources[0].StorageVersionHash
	}
	want(map[string]string{
		"secrets": "0 of 1", "configmaps": "0 of 1", "serviceaccounts": "0 of 1",
		"xs.example.com": "0 of 1",
		"customresourcedefinitions.apiextensions.k8s.io": "0 of 1",
	})

	// A new default is written. Nothing else is changed, although the preferred version has less.
	change := func(patch string) {
		t.Helper()
		if _, err := client.Resource(definitions).Patch(t.Context(), "xs.example.com",
			types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	get := func() *unstructured.Unstructured {
		t.Helper()
		x, err := client.Resource(xs).Namespace("default").Get(t.Context(), "a",
			metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	change(`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/added/default","value":7}]`)
	eventually("the default is known", func() bool {
		_, found, _ := unstructured.NestedInt64(get().Object, "spec", "added")
		return found
	})
	before := get()
	want(map[string]string{"xs.example.com": "1 of 1"})
	after := get()
	after.SetResourceVersion(before.GetResourceVersion())
	if !equality.Semantic.DeepEqual(after, before) {
		t.Errorf("the object was changed:\n%s", diff.Diff(before, after))
	}
	want(map[string]string{"xs.example.com": "0 of 1"})

	// Without the version in which it is stored, the object cannot be read as it is.
	change(`[{"op":"replace","path":"/spec/versions/0/served","value":false}]`)
	eventually("the version is not served", func() bool { return storedAs("v1") == "" })
	const unserved = "the server does not serve xs.example.com in the version in which it stores them"
	if report, refused, err := migrate(); err == nil || !strings.HasPrefix(err.Error(), unserved) ||
		report != "" || refused != "" {
		t.Errorf("%v after %s%s, want %q", err, report, refused, unserved)
	}

	// Nor can it without any version. It is not left out.
	change(`[{"op":"replace","path":"/spec/versions/1/served","value":false}]`)
	patience = time.Millisecond
	const nothing = "the server has a definition of xs.example.com and does not serve them"
	eventually("no version is served", func() bool {
		_, _, err := migrate()
		return err != nil && strings.HasPrefix(err.Error(), nothing)
	})
}

// A server that cannot rewrite an object as it is, is asked once, and changes nothing.
func TestServerThatCannotRewrite(t *testing.T) {
	patches := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers := map[string]string{
			"/readyz":              "ok",
			"/api":                 `{"kind":"APIVersions","versions":[]}`,
			"/apis":                `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"}]}]}`,
			"/apis/example.com/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1","resources":[{"name":"xs","kind":"X","verbs":["list","patch"]}]}`,
			"/apis/example.com/v1/xs": `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"2"},"items":[` +
				`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}},{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"b"}}]}`,
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPatch {
			patches++
			if body, err := io.ReadAll(r.Body); err != nil || len(body) > 0 ||
				r.Header.Get("Content-Type") != "application/vnd.rowkeeper.rewrite" {
				t.Errorf("a patch of %s: %q, %v", r.Header.Get("Content-Type"), body, err)
			}
			w.WriteHeader(http.StatusUnsupportedMediaType)
			return
		}
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	var out, refused bytes.Buffer
	err := (&migrateObjects{chunk: 1, patience: time.Minute}).run(t.Context(), &rest.Config{Host: server.URL},
		&out, &refused)
	const want = "the server cannot write xs.example.com as they are, without admission: update " +
		"the server"
	if err == nil || !strings.HasPrefix(err.Error(), want) || patches != 1 || refused.Len() > 0 {
		t.Errorf("after %d patches: %v%s, want %q", patches, err, &refused, want)
	}
}
