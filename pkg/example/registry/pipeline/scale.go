package pipeline

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/registry/scale"
)

// newScale returns the subresource pipelines/scale: what "kubectl scale" and autoscalers use. Its
// replicas are the spec's maxParallelRuns, and in the status the active runs.
func newScale(store *genericregistry.Store) *scale.REST[*ci.Pipeline] {
	paths := managedfields.ResourcePathMappings{}
	for _, version := range versions {
		paths[version.String()] = fieldpath.MakePathOrDie("spec", "maxParallelRuns")
	}
	return scale.New(store, scale.Fields[*ci.Pipeline]{
		Get: func(p *ci.Pipeline) (autoscalingv1.ScaleSpec, autoscalingv1.ScaleStatus) {
			return autoscalingv1.ScaleSpec{Replicas: p.Spec.MaxParallelRuns},
				autoscalingv1.ScaleStatus{Replicas: p.Status.ActiveRuns,
					Selector: ci.PipelineLabel + "=" + p.Name}
		},
		Set:     func(p *ci.Pipeline, replicas int32) { p.Spec.MaxParallelRuns = replicas },
		Paths:   paths,
		Version: versions[0],
	})
}
