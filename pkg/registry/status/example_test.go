package status_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/rowkeeper/rowkeeper/pkg/registry/status"
)

// An update of the status does not change the spec: the strategy returns these fields from
// GetResetFields.
func ExampleFields() {
	v1 := schema.GroupVersion{Group: "example.com", Version: "v1"}
	fields := status.Fields([]schema.GroupVersion{v1}, "spec")
	fmt.Println(fields["example.com/v1"].Has(fieldpath.MakePathOrDie("spec")))
	// Output: true
}
