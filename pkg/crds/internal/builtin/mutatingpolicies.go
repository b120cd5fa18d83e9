package builtin

import (
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
)

var mutatingPolicies = resource[*admissionv1.MutatingAdmissionPolicy]{
	resource:      admissionResource("mutatingadmissionpolicies"),
	singular:      admissionResource("mutatingadmissionpolicy"),
	clusterScoped: true,
	new: func() *admissionv1.MutatingAdmissionPolicy {
		return &admissionv1.MutatingAdmissionPolicy{}
	},
	newList: func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyList{} },
	name:    validation.NameIsDNSSubdomain,
	prepare: func(p, old *admissionv1.MutatingAdmissionPolicy) {
		p.Generation = 1
		if old != nil {
			p.Generation = nextGeneration(old.Generation, p.Spec, old.Spec)
		}
	},
	needsVersion: true,
	validate: func(p, _ *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
		return checkMutatingPolicy(field.NewPath("spec"), &p.Spec)
	},
	columns: []metav1.TableColumnDefinition{
		{Name: "Mutations", Type: "integer", Description: "How many mutations there are."},
		{Name: "ParamKind", Type: "string", Description: "What kind of object has the parameters."},
	},
	cells: func(p *admissionv1.MutatingAdmissionPolicy) []any {
		return []any{int64(len(p.Spec.Mutations)), paramKind(p.Spec.ParamKind)}
	},
}

var mutatingPolicyBindings = resource[*admissionv1.MutatingAdmissionPolicyBinding]{
	resource:      admissionResource("mutatingadmissionpolicybindings"),
	singular:      admissionResource("mutatingadmissionpolicybinding"),
	clusterScoped: true,
	new: func() *admissionv1.MutatingAdmissionPolicyBinding {
		return &admissionv1.MutatingAdmissionPolicyBinding{}
	},
	newList: func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyBindingList{} },
	name:    validation.NameIsDNSSubdomain,
	prepare: func(b, old *admissionv1.MutatingAdmissionPolicyBinding) {
		b.Generation = 1
		if old != nil {
			b.Generation = nextGeneration(old.Generation, b.Spec, old.Spec)
		}
	},
	needsVersion: true,
	validate: func(b, _ *admissionv1.MutatingAdmissionPolicyBinding) field.ErrorList {
		path := field.NewPath("spec")
		return append(checkBound(path, b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources),
			noDeletions(path.Child("matchResources"), b.Spec.MatchResources)...)
	},
	columns: policyBindingColumns,
	cells: func(b *admissionv1.MutatingAdmissionPolicyBinding) []any {
		return []any{b.Spec.PolicyName, paramRef(b.Spec.ParamRef)}
	},
}

// checkMutatingPolicy checks a policy as checkPolicy does.
func checkMutatingPolicy(path *field.Path,
	s *admissionv1.MutatingAdmissionPolicySpec) field.ErrorList {
	e, errs := scope{s.FailurePolicy, s.ParamKind, s.MatchConstraints, s.Variables,
		s.MatchConditions}.check(path)
	if e == nil {
		return errs
	}
	errs = append(errs, noDeletions(path.Child("matchConstraints"), s.MatchConstraints)...)
	if at := path.Child("reinvocationPolicy"); s.ReinvocationPolicy == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, oneOf(at, &s.ReinvocationPolicy,
			admissionv1.NeverReinvocationPolicy, admissionv1.IfNeededReinvocationPolicy)...)
	}
	if len(s.Mutations) == 0 {
		errs = append(errs, field.Required(path.Child("mutations"),
			"a policy needs at least one mutation"))
	}
	for i, m := range s.Mutations {
		errs = append(errs, e.mutation(path.Child("mutations").Index(i), m)...)
	}
	return errs
}

// mutation checks that a mutation has the expression of its type, and no other.
func (e *expressions) mutation(path *field.Path, m admissionv1.Mutation) (errs field.ErrorList) {
	apply, jsonPatch := path.Child("applyConfiguration"), path.Child("jsonPatch")
	switch m.PatchType {
	case "":
		return field.ErrorList{field.Required(path.Child("patchType"), "")}
	case admissionv1.PatchTypeApplyConfiguration:
		if m.JSONPatch != nil {
			errs = append(errs, field.Invalid(jsonPatch, m.JSONPatch.Expression,
				"the patchType is ApplyConfiguration"))
		}
		if m.ApplyConfiguration == nil {
			return append(errs, field.Required(apply, ""))
		}
		return append(errs, e.patch(apply.Child("expression"), &patch.ApplyConfigurationCondition{
			Expression: m.ApplyConfiguration.Expression})...)
	case admissionv1.PatchTypeJSONPatch:
		if m.ApplyConfiguration != nil {
			errs = append(errs, field.Invalid(apply, m.ApplyConfiguration.Expression,
				"the patchType is JSONPatch"))
		}
		if m.JSONPatch == nil {
			return append(errs, field.Required(jsonPatch, ""))
		}
		return append(errs, e.patch(jsonPatch.Child("expression"), &patch.JSONPatchCondition{
			Expression: m.JSONPatch.Expression})...)
	}
	return oneOf(path.Child("patchType"), &m.PatchType, admissionv1.PatchTypeApplyConfiguration,
		admissionv1.PatchTypeJSONPatch)
}

// patch checks an expression that makes a patch.
func (e *expressions) patch(path *field.Path, x plugincel.ExpressionAccessor) field.ErrorList {
	return compile(path, e.compiler, x, plugincel.OptionalVariableDeclarations{
		HasParams: e.hasParams, HasAuthorizer: true, HasPatchTypes: true})
}

// noDeletions refuses rules for deletions, which have no object that could be changed.
func noDeletions(path *field.Path, m *admissionv1.MatchResources) (errs field.ErrorList) {
	if m == nil {
		return nil
	}
	for i, rule := range m.ResourceRules {
		if at := slices.Index(rule.Operations, admissionv1.Delete); at >= 0 {
			errs = append(errs, field.NotSupported(
				path.Child("resourceRules").Index(i).Child("operations").Index(at),
				admissionv1.Delete, []admissionv1.OperationType{admissionv1.Create,
					admissionv1.Update, admissionv1.Connect, admissionv1.OperationAll}))
		}
	}
	return errs
}
