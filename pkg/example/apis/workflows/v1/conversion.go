package v1

import (
	"k8s.io/apimachinery/pkg/conversion"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// The spec and the status are those of ci.rowkeeper.dev/v1, and so are their conversions, which the
// generator has to be shown here.

// Convert_v1_PipelineSpec_To_ci_PipelineSpec is that of ci.rowkeeper.dev/v1.
func Convert_v1_PipelineSpec_To_ci_PipelineSpec(in *civ1.PipelineSpec, out *ci.PipelineSpec,
	s conversion.Scope) error {
	return civ1.Convert_v1_PipelineSpec_To_ci_PipelineSpec(in, out, s)
}

// Convert_ci_PipelineSpec_To_v1_PipelineSpec is that of ci.rowkeeper.dev/v1.
func Convert_ci_PipelineSpec_To_v1_PipelineSpec(in *ci.PipelineSpec, out *civ1.PipelineSpec,
	s conversion.Scope) error {
	return civ1.Convert_ci_PipelineSpec_To_v1_PipelineSpec(in, out, s)
}

// Convert_v1_PipelineStatus_To_ci_PipelineStatus is that of ci.rowkeeper.dev/v1.
func Convert_v1_PipelineStatus_To_ci_PipelineStatus(in *civ1.PipelineStatus, out *ci.PipelineStatus,
	s conversion.Scope) error {
	return civ1.Convert_v1_PipelineStatus_To_ci_PipelineStatus(in, out, s)
}

// Convert_ci_PipelineStatus_To_v1_PipelineStatus is that of ci.rowkeeper.dev/v1.
func Convert_ci_PipelineStatus_To_v1_PipelineStatus(in *ci.PipelineStatus, out *civ1.PipelineStatus,
	s conversion.Scope) error {
	return civ1.Convert_ci_PipelineStatus_To_v1_PipelineStatus(in, out, s)
}
