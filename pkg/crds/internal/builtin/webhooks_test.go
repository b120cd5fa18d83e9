package builtin

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func conditions(expressions ...string) []admissionv1.MatchCondition {
	var all []admissionv1.MatchCondition
	for i, e := range expressions {
		all = append(all, admissionv1.MatchCondition{Name: string(rune('a' + i)), Expression: e})
	}
	return all
}

func mutating(c []admissionv1.MatchCondition) *admissionv1.MutatingWebhookConfiguration {
	return &admissionv1.MutatingWebhookConfiguration{Webhooks: []admissionv1.MutatingWebhook{{
		Name:                    "a.example.com",
		ClientConfig:            admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")},
		SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"}, MatchConditions: c,
	}}}
}

func validating(c []admissionv1.MatchCondition) *admissionv1.ValidatingWebhookConfiguration {
	h := mutating(c).Webhooks[0]
	return &admissionv1.ValidatingWebhookConfiguration{Webhooks: []admissionv1.ValidatingWebhook{{
		Name: h.Name, ClientConfig: h.ClientConfig, SideEffects: h.SideEffects,
		AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: c,
	}}}
}

// The conditions of webhooks are checked when they are written, as in a cluster.
func TestWebhookMatchConditions(t *testing.T) {
	var many []string
	for range maxMatchConditions + 1 {
		many = append(many, "true")
	}
	tooMany := conditions(many...)
	for i := range tooMany {
		tooMany[i].Name = strings.Repeat("n", i+1)[:min(i+1, 63)]
	}
	tooMany[maxMatchConditions].Name = "last"
	tooMany[maxMatchConditions-1].Name = "last-but-one"
	for name, c := range map[string]struct {
		conditions []admissionv1.MatchCondition
		want       []string
	}{
		"good": {conditions("object.metadata.name == 'x'", "request.operation != 'DELETE'",
			"authorizer.group('').resource('pods').check('get').allowed()", "!has(oldObject.x)"),
			nil},
		"syntax": {conditions("true", "object."), []string{
			`webhooks[0].matchConditions[1].expression: Invalid value: "object.": compilation failed: ERROR: <input>:1:8: Syntax error`,
		}},
		"unknown function": {conditions("nothing(object)"),
			[]string{"undeclared reference to 'nothing'"}},
		"not a boolean": {conditions("'x'"),
			[]string{`webhooks[0].matchConditions[0].expression: Invalid value: "'x'": must evaluate to bool`}},
		"parameters are of policies": {conditions("params.x"),
			[]string{"undeclared reference to 'params'"}},
		"variables are of policies": {conditions("variables.x"),
			[]string{"undeclared reference to 'variables'"}},
		"empty": {conditions(" "),
			[]string{"webhooks[0].matchConditions[0].expression: Required value"}},
		"no name": {[]admissionv1.MatchCondition{{Expression: "true"}},
			[]string{"webhooks[0].matchConditions[0].name: Required value"}},
		"bad name": {[]admissionv1.MatchCondition{{Name: "a b",
			Expression: "true"}},
			[]string{`webhooks[0].matchConditions[0].name: Invalid value: "a b"`}},
		"one name twice": {[]admissionv1.MatchCondition{{Name: "a", Expression: "true"},
			{Name: "a", Expression: "true"}}, []string{
			`webhooks[0].matchConditions[1].name: Duplicate value: "a"`,
		}},
		"too many": {tooMany,
			[]string{"webhooks[0].matchConditions: Too many: 65: must have at most 64 items"}},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, errs := range map[string]field.ErrorList{
				"mutating":   mutatingWebhooks.validate(mutating(c.conditions), nil),
				"validating": validatingWebhooks.validate(validating(c.conditions), nil),
			} {
				if len(errs) != len(c.want) {
					t.Fatalf("%s: %v, not %q", kind, errs, c.want)
				}
				for i, want := range c.want {
					if !strings.Contains(errs[i].Error(), want) {
						t.Errorf("%s: %v, not %q", kind, errs[i], want)
					}
				}
			}
		})
	}

	// What was stored before the conditions were checked does not stand in the way of other
	// changes.
	before := conditions("object.")
	if errs := mutatingWebhooks.validate(mutating(before), mutating(before)); errs != nil {
		t.Errorf("a stored condition is checked anew: %v", errs)
	}
	// the name is there twice, too
	if errs := validatingWebhooks.validate(validating(append(before, conditions("request.")...)),
		validating(before)); len(errs) != 2 {
		t.Errorf("a new condition beside a stored one: %v", errs)
	}
}
