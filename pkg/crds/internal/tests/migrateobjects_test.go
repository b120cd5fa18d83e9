package tests

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

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
	s := exampletest.Start(t, testkit.Options{Definitions: crds.Prepare})
	kubeconfig := s.Kubeconfig(s.Config)
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

	migrate := func() (report, refused string, err error) {
		var out, named bytes.Buffer
		root := bookmarks().Command("bookmarks", sqlite.Driver)
		root.SetArgs([]string{"migrate", "objects", "--kubeconfig", kubeconfig})
		root.SetOut(&out)
		root.SetErr(&named)
		err = root.ExecuteContext(t.Context())
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
		"secrets": "0 of 1", "configmaps": "0 of 1", "serviceaccounts": "0 of 3",
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
}
