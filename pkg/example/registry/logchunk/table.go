package logchunk

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// tableConvertor prints pieces, without their lines.
var tableConvertor = table.Convertor[*ci.LogChunk]{
	Columns: []metav1.TableColumnDefinition{
		table.Name(),
		{Name: "Run", Type: "string", Description: "Which run has written the lines."},
		{Name: "Step", Type: "string", Description: "Which step of it."},
		{Name: "Sequence", Type: "integer",
			Description: "The place of the piece in the run's log."},
		{Name: "Lines", Type: "integer", Description: "How many lines the piece has."},
		table.Created(),
	},
	Cells: func(l *ci.LogChunk) []any {
		return []any{l.Name, l.Spec.RunName, l.Spec.Step, l.Spec.Sequence, int64(len(l.Spec.Lines)),
			table.Age(l.CreationTimestamp, clock.RealClock{})}
	},
}
