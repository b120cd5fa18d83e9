package kinds_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/kubectl"
)

// Fleet is a kind with replicas.
type Fleet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FleetSpec   `json:"spec"`
	Status FleetStatus `json:"status,omitempty"`
}

// FleetSpec is what is wanted.
type FleetSpec struct {
	Size  *FleetSize `json:"size,omitempty"`
	Color string     `json:"color,omitempty"`
	Crew  int64      `json:"crew,omitempty"`
}

// FleetSize is how many ships are wanted.
type FleetSize struct {
	Replicas *int32 `json:"replicas,omitempty"`
}

// FleetStatus is what is the case.
type FleetStatus struct {
	Replicas int32  `json:"replicas,omitempty"`
	Selector string `json:"selector,omitempty"`
}

// DeepCopyObject makes fleets objects.
func (f *Fleet) DeepCopyObject() runtime.Object { return kinds.DeepCopy(f) }

// FleetV1beta1 has its replicas elsewhere.
type FleetV1beta1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Ships  *int32      `json:"ships,omitempty"`
	Spec   FleetSpec   `json:"spec,omitempty"`
	Status FleetStatus `json:"status,omitempty"`
}

// DeepCopyObject makes them objects, too.
func (f *FleetV1beta1) DeepCopyObject() runtime.Object { return kinds.DeepCopy(f) }

// fleets is a group with a kind that can be scaled, to nine replicas.
func fleets(change func(*kinds.Kind[Fleet])) kinds.Group {
	k := kinds.Kind[Fleet]{
		Scale: &kinds.Scale{
			SpecReplicasPath:   ".spec.size.replicas",
			StatusReplicasPath: ".status.replicas",
			LabelSelectorPath:  ".status.selector",
		},
		Versions: []kinds.Version[Fleet]{kinds.Converted("v1beta1",
			func(in *FleetV1beta1, out *Fleet) error {
				out.Spec, out.Status = in.Spec, in.Status
				if in.Ships != nil {
					out.Spec.Size = &FleetSize{Replicas: in.Ships}
				}
				return nil
			},
			func(in *Fleet, out *FleetV1beta1) error {
				out.Spec, out.Status = in.Spec, in.Status
				if in.Spec.Size != nil {
					out.Ships, out.Spec.Size = in.Spec.Size.Replicas, nil
				}
				return nil
			},
		)},
		Strategy: kinds.Strategy[Fleet]{
			Validate: func(_ context.Context, f *Fleet) field.ErrorList {
				if f.Spec.Size != nil && f.Spec.Size.Replicas != nil && *f.Spec.Size.Replicas > 9 {
					return field.ErrorList{field.TooMany(field.NewPath("spec", "size", "replicas"),
						int(*f.Spec.Size.Replicas), 9)}
				}
				if f.Spec.Color == "panic" {
					panic("a color")
				}
				return nil
			},
		},
	}
	if change != nil {
		change(&k)
	}
	return kinds.Group{Name: "example.com", Versions: []string{"v1", "v1beta1"},
		Kinds: []kinds.Definition{kinds.Define(k)}}
}

func fleet(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Fleet",
		"metadata": map[string]any{"name": name, "namespace": "default"}, "spec": spec,
	}}
}

