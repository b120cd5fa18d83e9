package ci

import (
	"fmt"
	"slices"
	"strings"
)

// PipelineFields are the fields by which pipelines can be selected. They are named as in v1, in all versions.
var PipelineFields = []string{"metadata.name", "metadata.namespace", "spec.image", "status.phase"}

// SelectableFields returns a runtime.FieldLabelConversionFunc for a kind that can be selected by these fields.
func SelectableFields(fields []string) func(label, value string) (string, string, error) {
	return func(label, value string) (string, string, error) {
		if !slices.Contains(fields, label) {
			return "", "", fmt.Errorf("field label %q is not supported: use one of %s", label, strings.Join(fields, ", "))
		}
		return label, value, nil
	}
}
