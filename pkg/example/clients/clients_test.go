package clients

import (
	"context"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

func typed(t *testing.T, s *testkit.Server) versioned.Interface {
	t.Helper()
	client, err := versioned.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestApply(t *testing.T) {
	client := typed(t, exampletest.Start(t, testkit.Options{}))
	p, err := Apply(t.Context(), client, "default", "build", "golang:1.26", []string{"go", "vet"},
		[]string{"go", "test"})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Spec.Steps) != 2 || *p.Spec.MaxParallelRuns != 1 {
		t.Errorf("applied is %+v", p.Spec)
	}
	// Fields of others stay; fields that are no longer said go.
	scale, err := client.CiV1().Pipelines("default").GetScale(t.Context(), "build",
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 3
	if _, err := client.CiV1().Pipelines("default").UpdateScale(t.Context(), "build", scale,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err = Apply(t.Context(), client, "default", "build", "golang:1.27", []string{"go", "vet"})
	if err != nil {
		t.Fatal(err)
	}
	if p.Spec.Image != "golang:1.27" || len(p.Spec.Steps) != 1 || *p.Spec.MaxParallelRuns != 3 {
		t.Errorf("applied again, it is %+v", p.Spec)
	}
	run, err := client.CiV1().Pipelines("default").CreateRun(t.Context(), "build",
		&v1.PipelineRunRequest{Spec: v1.PipelineRunRequestSpec{Branch: "main"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	runs, err := client.CiV1().Pipelines("default").ListRuns(t.Context(), "build",
		&v1.PipelineRunsOptions{Branch: "main"})
	if err != nil || len(runs.Items) != 1 || runs.Items[0].Name != run.Name {
		t.Errorf("the runs are %+v, %v", runs, err)
	}
	log, err := client.CiV1().PipelineRuns("default").GetLogs(run.Name,
		&v1.PipelineRunLogOptions{}).DoRaw(t.Context())
	if err != nil || len(log) > 0 {
		t.Errorf("the log is %q, %v", log, err)
	}
}

func TestSuspend(t *testing.T) {
	s := exampletest.Start(t, testkit.Options{})
	client := typed(t, s)
	for i := range 12 {
		p := &v1.Pipeline{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%d", i),
				Labels: map[string]string{"even": fmt.Sprint(i%2 == 0)}},
			Spec: v1.PipelineSpec{Image: "golang:1.26",
				Steps: []v1.Step{{Name: "a", Command: []string{"make"}}}},
		}
		if _, err := client.CiV1().Pipelines("default").Create(t.Context(), p,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	n, err := Suspend(t.Context(), dynamic.NewForConfigOrDie(s.Config), "default", "even=true")
	if err != nil || n != 6 {
		t.Errorf("%d were suspended: %v", n, err)
	}
	list, err := client.CiV1().Pipelines("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Spec.Suspended != (p.Labels["even"] == "true") {
			t.Errorf("%s: suspended %v", p.Name, p.Spec.Suspended)
		}
	}
}

func TestCensus(t *testing.T) {
	client := typed(t, exampletest.Start(t, testkit.Options{}))
	ctx, cancel := context.WithCancel(t.Context())
	counts := make(chan map[string]int, 100)
	done := make(chan error, 1)
	go func() {
		done <- Census(ctx, client, "default", func(runs map[string]int) { counts <- runs })
	}()
	create := func(pipeline string) *v1.PipelineRun {
		t.Helper()
		r, err := client.CiV1().PipelineRuns("default").Create(t.Context(), &v1.PipelineRun{
			ObjectMeta: metav1.ObjectMeta{GenerateName: pipeline + "-"},
			Spec:       v1.PipelineRunSpec{PipelineName: pipeline},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	expect := func(want map[string]int) {
		t.Helper()
		for got := range counts {
			if fmt.Sprint(got) == fmt.Sprint(want) {
				return
			}
		}
	}
	create("a")
	gone := create("b")
	create("a")
	expect(map[string]int{"a": 2, "b": 1})
	if err := client.CiV1().PipelineRuns("default").Delete(t.Context(), gone.Name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(map[string]int{"a": 2})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPolicyClient(t *testing.T) {
	s := exampletest.Start(t, testkit.Options{})
	client, err := NewPolicyClient(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	came, went := make(chan string, 10), make(chan string, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.Follow(ctx, func(name string) { came <- name }, func(name string) { went <- name })
	}()
	var names []string
	for _, name := range []string{"one", "two"} {
		p, err := client.Create(ctx, &v1.PipelinePolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PipelinePolicySpec{BannedNames: []string{"x"}}})
		if err != nil {
			t.Fatal(err)
		}
		if p.UID == "" {
			t.Error("what was created has no UID")
		}
		names = append(names, <-came)
	}
	if !slices.Equal(names, []string{"one", "two"}) {
		t.Errorf("came %v", names)
	}
	list, err := client.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(list.Items) != 1 || list.Continue == "" {
		t.Errorf("listed are %+v, %v", list, err)
	}
	if err := client.Delete(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	if name := <-went; name != "one" {
		t.Errorf("went %s", name)
	}
	cancel()
	<-done
}
