package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// annotationField is the field of what this version cannot express.
var annotationField = field.NewPath("metadata", "annotations").Key(StructuredAnnotation).String()

// FieldErrors returns the errors about a pipeline in the internal form, which name fields of v1, as
// errors that name the fields of this version.
func FieldErrors(p *ci.Pipeline, errs field.ErrorList) field.ErrorList {
	for _, err := range errs {
		path := err.Field
		if step, inside := stepOf(p, path); step != nil && inside == "image" &&
			err.Type == field.ErrorTypeRequired {
			// A command has no image of its own here.
			err.Field = field.NewPath("spec", "image").String()
			continue
		}
		if err.Field = FieldName(p, path); err.Field == annotationField && path != annotationField {
			err.Detail = strings.TrimSuffix(within(p, path)+": "+err.Detail, ": ")
		}
	}
	return errs
}

// FieldName returns the name that a field of v1 has in this version: that of the annotation, if the
// flat form has no such field.
func FieldName(p *ci.Pipeline, path string) string {
	spec := field.NewPath("spec")
	if path == "spec.steps" {
		return spec.Child("commands").String()
	}
	if i, inside, ok := element(path, "spec.steps"); ok && i < len(p.Spec.Steps) {
		if inside == "" || inside == "command" || strings.HasPrefix(inside, "command[") {
			return spec.Child("commands").Index(i).String()
		}
		return annotationField
	}
	if i, inside, ok := element(path, "spec.parameters"); ok && i < len(p.Spec.Parameters) {
		if inside == "" || inside == "name" || inside == "default" {
			return spec.Child("parameters").Key(p.Spec.Parameters[i].Name).String()
		}
		return annotationField
	}
	return path
}

// within says where in the content of the annotation a field of v1 is. Elements go by their names,
// since the places in the annotation may be others.
func within(p *ci.Pipeline, path string) string {
	if step, inside := stepOf(p, path); step != nil {
		return fmt.Sprintf("%s of the step %q", inside, step.Name)
	}
	i, inside, _ := element(path, "spec.parameters")
	return fmt.Sprintf("%s of the parameter %q", inside, p.Spec.Parameters[i].Name)
}

// stepOf returns the step that a path leads into, or nil, and the rest of the path.
func stepOf(p *ci.Pipeline, path string) (step *ci.Step, inside string) {
	i, inside, ok := element(path, "spec.steps")
	if !ok || i >= len(p.Spec.Steps) {
		return nil, ""
	}
	return &p.Spec.Steps[i], inside
}

// element takes a path such as list[3].name apart.
func element(path, list string) (index int, inside string, ok bool) {
	rest, ok := strings.CutPrefix(path, list+"[")
	if !ok {
		return 0, "", false
	}
	number, inside, ok := strings.Cut(rest, "]")
	index, err := strconv.Atoi(number)
	return index, strings.TrimPrefix(inside, "."), ok && err == nil
}
