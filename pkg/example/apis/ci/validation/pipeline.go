// Package validation holds the rules for objects of ci.rowkeeper.dev that the types cannot express.
// The rules are about the internal types, whose field paths are those of v1.
//
// Rules are ratcheting: an update is not refused for what it leaves as it is, so that a rule may be
// added although objects that break it are stored.
//
// Where an object is served in v1 alone, what can be said of one field by itself is declared by
// markers in v1 and checked by generated code; what is about several fields, or about the old
// object, is here. Pipelines are checked here alone: declared rules are those of the version that a
// request is made in, so that each would have to be declared in all three versions of the two
// groups, and the flat form of v1alpha1 has no fields for most of them.
package validation

import (
	"fmt"
	"regexp"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/equality"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// These bound what a pipeline may have.
const (
	MaxSteps      = 256
	MaxParameters = 64
	MaxEnv        = 256
	// MaxImageLength is in bytes, as are the others.
	MaxImageLength = 512
	MaxTextLength  = 64 << 10
)

// ValidatePipelineName tells what is wrong with a name for a pipeline; see apimachinery's
// validation.ValidateNameFunc.
var ValidatePipelineName = apimachineryvalidation.NameIsDNSSubdomain

// ValidatePipeline checks a new pipeline.
func ValidatePipeline(p *ci.Pipeline) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMeta(&p.ObjectMeta, true, ValidatePipelineName,
		field.NewPath("metadata"))
	errs = append(errs, validateAnnotations(p.Annotations, nil)...)
	return append(errs, validatePipelineSpec(&p.Spec, nil, field.NewPath("spec"))...)
}

// ValidatePipelineUpdate checks a change of a pipeline.
func ValidatePipelineUpdate(p, old *ci.Pipeline) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&p.ObjectMeta, &old.ObjectMeta,
		field.NewPath("metadata"))
	errs = append(errs, validateAnnotations(p.Annotations, old.Annotations)...)
	return append(errs, validatePipelineSpec(&p.Spec, &old.Spec, field.NewPath("spec"))...)
}

// validateAnnotations refuses a new value of the annotation that belongs to v1alpha1: whoever
// writes it in another version takes it for a part of the pipeline, which it is not.
func validateAnnotations(annotations, old map[string]string) field.ErrorList {
	value, ok := annotations[ci.StructuredAnnotation]
	if was, before := old[ci.StructuredAnnotation]; !ok || before && was == value {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata",
		"annotations").Key(ci.StructuredAnnotation), "only v1alpha1 has this annotation, for "+
		"what it cannot express: write spec instead")}
}

// ValidatePipelineStatusUpdate checks a change of a pipeline's status.
func ValidatePipelineStatusUpdate(p, old *ci.Pipeline) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&p.ObjectMeta, &old.ObjectMeta,
		field.NewPath("metadata"))
	path := field.NewPath("status")
	status := &p.Status
	errs = append(errs, apimachineryvalidation.ValidateNonnegativeField(status.ObservedGeneration,
		path.Child("observedGeneration"))...)
	errs = append(errs, apimachineryvalidation.ValidateNonnegativeField(int64(status.ActiveRuns),
		path.Child("activeRuns"))...)
	if status.Phase != old.Status.Phase && !pipelinePhases.Has(status.Phase) {
		errs = append(errs, field.NotSupported(path.Child("phase"), status.Phase,
			sets.List(pipelinePhases)))
	}
	return append(errs, unversioned.ValidateConditions(status.Conditions,
		path.Child("conditions"))...)
}

var pipelinePhases = sets.New(ci.PipelinePending, ci.PipelineReady, ci.PipelineSuspended,
	ci.PipelineFailed)

// validatePipelineSpec checks a spec against the one that it replaces, which is nil for a new
// pipeline.
func validatePipelineSpec(spec, old *ci.PipelineSpec, path *field.Path) field.ErrorList {
	if old == nil {
		old = &ci.PipelineSpec{}
	}
	var errs field.ErrorList
	if spec.Image != old.Image && spec.Image != "" {
		errs = append(errs, validateImage(spec.Image, path.Child("image"))...)
	}
	errs = append(errs, apimachineryvalidation.ValidateNonnegativeField(int64(spec.MaxParallelRuns),
		path.Child("maxParallelRuns"))...)
	errs = append(errs, validateParameters(spec.Parameters, old.Parameters,
		path.Child("parameters"))...)
	return append(errs, validateSteps(spec, old, path.Child("steps"))...)
}

