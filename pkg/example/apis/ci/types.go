package ci

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// StructuredAnnotation is the annotation in which v1alpha1 keeps what it cannot express of a
// pipeline. It belongs to that version alone: new pipelines do not have it here.
const StructuredAnnotation = GroupName + "/structured"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Pipeline is a recipe: steps that run one after another, each a command in a container image.
type Pipeline struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   PipelineSpec
	Status PipelineStatus
}

// PipelineSpec is what is wanted.
type PipelineSpec struct {
	// Image is what the steps run in that name no image of their own.
	Image string
	// Parameters are what a run can be given.
	Parameters []Parameter
	// Steps run one after another, in this order.
	Steps []Step
	// MaxParallelRuns is how many runs may be running at a time; further ones wait.
	MaxParallelRuns int32
	// Suspended keeps runs that have not started from starting.
	Suspended bool
}

// Parameter is a value that a run can be given, and that the steps see as an environment variable.
type Parameter struct {
	// Name is the parameter's name, unique in the pipeline.
	Name string
	// Description says what the parameter is for.
	Description string
	// Default is the value for a run that gives none. A parameter without a default has to be
	// given.
	Default *string
}

// Step is one command.
type Step struct {
	// Name is the step's name, unique in the pipeline.
	Name string
	// Image is what the step runs in, the pipeline's image if it is empty.
	Image string
	// Command is the program and its arguments.
	Command []string
	// Shell is a line for sh. Deprecated: name the shell in Command.
	Shell string
	// Env are the environment variables that the command sees besides the parameters.
	Env []EnvVar
	// TimeoutSeconds is how long the step may take. No limit if it is nil.
	TimeoutSeconds *int64
}

// EnvVar is an environment variable.
type EnvVar struct {
	Name  string
	Value string
}

// PipelinePhase sums the status up in one word.
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

// PipelineStatus is what is the case.
type PipelineStatus struct {
	// ObservedGeneration is the generation that the rest of the status is about.
	ObservedGeneration int64
	// Phase sums the conditions up.
	Phase PipelinePhase
	// ActiveRuns is how many runs are running.
	ActiveRuns int32
	// Conditions are the latest observations.
	Conditions []metav1.Condition
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelineList is a list of pipelines.
type PipelineList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []Pipeline
}
