// Package pipeline keeps pipelines.
package pipeline

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1alpha1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/validation"
	"github.com/rowkeeper/rowkeeper/pkg/registry/status"
)

// strategy says what happens to a pipeline on its way into the store.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

var (
	_ rest.RESTCreateStrategy              = strategy{}
	_ rest.RESTUpdateStrategy              = strategy{}
	_ rest.RESTDeleteStrategy              = strategy{}
	_ rest.ResetFieldsStrategy             = strategy{}
	_ rest.GarbageCollectionDeleteStrategy = strategy{}
)

func newStrategy(typer runtime.ObjectTyper) strategy {
	return strategy{typer, names.SimpleNameGenerator}
}

func (strategy) NamespaceScoped() bool                         { return true }
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
func (strategy) Canonicalize(runtime.Object)                   {}

// DefaultGarbageCollectionPolicy lets the garbage collector, if one runs, delete a pipeline's runs
// after it.
func (strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.DeleteDependents
}

// PrepareForCreate drops the status: whoever creates a pipeline cannot say how it is doing.
func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	p := obj.(*ci.Pipeline)
	p.Status = ci.PipelineStatus{Phase: ci.PipelinePending}
	p.Generation = 1
}

// PrepareForUpdate keeps the status and counts the changes of the spec.
func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, was := obj.(*ci.Pipeline), old.(*ci.Pipeline)
	p.Status = was.Status
	if !equality.Semantic.DeepEqual(p.Spec, was.Spec) {
		p.Generation = was.Generation + 1
	}
}

func (strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	p := obj.(*ci.Pipeline)
	return asRequested(ctx, p, validation.ValidatePipeline(p))
}

func (strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	p := obj.(*ci.Pipeline)
	return asRequested(ctx, p, validation.ValidatePipelineUpdate(p, old.(*ci.Pipeline)))
}

func (strategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	return warnings(ctx, obj.(*ci.Pipeline))
}

func (strategy) WarningsOnUpdate(ctx context.Context, obj, _ runtime.Object) []string {
	return warnings(ctx, obj.(*ci.Pipeline))
}

// asRequested returns errors that name the fields of the version that the request is made in.
func asRequested(ctx context.Context, p *ci.Pipeline, errs field.ErrorList) field.ErrorList {
	if requestVersion(ctx) == v1alpha1.SchemeGroupVersion {
		return v1alpha1.FieldErrors(p, errs)
	}
	return errs
}

// requestVersion returns the version in which a pipeline is written.
func requestVersion(ctx context.Context) schema.GroupVersion {
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		version := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		if slices.Contains(versions, version) {
			return version
		}
	}
	return versions[0]
}

func warnings(ctx context.Context, p *ci.Pipeline) []string {
	return validation.WarningsForPipeline(p, func(path string) string {
		if requestVersion(ctx) == v1alpha1.SchemeGroupVersion {
			return v1alpha1.FieldName(p, path)
		}
		return path
	})
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
	p, was := obj.(*ci.Pipeline), old.(*ci.Pipeline)
	p.Spec = was.Spec
	p.Labels = was.Labels
	p.Annotations = was.Annotations
	p.OwnerReferences = was.OwnerReferences
	p.Finalizers = was.Finalizers
}

func (statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidatePipelineStatusUpdate(obj.(*ci.Pipeline), old.(*ci.Pipeline))
}

func (statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return status.Fields(versions, "spec", "metadata")
}

// versions are those in which pipelines are served.
var versions = []schema.GroupVersion{v1.SchemeGroupVersion, v1alpha1.SchemeGroupVersion}

// getAttrs returns the labels and the fields by which pipelines can be selected.
func getAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	p, ok := obj.(*ci.Pipeline)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a Pipeline", obj)
	}
	selectable := generic.AddObjectMetaFieldsSet(make(fields.Set, 4), &p.ObjectMeta, true)
	selectable["spec.image"] = p.Spec.Image
	selectable[phaseField] = string(p.Status.Phase)
	return p.Labels, selectable, nil
}

// matchPipeline selects pipelines by label and field.
func matchPipeline(label labels.Selector, field fields.Selector) apistorage.SelectionPredicate {
	return apistorage.SelectionPredicate{Label: label, Field: field, GetAttrs: getAttrs,
		IndexFields: []string{phaseField}}
}

// phaseField is the field by which the watch cache indexes pipelines, for lists and for watches.
const phaseField = "status.phase"

func phaseOf(obj runtime.Object) string { return string(obj.(*ci.Pipeline).Status.Phase) }

// indexers let the watch cache find a phase's pipelines without looking at the others.
func indexers() *cache.Indexers {
	return &cache.Indexers{
		apistorage.FieldIndex(phaseField): func(obj any) ([]string, error) {
			p, ok := obj.(*ci.Pipeline)
			if !ok {
				return nil, fmt.Errorf("%T is not a Pipeline", obj)
			}
			return []string{phaseOf(p)}, nil
		},
	}
}
