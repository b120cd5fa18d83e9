// Package pipelinerun keeps runs of pipelines, and serves what they write.
package pipelinerun

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/validation"
	"github.com/rowkeeper/rowkeeper/pkg/registry/status"
)

// strategy says what happens to a run on its way into the store. The rules that are declared in v1
// are checked besides those of Validate and ValidateUpdate.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	rest.DeclarativeValidation
}

var (
	_ rest.RESTCreateStrategy            = strategy{}
	_ rest.RESTUpdateStrategy            = strategy{}
	_ rest.RESTGracefulDeleteStrategy    = strategy{}
	_ rest.DeclarativeValidationStrategy = strategy{}
	_ status.Strategy                    = strategy{}
)

func newStrategy(scheme *runtime.Scheme) strategy {
	return strategy{scheme, names.SimpleNameGenerator, rest.DeclarativeValidation{Scheme: scheme}}
}

func (strategy) NamespaceScoped() bool                         { return true }
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
func (strategy) Canonicalize(runtime.Object)                   {}

// PrepareForCreate drops the status: a run starts at the beginning.
func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	r := obj.(*ci.PipelineRun)
	r.Status = ci.PipelineRunStatus{Phase: ci.RunPending}
	r.Generation = 1
}

// PrepareForUpdate keeps the status and counts the changes of the spec.
func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	r, was := obj.(*ci.PipelineRun), old.(*ci.PipelineRun)
	r.Status = was.Status
	if !equality.Semantic.DeepEqual(r.Spec, was.Spec) {
		r.Generation = was.Generation + 1
	}
}

// CheckGracefulDelete lets a run that is running end by itself: whatever runs it sees the deletion
// timestamp, ends the step, and then deletes the run with a grace period of 0. If the client does
// not say how long that may take, the spec does. A run that is not running is deleted at once.
func (strategy) CheckGracefulDelete(_ context.Context, obj runtime.Object,
	options *metav1.DeleteOptions) bool {
	if options == nil {
		return false
	}
	r := obj.(*ci.PipelineRun)
	switch {
	case r.Status.Phase != ci.RunRunning:
		options.GracePeriodSeconds = new(int64(0))
	case options.GracePeriodSeconds == nil:
		options.GracePeriodSeconds = new(r.Spec.TerminationGracePeriodSeconds)
	}
	return true
}

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidatePipelineRun(obj.(*ci.PipelineRun))
}

func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidatePipelineRunUpdate(obj.(*ci.PipelineRun), old.(*ci.PipelineRun))
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields keeps server-side apply from giving somebody the fields that PrepareForUpdate
// takes away.
func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return status.Fields(versions, "status")
}

// statusStrategy is the strategy of the subresource status: only the status changes.
type statusStrategy struct{ strategy }

// PrepareForUpdate keeps everything but the status, and the metadata that nobody may change by way
// of the status.
func (statusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	r, was := obj.(*ci.PipelineRun), old.(*ci.PipelineRun)
	r.Spec = was.Spec
	r.Labels = was.Labels
	r.Annotations = was.Annotations
	r.OwnerReferences = was.OwnerReferences
	r.Finalizers = was.Finalizers
}

func (statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidatePipelineRunStatusUpdate(obj.(*ci.PipelineRun), old.(*ci.PipelineRun))
}

func (statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return status.Fields(versions, "spec", "metadata")
}

// versions are those in which runs are served.
var versions = []schema.GroupVersion{v1.SchemeGroupVersion}

// pipelineField is the field by which the watch cache indexes runs, for lists and for watches.
const pipelineField = "spec.pipelineName"

// getAttrs returns the labels and the fields by which runs can be selected.
func getAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	r, ok := obj.(*ci.PipelineRun)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a PipelineRun", obj)
	}
	selectable := generic.AddObjectMetaFieldsSet(make(fields.Set, 5), &r.ObjectMeta, true)
	selectable["spec.branch"] = r.Spec.Branch
	selectable[pipelineField] = r.Spec.PipelineName
	selectable["status.phase"] = string(r.Status.Phase)
	return r.Labels, selectable, nil
}

// matchRun selects runs by label and field.
func matchRun(label labels.Selector, field fields.Selector) apistorage.SelectionPredicate {
	return apistorage.SelectionPredicate{Label: label, Field: field, GetAttrs: getAttrs,
		IndexFields: []string{pipelineField}}
}

func pipelineOf(obj runtime.Object) string { return obj.(*ci.PipelineRun).Spec.PipelineName }

// indexers let the watch cache find a pipeline's runs without looking at the others.
func indexers() *cache.Indexers {
	return &cache.Indexers{
		apistorage.FieldIndex(pipelineField): func(obj any) ([]string, error) {
			r, ok := obj.(*ci.PipelineRun)
			if !ok {
				return nil, fmt.Errorf("%T is not a PipelineRun", obj)
			}
			return []string{pipelineOf(r)}, nil
		},
	}
}
