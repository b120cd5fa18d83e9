package ci

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the name of the API group.
const GroupName = "ci.rowkeeper.dev"

// SchemeGroupVersion is the group's internal version.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: runtime.APIVersionInternal}

var (
	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme registers the internal types.
	AddToScheme = schemeBuilder.AddToScheme
)

// Kind returns the group-qualified kind.
func Kind(kind string) schema.GroupKind { return SchemeGroupVersion.WithKind(kind).GroupKind() }

// Resource returns the group-qualified resource.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&Pipeline{},
		&PipelineList{},
		&PipelineRun{},
		&PipelineRunList{},
		&LogChunk{},
		&LogChunkList{},
		&PipelineRunLogOptions{},
		&PipelineRunRequest{},
		&PipelineRunsOptions{},
		&PipelinePolicy{},
		&PipelinePolicyList{},
	)
	return nil
}
