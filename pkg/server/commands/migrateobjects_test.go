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

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1alpha1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/pipeline"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
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

// A server that has a definition and does not serve its objects leaves them as they are. That is an
// error, which names the definition.
func TestDefinitionThatIsNotServed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := map[string]string{
			"/readyz": "ok",
			"/api":    `{"kind":"APIVersions","versions":[]}`,
			"/apis":   `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
			"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"2"},"items":[` +
				`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"xs.example.com"}}]}`,
		}[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	var out, refused bytes.Buffer
	err := (&migrateObjects{chunk: 1, patience: time.Millisecond}).run(t.Context(),
		&rest.Config{Host: server.URL}, &out, &refused)
	const want = "the server has a definition of xs.example.com and does not serve them"
	if err == nil || !strings.HasPrefix(err.Error(), want) || out.Len() > 0 || refused.Len() > 0 {
		t.Errorf("%v after %s%s, want %q", err, &out, &refused, want)
	}
}
