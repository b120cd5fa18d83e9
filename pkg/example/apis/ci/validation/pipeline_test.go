package validation

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

func valid() *ci.Pipeline {
	return &ci.Pipeline{
		ObjectMeta: metav1.ObjectMeta{Name: "build", Namespace: "default", ResourceVersion: "1"},
		Spec: ci.PipelineSpec{
			Image: "golang:1.26",
			Parameters: []ci.Parameter{{Name: "REVISION"},
				{Name: "LEVEL", Default: new("info")}},
			Steps: []ci.Step{{Name: "test", Command: []string{"go", "test", "./..."},
				Env: []ci.EnvVar{{Name: "CI", Value: "true"}}, TimeoutSeconds: new(int64(60))}},
			MaxParallelRuns: 1,
		},
		Status: ci.PipelineStatus{Phase: ci.PipelinePending},
	}
}

// check compares errors with what is wanted, each as "type field".
func check(t *testing.T, errs field.ErrorList, want []string) {
	t.Helper()
	var got []string
	for _, err := range errs {
		got = append(got, string(err.Type)+" "+err.Field)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, want %q: %v", got, want, errs.ToAggregate())
	}
}

func TestValidatePipeline(t *testing.T) {
	many := func(n int) (s []ci.Step) {
		for i := range n {
			s = append(s, ci.Step{Name: "s" + strings.Repeat("x", i%50) + string(rune('a'+i/50)),
				Command: []string{"true"}})
		}
		return s
	}
	for name, tc := range map[string]struct {
		change func(*ci.Pipeline)
		want   []string
	}{
		"valid": {func(*ci.Pipeline) {}, nil},
		"name": {func(p *ci.Pipeline) {
			p.Name = "Build_it"
		}, []string{"FieldValueInvalid metadata.name"}},
		"no namespace": {func(p *ci.Pipeline) {
			p.Namespace = ""
		}, []string{"FieldValueRequired metadata.namespace"}},
		"annotation": {func(p *ci.Pipeline) {
			p.Annotations = map[string]string{ci.StructuredAnnotation: ""}
		},
			[]string{"FieldValueForbidden metadata.annotations[ci.rowkeeper.dev/structured]"}},
		"no steps": {func(p *ci.Pipeline) {
			p.Spec.Steps = nil
		}, []string{"FieldValueRequired spec.steps"}},
		"too many steps": {func(p *ci.Pipeline) {
			p.Spec.Steps = many(MaxSteps + 1)
		}, []string{"FieldValueTooMany spec.steps"}},
		"as many as allowed": {func(p *ci.Pipeline) { p.Spec.Steps = many(MaxSteps) }, nil},
		"no image": {func(p *ci.Pipeline) {
			p.Spec.Image = ""
		}, []string{"FieldValueRequired spec.steps[0].image"}},
		"image of the step": {func(p *ci.Pipeline) {
			p.Spec.Image, p.Spec.Steps[0].Image = "", "registry.example.com:5000/a/b_c:v1@sha256:"+
				strings.Repeat("0af9", 16)
		}, nil},
		"bad images": {func(p *ci.Pipeline) {
			p.Spec.Image, p.Spec.Steps[0].Image = "a b", "UPPER"
		},
			[]string{"FieldValueInvalid spec.image", "FieldValueInvalid spec.steps[0].image"}},
		"long image": {func(p *ci.Pipeline) {
			p.Spec.Image = strings.Repeat("a", MaxImageLength+1)
		}, []string{"FieldValueTooLong spec.image"}},
		"negative maximum": {func(p *ci.Pipeline) {
			p.Spec.MaxParallelRuns = -1
		}, []string{"FieldValueInvalid spec.maxParallelRuns"}},
		"parameter names": {func(p *ci.Pipeline) {
			p.Spec.Parameters = []ci.Parameter{{Name: "1st"}, {Name: "A"}, {Name: "A"}}
		},
			[]string{"FieldValueInvalid spec.parameters[0].name",
				"FieldValueDuplicate spec.parameters[2].name"}},
		"too many parameters": {func(p *ci.Pipeline) {
			p.Spec.Parameters = nil
			for i := range MaxParameters + 1 {
				p.Spec.Parameters = append(p.Spec.Parameters,
					ci.Parameter{Name: strings.Repeat("A", i+1)})
			}
		}, []string{"FieldValueTooMany spec.parameters"}},
		"step names": {func(p *ci.Pipeline) {
			p.Spec.Steps = append(p.Spec.Steps, ci.Step{Name: "test", Command: []string{"true"}},
				ci.Step{Name: "a.b", Command: []string{"true"}})
		}, []string{"FieldValueDuplicate spec.steps[1].name",
			"FieldValueInvalid spec.steps[2].name"}},
		"no command": {func(p *ci.Pipeline) {
			p.Spec.Steps[0].Command = nil
		}, []string{"FieldValueRequired spec.steps[0].command"}},
		"empty program": {func(p *ci.Pipeline) {
			p.Spec.Steps[0].Command = []string{"", "x"}
		}, []string{"FieldValueRequired spec.steps[0].command[0]"}},
		"shell": {func(p *ci.Pipeline) {
			p.Spec.Steps[0].Command, p.Spec.Steps[0].Shell = nil, "make"
		}, nil},
		"both": {func(p *ci.Pipeline) {
			p.Spec.Steps[0].Shell = "make"
		}, []string{"FieldValueForbidden spec.steps[0].shell"}},
		"not UTF-8": {func(p *ci.Pipeline) {
			p.Spec.Steps[0].Command[1] = "\xff"
		}, []string{"FieldValueInvalid spec.steps[0].command[1]"}},
		"long argument": {func(p *ci.Pipeline) {
			p.Spec.Steps[0].Command[1] = strings.Repeat("x", MaxTextLength+1)
		}, []string{"FieldValueTooLong spec.steps[0].command[1]"}},
		"env": {func(p *ci.Pipeline) {
			p.Spec.Steps[0].Env = []ci.EnvVar{{Name: "A=B"}, {Name: "A"}, {Name: "A"}}
		},
			[]string{"FieldValueInvalid spec.steps[0].env[0].name",
				"FieldValueDuplicate spec.steps[0].env[2].name"}},
		"timeout": {func(p *ci.Pipeline) {
			p.Spec.Steps[0].TimeoutSeconds = new(int64(0))
		}, []string{"FieldValueInvalid spec.steps[0].timeoutSeconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := valid()
			tc.change(p)
			check(t, ValidatePipeline(p), tc.want)
		})
	}
}

