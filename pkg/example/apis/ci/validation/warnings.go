package validation

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// WarningsForPipeline names what is allowed and should be mended. The function names a field of v1
// as the version of the request does.
func WarningsForPipeline(p *ci.Pipeline, fieldName func(path string) string) []string {
	var warnings []string
	path := field.NewPath("spec")
	image := func(path *field.Path, image string) {
		if floating(image) {
			warnings = append(warnings, fmt.Sprintf("%s: %q names no fixed version, so that two "+
				"runs may differ", fieldName(path.String()), image))
		}
	}
	image(path.Child("image"), p.Spec.Image)
	for i := range p.Spec.Steps {
		step, at := &p.Spec.Steps[i], path.Child("steps").Index(i)
		image(at.Child("image"), step.Image)
		if step.Shell != "" {
			warnings = append(warnings, fmt.Sprintf(`%s: deprecated, use command: ["sh", "-c", …]`,
				fieldName(at.Child("shell").String())))
		}
	}
	return warnings
}

// LatestTag is the tag that registries take for an image without tag and digest.
const LatestTag = ":latest"

// Untagged tells whether an image has neither a tag nor a digest. The port of a registry is no tag.
func Untagged(image string) bool {
	last := image[strings.LastIndex(image, "/")+1:]
	return last != "" && !strings.ContainsAny(last, ":@")
}

// floating tells whether the content of an image changes by custom: no tag, or "latest", and no
// digest.
func floating(image string) bool {
	return Untagged(image) || strings.HasSuffix(image, LatestTag)
}
