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

	// A wrong policy is refused when it is written.
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
		{binding, "{name: naming, ", "{", "spec.paramRef: Required value: one of name or selector " +
			"must be specified"},
	} {
		object := strings.Replace(strings.Replace(c.object, "metadata: {name: names",
			"metadata: {name: bad", 1), c.from, c.to, 1)
		s.refused(t, object, c.want, "create", "-f", "-")
	}
}

// MutatingAdmissionPolicies change what is written, of the kinds of the server itself and of
// definitions, by both kinds of patches, while they are bound.
func TestMutatingAdmissionPolicies(t *testing.T) {
	s := start(t, t.TempDir(), "--enable-crds")
	s.ok(t, widgets, "create", "-f", "-")
	s.established(t, "crd/widgets.factory.example.com")

	const policy = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: teams}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules:
    - {apiGroups: [ci.rowkeeper.dev, factory.example.com], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [pipelines, widgets]}
  matchConditions: [{name: not-exempt, expression: "!has(object.metadata.labels) || !('exempt' in object.metadata.labels)"}]
  variables: [{name: team, expression: params.data.team}]
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'team': variables.team}}}"}
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'by': 'policy'}}]"}
`
	const binding = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: teams-here}
spec:
  policyName: teams
  paramRef: {name: team, namespace: default, parameterNotFoundAction: Deny}
`
	s.ok(t, "", "create", "configmap", "team", "--from-literal=team=acme")
	s.ok(t, policy, "create", "-f", "-")
	s.ok(t, binding, "create", "-f", "-")
	has(t, s.ok(t, "", "get", "mutatingadmissionpolicies,mutatingadmissionpolicybindings"),
		"MUTATIONS", "v1/ConfigMap", "POLICYNAME", "default/team")
	has(t, s.ok(t, "", "explain", "mutatingadmissionpolicy.spec.mutations"), "patchType")

	const both = "jsonpath={.metadata.labels.team} {.metadata.annotations.by}"
	tried := func(object string) func() bool {
		return func() bool {
			return s.kubectl(t, object, "create", "--dry-run=server", "-f", "-", "-o",
				both).stdout == "acme policy"
		}
	}
	eventually(t, "the policy is in force for pipelines", tried(manifest("build", "make")))
	eventually(t, "the policy is in force for widgets", tried(widget("wheel")))
	has(t, s.ok(t, manifest("build", "make"), "create", "-f", "-", "-o", both), "acme policy")
	for _, c := range []struct{ label, want string }{{"a=b", "acme policy"},
		{"exempt=yes", "other policy"}} {
		s.ok(t, "", "label", "pl", "build", c.label, "team=other", "--overwrite")
		if got := s.ok(t, "", "get", "pl", "build", "-o", both); got != c.want {
			t.Errorf("with the label %s, the pipeline has %s", c.label, got)
		}
	}
	get := func(path string) string {
		return s.ok(t, "", "get", "mutatingadmissionpolicy", "teams", "-o", "jsonpath={"+path+"}")
	}
	s.ok(t, "", "label", "mutatingadmissionpolicy", "teams", "a=b")
	if got := get(".metadata.generation") + get(".spec.failurePolicy") +
		get(".spec.matchConstraints.matchPolicy"); got != "1FailEquivalent" {
		t.Errorf("generation, failurePolicy and matchPolicy are %s", got)
	}
	s.ok(t, "", "delete", "mutatingadmissionpolicybinding", "teams-here")
	eventually(t, "the policy is no longer in force", func() bool {
		return !tried(manifest("other", "make"))() && !tried(widget("other"))()
	})

	// A wrong policy is refused when it is written.
	for _, c := range []struct{ object, from, to, want string }{
		{policy, "'team': variables.team", "'team': variables.group", "undefined field 'group'"},
		{policy, "Object{metadata: Object.metadata{labels: {'team': variables.team}}}", "'text'",
			"spec.mutations[0].applyConfiguration.expression: Invalid value:"},
		{policy, "op: 'add'", "op: 1", "spec.mutations[1].jsonPatch.expression: Invalid value:"},
		{policy, "patchType: JSONPatch", "patchType: ApplyConfiguration",
			"spec.mutations[1].jsonPatch: Invalid value:"},
		{policy, "patchType: ApplyConfiguration", "patchType: Merge",
			"spec.mutations[0].patchType: Unsupported value:"},
		{policy, "  reinvocationPolicy: Never\n", "", "spec.reinvocationPolicy: Required value"},
		{policy, "reinvocationPolicy: Never", "reinvocationPolicy: Always",
			"spec.reinvocationPolicy: Unsupported value:"},
		{policy, "operations: [CREATE, UPDATE]", "operations: [CREATE, DELETE]",
			"spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\""},
		{policy[:strings.Index(policy, "  mutations:")], "", "", "spec.mutations: Required value"},
		{policy, "expression: params.data.team", "expression: nothing",
			"spec.variables[0].expression: Invalid value:"},
		{binding, "policyName: teams", "policyName: ''", "spec.policyName: Required value"},
		{binding, ", parameterNotFoundAction: Deny", "", "spec.paramRef.parameterNotFoundAction: " +
			"Required value"},
	} {
		object := strings.Replace(strings.Replace(c.object, "metadata: {name: teams",
			"metadata: {name: bad", 1), c.from, c.to, 1)
		s.refused(t, object, c.want, "create", "-f", "-")
	}
}
