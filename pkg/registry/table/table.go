// Package table is for authors of registries. It prints objects as rows of a table, which is what
// "kubectl get" asks a server for.
package table

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"
)

// Convertor makes tables of objects of type T and of lists of them.
type Convertor[T runtime.Object] struct {
	// Columns describe the cells. kubectl shows those with a priority above 0 with -o wide only.
	Columns []metav1.TableColumnDefinition
	// Cells returns an object's cells, one for each column.
	Cells func(obj T) []any
}

var _ rest.TableConvertor = Convertor[runtime.Object]{}

// ConvertToTable implements rest.TableConvertor.
func (c Convertor[T]) ConvertToTable(_ context.Context, obj runtime.Object,
	options runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		t.ColumnDefinitions = c.Columns
	}
	add := func(item runtime.Object) error {
		typed, ok := item.(T)
		if !ok {
			return fmt.Errorf("a table of %T cannot show a %T", typed, item)
		}
		t.Rows = append(t.Rows, metav1.TableRow{Cells: c.Cells(typed),
			Object: runtime.RawExtension{Object: item}})
		return nil
	}
	if !meta.IsListType(obj) {
		accessor, err := meta.CommonAccessor(obj)
		if err != nil {
			return nil, err
		}
		t.ResourceVersion = accessor.GetResourceVersion()
		return t, add(obj)
	}
	list, err := meta.ListAccessor(obj)
	if err != nil {
		return nil, err
	}
	t.ResourceVersion = list.GetResourceVersion()
	t.Continue = list.GetContinue()
	t.RemainingItemCount = list.GetRemainingItemCount()
	return t, meta.EachListItem(obj, add)
}

// Age returns how long ago a time is, as kubectl writes it: "5m", "<unknown>" for no time.
func Age(at metav1.Time, now clock.PassiveClock) string {
	if at.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Since(at.Time))
}

// Name is the column of the object's name, which comes first.
func Name() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name",
		Description: "The name, unique among the objects of this kind in the namespace."}
}

// Created is the column of the object's age, which comes last of the columns that are always shown.
func Created() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Age", Type: "string",
		Description: "The time since the object was created."}
}
