package tests

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
	civ1alpha1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1alpha1"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/pipeline"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

// place returns where a server stores its objects: the URL of the database and the prefix of the
// keys.
func place(s *server) (url, prefix string) {
	prefix = storage.DefaultPrefix
	for _, arg := range append(sameDatabase(s), s.cmd.Args...) {
		if u, ok := strings.CutPrefix(arg, "--database="); ok {
			url = u
		}
		if p, ok := strings.CutPrefix(arg, "--storage-prefix="); ok {
			prefix = p
		}
	}
	return url, prefix
}

// writeAsAnOlderServer stores pipelines as a server did whose newest version was v1alpha1.
func writeAsAnOlderServer(t *testing.T, url, prefix string, pipelines ...*ci.Pipeline) {
	t.Helper()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	store, err := storage.Open(t.Context(), storage.Config{URL: url, Drivers: drivers.All(),
		Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	getter, err := storage.NewRESTOptionsGetter(store, storage.RESTOptions{
		Codec:  serializer.NewCodecFactory(scheme).LegacyCodec(civ1alpha1.SchemeGroupVersion),
		Prefix: prefix,
	})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pipeline.NewStorage(scheme, getter)
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Pipeline.Destroy()
	for _, p := range pipelines {
		ctx := genericapirequest.WithNamespace(context.Background(), p.Namespace)
		if _, err := stored.Pipeline.Create(ctx, p, rest.ValidateAllObjectFunc,
			&metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// storedVersions counts the objects by the version of the API that they are stored in.
func storedVersions(t *testing.T, url, prefix string) map[string]int {
	t.Helper()
	live, _ := storedValues(t, url, prefix)
	versions := map[string]int{}
	for _, value := range live {
		switch {
		case bytes.Contains(value, []byte(`"apiVersion":"ci.rowkeeper.dev/v1alpha1"`)):
			versions["v1alpha1"]++
		case bytes.Contains(value, []byte(`"apiVersion":"ci.rowkeeper.dev/v1"`)):
			versions["v1"]++
		default:
			versions[string(value)]++
		}
	}
	return versions
}

// A database that an older server has written in v1alpha1 is served, and rewritten in v1 while it
// is.
func TestMigrateObjects(t *testing.T) { eachDatabase(t, testMigrateObjects) }

func testMigrateObjects(t *testing.T, start func(string, ...string) *server) {
	dir := t.TempDir()
	s := start(dir) // and end it: it says where the database is
	url, prefix := place(s)
	if code := s.signal(t, syscall.SIGTERM); code != 0 {
		t.Fatalf("the server exits with %d", code)
	}
	var old []*ci.Pipeline
	for i := range 25 {
		old = append(old, &ci.Pipeline{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%02d", i), Namespace: "default"},
			Spec: ci.PipelineSpec{
				Image: "golang:1.26",
				Steps: []ci.Step{{Name: "structured", Command: []string{"go", "test"},
					Env: []ci.EnvVar{{Name: "N", Value: fmt.Sprint(i)}}}},
				MaxParallelRuns: 1,
			},
		})
	}
	writeAsAnOlderServer(t, url, prefix, old...)
	if got := storedVersions(t, url, prefix); got["v1alpha1"] != 25 || len(got) != 1 {
		t.Fatalf("the older server has stored %v", got)
	}

	s = start(dir)
	if got := s.jsonpath(t, "p-07",
		".spec.steps[0]"); got != `{"command":["go","test"],"env":[{"name":"N","value":"7"}],"name":"structured"}` {
		t.Errorf("read as %s", got)
	}
	s.ok(t, manifest("new", "make"), "create", "-f", "-")
	s.ok(t, "", "label", "pl", "p-03", "touched=yes")
	if got := storedVersions(t, url, prefix); got["v1alpha1"] != 24 || got["v1"] != 2 {
		t.Errorf("stored are %v, want v1 where the new server has written", got)
	}
	watch := s.kubectlBackground(t, "get", "pl", "-w", "--output-watch-events", "--no-headers")
	watch.next(t, "ADDED", "p-24")

	migrate := func() string {
		t.Helper()
		r := run(t, dir, "", nil, rowkeeperProgram, "migrate", "objects", "--chunk-size=10")
		if r.code != 0 {
			t.Fatal(r.stderr)
		}
		return r.stdout
	}
	has(t, migrate(), "pipelines.ci.rowkeeper.dev: 24 of 26 objects rewritten\n",
		"pipelineruns.ci.rowkeeper.dev: 0 of 0 objects rewritten\n")
	if got := storedVersions(t, url, prefix); got["v1"] != 26 || len(got) != 1 {
		t.Errorf("stored are %v after the migration", got)
	}
	watch.next(t, "MODIFIED", "p-24")
	if got := s.jsonpath(t, "p-07", ".spec.steps[0].env[0].value") + s.jsonpath(t, "p-07",
		".metadata.generation"); got != "71" {
		t.Errorf("the content or the generation was changed: %s", got)
	}
	has(t, migrate(), "pipelines.ci.rowkeeper.dev: 0 of 26 objects rewritten\n")

	for args, want := range map[string]string{
		"--groups=nothing.example.com": `the server has no resources of the API group "nothing.example.com"`,
		"--kubeconfig=missing":         "there is no kubeconfig missing: ",
		"--chunk-size=0":               "--chunk-size be greater than 0",
	} {
		r := run(t, dir, "", nil, rowkeeperProgram, "migrate", "objects", args)
		if r.code == 0 || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %d %s", args, r.code, r.stderr)
		}
	}
}
