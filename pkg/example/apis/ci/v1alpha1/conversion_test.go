package v1alpha1_test

import (
	"math/rand"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1alpha1"
)

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	return s
}()

func toInternal(t *testing.T, in *v1alpha1.Pipeline) *ci.Pipeline {
	t.Helper()
	var out ci.Pipeline
	if err := scheme.Convert(in, &out, nil); err != nil {
		t.Fatal(err)
	}
	return &out
}

func toFlat(t *testing.T, in *ci.Pipeline) *v1alpha1.Pipeline {
	t.Helper()
	was := in.DeepCopy()
	var out v1alpha1.Pipeline
	if err := scheme.Convert(in, &out, nil); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(in, was) {
		t.Errorf("the conversion changed its source:\n%s", diff.Diff(was, in))
	}
	return &out
}

// Every flat pipeline comes back as it was from the hub. (The other way round is the test of the
// package install.)
func TestFlatRoundTrip(t *testing.T) {
	filler := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1),
		serializer.NewCodecFactory(scheme))
	for range 1000 {
		var p v1alpha1.Pipeline
		filler.Fill(&p)
		p.TypeMeta = metav1.TypeMeta{}
		if p.Spec.MaxParallelRuns == nil {
			p.Spec.MaxParallelRuns = new(int32)
		}
		if back := toFlat(t, toInternal(t, &p)); !equality.Semantic.DeepEqual(&p, back) {
			t.Fatalf("a flat pipeline came back changed:\n%s", diff.Diff(&p, back))
		}
	}
}

func TestFlatFormOfWhatItCanExpress(t *testing.T) {
	p := toInternal(t, &v1alpha1.Pipeline{Spec: v1alpha1.PipelineSpec{
		Image:      "golang:1.26",
		Commands:   []string{"go test ./...", "make | tee log"},
		Parameters: map[string]string{"REVISION": "", "LEVEL": "info"},
	}})
	want := ci.PipelineSpec{
		Image: "golang:1.26",
		Steps: []ci.Step{
			{Name: "step-1", Command: []string{"sh", "-c", "go test ./..."}},
			{Name: "step-2", Command: []string{"sh", "-c", "make | tee log"}},
		},
		Parameters: []ci.Parameter{{Name: "LEVEL", Default: new("info")}, {Name: "REVISION"}},
	}
	if !equality.Semantic.DeepEqual(p.Spec, want) {
		t.Errorf("not as expected:\n%s", diff.Diff(want, p.Spec))
	}
	if flat := toFlat(t, p); len(flat.Annotations) != 0 {
		t.Errorf("a pipeline that the flat form can express is annotated with %v", flat.Annotations)
	}
}

func structuredPipeline() *ci.Pipeline {
	return &ci.Pipeline{
		ObjectMeta: metav1.ObjectMeta{Name: "build", Annotations: map[string]string{"a": "b"}},
		Spec: ci.PipelineSpec{
			Image: "golang:1.26",
			Parameters: []ci.Parameter{
				{Name: "REVISION", Description: "The commit."},
				{Name: "EMPTY", Default: new("")},
			},
			Steps: []ci.Step{
				{Name: "test", Command: []string{"go", "test", "it's"},
					Env: []ci.EnvVar{{Name: "CI", Value: "1"}}},
				{Name: "lint", Image: "lint:1", Command: []string{"lint"},
					TimeoutSeconds: new(int64(5))},
				{Name: "old", Shell: "make all"},
			},
		},
	}
}

func TestWhatTheFlatFormCannotExpressIsKept(t *testing.T) {
	p := structuredPipeline()
	flat := toFlat(t, p)
	if got, want := strings.Join(flat.Spec.Commands, "\n"),
		"go test 'it'\\''s'\nlint\nmake all"; got != want {
		t.Errorf("the commands are %q, want %q", got, want)
	}
	if flat.Annotations["a"] != "b" || flat.Annotations[v1alpha1.StructuredAnnotation] == "" {
		t.Errorf("the annotations are %v", flat.Annotations)
	}
	if back := toInternal(t, flat); !equality.Semantic.DeepEqual(p, back) {
		t.Errorf("the pipeline came back changed:\n%s", diff.Diff(p, back))
	}
}

func TestChangesOfTheFlatFormKeepTheRest(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.PipelineSpec)
		want   func(*ci.PipelineSpec)
	}{
		"a changed command": {
			func(s *v1alpha1.PipelineSpec) { s.Commands[1] = "lint --fast" },
			func(s *ci.PipelineSpec) { s.Steps[1].Command = []string{"sh", "-c", "lint --fast"} },
		},
		"a changed command of a step with a shell": {
			func(s *v1alpha1.PipelineSpec) { s.Commands[2] = "make" },
			func(s *ci.PipelineSpec) {
				s.Steps[2].Shell, s.Steps[2].Command = "", []string{"sh", "-c", "make"}
			},
		},
		"a command less": {
			func(s *v1alpha1.PipelineSpec) { s.Commands = s.Commands[1:] },
			func(s *ci.PipelineSpec) { s.Steps = s.Steps[1:] },
		},
		"a command more": {
			func(s *v1alpha1.PipelineSpec) { s.Commands = append([]string{"env"}, s.Commands...) },
			func(s *ci.PipelineSpec) {
				s.Steps = append([]ci.Step{{Name: "step-1", Command: []string{"sh", "-c", "env"}}},
					s.Steps...)
			},
		},
		"another order": {
			func(s *v1alpha1.PipelineSpec) {
				s.Commands[0], s.Commands[2] = s.Commands[2], s.Commands[0]
			},
			func(s *ci.PipelineSpec) { s.Steps[0], s.Steps[2] = s.Steps[2], s.Steps[0] },
		},
		"the image": {
			func(s *v1alpha1.PipelineSpec) { s.Image = "golang:1.27" },
			func(s *ci.PipelineSpec) { s.Image = "golang:1.27" },
		},
		"parameters": {
			func(s *v1alpha1.PipelineSpec) {
				s.Parameters = map[string]string{"REVISION": "main", "NEW": "", "LEVEL": "x"}
			},
			func(s *ci.PipelineSpec) {
				s.Parameters = []ci.Parameter{{Name: "REVISION", Description: "The commit.",
					Default: new("main")}, {Name: "LEVEL", Default: new("x")}, {Name: "NEW"}}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			flat := toFlat(t, structuredPipeline())
			tc.change(&flat.Spec)
			want := structuredPipeline()
			tc.want(&want.Spec)
			if got := toInternal(t, flat); !equality.Semantic.DeepEqual(want, got) {
				t.Errorf("not as expected:\n%s", diff.Diff(want, got))
			}
		})
	}
}

