package crdstest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

func eventually(t testing.TB, what string, ok func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true,
		ok); err != nil {
		t.Fatalf("waited in vain: %s: %v", what, err)
	}
}

var gadgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}

// definition is one of gadgets.
func definition(group string) *apiextensionsv1.CustomResourceDefinition {
	preserve := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Kind: "Gadget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: &preserve,
				}},
			}},
		},
	}
}

// define installs the definition of gadgets.
func define(t testing.TB, s *testkit.Server, group string) {
	t.Helper()
	establish(t, s, definition(group))
}

// establish installs a definition and waits until it is established.
func establish(t testing.TB, s *testkit.Server, d *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	client := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions()
	d, err := client.Create(t.Context(), d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the definition is established", func(ctx context.Context) (bool, error) {
		d, err = client.Get(ctx, d.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range d.Status.Conditions {
			if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
}

func gadget(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1",
		"kind": "Gadget", "metadata": map[string]any{"name": name}}}
}

// A server without Go types has definitions, namespaces, and a snapshot that brings both back.
func TestStart(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	empty := s.Snapshot()
	client := dynamic.NewForConfigOrDie(s.Config)
	for range 2 {
		define(t, s, "example.com")
		if _, err := client.Resource(gadgets).Namespace("default").Create(t.Context(),
			gadget("one"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := client.Resource(gadgets).Namespace("missing").Create(t.Context(), gadget("one"),
			metav1.CreateOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("creation in a missing namespace: %v", err)
		}
		s.Rollback(empty)
		eventually(t, "the definition is gone", func(ctx context.Context) (bool, error) {
			_, err := client.Resource(gadgets).List(ctx, metav1.ListOptions{})
			return apierrors.IsNotFound(err), nil
		})
	}
}

// Definitions stand beside groups of Go types, and cannot take their place.
func TestGoTypesAndDefinitions(t *testing.T) {
	s := exampletest.Start(t, testkit.Options{Definitions: crds.Prepare})
	define(t, s, "example.com")
	// A definition is established before discovery tells of it.
	eventually(t, "discovery has Go types and definitions", func(context.Context) (bool, error) {
		_, lists,
			err := kubernetes.NewForConfigOrDie(s.Config).Discovery().ServerGroupsAndResources()
		if err != nil {
			t.Log(err) // of a group that came between two of its requests
			return false, nil
		}
		served := map[string]bool{}
		for _, l := range lists {
			served[l.GroupVersion] = true
		}
		return served["v1"] && served["example.com/v1"] &&
			served[civ1.SchemeGroupVersion.String()] &&
			served["apiextensions.k8s.io/v1"], nil
	})
	_,
		err := apiextensions.NewForConfigOrDie(s.Config).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "pipelines." + civ1.SchemeGroupVersion.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: civ1.SchemeGroupVersion.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "pipelines",
				Kind: "Pipeline"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v2", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(),
		"the group ci.rowkeeper.dev belongs to the server itself: choose another spec.group") {
		t.Errorf("a definition in a group of Go types: %v", err)
	}
}

// Two servers with one prefix are replicas: what is defined on one is served by the other.
func TestReplicas(t *testing.T) {
	dir := t.TempDir()
	one := crdstest.Start(t, testkit.Options{Prefix: "/shared",
		Database: testkit.Database{URL: "sqlite://" + dir + "/state.db", Driver: sqlite.Driver}})
	other := crdstest.Start(t, testkit.Options{Prefix: "/shared",
		Database: testkit.Database{URL: "sqlite://" + dir + "/state.db", Driver: sqlite.Driver}})
	define(t, one, "example.com")
	began := time.Now()
	there := dynamic.NewForConfigOrDie(other.Config).Resource(gadgets).Namespace("default")
	eventually(t, "the other server serves it", func(ctx context.Context) (bool, error) {
		_, err := there.List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	t.Logf("the other server served the definition %s after it was established", time.Since(began))
	if _, err := there.Create(t.Context(), gadget("one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _,
		err := dynamic.NewForConfigOrDie(one.Config).Resource(gadgets).Namespace("default").Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	// A namespace that one server makes is known to the other, and its content is deleted however
	// they share the work.
	namespaces := kubernetes.NewForConfigOrDie(one.Config).CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _,
		err := dynamic.NewForConfigOrDie(other.Config).Resource(gadgets).Namespace("team").Create(t.Context(), gadget("two"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(t.Context(), "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is gone from both", func(ctx context.Context) (bool, error) {
		for _, s := range []*testkit.Server{one, other} {
			if _, err := kubernetes.NewForConfigOrDie(s.Config).CoreV1().Namespaces().Get(ctx,
				"team", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return false, nil
			}
		}
		return true, nil
	})
}
