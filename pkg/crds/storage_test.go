package crds

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/rowkeeper/rowkeeper/storage"
)

// TestShare: a definition has its predecessor's spec and annotations if they are the same, and
// keeps its own otherwise.
func TestShare(t *testing.T) {
	config, err := newBuiltinEncodings(storage.DefaultPrefix, "application/json").NewConfig(
		apiextensions.Resource("customresourcedefinitions"), nil)
	if err != nil {
		t.Fatal(err)
	}
	codec, ok := config.Codec.(definitionCodec)
	if !ok {
		t.Fatalf("definitions are decoded by a %T", config.Codec)
	}
	definition := func(status, column, annotation string) *apiextensions.CustomResourceDefinition {
		return &apiextensions.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: status,
				Annotations: map[string]string{"last-applied": annotation}},
			Spec: apiextensions.CustomResourceDefinitionSpec{AdditionalPrinterColumns: []apiextensions.CustomResourceColumnDefinition{{Name: column}}},
		}
	}
	for name, c := range map[string]struct {
		next                 *apiextensions.CustomResourceDefinition
		spec, withAnnotation bool
	}{
		"another status":     {definition("2", "A", "x"), true, true},
		"another spec":       {definition("2", "B", "x"), false, true},
		"another annotation": {definition("2", "A", "y"), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			old, want := definition("1", "A", "x"), c.next.DeepCopy()
			codec.Share(old, c.next)
			columns := c.next.Spec.AdditionalPrinterColumns
			if shared := &columns[0] == &old.Spec.AdditionalPrinterColumns[0]; shared != c.spec {
				t.Errorf("the spec is shared: %v", shared)
			}
			old.Annotations["own"] = ""
			if _, shared := c.next.Annotations["own"]; shared != c.withAnnotation {
				t.Errorf("the annotations are shared: %v", shared)
			}
			delete(old.Annotations, "own")
			if columns[0] != want.Spec.AdditionalPrinterColumns[0] ||
				c.next.Annotations["last-applied"] != want.Annotations["last-applied"] ||
				c.next.ResourceVersion != "2" {
				t.Errorf("the definition became %v", c.next)
			}
		})
	}
	codec.Share(&example.Pod{}, definition("1", "A", "x"))
}

// TestShownShares: what handlers keep of a definition, and its newest version, have one spec.
func TestShownShares(t *testing.T) {
	definition := func(column string) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: column}}},
		}
	}
	old := definition("v1")
	e := &extension{plugin: &plugin{}, known: func(name string) (
		*apiextensionsv1.CustomResourceDefinition, error) {
		return old, nil
	}}
	for version, want := range map[string]bool{"v1": true, "v2": false} {
		obj, err := e.shown(definition(version))
		if err != nil {
			t.Fatal(err)
		}
		got := obj.(*apiextensionsv1.CustomResourceDefinition).Spec.Versions
		if shared := &got[0] == &old.Spec.Versions[0]; shared != want || got[0].Name != version {
			t.Errorf("%s is shared: %v", version, shared)
		}
	}
	e.known = func(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
		return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), name)
	}
	if _, err := e.shown(definition("v1")); err != nil {
		t.Error(err)
	}
}
