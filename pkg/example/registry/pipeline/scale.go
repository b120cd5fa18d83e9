package pipeline

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// ScaleREST is the subresource pipelines/scale: what "kubectl scale" and autoscalers use. Its
// replicas are the spec's maxParallelRuns, and in the status the active runs.
type ScaleREST struct {
	store *genericregistry.Store
}

var (
	_ rest.Patcher                  = &ScaleREST{}
	_ rest.GroupVersionKindProvider = &ScaleREST{}
)

// replicasPaths say what in a pipeline is the replicas of its scale, so that who manages the one
// manages the other.
var replicasPaths = managedfields.ResourcePathMappings{}

func init() {
	for _, version := range versions {
		replicasPaths[version.String()] = fieldpath.MakePathOrDie("spec", "maxParallelRuns")
	}
}

// GroupVersionKind says that a scale is of another group than the pipeline.
func (*ScaleREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// New returns an empty scale.
func (*ScaleREST) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy does nothing: what there is to release belongs to the resource.
func (*ScaleREST) Destroy() {}

// Get returns the scale of a pipeline.
func (r *ScaleREST) Get(ctx context.Context, name string,
	options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.store.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return scaleOf(obj.(*ci.Pipeline))
}

// Update changes the scale of a pipeline. It never creates a pipeline.
func (r *ScaleREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc,
	_ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	update := &scaleUpdate{info: info, version: requestVersion(ctx)}
	obj, _, err := r.store.Update(ctx, name, update, ofScale(createValidation),
		ofScales(updateValidation), false, options)
	if err != nil {
		return nil, false, err
	}
	scale, err := scaleOf(obj.(*ci.Pipeline))
	return scale, false, err
}

// ConvertToTable prints the scale as objects without columns of their own are.
func (*ScaleREST) ConvertToTable(ctx context.Context, obj,
	options runtime.Object) (*metav1.Table, error) {
	return rest.NewDefaultTableConvertor(autoscalingv1.Resource("scales")).ConvertToTable(ctx,
		obj, options)
}

// scaleOf returns the scale of a pipeline.
func scaleOf(p *ci.Pipeline) (*autoscalingv1.Scale, error) {
	managed, err := managedfields.NewScaleHandler(p.ManagedFields, schema.GroupVersion{},
		replicasPaths).ToSubresource()
	if err != nil {
		return nil,
			fmt.Errorf("the managed fields of the pipeline cannot be those of its scale: %w", err)
	}
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name:              p.Name,
			Namespace:         p.Namespace,
			UID:               p.UID,
			ResourceVersion:   p.ResourceVersion,
			CreationTimestamp: p.CreationTimestamp,
			ManagedFields:     managed,
		},
		Spec: autoscalingv1.ScaleSpec{Replicas: p.Spec.MaxParallelRuns},
		Status: autoscalingv1.ScaleStatus{Replicas: p.Status.ActiveRuns,
			Selector: ci.PipelineLabel + "=" + p.Name},
	}, nil
}

// scaleUpdate makes an update of a pipeline of an update of its scale.
type scaleUpdate struct {
	info    rest.UpdatedObjectInfo
	version schema.GroupVersion
}

func (u *scaleUpdate) Preconditions() *metav1.Preconditions { return u.info.Preconditions() }

func (u *scaleUpdate) UpdatedObject(ctx context.Context,
	old runtime.Object) (runtime.Object, error) {
	p := old.DeepCopyObject().(*ci.Pipeline)
	before, err := scaleOf(p)
	if err != nil {
		return nil, err
	}
	obj, err := u.info.UpdatedObject(ctx, before)
	if err != nil {
		return nil, err
	}
	scale, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is a %T, not a Scale", obj))
	}
	if errs := validation.ValidateNonnegativeField(int64(scale.Spec.Replicas),
		field.NewPath("spec", "replicas")); len(errs) > 0 {
		return nil,
			apierrors.NewInvalid(autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(),
				scale.Name, errs)
	}
	if scale.ResourceVersion != "" {
		// The client's precondition, if it has one, is about the pipeline.
		p.ResourceVersion = scale.ResourceVersion
	}
	p.Spec.MaxParallelRuns = scale.Spec.Replicas
	p.ManagedFields, err = managedfields.NewScaleHandler(p.ManagedFields, u.version,
		replicasPaths).ToParent(scale.ManagedFields)
	return p, err
}

// requestVersion returns the version in which a pipeline or its scale is written.
func requestVersion(ctx context.Context) schema.GroupVersion {
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		version := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		if _, ok := replicasPaths[version.String()]; ok {
			return version
		}
	}
	return versions[0]
}

// ofScale lets admission, which expects scales here, check a pipeline.
func ofScale(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		scale, err := scaleOf(obj.(*ci.Pipeline))
		if err != nil {
			return err
		}
		return validate(ctx, scale)
	}
}

func ofScales(validate rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, obj, old runtime.Object) error {
		scale, err := scaleOf(obj.(*ci.Pipeline))
		if err != nil {
			return err
		}
		oldScale, err := scaleOf(old.(*ci.Pipeline))
		if err != nil {
			return err
		}
		return validate(ctx, scale, oldScale)
	}
}
