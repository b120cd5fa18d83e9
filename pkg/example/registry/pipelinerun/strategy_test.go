package pipelinerun

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	testclock "k8s.io/utils/clock/testing"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/registry/delegate"
)

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	return s
}()

func request(t *testing.T) context.Context {
	return delegate.Request(t.Context(), "update", v1.SchemeGroupVersion.WithResource("pipelineruns"),
		"default")
}

func stored(phase ci.PipelineRunPhase) *ci.PipelineRun {
	return &ci.PipelineRun{
		ObjectMeta: metav1.ObjectMeta{Name: "build-x", Namespace: "default", UID: "1",
			ResourceVersion: "7", Generation: 1},
		Spec: ci.PipelineRunSpec{PipelineName: "build", Branch: "main",
			Parameters:                    []ci.ParameterValue{{Name: "A", Value: "b"}},
			TerminationGracePeriodSeconds: 20},
		Status: ci.PipelineRunStatus{Phase: phase},
	}
}

func TestCreate(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*ci.PipelineRun)
		want   string
	}{
		"valid": {func(*ci.PipelineRun) {}, ""},
		"no pipeline": {func(r *ci.PipelineRun) {
			r.Spec.PipelineName = ""
		}, "spec.pipelineName: Required value"},
		"no name of a pipeline": {func(r *ci.PipelineRun) {
			r.Spec.PipelineName = "A B"
		}, "spec.pipelineName: Invalid value"},
		"long branch": {func(r *ci.PipelineRun) {
			r.Spec.Branch = strings.Repeat("x", 257)
		}, "spec.branch: Too long"},
		"negative grace": {func(r *ci.PipelineRun) {
			r.Spec.TerminationGracePeriodSeconds = -1
		}, "spec.terminationGracePeriodSeconds: Invalid value"},
		"twice": {func(r *ci.PipelineRun) {
			r.Spec.Parameters = append(r.Spec.Parameters, r.Spec.Parameters[0])
		}, "spec.parameters[1]: Duplicate value"},
		"no name of a parameter": {func(r *ci.PipelineRun) {
			r.Spec.Parameters[0].Name = "a b"
		}, "spec.parameters[0].name: Invalid value"},
		"too many": {func(r *ci.PipelineRun) {
			r.Spec.Parameters = make([]ci.ParameterValue, 65)
		}, "spec.parameters: Too many"},
	} {
		t.Run(name, func(t *testing.T) {
			r := stored(ci.RunSucceeded)
			r.ResourceVersion = ""
			tc.change(r)
			err := rest.BeforeCreate(newStrategy(scheme), request(t), r)
			switch {
			case tc.want == "" && err != nil, tc.want != "" &&
				(err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q", err, tc.want)
			case err == nil && (r.Status.Phase != ci.RunPending || r.Generation != 1):
				t.Errorf("a new run has %+v and generation %d", r.Status, r.Generation)
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*ci.PipelineRun)
		want   string
	}{
		"nothing":   {func(*ci.PipelineRun) {}, ""},
		"labels":    {func(r *ci.PipelineRun) { r.Labels = map[string]string{"a": "b"} }, ""},
		"cancelled": {func(r *ci.PipelineRun) { r.Spec.Cancelled = true }, ""},
		"pipeline": {func(r *ci.PipelineRun) {
			r.Spec.PipelineName = "other"
		}, "spec.pipelineName: Invalid value"},
		"branch": {func(r *ci.PipelineRun) {
			r.Spec.Branch = "other"
		}, "spec.branch: Invalid value"},
		"parameters": {func(r *ci.PipelineRun) {
			r.Spec.Parameters[0].Value = "other"
		}, "spec.parameters: Invalid value"},
		"grace": {func(r *ci.PipelineRun) {
			r.Spec.TerminationGracePeriodSeconds = 1
		}, "spec.terminationGracePeriodSeconds: Invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			r := stored(ci.RunRunning)
			tc.change(r)
			r.Status.Phase = ci.RunFailed
			err := rest.BeforeUpdate(newStrategy(scheme), request(t), r, stored(ci.RunRunning))
			if tc.want == "" && err != nil ||
				tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if r.Status.Phase != ci.RunRunning {
				t.Errorf("the status was changed to %s", r.Status.Phase)
			}
			if changed := !equality.Semantic.DeepEqual(r.Spec,
				stored(ci.RunRunning).Spec); changed != (r.Generation == 2) {
				t.Errorf("generation %d, while the spec has changed: %v", r.Generation, changed)
			}
		})
	}
}

func TestCancellingCannotBeTakenBack(t *testing.T) {
	old, r := stored(ci.RunRunning), stored(ci.RunRunning)
	old.Spec.Cancelled = true
	if err := rest.BeforeUpdate(newStrategy(scheme), request(t), r, old); err == nil ||
		!strings.Contains(err.Error(), "spec.cancelled: Forbidden") {
		t.Errorf("got %v", err)
	}
}

func TestStatusUpdate(t *testing.T) {
	at := func(seconds int64) *metav1.Time { return new(metav1.Unix(seconds, 0)) }
	for name, tc := range map[string]struct {
		from   ci.PipelineRunPhase
		change func(*ci.PipelineRunStatus)
		want   string
	}{
		"starts": {ci.RunPending, func(s *ci.PipelineRunStatus) {
			s.Phase, s.StartTime = ci.RunRunning, at(1)
		}, ""},
		"ends": {ci.RunRunning, func(s *ci.PipelineRunStatus) {
			s.Phase, s.StartTime, s.CompletionTime = ci.RunSucceeded, at(1), at(2)
		}, ""},
		"unknown": {ci.RunPending, func(s *ci.PipelineRunStatus) {
			s.Phase = "Great"
		}, `status.phase: Unsupported value: "Great"`},
		"stays ended": {ci.RunFailed, func(s *ci.PipelineRunStatus) {
			s.Phase = ci.RunRunning
		}, "a run that has ended as Failed stays so"},
		"does not wait": {ci.RunRunning, func(s *ci.PipelineRunStatus) {
			s.Phase = ci.RunPending
		}, "does not wait again"},
		"ends too early": {ci.RunRunning, func(s *ci.PipelineRunStatus) {
			s.StartTime, s.CompletionTime = at(2), at(1)
		}, "status.completionTime: Invalid value"},
		"steps": {ci.RunRunning, func(s *ci.PipelineRunStatus) {
			s.Steps = []ci.StepStatus{{Name: "a", Phase: ci.RunRunning}, {Name: "a"}}
		}, "status.steps[1]: Duplicate value"},
		"phase of a step": {ci.RunRunning, func(s *ci.PipelineRunStatus) {
			s.Steps = []ci.StepStatus{{Name: "a", Phase: "Great"}}
		}, "status.steps[0].phase: Unsupported value"},
		"name of a step": {ci.RunRunning, func(s *ci.PipelineRunStatus) {
			s.Steps = []ci.StepStatus{{Name: "A"}}
		}, "status.steps[0].name: Invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			r := stored(tc.from)
			tc.change(&r.Status)
			r.Spec.Branch = "other"
			r.Finalizers = []string{"example.com/x"}
			ctx := delegate.Request(t.Context(), "update",
				v1.SchemeGroupVersion.WithResource("pipelineruns"), "default")
			err := rest.BeforeUpdate(statusStrategy{newStrategy(scheme)}, ctx, r, stored(tc.from))
			if tc.want == "" && err != nil ||
				tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if r.Spec.Branch != "main" || len(r.Finalizers) > 0 {
				t.Error("an update of the status changed something else")
			}
		})
	}
}

