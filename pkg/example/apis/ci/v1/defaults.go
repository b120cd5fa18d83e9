package v1

// DefaultMaxParallelRuns is how many runs of a pipeline may be running at a time when its spec does
// not say.
const DefaultMaxParallelRuns int32 = 1

// SetDefaults_PipelineSpec fills in what the author of a pipeline left open.
func SetDefaults_PipelineSpec(spec *PipelineSpec) {
	if spec.MaxParallelRuns == nil {
		n := DefaultMaxParallelRuns
		spec.MaxParallelRuns = &n
	}
}

// SetDefaults_PipelineStatus gives a pipeline that nobody has looked at a phase.
func SetDefaults_PipelineStatus(status *PipelineStatus) {
	if status.Phase == "" {
		status.Phase = PipelinePending
	}
}

// DefaultTerminationGracePeriodSeconds is how long the running step of a run may take to end when
// its spec does not say.
const DefaultTerminationGracePeriodSeconds int64 = 30

// SetDefaults_PipelineRunSpec fills in what the author of a run left open.
func SetDefaults_PipelineRunSpec(spec *PipelineRunSpec) {
	if spec.TerminationGracePeriodSeconds == nil {
		seconds := DefaultTerminationGracePeriodSeconds
		spec.TerminationGracePeriodSeconds = &seconds
	}
}

// SetDefaults_PipelineRunStatus gives a new run a phase.
func SetDefaults_PipelineRunStatus(status *PipelineRunStatus) {
	if status.Phase == "" {
		status.Phase = RunPending
	}
}
