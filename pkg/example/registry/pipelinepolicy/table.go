package pipelinepolicy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// tableConvertor prints policies.
var tableConvertor = table.Convertor[*ci.PipelinePolicy]{
	Columns: []metav1.TableColumnDefinition{
		table.Name(),
		{Name: "Banned Names", Type: "integer",
			Description: "How many patterns for names there are."},
		{Name: "Banned Images", Type: "integer", Description: "How many patterns for images " +
			"there are."},
		{Name: "Mirrors", Type: "integer", Description: "How many beginnings of images are " +
			"replaced."},
		table.Created(),
		{Name: "Message", Type: "string", Priority: 1,
			Description: "What whoever is refused is told."},
	},
	Cells: func(p *ci.PipelinePolicy) []any {
		return []any{
			p.Name, int64(len(p.Spec.BannedNames)), int64(len(p.Spec.BannedImages)),
			int64(len(p.Spec.Mirrors)),
			table.Age(p.CreationTimestamp, clock.RealClock{}), p.Spec.Message,
		}
	},
}
