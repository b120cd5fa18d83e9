package validation

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/rowkeeper/rowkeeper/pkg/apis/ci"
)

// WarningsForPipeline names what is allowed and should be mended.
func WarningsForPipeline(p *ci.Pipeline) []string {
	var warnings []string
	path := field.NewPath("spec")
	image := func(path *field.Path, image string) {
		if floating(image) {
			warnings = append(warnings, fmt.Sprintf("%s: %q names no fixed version, so that two runs may differ", path, image))
		}
	}
	image(path.Child("image"), p.Spec.Image)
	for i := range p.Spec.Steps {
		step, at := &p.Spec.Steps[i], path.Child("steps").Index(i)
		image(at.Child("image"), step.Image)
		if step.Shell != "" {
			warnings = append(warnings, fmt.Sprintf(`%s: deprecated, use command: ["sh", "-c", …]`, at.Child("shell")))
		}
	}
	return warnings
}

// floating tells whether an image is one whose content changes by custom: no tag, or "latest", and no digest.
func floating(image string) bool {
	if image == "" || strings.Contains(image, "@") {
		return false
	}
	last := image[strings.LastIndex(image, "/")+1:]
	_, tag, tagged := strings.Cut(last, ":")
	return !tagged || tag == "latest"
}
