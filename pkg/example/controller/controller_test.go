package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned/typed/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// environment of a test: a server and the controllers.
type setting struct {
	*testing.T
	api civ1.CiV1Interface
}

func begin(t *testing.T, execute executor) setting {
	t.Helper()
	s, server := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	manager, err := newManager(ctx, server.Config, execute)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- manager.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the manager: %v", err)
		}
	})
	return s
}

// serve starts a server without controllers.
func serve(t *testing.T) (setting, *testkit.Server) {
	t.Helper()
	ctrl.SetLogger(klog.Background())
	server := exampletest.Start(t, testkit.Options{})
	api, err := versioned.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	return setting{t, api.CiV1()}, server
}

func (s setting) pipeline(name string, parallel int32, commands ...[]string) *v1.Pipeline {
	s.Helper()
	p := &v1.Pipeline{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PipelineSpec{Image: "golang:1.26", MaxParallelRuns: &parallel,
			Parameters: []v1.Parameter{{Name: "WHO", Default: new("world")}}}}
	for i, command := range commands {
		p.Spec.Steps = append(p.Spec.Steps, v1.Step{Name: fmt.Sprintf("step-%d", i),
			Command: command})
	}
	p, err := s.api.Pipelines("default").Create(s.Context(), p, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return p
}

func (s setting) run(pipeline string) *v1.PipelineRun {
	s.Helper()
	r, err := s.api.Pipelines("default").CreateRun(s.Context(), pipeline, &v1.PipelineRunRequest{},
		metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return r
}

// create makes a run that is nobody's own.
func (s setting) create(name, pipeline string) {
	s.Helper()
	run := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PipelineRunSpec{PipelineName: pipeline}}
	if _, err := s.api.PipelineRuns("default").Create(s.Context(), run,
		metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

func (s setting) get(name string) *v1.PipelineRun {
	s.Helper()
	r, err := s.api.PipelineRuns("default").Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return r
}

func (s setting) eventually(what string, ok func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			s.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

func (s setting) ends(name string, phase v1.PipelineRunPhase) *v1.PipelineRun {
	s.Helper()
	s.eventually("the run ends as "+string(phase), func() bool {
		return s.get(name).Status.Phase == phase
	})
	return s.get(name)
}

func TestRunSucceeds(t *testing.T) {
	s := begin(t, simulate)
	s.pipeline("build", 1, []string{"echo", "hello", "$WHO"}, []string{"sh", "-c", "make all"})
	run := s.ends(s.run("build").Name, v1.RunSucceeded)
	if len(run.Status.Steps) != 2 || *run.Status.Steps[1].ExitCode != 0 ||
		run.Status.StartTime == nil || run.Status.CompletionTime == nil {
		t.Errorf("the status is %+v", run.Status)
	}
	if !meta.IsStatusConditionTrue(run.Status.Conditions, succeeded) {
		t.Errorf("the conditions are %+v", run.Status.Conditions)
	}
	log, err := s.api.PipelineRuns("default").GetLogs(run.Name,
		&v1.PipelineRunLogOptions{Follow: true}).DoRaw(t.Context())
	if want := "+ echo hello $WHO\nhello world\n+ make all\n"; err != nil || string(log) != want {
		t.Errorf("the log is %q, want %q: %v", log, want, err)
	}
	s.eventually("the pipeline is ready", func() bool {
		p, err := s.api.Pipelines("default").Get(t.Context(), "build", metav1.GetOptions{})
		return err == nil && p.Status.Phase == v1.PipelineReady &&
			p.Status.ObservedGeneration == p.Generation && p.Status.ActiveRuns == 0
	})

	// The finalizer holds the run until its log is gone.
	if err := s.api.PipelineRuns("default").Delete(t.Context(), run.Name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the run is gone", func() bool {
		_, err := s.api.PipelineRuns("default").Get(t.Context(), run.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	chunks, err := s.api.LogChunks("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(chunks.Items) > 0 {
		t.Errorf("left over are %d chunks: %v", len(chunks.Items), err)
	}
}

func TestRunFails(t *testing.T) {
	s := begin(t, simulate)
	s.pipeline("build", 1, []string{"false"}, []string{"make"})
	run := s.ends(s.run("build").Name, v1.RunFailed)
	if len(run.Status.Steps) != 1 || *run.Status.Steps[0].ExitCode != 1 {
		t.Errorf("the steps are %+v", run.Status.Steps)
	}
	s.create("orphan", "missing")
	s.ends("orphan", v1.RunFailed)
}

// gate is an executor that waits until the test lets it go on.
func gate() (executor, chan struct{}) {
	open := make(chan struct{})
	return func(ctx context.Context, step *v1.Step, env map[string]string) ([]string, int32) {
		select {
		case <-open:
		case <-ctx.Done():
		}
		return simulate(ctx, step, env)
	}, open
}

func TestMaxParallelRunsSuspensionAndScale(t *testing.T) {
	execute, open := gate()
	s := begin(t, execute)
	s.pipeline("build", 1, []string{"make"})
	names := []string{s.run("build").Name, s.run("build").Name, s.run("build").Name}
	running := func() (n int) {
		for _, name := range names {
			if s.get(name).Status.Phase == v1.RunRunning {
				n++
			}
		}
		return n
	}
	active := func(want int32) func() bool {
		return func() bool {
			p, err := s.api.Pipelines("default").Get(t.Context(), "build", metav1.GetOptions{})
			return err == nil && p.Status.ActiveRuns == want && running() == int(want)
		}
	}
	s.eventually("one run is active", active(1))
	scale, err := s.api.Pipelines("default").GetScale(t.Context(), "build", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 2
	if _, err := s.api.Pipelines("default").UpdateScale(t.Context(), "build", scale,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("two runs are active", active(2))
	if _, err := s.api.Pipelines("default").Patch(t.Context(), "build",
		"application/merge-patch+json", []byte(`{"spec":{"suspended":true}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.eventually("the pipeline is suspended", func() bool {
		p, err := s.api.Pipelines("default").Get(t.Context(), "build", metav1.GetOptions{})
		return err == nil && p.Status.Phase == v1.PipelineSuspended
	})
	close(open)
	s.eventually("what was started has ended", active(0))
	waiting := 0
	for _, name := range names {
		if s.get(name).Status.Phase == v1.RunPending {
			waiting++
		}
	}
	if waiting != 1 {
		t.Errorf("%d runs wait while the pipeline is suspended, want 1", waiting)
	}
	if _, err := s.api.Pipelines("default").Patch(t.Context(), "build",
		"application/merge-patch+json", []byte(`{"spec":{"suspended":false}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		s.ends(name, v1.RunSucceeded)
	}
}

func TestCancelAndGracefulDeletion(t *testing.T) {
	execute, open := gate()
	s := begin(t, execute)
	s.pipeline("build", 2, []string{"make"}, []string{"make", "more"})
	cancelled, deleted := s.run("build").Name, s.run("build").Name
	for _, name := range []string{cancelled, deleted} {
		s.eventually("the run has started", func() bool {
			return s.get(name).Status.Phase == v1.RunRunning
		})
	}
	if _, err := s.api.PipelineRuns("default").Patch(t.Context(), cancelled,
		"application/merge-patch+json", []byte(`{"spec":{"cancelled":true}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.api.PipelineRuns("default").Delete(t.Context(), deleted,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if r := s.get(deleted); r.DeletionTimestamp == nil || *r.DeletionGracePeriodSeconds != 30 {
		t.Errorf("the run is not given time to end: %+v", r.ObjectMeta)
	}
	close(open) // the step that was running ends
	if run := s.ends(cancelled, v1.RunCancelled); len(run.Status.Steps) == 2 {
		t.Error("the cancelled run went on")
	}
	s.eventually("the run is gone", func() bool {
		_, err := s.api.PipelineRuns("default").Get(t.Context(), deleted, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// However fast runs come and end, there are never more of them than the pipeline allows, and none
// is forgotten. The watch sees every state in between.
func TestNeverTooManyRuns(t *testing.T) {
	s := begin(t, simulate)
	p := s.pipeline("build", 2, []string{"make"}, []string{"make", "test"})
	watch, err := s.api.PipelineRuns("default").Watch(t.Context(),
		metav1.ListOptions{ResourceVersion: p.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	const runs = 40
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := range runs {
			if i%2 == 0 {
				s.create(fmt.Sprintf("z-%d", runs-i), "build")
			} else if _, err := s.api.Pipelines("default").CreateRun(t.Context(), "build",
				&v1.PipelineRunRequest{}, metav1.CreateOptions{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	phases, most, ended := map[string]v1.PipelineRunPhase{}, 0, 0
	for ended < runs {
		run, ok := (<-watch.ResultChan()).Object.(*v1.PipelineRun)
		if !ok {
			t.Fatal("the watch has ended")
		}
		phases[run.Name] = run.Status.Phase
		running := 0
		ended = 0
		for _, phase := range phases {
			switch phase {
			case v1.RunRunning:
				running++
			case v1.RunSucceeded:
				ended++
			}
		}
		if most = max(most, running); running > 2 {
			t.Fatalf("%d runs are running, and 2 are allowed", running)
		}
	}
	if most != 2 {
		t.Errorf("at most %d runs were running at a time, and 2 are allowed", most)
	}
}

// A run that was not made by the pipeline's subresource is the pipeline's own nevertheless, and so
// is the log the run's.
func TestOwners(t *testing.T) {
	s := begin(t, simulate)
	p := s.pipeline("build", 1, []string{"make"})
	s.create("by-hand", "build")
	run := s.ends("by-hand", v1.RunSucceeded)
	if owner := metav1.GetControllerOf(run); owner == nil || owner.UID != p.UID {
		t.Errorf("the run belongs to %v", owner)
	}
	chunk, err := s.api.LogChunks("default").Get(t.Context(), "by-hand-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if owner := metav1.GetControllerOf(chunk); owner == nil || owner.UID != run.UID {
		t.Errorf("the log belongs to %v", owner)
	}
}

// A controller whose cache is behind does not start what the server knows to be too much.
func TestCacheThatIsBehind(t *testing.T) {
	s, server := serve(t)
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	direct, err := client.NewWithWatch(server.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	s.pipeline("build", 1, []string{"make"})
	s.create("z", "build")
	s.create("a", "build")
	behind := &v1.PipelineRunList{}
	if err := direct.List(t.Context(), behind); err != nil {
		t.Fatal(err)
	}
	cached := interceptor.NewClient(direct,
		interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, list client.ObjectList,
			_ ...client.ListOption) error {
			behind.DeepCopyInto(list.(*v1.PipelineRunList))
			return nil
		}})
	if _, err := s.api.PipelineRuns("default").Patch(t.Context(), "z",
		"application/merge-patch+json", []byte(`{"status":{"phase":"Running"}}`),
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	r := &pipelineReconciler{Client: cached, server: direct}
	if _, err := r.Reconcile(t.Context(),
		ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "default",
			Name: "build"}}); err != nil {
		t.Fatal(err)
	}
	if phase := s.get("a").Status.Phase; phase != v1.RunPending {
		t.Errorf("the second run is %s", phase)
	}
	p, err := s.api.Pipelines("default").Get(t.Context(), "build", metav1.GetOptions{})
	if err != nil || p.Status.ActiveRuns != 1 {
		t.Errorf("%d runs are said to be active, %v", p.Status.ActiveRuns, err)
	}
}
