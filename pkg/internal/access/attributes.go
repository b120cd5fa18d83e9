package access

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// checkMeta refuses metadata that means nothing for a review.
func checkMeta(m metav1.ObjectMeta, message string) field.ErrorList {
	m.ManagedFields = nil
	if apiequality.Semantic.DeepEqual(m, metav1.ObjectMeta{}) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), m, message)}
}

func checkSpec(s authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := checkAttributes(s.ResourceAttributes, s.NonResourceAttributes)
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(specPath.Child("user"), s.User,
			"at least one of user or group must be specified"))
	}
	return errs
}

// checkAttributes checks what a review asks for: a resource or a path.
func checkAttributes(resource *authorizationv1.ResourceAttributes,
	path *authorizationv1.NonResourceAttributes) (errs field.ErrorList) {
	switch {
	case resource != nil && path != nil:
		errs = append(errs, field.Invalid(specPath.Child("nonResourceAttributes"), path,
			"cannot be specified in combination with resourceAttributes"))
	case resource == nil && path == nil:
		errs = append(errs, field.Invalid(specPath.Child("resourceAttributes"), nil,
			"exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if resource == nil {
		return errs
	}
	at := specPath.Child("resourceAttributes")
	if s := resource.FieldSelector; s != nil {
		at := at.Child("fieldSelector")
		errs = append(errs, checkSelector(at, s.RawSelector, len(s.Requirements))...)
		for i, r := range s.Requirements {
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(r,
				metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true},
				at.Child("requirements").Index(i))...)
		}
	}
	if s := resource.LabelSelector; s != nil {
		at := at.Child("labelSelector")
		errs = append(errs, checkSelector(at, s.RawSelector, len(s.Requirements))...)
		for i, r := range s.Requirements {
			errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(r,
				metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true},
				at.Child("requirements").Index(i))...)
		}
	}
	return errs
}

// checkSelector wants a selector in one of its two forms.
func checkSelector(at *field.Path, raw string, requirements int) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(at.Child("rawSelector"), raw,
			"may not be specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(at.Child("requirements"),
			"requirements or rawSelector is required")}
	}
	return nil
}

// setResource sets the attributes of a request for a resource. A review without a version means
// every version.
func setResource(a *authorizer.AttributesRecord, r *authorizationv1.ResourceAttributes) {
	a.ResourceRequest = true
	a.Verb, a.Namespace, a.Name = r.Verb, r.Namespace, r.Name
	a.APIGroup, a.APIVersion = r.Group, cmp.Or(r.Version, "*")
	a.Resource, a.Subresource = r.Resource, r.Subresource
	// Requirements all hold at once. So the request without unreadable ones asks for more, and a
	// user who may do that may do what is asked.
	if s := r.LabelSelector; s != nil && s.RawSelector != "" {
		var selector labels.Selector
		if selector, a.LabelSelectorParsingErr = labels.Parse(s.RawSelector); selector != nil {
			a.LabelSelectorRequirements, _ = selector.Requirements()
		}
	} else if s != nil {
		for _, r := range s.Requirements {
			one, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{r}})
			if err != nil {
				a.LabelSelectorParsingErr = errors.Join(a.LabelSelectorParsingErr, err)
				continue
			}
			requirements, _ := one.Requirements()
			a.LabelSelectorRequirements = append(a.LabelSelectorRequirements, requirements...)
		}
	}
	if s := r.FieldSelector; s != nil && s.RawSelector != "" {
		var selector fields.Selector
		if selector, a.FieldSelectorParsingErr = fields.ParseSelector(s.RawSelector); selector != nil {
			a.FieldSelectorRequirements = selector.Requirements()
		}
	} else if s != nil {
		operators := map[metav1.FieldSelectorOperator]selection.Operator{
			metav1.FieldSelectorOpIn: selection.Equals, metav1.FieldSelectorOpNotIn: selection.NotEquals}
		for _, r := range s.Requirements {
			operator, known := operators[r.Operator]
			if !known || len(r.Values) != 1 {
				a.FieldSelectorParsingErr = errors.Join(a.FieldSelectorParsingErr,
					fmt.Errorf("the operator %q with %d values", r.Operator, len(r.Values)))
				continue
			}
			a.FieldSelectorRequirements = append(a.FieldSelectorRequirements,
				fields.Requirement{Field: r.Key, Operator: operator, Value: r.Values[0]})
		}
	}
}

// evaluationError is what a review tells of an authorizer's error, and of selectors that could not
// be read.
func evaluationError(err error, a authorizer.AttributesRecord) string {
	var all []string
	if err != nil {
		all = append(all, err.Error())
	}
	ignored := func(selector string, read int, err error) {
		how := "ignored"
		if read > 0 {
			how = "partially ignored"
		}
		if err != nil {
			all = append(all, "spec.resourceAttributes."+selector+" "+how+" due to parse error")
		}
	}
	ignored("fieldSelector", len(a.FieldSelectorRequirements), a.FieldSelectorParsingErr)
	ignored("labelSelector", len(a.LabelSelectorRequirements), a.LabelSelectorParsingErr)
	return strings.Join(all, "; ")
}
