package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/server/commands"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/kubectl"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// Bookmark remembers a page.
type Bookmark struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BookmarkSpec `json:"spec"`
}

// BookmarkSpec is what the owner of a bookmark wants.
type BookmarkSpec struct {
	URL  string `json:"url" description:"Where the bookmark leads."`
	Tags []Tag  `json:"tags,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
}

// Tag is a word.
type Tag struct {
	Name string `json:"name"`
}

func (b *Bookmark) DeepCopyObject() runtime.Object { return kinds.DeepCopy(b) }

// BookmarkV3 is how bookmarks looked at first.
type BookmarkV3 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Address string `json:"address" description:"Where the bookmark leads."`
	Tags    []Tag  `json:"tags,omitempty"`
}

func (b *BookmarkV3) DeepCopyObject() runtime.Object { return kinds.DeepCopy(b) }

// bookmarks is the group of kinds that is served beside definitions.
func bookmarks() *kinds.API {
	api, err := kinds.New(kinds.Group{Name: "example.com", Versions: []string{"v1", "v2", "v3"},
		Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Bookmark]{
			ShortNames: []string{"bm"},
			Versions: []kinds.Version[Bookmark]{kinds.Converted("v3",
				func(in *BookmarkV3, out *Bookmark) error {
					out.Spec = BookmarkSpec{URL: in.Address, Tags: in.Tags}
					return nil
				},
				func(in *Bookmark, out *BookmarkV3) error {
					out.Address, out.Tags = in.Spec.URL, in.Spec.Tags
					return nil
				},
			)},
		})}})
	if err != nil {
		panic(err) // nothing is wrong with the group
	}
	api.Definitions = crds.Prepare
	return api
}

func start(t *testing.T) *testkit.Server {
	t.Helper()
	api := bookmarks()
	return testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{Database: testkit.Memory,
		Definitions: crds.Prepare})
}

// TestBesideDefinitions serves the group and CustomResourceDefinitions in one server: clients can
// merge, explain and apply objects of both.
func TestBesideDefinitions(t *testing.T) {
	s := start(t)
	kubeconfig := s.Kubeconfig(s.Config)
	for i, step := range []struct{ args, stdin, want string }{
		{"apply --server-side -f -",
			`{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "shelves.shop.example.com"}, "spec": {
			"group": "shop.example.com", "scope": "Namespaced", "names": {"plural": "shelves", "singular": "shelf", "kind": "Shelf"}, "versions": [{
				"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
					"properties": {"boards": {"type": "integer", "description": "How many boards it has."}}}}}}}]}}`, "serverside-applied"},
		{"wait --for condition=Established crd/shelves.shop.example.com", "", "condition met"},
		{"apply --server-side -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"}, "spec": {"url": "https://go.dev", "tags": [{"name": "a"}]}}`, "serverside-applied"},
		{"apply --server-side --field-manager other -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"}, "spec": {"tags": [{"name": "b"}]}}`, "serverside-applied"},
		{"get bm go -o jsonpath={.spec.tags[*].name}", "", "a b"},
		{"apply -f -",
			`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "two"}, "spec": {"url": "https://go.dev"}}`, "created"},
		{"explain bookmarks.spec.url", "", "Where the bookmark leads."},
		{"explain bookmarks --api-version example.com/v3", "", "address <string> -required-"},
		{"apply --server-side -f -",
			`{"apiVersion": "shop.example.com/v1", "kind": "Shelf", "metadata": {"name": "one"}, "spec": {"boards": 3}}`, "serverside-applied"},
		{"apply --server-side -f -",
			`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {"a": "b"}}}`, "serverside-applied"},
		{"explain namespaces.spec", "", "KIND: Namespace"},
	} {
		if out, err := kubectl.Run(t, kubeconfig, step.stdin,
			strings.Fields(step.args)...); err != nil || !strings.Contains(out, step.want) {
			t.Errorf("step %d: kubectl %s: %v\n%s", i, step.args, err, out)
		}
	}
	for path, want := range map[string]string{
		"/openapi/v3/apis/example.com/v1":          "Bookmark",
		"/openapi/v3/apis/example.com/v3":          "Bookmark",
		"/openapi/v3/apis/shop.example.com/v1":     "Shelf",
		"/openapi/v3/api/v1":                       "Namespace",
		"/openapi/v3/apis/apiextensions.k8s.io/v1": "CustomResourceDefinition",
	} {
		version := strings.TrimPrefix(strings.TrimPrefix(path, "/openapi/v3/apis/"),
			"/openapi/v3/api/")
		gv, err := schema.ParseGroupVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		// The documents of definitions are made in the background.
		var last string
		err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
			func(ctx context.Context) (bool, error) {
				content, err := kubernetes.NewForConfigOrDie(s.Config).RESTClient().Get().AbsPath(path).DoRaw(ctx)
				if err != nil {
					last = err.Error()
					return false, nil
				}
				last = string(content)
				return describes(content, gv.WithKind(want)), nil
			})
		if err != nil {
			t.Errorf("%s does not say which schema is that of %s: %v\n%.300s", path,
				want, err, last)
		}
	}
}

// describes tells whether a schema of a document says that it is the kind's.
func describes(document []byte, kind schema.GroupVersionKind) bool {
	var d struct {
		Components struct {
			Schemas map[string]struct {
				Kinds []metav1.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if json.Unmarshal(document, &d) != nil {
		return false
	}
	for _, s := range d.Components.Schemas {
		if slices.Contains(s.Kinds, metav1.GroupVersionKind(kind)) {
			return true
		}
	}
	return false
}

// TestPreferredVersion is the one that the group names first, whatever the versions are called.
func TestPreferredVersion(t *testing.T) {
	client := discovery.NewDiscoveryClientForConfigOrDie(start(t).Config)
	preferred(t, client)
	preferred(t, client.WithLegacy())
}

// preferred wants v1 to be the preferred version, and the others to follow it.
func preferred(t *testing.T, client discovery.DiscoveryInterface) {
	t.Helper()
	groups, err := client.ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool {
		return g.Name == "example.com"
	})
	if i < 0 {
		t.Fatalf("the group is not served: %v", groups)
	}
	var versions []string
	for _, v := range groups.Groups[i].Versions {
		versions = append(versions, v.Version)
	}
	if is := groups.Groups[i].PreferredVersion.Version; is != "v1" ||
		strings.Join(versions, " ") != "v1 v2 v3" {
		t.Errorf("%T prefers %s of %v", client, is, versions)
	}
}

// runsMain makes this test program one that serves bookmarks, and definitions if it is told to.
const runsMain = "CRDS_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runsMain) == "" {
		os.Exit(m.Run())
	}
	os.Exit(commands.Run(genericapiserver.SetupSignalContext(),
		bookmarks().Command("bookmarks", sqlite.Driver), os.Args[1:], os.Stdout, os.Stderr))
}

// command is the program with arguments, in a directory.
func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), runsMain+"=1")
	return cmd
}

// TestCommands takes the program's objects, and those of a definition, into another database, by
// its own commands.
func TestCommands(t *testing.T) {
	dir := t.TempDir()
	first := []string{"--database", "sqlite://" + filepath.Join(dir, "first.db")}
	second := []string{"--database", "sqlite://" + filepath.Join(dir, "second.db")}
	// serve returns the kubeconfig, and what an operator does to stop the program.
	serve := func(database []string) (stop func(), kubeconfig string) {
		t.Helper()
		p := command(t, dir, append([]string{"serve", "--secure-port", "0", "--enable-crds"},
			database...)...)
		out, err := p.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for kubeconfig == "" && lines.Scan() {
			_, kubeconfig, _ = strings.Cut(lines.Text(), "The kubeconfig is ")
		}
		return func() {
			t.Helper()
			if err := p.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, out); err != nil {
				t.Error(err)
			}
			if err := p.Wait(); err != nil {
				t.Errorf("the program ended with %v", err)
			}
		}, kubeconfig
	}
	do := func(args, database []string, want string) {
		t.Helper()
		if out, err := command(t, dir, append(args, database...)...).CombinedOutput(); err != nil ||
			!strings.Contains(string(out), want) {
			t.Errorf("bookmarks %s: %v\n%s\nwant %q", args, err, out, want)
		}
	}
	stop, kubeconfig := serve(first)
	for _, do := range []struct{ stdin, args string }{
		{shelves, "create -f -"},
		{"", "wait --for=condition=Established --timeout=60s crd/shelves.example.org"},
		{`{"apiVersion": "example.org/v1", "kind": "Shelf", "metadata": {"name": "top"}}`,
			"create -n default -f -"},
		{`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"}, ` +
			`"spec": {"url": "https://go.dev"}}`, "create -n default -f -"},
	} {
		if out, err := kubectl.Run(t, kubeconfig, do.stdin, strings.Fields(do.args)...); err != nil {
			t.Fatalf("kubectl %s: %v\n%s", do.args, err, out)
		}
	}
	do([]string{"backup", "all.backup"}, first, "backed up ")
	stop()
	do([]string{"restore", "all.backup"}, second, "restored ")
	stop, kubeconfig = serve(second)
	defer stop()
	for args, want := range map[string]string{
		"get bm go -n default":       "NAME AGE\ngo ",
		"get shelves top -n default": "NAME AGE\ntop ",
		"get namespaces default":     "NAME STATUS AGE\ndefault Active ",
		"explain bookmark.spec.url":  "string",
		"api-resources -o name":      "bookmarks.example.com",
	} {
		if out, err := kubectl.Run(t, kubeconfig, "", strings.Fields(args)...); err != nil ||
			!strings.Contains(out, want) {
			t.Errorf("kubectl %s: %v\n%s", args, err, out)
		}
	}
	do([]string{"migrate", "objects", "--kubeconfig", kubeconfig}, nil,
		"bookmarks.example.com: 0 of 1 objects rewritten")
}

// shelves is a definition.
const shelves = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: shelves.example.org
spec:
  group: example.org
  names: {kind: Shelf, plural: shelves}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