func validateParameters(parameters, old []ci.Parameter, path *field.Path) field.ErrorList {
	if equality.Semantic.DeepEqual(parameters, old) {
		return nil
	}
	var errs field.ErrorList
	if n := len(parameters); n > MaxParameters && n > len(old) {
		errs = append(errs, field.TooMany(path, n, MaxParameters))
	}
	seen := sets.New[string]()
	for i := range parameters {
		p, at := &parameters[i], path.Index(i)
		for _, msg := range validation.IsCIdentifier(p.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), p.Name, msg))
		}
		if seen.Has(p.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		seen.Insert(p.Name)
		errs = append(errs, validateText(p.Description, at.Child("description"))...)
		if p.Default != nil {
			errs = append(errs, validateText(*p.Default, at.Child("default"))...)
		}
	}
	return errs
}

func validateSteps(spec, old *ci.PipelineSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Steps) == 0 {
		errs = append(errs, field.Required(path, "a pipeline has at least one step"))
	}
	if n := len(spec.Steps); n > MaxSteps && n > len(old.Steps) {
		errs = append(errs, field.TooMany(path, n, MaxSteps))
	}
	before := make(map[string]*ci.Step, len(old.Steps))
	for i := range old.Steps {
		before[old.Steps[i].Name] = &old.Steps[i]
	}
	seen := sets.New[string]()
	for i := range spec.Steps {
		step, at := &spec.Steps[i], path.Index(i)
		if seen.Has(step.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), step.Name))
		}
		seen.Insert(step.Name)
		if step.Image == "" && spec.Image == "" {
			errs = append(errs, field.Required(at.Child("image"),
				"neither the step nor the pipeline names an image"))
		}
		if o := before[step.Name]; o == nil || !equality.Semantic.DeepEqual(step, o) {
			errs = append(errs, validateStep(step, at)...)
		}
	}
	return errs
}

func validateStep(step *ci.Step, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Label(step.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), step.Name, msg))
	}
	if step.Image != "" {
		errs = append(errs, validateImage(step.Image, path.Child("image"))...)
	}
	switch {
	case len(step.Command) == 0 && step.Shell == "":
		errs = append(errs, field.Required(path.Child("command"), "a step runs a command"))
	case len(step.Command) > 0 && step.Shell != "":
		errs = append(errs, field.Forbidden(path.Child("shell"),
			"a step has either a command or a line for the shell"))
	case len(step.Command) > 0 && step.Command[0] == "":
		errs = append(errs, field.Required(path.Child("command").Index(0),
			"the first element names the program"))
	}
	for i, arg := range step.Command {
		errs = append(errs, validateText(arg, path.Child("command").Index(i))...)
	}
	errs = append(errs, validateText(step.Shell, path.Child("shell"))...)
	errs = append(errs, validateEnv(step.Env, path.Child("env"))...)
	if t := step.TimeoutSeconds; t != nil && *t <= 0 {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *t,
			"must be greater than 0"))
	}
	return errs
}

func validateEnv(env []ci.EnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(env) > MaxEnv {
		errs = append(errs, field.TooMany(path, len(env), MaxEnv))
	}
	seen := sets.New[string]()
	for i, e := range env {
		at := path.Index(i)
		for _, msg := range validation.IsEnvVarName(e.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), e.Name, msg))
		}
		if seen.Has(e.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), e.Name))
		}
		seen.Insert(e.Name)
		errs = append(errs, validateText(e.Value, at.Child("value"))...)
	}
	return errs
}

// imageName is a reference as container registries know it:
// [host[:port]/]path[:tag][@algorithm:digest].
var imageName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)*` +
	`(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+([+._-][a-z0-9]+)*:[0-9a-fA-F]{32,})?$`)

func validateImage(image string, path *field.Path) field.ErrorList {
	if len(image) > MaxImageLength {
		return field.ErrorList{field.TooLong(path, "", MaxImageLength)}
	}
	if !imageName.MatchString(image) {
		return field.ErrorList{field.Invalid(path, image,
			`must name an image, as "golang:1.26" or "registry.example.com/team/tool@sha256:…" do`)}
	}
	return nil
}

func validateText(text string, path *field.Path) field.ErrorList {
	if len(text) > MaxTextLength {
		return field.ErrorList{field.TooLong(path, "", MaxTextLength)}
	}
	if !utf8.ValidString(text) {
		return field.ErrorList{field.Invalid(path, fmt.Sprintf("%q", text), "must be valid UTF-8")}
	}
	return nil
}
