package ci

import (
	"fmt"
	"slices"
	"strings"
)

// SelectableFields are the fields by which the objects of each kind can be selected. They are named
// as in v1, in all versions.
var SelectableFields = map[string][]string{
	"Pipeline": {"metadata.name", "metadata.namespace", "spec.image", "status.phase"},
	"PipelineRun": {"metadata.name", "metadata.namespace", "spec.branch", "spec.pipelineName",
		"status.phase"},
	"LogChunk":       {"metadata.name", "metadata.namespace", "spec.runName"},
	"PipelinePolicy": {"metadata.name"},
}

// FieldLabelConversion returns a runtime.FieldLabelConversionFunc for a kind that can be selected
// by these fields.
func FieldLabelConversion(fields []string) func(label, value string) (string, string, error) {
	return func(label, value string) (string, string, error) {
		if !slices.Contains(fields, label) {
			return "", "", fmt.Errorf("field label %q is not supported: use one of %s", label,
				strings.Join(fields, ", "))
		}
		return label, value, nil
	}
}
