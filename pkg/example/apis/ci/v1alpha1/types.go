package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Pipeline is a recipe: lines for the shell that run one after another in one container image.
type Pipeline struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The annotation ci.rowkeeper.dev/structured holds
	// what this version cannot express.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	// +optional
	Spec PipelineSpec `json:"spec,omitempty"`
	// status is what is the case. It is written through the subresource status.
	// +optional
	Status PipelineStatus `json:"status,omitempty"`
}

// PipelineSpec is what is wanted of a pipeline.
type PipelineSpec struct {
	// image is what the commands run in.
	// +optional
	Image string `json:"image,omitempty"`
	// commands are lines for the shell, which run one after another. There is at least one.
	// +optional
	// +listType=atomic
	Commands []string `json:"commands,omitempty"`
	// parameters are the names of what a run can be given, with the values for a run that gives
	// none. An empty value means that it has to be given.
	// +optional
	Parameters map[string]string `json:"parameters,omitempty"`
	// maxParallelRuns is how many runs may be running at a time; further ones wait. It is set by
	// scaling, too. Defaults to 1.
	// +optional
	MaxParallelRuns *int32 `json:"maxParallelRuns,omitempty"`
	// suspended keeps runs that have not started from starting.
	// +optional
	Suspended bool `json:"suspended,omitempty"`
}

// PipelinePhase sums the status of a pipeline up in one word.
// +enum
type PipelinePhase string

const (
	// PipelinePending: nobody has looked at this generation yet.
	PipelinePending PipelinePhase = "Pending"
	// PipelineReady: runs can start.
	PipelineReady PipelinePhase = "Ready"
	// PipelineSuspended: runs wait until the pipeline is no longer suspended.
	PipelineSuspended PipelinePhase = "Suspended"
	// PipelineFailed: runs cannot start; the conditions say why.
	PipelineFailed PipelinePhase = "Failed"
)

// PipelineStatus is what is the case with a pipeline.
type PipelineStatus struct {
	// observedGeneration is the generation that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase sums the conditions up: Pending, Ready, Suspended or Failed.
	// +optional
	Phase PipelinePhase `json:"phase,omitempty"`
	// activeRuns is how many runs are running.
	// +optional
	ActiveRuns int32 `json:"activeRuns,omitempty"`
	// conditions are the latest observations. Ready tells whether runs can start.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelineList is a list of pipelines.
type PipelineList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the pipelines.
	Items []Pipeline `json:"items"`
}
