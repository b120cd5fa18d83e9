package table_test

import (
	"context"
	"fmt"
	"log"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// kubectl shows each object's name and team.
func ExampleConvertor() {
	convertor := table.Convertor[*metav1.PartialObjectMetadata]{
		Columns: []metav1.TableColumnDefinition{table.Name(), {Name: "Team", Type: "string"}},
		Cells: func(o *metav1.PartialObjectMetadata) []any {
			return []any{o.Name, o.Labels["team"]}
		},
	}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "one",
		Labels: map[string]string{"team": "platform"}}}
	t, err := convertor.ConvertToTable(context.Background(), object, &metav1.TableOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.ColumnDefinitions[0].Name, t.ColumnDefinitions[1].Name)
	fmt.Println(t.Rows[0].Cells...)
	// Output:
	// Name Team
	// one platform
}
