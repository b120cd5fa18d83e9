package v1alpha1

// SetDefaults_PipelineSpec fills in what the author of a pipeline left open.
func SetDefaults_PipelineSpec(spec *PipelineSpec) {
	if spec.MaxParallelRuns == nil {
		n := int32(1)
		spec.MaxParallelRuns = &n
	}
}

// SetDefaults_PipelineStatus gives a pipeline that nobody has looked at a phase.
func SetDefaults_PipelineStatus(status *PipelineStatus) {
	if status.Phase == "" {
		status.Phase = PipelinePending
	}
}
