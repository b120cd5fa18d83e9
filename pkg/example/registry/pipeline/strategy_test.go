package pipeline

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
)

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	return s
}()

func stored() *ci.Pipeline {
	return &ci.Pipeline{
		ObjectMeta: metav1.ObjectMeta{Name: "build", Namespace: "default", UID: "1",
			ResourceVersion: "7", Generation: 3, Labels: map[string]string{"team": "search"}},
		Spec: ci.PipelineSpec{Image: "golang:1.26",
			Steps: []ci.Step{{Name: "test", Command: []string{"make"}}}, MaxParallelRuns: 1},
		Status: ci.PipelineStatus{Phase: ci.PipelineReady, ObservedGeneration: 3,
			ActiveRuns: 1},
	}
}

func update(t *testing.T, s rest.RESTUpdateStrategy, change func(*ci.Pipeline)) *ci.Pipeline {
	t.Helper()
	p := stored()
	change(p)
	ctx := genericapirequest.WithNamespace(t.Context(), "default")
	if err := rest.BeforeUpdate(s, ctx, p, stored()); err != nil {
		t.Fatal(err)
	}
	return p
}

// A refusal and a warning name fields that the version of the request has.
func TestFieldsOfTheRequestedVersion(t *testing.T) {
	for version, want := range map[string][2]string{
		"v1":       {"spec.steps[0].command", "spec.steps[0].image"},
		"v1alpha1": {"spec.commands[0]", "metadata.annotations[ci.rowkeeper.dev/structured]"},
	} {
		ctx := genericapirequest.WithRequestInfo(genericapirequest.WithNamespace(t.Context(),
			"default"), &genericapirequest.RequestInfo{APIGroup: ci.GroupName, APIVersion: version,
			Resource: "pipelines"})
		p := stored()
		p.Spec.Steps[0].Command, p.Spec.Steps[0].Image = nil, "golang"
		s := newStrategy(scheme)
		for _, errs := range []field.ErrorList{s.Validate(ctx, p),
			s.ValidateUpdate(ctx, p, stored())} {
			if len(errs) != 1 || errs[0].Field != want[0] {
				t.Errorf("%s: got %v, want an error about %s", version, errs, want[0])
			}
		}
		for _, warnings := range [][]string{s.WarningsOnCreate(ctx, p),
			s.WarningsOnUpdate(ctx, p, stored())} {
			if len(warnings) != 1 || !strings.HasPrefix(warnings[0], want[1]+": ") {
				t.Errorf("%s: got %q, want a warning about %s", version, warnings, want[1])
			}
		}
	}
}

func TestCreateDropsTheStatus(t *testing.T) {
	p := stored()
	p.ResourceVersion, p.Generation = "", 9
	ctx := genericapirequest.WithNamespace(t.Context(), "default")
	if err := rest.BeforeCreate(newStrategy(scheme), ctx, p); err != nil {
		t.Fatal(err)
	}
	if want := (ci.PipelineStatus{Phase: ci.PipelinePending}); !equality.Semantic.DeepEqual(p.Status, want) || p.Generation != 1 {
		t.Errorf("created with generation %d and status %+v", p.Generation, p.Status)
	}
}

func TestSpecAndStatusDoNotOverwriteEachOther(t *testing.T) {
	both := func(p *ci.Pipeline) {
		p.Spec.Suspended = true
		p.Status.Phase = ci.PipelineSuspended
		p.Labels = map[string]string{"team": "identity"}
	}
	s := newStrategy(scheme)
	if p := update(t, s, both); !p.Spec.Suspended || p.Status.Phase != ci.PipelineReady ||
		p.Labels["team"] != "identity" || p.Generation != 4 {
		t.Errorf("an update of the pipeline gave %+v", p)
	}
	if p := update(t, statusStrategy{s}, both); p.Spec.Suspended ||
		p.Status.Phase != ci.PipelineSuspended || p.Labels["team"] != "search" ||
		p.Generation != 3 {
		t.Errorf("an update of the status gave %+v", p)
	}
}

func TestGenerationCountsChangesOfTheSpec(t *testing.T) {
	if p := update(t, newStrategy(scheme), func(p *ci.Pipeline) {
		p.Annotations = map[string]string{"a": "b"}
		p.Spec.Parameters = []ci.Parameter{}
	}); p.Generation != 3 {
		t.Errorf("generation %d after the metadata changed, want 3", p.Generation)
	}
	if p := update(t, newStrategy(scheme), func(p *ci.Pipeline) {
		p.Generation = 100
		p.Spec.MaxParallelRuns = 2
	}); p.Generation != 4 {
		t.Errorf("generation %d after the spec changed, want 4", p.Generation)
	}
}

func TestSelection(t *testing.T) {
	for selector, want := range map[string]bool{
		"metadata.name=build":        true,
		"metadata.name=other":        false,
		"metadata.namespace=default": true,
		"spec.image=golang:1.26":     true,
		"status.phase=Ready":         true,
		"status.phase!=Ready":        false,
	} {
		field, err := fields.ParseSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		predicate := matchPipeline(labels.SelectorFromSet(labels.Set{"team": "search"}), field)
		if got, err := predicate.Matches(stored()); err != nil || got != want {
			t.Errorf("%s: %v %v, want %v", selector, got, err, want)
		}
	}
	if _, _, err := getAttrs(&ci.PipelineList{}); err == nil {
		t.Error("a list has attributes")
	}
}

func TestTable(t *testing.T) {
	convertor := tableConvertor(fixedClock{})
	list := &ci.PipelineList{ListMeta: metav1.ListMeta{ResourceVersion: "12", Continue: "next"},
		Items: []ci.Pipeline{*stored()}}
	list.Items[0].CreationTimestamp = metav1.NewTime(fixedClock{}.Now().Add(-fiveMinutes))
	table, err := convertor.ConvertToTable(t.Context(), list, &metav1.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if table.ResourceVersion != "12" || table.Continue != "next" || len(table.Rows) != 1 ||
		len(table.Rows[0].Cells) != len(table.ColumnDefinitions) {
		t.Fatalf("the table is %+v", table)
	}
	want := []any{"build", "Ready", int64(1), int64(1), int64(1), "5m", "golang:1.26", false}
	if got := table.Rows[0].Cells; !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("the cells are %v, want %v", got, want)
	}
	if table, err := convertor.ConvertToTable(t.Context(), stored(),
		&metav1.TableOptions{NoHeaders: true}); err != nil || len(table.ColumnDefinitions) != 0 ||
		table.ResourceVersion != "7" {
		t.Errorf("one object without headers: %+v %v", table, err)
	}
	if _, err := convertor.ConvertToTable(t.Context(), &metav1.Status{}, nil); err == nil {
		t.Error("a table of pipelines shows a Status")
	}
}
