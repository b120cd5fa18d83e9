package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PipelineLabel is the label of a run whose value is the name of its pipeline.
const PipelineLabel = GroupName + "/pipeline"

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/status"

// PipelineRun is one run of a pipeline.
type PipelineRun struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted. Only cancelled can be changed.
	// +optional
	Spec PipelineRunSpec `json:"spec,omitempty"`
	// status is what is the case. It is written through the subresource status.
	// +optional
	// +k8s:opaqueType
	Status PipelineRunStatus `json:"status,omitempty"`
}

// PipelineRunSpec is what is wanted of a run.
type PipelineRunSpec struct {
	// pipelineName is the name of the pipeline, which is in the same namespace. It cannot be
	// changed.
	// +required
	// +k8s:required
	// +k8s:format=k8s-long-name
	// +k8s:immutable
	PipelineName string `json:"pipelineName"`
	// branch is what the run is made for. It cannot be changed.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=256
	// +k8s:immutable
	Branch string `json:"branch,omitempty"`
	// parameters are values for the pipeline's parameters. They cannot be changed. If there is such
	// a pipeline, those that have no default have to be given, and no others than its own.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=name
	// +k8s:maxItems=64
	// +k8s:immutable
	Parameters []ParameterValue `json:"parameters,omitempty"`
	// terminationGracePeriodSeconds is how long the running step may take to end when the run is
	// deleted. It cannot be changed. Defaults to 30.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	// +k8s:immutable
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// cancelled ends the run. It cannot be taken back.
	// +optional
	Cancelled bool `json:"cancelled,omitempty"`
}

// ParameterValue is the value of a parameter.
type ParameterValue struct {
	// name is the name of the parameter.
	// +k8s:required
	// +k8s:maxBytes=256
	Name string `json:"name"`
	// value is its value, taken as it is.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=65536
	Value string `json:"value,omitempty"`
}

// PipelineRunPhase is where a run or a step of it is in its life.
// +enum
type PipelineRunPhase string

const (
	// RunPending: not started yet.
	RunPending PipelineRunPhase = "Pending"
	// RunRunning: started, and not ended yet.
	RunRunning PipelineRunPhase = "Running"
	// RunSucceeded: ended well.
	RunSucceeded PipelineRunPhase = "Succeeded"
	// RunFailed: ended because a step failed, or could not be run.
	RunFailed PipelineRunPhase = "Failed"
	// RunCancelled: ended because somebody wanted it to.
	RunCancelled PipelineRunPhase = "Cancelled"
)

// PipelineRunStatus is what is the case with a run.
type PipelineRunStatus struct {
	// observedGeneration is the generation that the rest of the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase is where the run is: Pending, Running, Succeeded, Failed or Cancelled.
	// +optional
	Phase PipelineRunPhase `json:"phase,omitempty"`
	// startTime is when the run started.
	// +optional
	// +k8s:opaqueType
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// completionTime is when the run ended.
	// +optional
	// +k8s:opaqueType
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// steps say where each step is.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	Steps []StepStatus `json:"steps,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// conditions are the latest observations. Succeeded tells how the run ended.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +k8s:eachVal=+k8s:opaqueType
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// StepStatus says where a step is.
type StepStatus struct {
	// name is the name of the step.
	Name string `json:"name"`
	// phase is where the step is.
	// +optional
	Phase PipelineRunPhase `json:"phase,omitempty"`
	// startTime is when the step started.
	// +optional
	// +k8s:opaqueType
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// completionTime is when the step ended.
	// +optional
	// +k8s:opaqueType
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// exitCode is what the command exited with.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelineRunList is a list of runs.
type PipelineRunList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the runs.
	Items []PipelineRun `json:"items"`
}

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// LogChunk is a piece of a run's log, written once by whatever runs it. The subresource log of the
// run puts the pieces together.
type LogChunk struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the content, which cannot be changed.
	// +optional
	// +k8s:immutable
	Spec LogChunkSpec `json:"spec,omitempty"`
}

// LogChunkSpec is the content of a piece of a log.
type LogChunkSpec struct {
	// runName is the name of the run, which is in the same namespace.
	// +required
	// +k8s:required
	// +k8s:format=k8s-long-name
	RunName string `json:"runName"`
	// runUID is the run's UID, so that a later run of the same name does not get these lines.
	// +required
	// +k8s:required
	// +k8s:opaqueType
	RunUID types.UID `json:"runUID"`
	// sequence is the place of the piece in the run's log, from 0. Pieces with the same sequence
	// are shown one after another, by name.
	// +optional
	// +k8s:optional
	// +k8s:minimum=0
	Sequence int64 `json:"sequence"`
	// step is the name of the step that wrote the lines.
	// +optional
	Step string `json:"step,omitempty"`
	// lines are without line breaks.
	// +optional
	// +listType=atomic
	// +k8s:optional
	// +k8s:maxItems=10000
	// +k8s:eachVal=+k8s:maxBytes=65536
	Lines []string `json:"lines,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// LogChunkList is a list of pieces of logs.
type LogChunkList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the pieces.
	Items []LogChunk `json:"items"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/run"

// PipelineRunRequest asks for a run of a pipeline. It is posted to the pipeline's subresource run,
// which answers with the PipelineRun.
type PipelineRunRequest struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name, if any, is the pipeline's.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the run is to be given.
	// +optional
	Spec PipelineRunRequestSpec `json:"spec,omitempty"`
}

// PipelineRunRequestSpec is what a run is to be given.
type PipelineRunRequestSpec struct {
	// branch is what the run is made for.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=256
	Branch string `json:"branch,omitempty"`
	// parameters are values for the pipeline's parameters. Those that have no default have to be
	// given.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=name
	// +k8s:maxItems=64
	Parameters []ParameterValue `json:"parameters,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:conversion-gen:explicit-from=net/url.Values
// +k8s:validation-gen=false

// PipelineRunsOptions are the parameters of the subresource runs of a pipeline.
type PipelineRunsOptions struct {
	metav1.TypeMeta `json:",inline"`

	// branch selects the runs of one branch.
	// +optional
	Branch string `json:"branch,omitempty"`
	// limit is how many runs are returned at most. If there are more, the list says how to
	// continue.
	// +optional
	Limit int64 `json:"limit,omitempty"`
	// continue is what the list before said.
	// +optional
	Continue string `json:"continue,omitempty"`
	// labelSelector selects runs by their labels, as for any list.
	// +optional
	LabelSelector string `json:"labelSelector,omitempty"`
	// fieldSelector selects runs by their fields, as for any list.
	// +optional
	FieldSelector string `json:"fieldSelector,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:conversion-gen:explicit-from=net/url.Values
// +k8s:validation-gen=false

// PipelineRunLogOptions are the parameters of the subresources log and attach of a run.
type PipelineRunLogOptions struct {
	metav1.TypeMeta `json:",inline"`

	// follow goes on until the run has ended.
	// +optional
	Follow bool `json:"follow,omitempty"`
	// step selects the lines of one step.
	// +optional
	Step string `json:"step,omitempty"`
	// skipLines is how many of the lines are left out, counted from the first: those that the
	// caller has already.
	// +optional
	SkipLines int64 `json:"skipLines,omitempty"`
	// tailLines is how many of the lines that are stored are shown, counted from the last. Without
	// it, all are.
	// +optional
	TailLines *int64 `json:"tailLines,omitempty"`
}