func TestValidatePipelineUpdateRatchets(t *testing.T) {
	// The old pipeline breaks rules, as one may that was stored before there were these rules.
	old := valid()
	old.Spec.Image = "Not An Image"
	old.Spec.Parameters[0].Name = "1st"
	old.Spec.Steps = append(old.Spec.Steps, ci.Step{Name: "Old_Step", Command: []string{""}})
	for name, tc := range map[string]struct {
		change func(*ci.Pipeline)
		want   []string
	}{
		"what is as it was is accepted": {func(p *ci.Pipeline) {
			p.Labels = map[string]string{"a": "b"}
			p.Spec.Suspended = true
		}, nil},
		"what moves is accepted": {func(p *ci.Pipeline) {
			p.Spec.Steps[0], p.Spec.Steps[1] = p.Spec.Steps[1], p.Spec.Steps[0]
		}, nil},
		"what changes has to be right": {func(p *ci.Pipeline) {
			p.Spec.Image += "!"
		}, []string{"FieldValueInvalid spec.image"}},
		"a changed step has to be right": {func(p *ci.Pipeline) {
			p.Spec.Steps[1].Command = []string{"", "x"}
		},
			[]string{"FieldValueInvalid spec.steps[1].name",
				"FieldValueRequired spec.steps[1].command[0]"}},
		"changed parameters have to be right": {func(p *ci.Pipeline) {
			p.Spec.Parameters[1].Default = nil
		}, []string{"FieldValueInvalid spec.parameters[0].name"}},
		"the name stays": {func(p *ci.Pipeline) {
			p.Name = "other"
		}, []string{"FieldValueInvalid metadata.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := old.DeepCopy()
			tc.change(p)
			check(t, ValidatePipelineUpdate(p, old), tc.want)
		})
	}
}

func TestValidatePipelineStatusUpdate(t *testing.T) {
	condition := metav1.Condition{Type: ci.PipelineReadyCondition, Status: metav1.ConditionTrue,
		Reason: "Checked", LastTransitionTime: metav1.Now()}
	for name, tc := range map[string]struct {
		change func(*ci.Pipeline)
		want   []string
	}{
		"valid": {func(p *ci.Pipeline) {
			p.Status = ci.PipelineStatus{ObservedGeneration: 1, Phase: ci.PipelineReady,
				ActiveRuns: 2, Conditions: []metav1.Condition{condition}}
		}, nil},
		"phase": {func(p *ci.Pipeline) {
			p.Status.Phase = "Great"
		}, []string{"FieldValueNotSupported status.phase"}},
		"negative": {func(p *ci.Pipeline) {
			p.Status.ActiveRuns, p.Status.ObservedGeneration = -1, -1
		}, []string{"FieldValueInvalid status.observedGeneration",
			"FieldValueInvalid status.activeRuns"}},
		"conditions": {func(p *ci.Pipeline) {
			p.Status.Conditions = []metav1.Condition{condition, condition}
		},
			[]string{"FieldValueDuplicate status.conditions[1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := valid()
			tc.change(p)
			check(t, ValidatePipelineStatusUpdate(p, valid()), tc.want)
		})
	}
}

func TestWarningsForPipeline(t *testing.T) {
	p := valid()
	if w := WarningsForPipeline(p, strings.Clone); len(w) > 0 {
		t.Errorf("a pipeline that needs no warning got %q", w)
	}
	p.Spec.Image = "registry.example.com:5000/golang"
	p.Spec.Steps = append(p.Spec.Steps, ci.Step{Name: "old", Image: "alpine:latest", Shell: "make"},
		ci.Step{Name: "pinned", Image: "alpine@sha256:" + strings.Repeat("0", 64)})
	got := WarningsForPipeline(p, strings.Clone)
	for i, want := range []string{"spec.image: ", "spec.steps[1].image: ",
		"spec.steps[1].shell: deprecated"} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Errorf("warning %d of %q does not begin with %q", i, got, want)
		}
	}
	if len(got) != 3 {
		t.Errorf("got %d warnings, want 3: %q", len(got), got)
	}
}
