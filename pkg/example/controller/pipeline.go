package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// byPipeline is the index of runs by the name of their pipeline: the cache's own, and the server's
// field selector of the same name.
const byPipeline = "spec.pipelineName"

// pipelineReconciler starts the runs of a pipeline, as many at a time as it allows, and keeps its
// status.
type pipelineReconciler struct {
	client.Client
	// server reads past the cache.
	server client.Reader
}

func (r *pipelineReconciler) setUp(ctx context.Context, manager ctrl.Manager) error {
	err := manager.GetFieldIndexer().IndexField(ctx, &v1.PipelineRun{}, byPipeline,
		func(obj client.Object) []string {
			return []string{obj.(*v1.PipelineRun).Spec.PipelineName}
		})
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(manager).
		For(&v1.Pipeline{}).
		Owns(&v1.PipelineRun{}).
		// Managers of several tests may be in one process.
		WithOptions(controller.Options{SkipNameValidation: new(true)}).
		Complete(r)
}

// Reconcile starts what can start, and says how the pipeline is doing.
func (r *pipelineReconciler) Reconcile(ctx context.Context,
	request ctrl.Request) (ctrl.Result, error) {
	p := &v1.Pipeline{}
	if err := r.Get(ctx, request.NamespacedName, p); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if p.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	active, waiting, err := runsOf(ctx, r.Client, p)
	if err != nil {
		return ctrl.Result{}, err
	}
	if room := !p.Spec.Suspended && active < *p.Spec.MaxParallelRuns; room && len(waiting) > 0 {
		// The cache may not know yet of a run that was started just now. So the server is asked
		// before one is started, or there would be too many.
		if active, waiting, err = runsOf(ctx, r.server, p); err != nil {
			return ctrl.Result{}, err
		}
	}
	for _, run := range waiting {
		if p.Spec.Suspended || active >= *p.Spec.MaxParallelRuns {
			break
		}
		if err := r.start(ctx, run); err != nil {
			return ctrl.Result{}, err
		}
		active++
	}
	return ctrl.Result{}, r.report(ctx, p, active)
}

// runsOf returns how many runs of a pipeline are running, and the runs that wait, the longest
// first.
func runsOf(ctx context.Context, reader client.Reader,
	p *v1.Pipeline) (active int32, waiting []*v1.PipelineRun, err error) {
	runs := &v1.PipelineRunList{}
	if err := reader.List(ctx, runs, client.InNamespace(p.Namespace),
		client.MatchingFields{byPipeline: p.Name}); err != nil {
		return 0, nil, err
	}
	for i := range runs.Items {
		switch run := &runs.Items[i]; {
		case run.Status.Phase == v1.RunRunning:
			active++
		case run.Status.Phase == v1.RunPending && !run.Spec.Cancelled &&
			run.DeletionTimestamp == nil:
			waiting = append(waiting, run)
		}
	}
	slices.SortFunc(waiting, func(a, b *v1.PipelineRun) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	return active, waiting, nil
}

// start lets a run begin.
func (r *pipelineReconciler) start(ctx context.Context, run *v1.PipelineRun) error {
	// With the version, so that a run which was cancelled or deleted meanwhile is not started.
	patch := client.MergeFromWithOptions(run.DeepCopy(), client.MergeFromWithOptimisticLock{})
	run.Status.Phase = v1.RunRunning
	run.Status.StartTime = new(metav1.Now())
	run.Status.ObservedGeneration = run.Generation
	if err := r.Status().Patch(ctx, run, patch); err != nil {
		return fmt.Errorf("cannot start the run %s: %w", run.Name, err)
	}
	return nil
}

// report writes the status if it has changed.
func (r *pipelineReconciler) report(ctx context.Context, p *v1.Pipeline, active int32) error {
	before := p.DeepCopy()
	p.Status.ObservedGeneration = p.Generation
	p.Status.ActiveRuns = active
	p.Status.Phase = v1.PipelineReady
	condition := metav1.Condition{Type: v1.PipelineReadyCondition, Status: metav1.ConditionTrue,
		Reason: "Checked", ObservedGeneration: p.Generation}
	if p.Spec.Suspended {
		p.Status.Phase = v1.PipelineSuspended
		condition.Status, condition.Reason = metav1.ConditionFalse, "Suspended"
	}
	meta.SetStatusCondition(&p.Status.Conditions, condition)
	if equality.Semantic.DeepEqual(before.Status, p.Status) {
		return nil
	}
	return client.IgnoreNotFound(r.Status().Patch(ctx, p, client.MergeFrom(before)))
}
