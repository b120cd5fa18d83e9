package pipeline

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// tableConvertor prints pipelines.
func tableConvertor(now clock.PassiveClock) table.Convertor[*ci.Pipeline] {
	return table.Convertor[*ci.Pipeline]{
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			{Name: "Phase", Type: "string", Description: "What can be said of the pipeline in " +
				"one word."},
			{Name: "Steps", Type: "integer", Description: "How many steps a run takes."},
			{Name: "Active", Type: "integer", Description: "How many runs are running."},
			{Name: "Max Parallel", Type: "integer", Description: "How many runs may be running " +
				"at a time."},
			table.Created(),
			{Name: "Image", Type: "string", Priority: 1,
				Description: "What the steps run in that name no image of their own."},
			{Name: "Suspended", Type: "boolean", Priority: 1,
				Description: "Whether new runs are kept from starting."},
		},
		Cells: func(p *ci.Pipeline) []any {
			return []any{
				p.Name,
				string(p.Status.Phase),
				int64(len(p.Spec.Steps)),
				int64(p.Status.ActiveRuns),
				int64(p.Spec.MaxParallelRuns),
				table.Age(p.CreationTimestamp, now),
				p.Spec.Image,
				p.Spec.Suspended,
			}
		},
	}
}
