// Package fuzzer fills the internal types of ci.rowkeeper.dev with random content, for tests that convert it there and back.
package fuzzer

import (
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"github.com/rowkeeper/rowkeeper/pkg/apis/ci"
)

// Funcs are what the content needs so that defaulting changes nothing in it.
func Funcs(serializer.CodecFactory) []any {
	return []any{
		func(s *ci.PipelineStatus, c randfill.Continue) {
			c.FillNoCustom(s)
			if s.Phase == "" {
				s.Phase = ci.PipelineReady
			}
		},
		func(s *ci.PipelineRunStatus, c randfill.Continue) {
			c.FillNoCustom(s)
			if s.Phase == "" {
				s.Phase = ci.RunRunning
			}
		},
		// Commands that the flat form can say, too, are rare among random ones.
		func(s *ci.Step, c randfill.Continue) {
			c.FillNoCustom(s)
			if c.Bool() {
				*s = ci.Step{Name: "step-1", Command: []string{"sh", "-c", c.String(0)}}
			}
		},
	}
}