func TestCheckGracefulDelete(t *testing.T) {
	for name, tc := range map[string]struct {
		phase ci.PipelineRunPhase
		asked *int64
		want  int64
	}{
		"the spec's":  {ci.RunRunning, nil, 20},
		"the asked":   {ci.RunRunning, new(int64(5)), 5},
		"at once":     {ci.RunRunning, new(int64(0)), 0},
		"not started": {ci.RunPending, nil, 0},
		"ended":       {ci.RunFailed, new(int64(5)), 0},
	} {
		options := &metav1.DeleteOptions{GracePeriodSeconds: tc.asked}
		if !newStrategy(scheme).CheckGracefulDelete(t.Context(), stored(tc.phase), options) ||
			*options.GracePeriodSeconds != tc.want {
			t.Errorf("%s: %v, want %d", name, options.GracePeriodSeconds, tc.want)
		}
	}
	if newStrategy(scheme).CheckGracefulDelete(t.Context(), stored(ci.RunRunning), nil) {
		t.Error("graceful without options")
	}
}

func TestTable(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := stored(ci.RunRunning)
	r.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	r.Status.StartTime = new(metav1.NewTime(now.Add(-3 * time.Minute)))
	r.Status.Steps = []ci.StepStatus{{Name: "a", Phase: ci.RunSucceeded},
		{Name: "b", Phase: ci.RunRunning}}
	cells := tableConvertor(testclock.NewFakePassiveClock(now)).Cells
	if got, want := cells(r), []any{"build-x", "build", "Running", "3m", "60m", "main",
		int64(1)}; !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("the cells are %v, want %v", got, want)
	}
	r.DeletionTimestamp = new(metav1.NewTime(now))
	r.Status.CompletionTime = new(metav1.NewTime(now.Add(-time.Minute)))
	if got := cells(r); got[2] != "Terminating" || got[3] != "2m" {
		t.Errorf("the cells are %v", got)
	}
	r.Status.StartTime = nil
	if got := cells(r); got[3] != "" {
		t.Errorf("a run that has not started has the duration %v", got[3])
	}
}
