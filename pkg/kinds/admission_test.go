package kinds_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// addMoon shows objects to itself in every version, as upstream does for webhooks and policies, and
// adds a moon to them in each.
type addMoon struct{ versions []schema.GroupVersionKind }

func (addMoon) Handles(admission.Operation) bool { return true }

func (p addMoon) Admit(
	_ context.Context, a admission.Attributes, o admission.ObjectInterfaces,
) error {
	for _, version := range p.versions {
		shown, err := admission.NewVersionedAttributes(a, version, o)
		if err != nil {
			return err
		}
		if a.GetObject() == nil {
			continue
		}
		changed := shown.VersionedObject.Object().DeepCopyObject()
		changed.(*Planet).Moons++
		shown.UpdateObject(changed)
		// A change is taken over before the object is shown in another version.
		for _, other := range p.versions {
			if err := admission.ConvertVersionedAttributes(shown, other, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestAdmissionInVersions writes objects in all ways, in both versions of a kind that has the same
// Go type in both.
func TestAdmissionInVersions(t *testing.T) {
	group := schema.GroupVersion{Group: "sky.example.com", Version: "v1"}
	api, err := kinds.New(kinds.Group{
		Name: group.Group, Versions: []string{"v1", "v2"},
		Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Planet]{ClusterScoped: true})},
	})
	if err != nil {
		t.Fatal(err)
	}
	plugin := addMoon{[]schema.GroupVersionKind{
		group.WithKind("Planet"), {Group: group.Group, Version: "v2", Kind: "Planet"},
	}}
	s := testkit.Start(t, testkit.API{
		Scheme: api.Scheme, Codecs: api.Codecs, NewConfig: api.NewConfig,
		New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer,
			error) {
			c.AdmissionControl = plugin
			return api.New(c)
		},
	}, testkit.Options{Database: testkit.Memory})
	for _, version := range []string{"v1", "v2"} {
		client := dynamic.NewForConfigOrDie(s.Config).Resource(schema.GroupVersionResource{
			Group: group.Group, Version: version, Resource: "planets",
		})
		document := `{"apiVersion":"` + group.Group + `/` + version + `","kind":"Planet",` +
			`"metadata":{"name":"mars"},"moons":2}`
		mars := &unstructured.Unstructured{}
		if err := mars.UnmarshalJSON([]byte(document)); err != nil {
			t.Fatal(err)
		}
		patch := func(typ types.PatchType, patch string) func() (*unstructured.Unstructured,
			error) {
			return func() (*unstructured.Unstructured, error) {
				o := metav1.PatchOptions{FieldManager: "me"}
				if typ == types.ApplyPatchType {
					o.Force = ptr.To(true) // the moons were also changed by admission
				}
				return client.Patch(t.Context(), "mars", typ, []byte(patch), o)
			}
		}
		remove := func() (*unstructured.Unstructured, error) {
			return nil, client.Delete(t.Context(), "mars", metav1.DeleteOptions{})
		}
		for _, step := range []struct {
			how string
			do  func() (*unstructured.Unstructured, error)
		}{
			{"POST", func() (*unstructured.Unstructured, error) {
				return client.Create(t.Context(), mars, metav1.CreateOptions{})
			}},
			{"PUT", func() (*unstructured.Unstructured, error) {
				return client.Update(t.Context(), mars, metav1.UpdateOptions{})
			}},
			{"merge patch", patch(types.MergePatchType, `{"moons":2}`)},
			{"JSON patch", patch(types.JSONPatchType,
				`[{"op":"replace","path":"/moons","value":2}]`)},
			{"DELETE", remove},
			{"apply to what is not there", patch(types.ApplyPatchType, document)},
			{"apply", patch(types.ApplyPatchType, document)},
			{"DELETE after apply", remove},
		} {
			planet, err := step.do()
			if err != nil {
				t.Errorf("%s, %s: %v", version, step.how, err)
			} else if planet != nil {
				moons, _, _ := unstructured.NestedInt64(planet.Object, "moons")
				if moons != 4 || planet.GetAPIVersion() != group.Group+"/"+version {
					t.Errorf("%s, %s: got %v, want 4 moons", version, step.how, planet.Object)
				}
			}
		}
	}
}
