package validation

import (
	"fmt"

	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	unversioned "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// Rules about one field of a run by itself are declared in v1, and checked by generated code. Here
// are the rest.

var runPhases = sets.New(ci.RunPending, ci.RunRunning, ci.RunSucceeded, ci.RunFailed,
	ci.RunCancelled)

// ValidatePipelineRun checks a new run.
func ValidatePipelineRun(r *ci.PipelineRun) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMeta(&r.ObjectMeta, true,
		apimachineryvalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return append(errs, validateParameterValues(r.Spec.Parameters,
		field.NewPath("spec", "parameters"))...)
}

// ValidatePipelineRunUpdate checks a change of a run.
func ValidatePipelineRunUpdate(r, old *ci.PipelineRun) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&r.ObjectMeta, &old.ObjectMeta,
		field.NewPath("metadata"))
	if old.Spec.Cancelled && !r.Spec.Cancelled {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "cancelled"),
			"a run that was cancelled stays cancelled"))
	}
	return errs
}

// ValidatePipelineRunStatusUpdate checks a change of a run's status.
func ValidatePipelineRunStatusUpdate(r, old *ci.PipelineRun) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&r.ObjectMeta, &old.ObjectMeta,
		field.NewPath("metadata"))
	path := field.NewPath("status")
	status, was := &r.Status, &old.Status
	errs = append(errs, apimachineryvalidation.ValidateNonnegativeField(status.ObservedGeneration,
		path.Child("observedGeneration"))...)
	switch {
	case status.Phase == was.Phase:
	case !runPhases.Has(status.Phase):
		errs = append(errs, field.NotSupported(path.Child("phase"), status.Phase,
			sets.List(runPhases)))
	case was.Phase.Finished():
		errs = append(errs, field.Forbidden(path.Child("phase"),
			fmt.Sprintf("a run that has ended as %s stays so", was.Phase)))
	case status.Phase == ci.RunPending:
		errs = append(errs, field.Forbidden(path.Child("phase"),
			"a run that has started does not wait again"))
	}
	if start, end := status.StartTime, status.CompletionTime; start != nil && end != nil &&
		end.Before(start) {
		errs = append(errs, field.Invalid(path.Child("completionTime"), end,
			"must not be before startTime"))
	}
	seen := sets.New[string]()
	for i := range status.Steps {
		step, at := &status.Steps[i], path.Child("steps").Index(i)
		if seen.Has(step.Name) {
			errs = append(errs, field.Duplicate(at, step.Name))
		}
		seen.Insert(step.Name)
		for _, msg := range validation.IsDNS1123Label(step.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), step.Name, msg))
		}
		if step.Phase != "" && !runPhases.Has(step.Phase) {
			errs = append(errs, field.NotSupported(at.Child("phase"), step.Phase,
				sets.List(runPhases)))
		}
	}
	return append(errs, unversioned.ValidateConditions(status.Conditions,
		path.Child("conditions"))...)
}

// ValidatePipelineRunRequest checks what a run of the pipeline is to be given.
func ValidatePipelineRunRequest(r *ci.PipelineRunRequest, p *ci.Pipeline) field.ErrorList {
	errs := validateParameterValues(r.Spec.Parameters, field.NewPath("spec", "parameters"))
	return append(errs, ValidateParametersOf(p, r.Spec.Parameters)...)
}

// ValidateParametersOf checks that the pipeline has a parameter for each value in spec.parameters,
// and that each parameter without a default is given.
func ValidateParametersOf(p *ci.Pipeline, values []ci.ParameterValue) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "parameters")
	given := sets.New[string]()
	known := sets.New[string]()
	for _, parameter := range p.Spec.Parameters {
		known.Insert(parameter.Name)
	}
	for i, value := range values {
		given.Insert(value.Name)
		if !known.Has(value.Name) {
			errs = append(errs, field.NotSupported(path.Index(i).Child("name"), value.Name,
				sets.List(known)))
		}
	}
	for _, parameter := range p.Spec.Parameters {
		if parameter.Default == nil && !given.Has(parameter.Name) {
			errs = append(errs, field.Required(path,
				fmt.Sprintf("the pipeline's parameter %s has no default", parameter.Name)))
		}
	}
	return errs
}

func validateParameterValues(values []ci.ParameterValue, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, value := range values {
		for _, msg := range validation.IsCIdentifier(value.Name) {
			errs = append(errs, field.Invalid(path.Index(i).Child("name"), value.Name, msg))
		}
	}
	return errs
}

// ValidateLogChunk checks a new piece of a log.
func ValidateLogChunk(l *ci.LogChunk) field.ErrorList {
	return apimachineryvalidation.ValidateObjectMeta(&l.ObjectMeta, true,
		apimachineryvalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
}

// ValidateLogChunkUpdate checks a change of a piece of a log, which can be of the metadata only.
func ValidateLogChunkUpdate(l, old *ci.LogChunk) field.ErrorList {
	return apimachineryvalidation.ValidateObjectMetaUpdate(&l.ObjectMeta, &old.ObjectMeta,
		field.NewPath("metadata"))
}

// ValidatePipelinePolicy checks a new policy.
func ValidatePipelinePolicy(p *ci.PipelinePolicy) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMeta(&p.ObjectMeta, false,
		apimachineryvalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return append(errs, validatePolicySpec(&p.Spec, field.NewPath("spec"))...)
}

// ValidatePipelinePolicyUpdate checks a change of a policy.
func ValidatePipelinePolicyUpdate(p, old *ci.PipelinePolicy) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&p.ObjectMeta, &old.ObjectMeta,
		field.NewPath("metadata"))
	return append(errs, validatePolicySpec(&p.Spec, field.NewPath("spec"))...)
}

func validatePolicySpec(spec *ci.PipelinePolicySpec, path *field.Path) field.ErrorList {
	if len(spec.BannedNames)+len(spec.BannedImages)+len(spec.Mirrors) == 0 {
		return field.ErrorList{field.Required(path,
			"a policy bans names or images, or has mirrors")}
	}
	return nil
}
