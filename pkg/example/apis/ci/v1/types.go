package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:validation-gen=false

// Pipeline is a recipe: steps that run one after another, each a command in a container image.
type Pipeline struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
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
	// image is what the steps run in that name no image of their own.
	// +optional
	Image string `json:"image,omitempty"`
	// parameters are what a run can be given. The steps see them as environment variables.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	Parameters []Parameter `json:"parameters,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// steps run one after another, in this order. There is at least one.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	Steps []Step `json:"steps,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// maxParallelRuns is how many runs may be running at a time; further ones wait. It is set by
	// scaling, too. Defaults to 1.
	// +optional
	MaxParallelRuns *int32 `json:"maxParallelRuns,omitempty"`
	// suspended keeps runs that have not started from starting.
	// +optional
	Suspended bool `json:"suspended,omitempty"`
}

// Parameter is a value that a run can be given.
type Parameter struct {
	// name is the name of the parameter, unique in the pipeline, and of the environment variable in
	// which steps see it.
	Name string `json:"name"`
	// description says what the parameter is for.
	// +optional
	Description string `json:"description,omitempty"`
	// default is the value for a run that gives none. A parameter without a default has to be
	// given.
	// +optional
	Default *string `json:"default,omitempty"`
}

// Step is one command of a pipeline.
type Step struct {
	// name is the name of the step, unique in the pipeline: a DNS label.
	Name string `json:"name"`
	// image is what the step runs in. Defaults to the pipeline's image.
	// +optional
	Image string `json:"image,omitempty"`
	// command is the program and its arguments. No shell is involved unless it is named here.
	// +optional
	// +listType=atomic
	Command []string `json:"command,omitempty"`
	// shell is a line for sh, in place of command.
	// Deprecated: name the shell in command, as ["sh", "-c", "make test"].
	// +optional
	Shell string `json:"shell,omitempty"`
	// env are the environment variables that the command sees besides the parameters.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	Env []EnvVar `json:"env,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// timeoutSeconds is how long the step may take. Without it there is no limit.
	// +optional
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`
}

// EnvVar is an environment variable.
type EnvVar struct {
	// name is the name of the variable.
	Name string `json:"name"`
	// value is its value, taken as it is.
	// +optional
	Value string `json:"value,omitempty"`
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

// PipelineReadyCondition is the type of the condition that tells whether runs can start.
const PipelineReadyCondition = "Ready"

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
