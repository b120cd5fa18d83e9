package ci

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PipelineLabel is the label of a run whose value is the name of its pipeline.
const PipelineLabel = GroupName + "/pipeline"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelineRun is one run of a pipeline.
type PipelineRun struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   PipelineRunSpec
	Status PipelineRunStatus
}

// PipelineRunSpec is what is wanted. Only Cancelled can be changed.
type PipelineRunSpec struct {
	// PipelineName is the name of the pipeline, which is in the same namespace.
	PipelineName string
	// Branch is what the run is made for.
	Branch string
	// Parameters are values for the pipeline's parameters.
	Parameters []ParameterValue
	// TerminationGracePeriodSeconds is how long the running step may take to end when the run is
	// deleted.
	TerminationGracePeriodSeconds int64
	// Cancelled ends the run. It cannot be taken back.
	Cancelled bool
}

// ParameterValue is the value of a parameter.
type ParameterValue struct {
	Name  string
	Value string
}

// PipelineRunPhase is where a run or a step of it is in its life.
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

// Finished tells whether a run in this phase has ended.
func (p PipelineRunPhase) Finished() bool {
	return p == RunSucceeded || p == RunFailed || p == RunCancelled
}

// PipelineRunStatus is what is the case.
type PipelineRunStatus struct {
	// ObservedGeneration is the generation that the rest of the status is about.
	ObservedGeneration int64
	// Phase is where the run is.
	Phase PipelineRunPhase
	// StartTime and CompletionTime are when the run started and ended.
	StartTime, CompletionTime *metav1.Time
	// Steps say where each step is.
	Steps []StepStatus
	// Conditions are the latest observations.
	Conditions []metav1.Condition
}

// StepStatus says where a step is.
type StepStatus struct {
	Name  string
	Phase PipelineRunPhase
	// StartTime and CompletionTime are when the step started and ended.
	StartTime, CompletionTime *metav1.Time
	// ExitCode is what the command exited with.
	ExitCode *int32
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelineRunList is a list of runs.
type PipelineRunList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []PipelineRun
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// LogChunk is a piece of a run's log, written once.
type LogChunk struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec LogChunkSpec
}

// LogChunkSpec is the content of a piece.
type LogChunkSpec struct {
	// RunName and RunUID name the run.
	RunName string
	RunUID  types.UID
	// Sequence is the place of the piece in the run's log, from 0. Pieces with the same sequence
	// are shown one after another, by name.
	Sequence int64
	// Step is the name of the step that wrote the lines.
	Step string
	// Lines are without line breaks.
	Lines []string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// LogChunkList is a list of pieces.
type LogChunkList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []LogChunk
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelineRunRequest asks, by the subresource run of a pipeline, for a run of it.
type PipelineRunRequest struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec PipelineRunRequestSpec
}

// PipelineRunRequestSpec is what the run is to be given.
type PipelineRunRequestSpec struct {
	// Branch is what the run is made for.
	Branch string
	// Parameters are values for the pipeline's parameters.
	Parameters []ParameterValue
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelineRunsOptions are the parameters of the subresource runs of a pipeline.
type PipelineRunsOptions struct {
	metav1.TypeMeta

	// Branch selects the runs of one branch.
	Branch string
	// Limit and Continue ask for a page, as for any list.
	Limit    int64
	Continue string
	// LabelSelector and FieldSelector select runs, as for any list.
	LabelSelector, FieldSelector string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelineRunLogOptions are the parameters of the subresources log and attach of a run.
type PipelineRunLogOptions struct {
	metav1.TypeMeta

	// Follow goes on until the run has ended.
	Follow bool
	// Step selects the lines of one step.
	Step string
	// SkipLines is how many of the lines are left out, counted from the first: the lines that the
	// caller has already.
	SkipLines int64
	// TailLines is how many of the lines that are stored are shown, counted from the last. All if
	// it is nil.
	TailLines *int64
}