// TestScale: a fleet is scaled by kubectl and by the client of autoscalers.
func TestScale(t *testing.T) {
	s := serve(t, fleets(nil))
	objects := dynamic.NewForConfigOrDie(s.Config).
		Resource(v1.WithResource("fleets")).Namespace("default")
	of := discovery.NewDiscoveryClientForConfigOrDie(s.Config)
	scales, err := scale.NewForConfig(s.Config,
		restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(of)),
		dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(of))
	if err != nil {
		t.Fatal(err)
	}
	autoscaler, resource := scales.Scales("default"), v1.WithResource("fleets").GroupResource()

	created, err := objects.Create(t.Context(), fleet("north", map[string]any{"color": "red"}),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	created.Object["status"] = map[string]any{"replicas": int64(2), "selector": "fleet=north"}
	if _, err := objects.UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := autoscaler.Get(t.Context(), resource, "north", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Spec.Replicas != 0 || got.Status.Replicas != 2 || got.Status.Selector != "fleet=north" {
		t.Errorf("without a size, the scale is %+v", got)
	}
	got.Spec.Replicas = 3
	if _, err := autoscaler.Update(t.Context(), resource, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := autoscaler.Update(t.Context(), resource, got,
		metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of an older scale: %v", err)
	}

	kubeconfig := s.Kubeconfig(s.Config)
	for _, step := range []struct {
		args, want string
		fails      bool
	}{
		{"scale fleet north --current-replicas 3 --replicas 5",
			"fleet.example.com/north scaled", false},
		{"scale fleet north --current-replicas 3 --replicas 6", "Expected replicas to be 3", true},
		{"scale fleet north --replicas 10", "spec.size.replicas: Too many: 10: must have at most 9",
			true},
		{"get fleet north --subresource scale -o jsonpath={.spec.replicas}/{.status.replicas}",
			"5/2", false},
		{"patch fleet north --subresource scale --type merge -p {\"spec\":{\"replicas\":-1}}",
			"must be greater than or equal to 0", true},
		{"patch fleets.v1beta1.example.com north --subresource scale --type merge " +
			"-p {\"spec\":{\"replicas\":4}}", "north patched", false},
		{"get fleets.v1beta1.example.com north -o jsonpath={.ships}", "4", false},
	} {
		out, err := kubectl.Run(t, kubeconfig, "", strings.Fields(step.args)...)
		if (err != nil) != step.fails || !strings.Contains(out, step.want) {
			t.Errorf("kubectl %s: %v, %s", step.args, err, out)
		}
	}
	now, err := objects.Get(t.Context(), "north", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if replicas, _, _ := unstructured.NestedInt64(now.Object, "status",
		"replicas"); now.GetGeneration() != 4 || replicas != 2 {
		t.Errorf("after three changes of the scale the fleet is %v", now.Object)
	}
}

// TestScaleManagers: who scales takes the replicas from who has applied them, and only these.
func TestScaleManagers(t *testing.T) {
	s := serve(t, fleets(nil))
	objects := dynamic.NewForConfigOrDie(s.Config).
		Resource(v1.WithResource("fleets")).Namespace("default")
	wanted := func(replicas int64, color string) *unstructured.Unstructured {
		return fleet("south", map[string]any{"color": color,
			"size": map[string]any{"replicas": replicas}})
	}
	me := metav1.ApplyOptions{FieldManager: "me"}
	if _, err := objects.Apply(t.Context(), "south", wanted(1, "red"), me); err != nil {
		t.Fatal(err)
	}
	change := fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, 7)
	if _, err := objects.Patch(t.Context(), "south", "application/merge-patch+json", change,
		metav1.PatchOptions{FieldManager: "autoscaler"}, "scale"); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Apply(t.Context(), "south", wanted(1, "red"), me); !apierrors.IsConflict(
		err) || !strings.Contains(err.Error(), `conflict with "autoscaler" with subresource "scale"`) {
		t.Errorf("the replicas are applied again: %v", err)
	}
	if _, err := objects.Apply(t.Context(), "south", fleet("south",
		map[string]any{"color": "blue"}), me); err != nil {
		t.Errorf("the color alone is applied: %v", err)
	}
}

// TestScalePanics: a function of the author that panics ends a request only.
func TestScalePanics(t *testing.T) {
	group := fleets(func(k *kinds.Kind[Fleet]) {
		k.Strategy.PrepareForUpdate = func(context.Context, *Fleet, *Fleet) { panic("no") }
	})
	s := serve(t, group)
	objects := dynamic.NewForConfigOrDie(s.Config).
		Resource(v1.WithResource("fleets")).Namespace("default")
	if _, err := objects.Create(t.Context(), fleet("east", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Patch(t.Context(), "east", "application/merge-patch+json",
		[]byte(`{"spec": {"replicas": 1}}`), metav1.PatchOptions{},
		"scale"); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "fleets") {
		t.Errorf("got %v", err)
	}
}

// TestScaleThatIsNone: an author who names fields that cannot be a scale is told so.
func TestScaleThatIsNone(t *testing.T) {
	for _, tc := range []struct {
		spec, status, selector, want string
	}{
		{"", ".status.replicas", "", `the SpecReplicasPath "": give one such as .spec.replicas`},
		{"spec.size", ".status.replicas", "", "give one such as .spec.replicas"},
		{".status.replicas", ".status.replicas", "", "give one such as .spec.replicas"},
		{".spec.size.replicas", ".spec.size.replicas", "", "give one such as .status.replicas"},
		{".spec.size.ships", ".status.replicas", "", ".spec.size.ships, which kinds_test.Fleet " +
			"does not have"},
		{".spec.color.replicas", ".status.replicas", "", "does not have"},
		{".spec.crew", ".status.replicas", "", "is of type int64: it has to be of type int32"},
		{".spec.size", ".status.replicas", "", "it has to be of type int32"},
		{".spec.size.replicas", ".status.replicas", "metadata", "such as .status.selector"},
		{".spec.size.replicas", ".status.replicas", ".status.replicas",
			"LabelSelectorPath .status.replicas, which is of type int32: it has to be of type string"},
	} {
		_, err := kinds.New(fleets(func(k *kinds.Kind[Fleet]) {
			k.Scale = &kinds.Scale{SpecReplicasPath: tc.spec, StatusReplicasPath: tc.status,
				LabelSelectorPath: tc.selector}
		}))
		if err == nil || !strings.Contains(err.Error(), tc.want) ||
			!strings.Contains(err.Error(), "the kind Fleet of group example.com") {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
