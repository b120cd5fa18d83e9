// Package fuzzer fills the internal types of ci.rowkeeper.dev with random content, for tests that
// convert it there and back.
package fuzzer

import (
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// Funcs are what the content needs so that defaulting changes nothing in it.
func Funcs(serializer.CodecFactory) []any {
	return []any{
		// A user's text under the key of v1alpha1's annotation is not what that version has kept.
		func(p *ci.Pipeline, c randfill.Continue) {
			c.FillNoCustom(p)
			values := []string{c.String(0), "", "{", `{"steps":[{"name":"x","command":["x"]}]}`,
				`{"annotation":"x"}`}
			if n := c.Intn(2 * len(values)); n < len(values) {
				if p.Annotations == nil {
					p.Annotations = map[string]string{}
				}
				p.Annotations[ci.StructuredAnnotation] = values[n]
			}
		},
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
