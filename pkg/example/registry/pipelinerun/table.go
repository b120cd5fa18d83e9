package pipelinerun

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// tableConvertor prints runs.
func tableConvertor(now clock.PassiveClock) table.Convertor[*ci.PipelineRun] {
	return table.Convertor[*ci.PipelineRun]{
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			{Name: "Pipeline", Type: "string", Description: "What is run."},
			{Name: "Phase", Type: "string", Description: "Where the run is."},
			{Name: "Duration", Type: "string", Description: "How long it has been running, or " +
				"has run."},
			table.Created(),
			{Name: "Branch", Type: "string", Priority: 1, Description: "What the run is made for."},
			{Name: "Steps", Type: "integer", Priority: 1,
				Description: "How many steps have ended."},
		},
		Cells: func(r *ci.PipelineRun) []any {
			phase := string(r.Status.Phase)
			if r.DeletionTimestamp != nil {
				phase = "Terminating"
			}
			ended := int64(0)
			for i := range r.Status.Steps {
				if r.Status.Steps[i].Phase.Finished() {
					ended++
				}
			}
			return []any{
				r.Name,
				r.Spec.PipelineName,
				phase,
				runningTime(r, now),
				table.Age(r.CreationTimestamp, now),
				r.Spec.Branch,
				ended,
			}
		},
	}
}

func runningTime(r *ci.PipelineRun, now clock.PassiveClock) string {
	start, end := r.Status.StartTime, r.Status.CompletionTime
	switch {
	case start == nil:
		return ""
	case end == nil:
		return duration.HumanDuration(now.Since(start.Time))
	}
	return duration.HumanDuration(end.Sub(start.Time))
}
