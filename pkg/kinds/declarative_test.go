package kinds_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/operation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/kinds"
)

// Run is how runs looked at first. Nothing is generated for it.
type Run struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Pipeline string                 `json:"pipeline,omitempty"`
	Rest     civ1.PipelineRunSpec   `json:"rest,omitempty"`
	Status   civ1.PipelineRunStatus `json:"status,omitempty"`
}

// DeepCopyObject makes it an object.
func (r *Run) DeepCopyObject() runtime.Object { return kinds.DeepCopy(r) }

// TestDeclarativeValidation: what validation-gen has made of the markers of a type holds for every
// way in which its objects are written, beside what the author's functions say.
func TestDeclarativeValidation(t *testing.T) {
	group := kinds.Group{Name: "example.com", Versions: []string{"v1", "v1alpha1"},
		Generated: runtime.SchemeBuilder{civ1.RegisterValidations},
		Kinds: []kinds.Definition{kinds.Define(kinds.Kind[civ1.PipelineRun]{
			Versions: []kinds.Version[civ1.PipelineRun]{kinds.Converted("v1alpha1",
				func(in *Run, out *civ1.PipelineRun) error {
					out.Spec, out.Status = in.Rest, in.Status
					out.Spec.PipelineName = in.Pipeline
					return nil
				},
				func(in *civ1.PipelineRun, out *Run) error {
					out.Pipeline, out.Rest, out.Status = in.Spec.PipelineName, in.Spec, in.Status
					out.Rest.PipelineName = ""
					return nil
				},
			)},
		})},
	}
	s := serve(t, group)
	of := func(version string) dynamic.ResourceInterface {
		return dynamic.NewForConfigOrDie(s.Config).Resource(schema.GroupVersionResource{
			Group: "example.com", Version: version, Resource: "pipelineruns"}).Namespace("default")
	}
	object := func(version string, fields map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: fields}
		o.SetAPIVersion("example.com/" + version)
		o.SetKind("PipelineRun")
		o.SetName("run-" + version)
		return o
	}
	refused := func(what string, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", what, err, want)
		}
	}
	ctx := t.Context()
	spec := func(name, branch string) map[string]any {
		return map[string]any{"spec": map[string]any{"pipelineName": name, "branch": branch}}
	}
	_, err := of("v1").Create(ctx, object("v1", spec("", "")), metav1.CreateOptions{})
	refused("a run of no pipeline", err, "spec.pipelineName: Required value")
	_, err = of("v1").Create(ctx, object("v1", spec("build", strings.Repeat("x", 257))),
		metav1.CreateOptions{})
	refused("a long branch", err, "spec.branch: Too long")
	made, err := of("v1").Create(ctx, object("v1", spec("build", "main")), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// A stored object is valid in v1, in whichever version it was written.
	_, err = of("v1alpha1").Create(ctx, object("v1alpha1", map[string]any{"pipeline": ""}),
		metav1.CreateOptions{})
	refused("a run of no pipeline, in v1alpha1", err, "spec.pipelineName: Required value")
	if _, err := of("v1alpha1").Create(ctx, object("v1alpha1",
		map[string]any{"pipeline": "build"}), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	_, err = of("v1alpha1").Patch(ctx, "run-v1", "application/merge-patch+json",
		[]byte(`{"pipeline": "other"}`), metav1.PatchOptions{})
	refused("another pipeline, in v1alpha1", err, "spec.pipelineName: Invalid value")

	made.Object["spec"].(map[string]any)["branch"] = "other"
	_, err = of("v1").Update(ctx, made, metav1.UpdateOptions{})
	refused("another branch", err, "spec.branch: Invalid value")
	made.Object["spec"].(map[string]any)["branch"] = "main"
	made.SetLabels(map[string]string{"a": "b"})
	if made, err = of("v1").Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	made.Object["status"] = map[string]any{"phase": "Running"}
	if _, err := of("v1").UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Errorf("the status: %v", err)
	}
}

// TestGeneratedFails: an error of a generated function is told, with its group.
func TestGeneratedFails(t *testing.T) {
	group := example
	group.Generated = runtime.SchemeBuilder{func(*runtime.Scheme) error { return errors.New("no") }}
	if _, err := kinds.New(group); err == nil || !strings.Contains(err.Error(),
		"Group.Generated of the group example.com fails: no") {
		t.Errorf("got %v", err)
	}
}

// TestDeclarativeValidationOfSubresources: an object is validated whole by the status and the
// scale, too, and in the version of the request if there is something for it.
func TestDeclarativeValidationOfSubresources(t *testing.T) {
	group := fleets(nil)
	var strict atomic.Bool // the first fleet is accepted
	calls := make(chan string, 1)
	record := func(_ context.Context, of operation.Operation, obj, old any) field.ErrorList {
		if !strict.Load() {
			return nil
		}
		verb := map[operation.Type]string{operation.Create: "Create", operation.Update: "Update"}
		calls <- fmt.Sprintf("%s %s %T %t", verb[of.Type], of.Request.SubresourcePath(), obj,
			old != nil)
		return field.ErrorList{field.Invalid(field.NewPath("spec"), "it", "is never right")}
	}
	group.Generated.Register(func(scheme *runtime.Scheme) error {
		scheme.AddValidationFunc(&Fleet{}, record)
		scheme.AddValidationFunc(&FleetV1beta1{}, record)
		return nil
	})
	s := serve(t, group)
	of := func(version string) dynamic.ResourceInterface {
		return dynamic.NewForConfigOrDie(s.Config).Resource(schema.GroupVersionResource{
			Group: "example.com", Version: version, Resource: "fleets"}).Namespace("default")
	}
	if _, err := of("v1").Create(t.Context(), fleet("one", nil),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	strict.Store(true)
	for _, tc := range []struct{ version, subresource, change, want string }{
		{"v1", "", `{"spec": {"color": "red"}}`, "Update / *kinds_test.Fleet true"},
		{"v1", "status", `{"status": {"replicas": 1}}`, "Update / *kinds_test.Fleet true"},
		{"v1", "scale", `{"spec": {"replicas": 1}}`, "Update / *kinds_test.Fleet true"},
		{"v1beta1", "", `{"ships": 1}`, "Update / *kinds_test.FleetV1beta1 true"},
		{"v1beta1", "scale", `{"spec": {"replicas": 1}}`, "Update / *kinds_test.FleetV1beta1 true"},
	} {
		var subresources []string
		if tc.subresource != "" {
			subresources = []string{tc.subresource}
		}
		_, err := of(tc.version).Patch(t.Context(), "one", "application/merge-patch+json",
			[]byte(tc.change), metav1.PatchOptions{}, subresources...)
		if got := <-calls; !apierrors.IsInvalid(err) || got != tc.want {
			t.Errorf("%+v: the function was called with %s, the error is %v", tc, got, err)
		}
	}
	if _, err := of("v1").Create(t.Context(), fleet("two", nil),
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a new fleet: %v", err)
	}
	if got := <-calls; got != "Create / *kinds_test.Fleet false" {
		t.Errorf("for a new fleet, the function was called with %s", got)
	}
}