func TestNamesOfNewStepsAreUnique(t *testing.T) {
	p := structuredPipeline()
	p.Spec.Steps[2].Name = "step-4"
	flat := toFlat(t, p)
	flat.Spec.Commands = append(flat.Spec.Commands, "one more")
	got := toInternal(t, flat).Spec.Steps
	if len(got) != 4 || got[3].Name == "step-4" {
		t.Errorf("the steps are %+v", got)
	}
}

// A user's text under the annotation's key, from before that was refused, is not taken for what
// this version has kept, and comes back unchanged.
func TestAnnotationOfTheUser(t *testing.T) {
	for _, value := range []string{"", "{", "null",
		`{"steps":[{"name":"evil","command":["sh","-c","make"]}]}`, `{"annotation":"x"}`} {
		for name, p := range map[string]*ci.Pipeline{
			"structured": structuredPipeline(),
			"flat": {Spec: ci.PipelineSpec{Steps: []ci.Step{{Name: "step-1",
				Command: []string{"sh", "-c", "make"}}}}},
		} {
			p.Annotations = map[string]string{v1alpha1.StructuredAnnotation: value}
			flat := toFlat(t, p)
			if back := toInternal(t, flat); !equality.Semantic.DeepEqual(p, back) {
				t.Errorf("%s with %q came back changed:\n%s", name, value, diff.Diff(p, back))
			}
			flat.Spec.Commands[0] = "changed"
			p.Spec.Steps[0].Command = []string{"sh", "-c", "changed"}
			if back := toInternal(t, flat); !equality.Semantic.DeepEqual(p, back) {
				t.Errorf("%s with %q is not as expected after a change:\n%s", name, value,
					diff.Diff(p, back))
			}
		}
	}
}

// Errors name fields that a client of this version has.
func TestFieldErrors(t *testing.T) {
	const annotation = "metadata.annotations[ci.rowkeeper.dev/structured]"
	p := structuredPipeline()
	for path, want := range map[string]string{
		"metadata.name":            "metadata.name: Invalid value: \"x\": wrong",
		"spec.image":               "spec.image: Invalid value: \"x\": wrong",
		"spec.steps":               "spec.commands: Invalid value: \"x\": wrong",
		"spec.steps[1]":            "spec.commands[1]: Invalid value: \"x\": wrong",
		"spec.steps[1].command[0]": "spec.commands[1]: Invalid value: \"x\": wrong",
		"spec.steps[1].env[0].name": annotation +
			": Invalid value: \"x\": env[0].name of the step \"lint\": wrong",
		"spec.steps[1].image": annotation +
			": Invalid value: \"x\": image of the step \"lint\": wrong",
		"spec.parameters":            "spec.parameters: Invalid value: \"x\": wrong",
		"spec.parameters[0].name":    "spec.parameters[REVISION]: Invalid value: \"x\": wrong",
		"spec.parameters[1].default": "spec.parameters[EMPTY]: Invalid value: \"x\": wrong",
		"spec.parameters[0].description": annotation +
			": Invalid value: \"x\": description of the parameter \"REVISION\": wrong",
		annotation: annotation + ": Invalid value: \"x\": wrong",
	} {
		errs := v1alpha1.FieldErrors(p, field.ErrorList{{Type: field.ErrorTypeInvalid, Field: path,
			BadValue: "x", Detail: "wrong"}})
		if got := errs.ToAggregate().Error(); got != want {
			t.Errorf("an error about %s is %q, want %q", path, got, want)
		}
	}
	// Without an image anywhere, it is the pipeline that lacks one.
	missing := field.ErrorList{field.Required(field.NewPath("spec",
		"steps").Index(0).Child("image"), "none")}
	if got := v1alpha1.FieldErrors(p, missing)[0].Field; got != "spec.image" {
		t.Errorf("a missing image is that of %s", got)
	}
}

func TestMalformedAnnotation(t *testing.T) {
	flat := toFlat(t, structuredPipeline())
	flat.Annotations[v1alpha1.StructuredAnnotation] = "{"
	var out ci.Pipeline
	if err := scheme.Convert(flat, &out, nil); err == nil ||
		!strings.Contains(err.Error(), v1alpha1.StructuredAnnotation) {
		t.Errorf("got %v, want an error that names the annotation", err)
	}
}
