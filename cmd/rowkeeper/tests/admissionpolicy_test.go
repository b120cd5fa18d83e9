package tests

import (
	"strings"
	"testing"
)

// Where there is a core API, ValidatingAdmissionPolicies are enforced for the kinds of the server
// itself and for those of definitions, while they are bound.
func TestValidatingAdmissionPolicies(t *testing.T) {
	s := start(t, t.TempDir(), "--enable-crds")
	s.ok(t, widgets, "create", "-f", "-")
	s.established(t, "crd/widgets.factory.example.com")

	const policy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: names}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules:
    - {apiGroups: [ci.rowkeeper.dev, factory.example.com], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [pipelines, widgets]}
  matchConditions: [{name: not-exempt, expression: "!has(object.metadata.labels) || !('exempt' in object.metadata.labels)"}]
  variables: [{name: prefix, expression: params.data.prefix}]
  validations:
  - expression: object.metadata.name.startsWith(variables.prefix)
    messageExpression: "'names of ' + object.kind + 's begin with ' + variables.prefix"
`
	const binding = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: names-here}
spec:
  policyName: names
  paramRef: {name: naming, namespace: default, parameterNotFoundAction: Deny}
  validationActions: [Deny]
`
	s.ok(t, "", "create", "configmap", "naming", "--from-literal=prefix=acme-")
	s.ok(t, policy, "create", "-f", "-")
	s.ok(t, manifest("unbound", "make"), "create", "-f", "-")
	s.ok(t, binding, "create", "-f", "-")
	has(t, s.ok(t, "", "get", "validatingadmissionpolicies,validatingadmissionpolicybindings"),
		"VALIDATIONS", "v1/ConfigMap", "POLICYNAME", "default/naming")
	has(t, s.ok(t, "", "explain", "validatingadmissionpolicy.spec.validations"),
		"messageExpression")

	create := func(object string) func() result {
		return func() result {
			return s.kubectl(t, object, "create", "--dry-run=server", "-f", "-")
		}
	}
	const denied = "ValidatingAdmissionPolicy 'names' with binding 'names-here' denied request: " +
		"names of "
	pipeline, thing := create(manifest("other", "make")), create(widget("other"))
	eventually(t, "the policy is in force for pipelines", func() bool {
		return strings.Contains(pipeline().stderr, denied+"Pipelines begin with acme-")
	})
	eventually(t, "the policy is in force for widgets", func() bool {
		return strings.Contains(thing().stderr, denied+"Widgets begin with acme-")
	})
	s.refused(t,
		"apiVersion: ci.rowkeeper.dev/v1alpha1\nkind: Pipeline\nmetadata: {name: flat}\nspec: {image: 'golang:1.26', commands: [make]}",
		denied+"Pipelines", "create", "-f", "-") // in whichever version
	s.refused(t, "", denied+"Pipelines", "label", "pl", "unbound", "a=b")
	s.ok(t, manifest("acme-build", "make"), "create", "-f", "-")
	s.ok(t, widget("acme-widget"), "create", "-f", "-")
	s.ok(t, "", "label", "pl", "unbound", "exempt=yes")
	s.ok(t, "", "create", "configmap", "other") // which no rule names

	// The spec and the status do not overwrite each other, and only the spec counts as a
	// generation.
	get := func(path string) string {
		return s.ok(t, "", "get", "validatingadmissionpolicy", "names", "-o", "jsonpath={"+path+"}")
	}
	s.ok(t, "", "patch", "validatingadmissionpolicy", "names", "--type=merge",
		"--subresource=status", "-p",
		`{"metadata":{"labels":{"a":"b"}},"spec":{"failurePolicy":"Ignore"},"status":{"observedGeneration":1}}`)
	s.ok(t, "", "patch", "validatingadmissionpolicy", "names", "--type=merge", "-p",
		`{"status":{"observedGeneration":7}}`)
	if got := get(".metadata.generation") + get(".spec.failurePolicy") + get(".status.observedGeneration") + get(".metadata.labels"); got != "1Fail1" {
		t.Errorf("generation, failurePolicy, observedGeneration and labels are %s", got)
	}

	s.ok(t, "", "delete", "validatingadmissionpolicybinding", "names-here")
	eventually(t, "the policy is no longer in force for pipelines", func() bool {
		return pipeline().code == 0
	})
	eventually(t, "the policy is no longer in force for widgets", func() bool {
		return thing().code == 0
	})

	// What cannot be a policy is refused when it is written.
	for _, c := range []struct{ object, from, to, want string }{
		{policy, "startsWith(variables.prefix)", "startsWith(",
			"spec.validations[0].expression: Invalid value:"},
		{policy, "startsWith(variables.prefix)", "startsWith(variables.suffix)",
			"undefined field 'suffix'"},
		{policy, "object.metadata.name.startsWith(variables.prefix)", "\"'text'\"",
			"must evaluate to bool"},
		{policy, "expression: params.data.prefix", "expression: nothing",
			"spec.variables[0].expression: Invalid value:"},
		{policy, "  paramKind: {apiVersion: v1, kind: ConfigMap}\n", "",
			"undeclared reference to 'params'"},
		{policy, "{name: prefix,", "{name: pre-fix,", "spec.variables[0].name: Invalid value:"},
		{policy, "name: not-exempt,", "name: not exempt,",
			"spec.matchConditions[0].name: Invalid value:"},
		{policy, "operations: [CREATE, UPDATE]", "operations: [MERGE]",
			"spec.matchConstraints.resourceRules[0].operations[0]: Unsupported value:"},
		{policy, "messageExpression: \"'names of ' + object.kind",
			"messageExpression: \"1 + object.kind",
			"spec.validations[0].messageExpression: Invalid value:"},
		{binding, "policyName: names", "policyName: ''", "spec.policyName: Required value"},
		{binding, "[Deny]", "[Deny, Warn]", "spec.validationActions: Invalid value:"},
		{binding, "[Deny]", "[Refuse]", "spec.validationActions[0]: Unsupported value:"},
		{binding, ", parameterNotFoundAction: Deny", "", "spec.paramRef.parameterNotFoundAction: " +
			"Required value"},
		{binding, "{name: naming, ", "{", "spec.paramRef: Required value: exactly one of name or " +
			"selector"},
	} {
		object := strings.Replace(strings.Replace(c.object, "metadata: {name: names",
			"metadata: {name: bad", 1), c.from, c.to, 1)
		s.refused(t, object, c.want, "create", "-f", "-")
	}
}
