package main

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// logFinalizer keeps a run until its log is deleted, where no garbage collector does that.
const logFinalizer = "ci.rowkeeper.dev/log"

// succeeded is the condition that tells how a run has ended.
const succeeded = "Succeeded"

// runReconciler takes a run through its steps, one each time it looks at it.
type runReconciler struct {
	client.Client
	execute executor
}

func (r *runReconciler) setUp(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).
		For(&v1.PipelineRun{}).
		WithOptions(controller.Options{SkipNameValidation: new(true), MaxConcurrentReconciles: 4}).
		Complete(r)
}

// Reconcile does the next thing that is to be done with a run.
func (r *runReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	run := &v1.PipelineRun{}
	if err := r.Get(ctx, request.NamespacedName, run); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	switch {
	case run.DeletionTimestamp != nil:
		return ctrl.Result{}, r.remove(ctx, run)
	case finished(run.Status.Phase):
		return ctrl.Result{}, nil
	case run.Spec.Cancelled:
		return ctrl.Result{}, r.finish(ctx, run, v1.RunCancelled, "Cancelled",
			"the run was cancelled")
	case !controllerutil.ContainsFinalizer(run, logFinalizer) || metav1.GetControllerOf(run) == nil:
		return ctrl.Result{}, r.adopt(ctx, run)
	case run.Status.Phase != v1.RunRunning:
		return ctrl.Result{}, nil // it waits for the pipeline
	}
	return ctrl.Result{}, r.step(ctx, run)
}

// adopt makes a run the pipeline's own, so that the pipeline is looked at when it changes, also if
// it was not made by the pipeline's subresource; and sees to it that it is not gone before its log
// is.
func (r *runReconciler) adopt(ctx context.Context, run *v1.PipelineRun) error {
	p := &v1.Pipeline{}
	err := r.Get(ctx, client.ObjectKey{Namespace: run.Namespace, Name: run.Spec.PipelineName}, p)
	if apierrors.IsNotFound(err) {
		return r.finish(ctx, run, v1.RunFailed, "PipelineNotFound", "there is no pipeline "+
			run.Spec.PipelineName)
	}
	if err != nil {
		return err
	}
	if metav1.GetControllerOf(run) == nil {
		if err := controllerutil.SetControllerReference(p, run, r.Scheme()); err != nil {
			return err
		}
	}
	controllerutil.AddFinalizer(run, logFinalizer)
	return client.IgnoreNotFound(r.Update(ctx, run))
}

// step runs the next step. When it has ended, the status changes, so that Reconcile is called
// again.
func (r *runReconciler) step(ctx context.Context, run *v1.PipelineRun) error {
	p := &v1.Pipeline{}
	err := r.Get(ctx, client.ObjectKey{Namespace: run.Namespace, Name: run.Spec.PipelineName}, p)
	if apierrors.IsNotFound(err) {
		return r.finish(ctx, run, v1.RunFailed, "PipelineNotFound", "there is no pipeline "+
			run.Spec.PipelineName)
	}
	if err != nil {
		return err
	}
	next := len(run.Status.Steps)
	if next >= len(p.Spec.Steps) {
		return r.finish(ctx, run, v1.RunSucceeded, "Completed", "all steps have succeeded")
	}
	step := &p.Spec.Steps[next]
	begun := metav1.Now()
	lines, code := r.execute(ctx, step, environment(p, run, step))
	// The log is stored before the status, so that whoever sees the step ended finds its lines.
	if err := r.writeLog(ctx, run, next, step.Name, lines); err != nil {
		return err
	}
	before := run.DeepCopy()
	status := v1.StepStatus{Name: step.Name, Phase: v1.RunSucceeded, StartTime: &begun,
		CompletionTime: new(metav1.Now()), ExitCode: &code}
	if code != 0 {
		status.Phase = v1.RunFailed
	}
	run.Status.Steps = append(run.Status.Steps, status)
	if err := r.Status().Patch(ctx, run,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	if code != 0 {
		return r.finish(ctx, run, v1.RunFailed, "StepFailed",
			fmt.Sprintf("step %s exited with %d", step.Name, code))
	}
	return nil
}

// environment is what the step sees: the parameters, with the run's values before the pipeline's
// defaults, and then its own variables.
func environment(p *v1.Pipeline, run *v1.PipelineRun, step *v1.Step) map[string]string {
	env := map[string]string{}
	for _, parameter := range p.Spec.Parameters {
		if parameter.Default != nil {
			env[parameter.Name] = *parameter.Default
		}
	}
	for _, value := range run.Spec.Parameters {
		env[value.Name] = value.Value
	}
	for _, variable := range step.Env {
		env[variable.Name] = variable.Value
	}
	return env
}

// writeLog stores the lines of a step. If the step is run again, since the controller was stopped
// before it could note that it has ended, they are there already.
func (r *runReconciler) writeLog(ctx context.Context, run *v1.PipelineRun, sequence int,
	step string, lines []string) error {
	chunk := &v1.LogChunk{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", run.Name, sequence),
			Namespace: run.Namespace},
		Spec: v1.LogChunkSpec{RunName: run.Name, RunUID: run.UID, Sequence: int64(sequence),
			Step: step, Lines: lines},
	}
	if err := controllerutil.SetControllerReference(run, chunk, r.Scheme()); err != nil {
		return err
	}
	if err := r.Create(ctx, chunk); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cannot store the log of step %s: %w", step, err)
	}
	return nil
}

// finish ends a run.
func (r *runReconciler) finish(ctx context.Context, run *v1.PipelineRun, phase v1.PipelineRunPhase,
	reason, message string) error {
	before := run.DeepCopy()
	run.Status.Phase = phase
	run.Status.CompletionTime = new(metav1.Now())
	run.Status.ObservedGeneration = run.Generation
	condition := metav1.Condition{Type: succeeded, Status: metav1.ConditionFalse, Reason: reason,
		Message: message, LastTransitionTime: metav1.Now()}
	if phase == v1.RunSucceeded {
		condition.Status = metav1.ConditionTrue
	}
	run.Status.Conditions = []metav1.Condition{condition}
	return client.IgnoreNotFound(r.Status().Patch(ctx, run, client.MergeFrom(before)))
}

// remove ends a run that is being deleted, deletes its log, and lets it go.
func (r *runReconciler) remove(ctx context.Context, run *v1.PipelineRun) error {
	if run.Status.Phase == v1.RunRunning {
		if err := r.finish(ctx, run, v1.RunCancelled, "Deleted",
			"the run was deleted"); err != nil {
			return err
		}
	}
	if grace := run.DeletionGracePeriodSeconds; grace != nil && *grace > 0 {
		// The step has ended, so that nobody has to wait any longer.
		if err := r.Delete(ctx, run, client.GracePeriodSeconds(0),
			client.Preconditions{UID: &run.UID}); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	// By the server's field selector, not by the cache, which may not know the newest piece yet.
	if err := r.DeleteAllOf(ctx, &v1.LogChunk{}, client.InNamespace(run.Namespace),
		client.MatchingFields{"spec.runName": run.Name}); err != nil {
		return fmt.Errorf("cannot delete the log: %w", err)
	}
	before := run.DeepCopy()
	if !controllerutil.RemoveFinalizer(run, logFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.Patch(ctx, run, client.MergeFrom(before)))
}

func finished(phase v1.PipelineRunPhase) bool {
	return phase == v1.RunSucceeded || phase == v1.RunFailed || phase == v1.RunCancelled
}
