package beside

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
)

// Admission answers the same on kube-apiserver and on our server: what is refused, in which words,
// and what is made of what is not.
func TestAdmission(t *testing.T) {
	a := &admission{both: startBoth(t), hook: startHook(t)}
	t.Run("configurations", a.configurations)
	t.Run("requests", a.requests)
	t.Run("namespaces", a.namespaces)
	t.Logf("%d answers were compared", a.compared)
}

// admission is asked by requests to both servers.
type admission struct {
	*both
	hook string // the clientConfig of a webhook, but for its path
}

// both are clients of our server, and of upstream's, that send the same requests.
type both struct {
	clients [2]dynamic.Interface
	// compared is how many answers were.
	compared int
}

func startBoth(t *testing.T, controllers ...string) *both {
	t.Helper()
	_, ours := serve(t, build(t), "rowkeeper")
	b := &both{}
	for i, config := range []*rest.Config{ours, startCluster(t, cluster.Etcd,
		controllers...).Admin} {
		config = rest.CopyConfig(config)
		config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
		b.clients[i] = dynamic.NewForConfigOrDie(config)
	}
	return b
}

// served are what the objects of these kinds are served as.
var served = map[string]string{
	"ConfigMap": "configmaps", "Namespace": "namespaces", "Thing": "things", "Secret": "secrets",
	"ServiceAccount": "serviceaccounts", "ResourceQuota": "resourcequotas", "Event": "events",
	"Lease": "leases", "Role": "roles",
	"ClusterRole": "clusterroles", "RoleBinding": "rolebindings",
	"CustomResourceDefinition":         "customresourcedefinitions",
	"ValidatingAdmissionPolicy":        "validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
	"MutatingAdmissionPolicy":          "mutatingadmissionpolicies",
	"MutatingAdmissionPolicyBinding":   "mutatingadmissionpolicybindings",
	"ValidatingWebhookConfiguration":   "validatingwebhookconfigurations",
	"MutatingWebhookConfiguration":     "mutatingwebhookconfigurations",
	"FlowSchema":                       "flowschemas",
	"PriorityLevelConfiguration":       "prioritylevelconfigurations",
}

// do is a request for an object: "create", "try" (to create), "merge", "get", "status" (to write
// it), "delete", and "clear", for all of its kind.
func do(ctx context.Context, c dynamic.Interface, verb, text string) (string, error) {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		return "", err
	}
	kind := object.GroupVersionKind()
	var at dynamic.ResourceInterface = c.Resource(schema.GroupVersionResource{Group: kind.Group,
		Version: kind.Version, Resource: served[kind.Kind]})
	if object.GetNamespace() != "" {
		at = at.(dynamic.NamespaceableResourceInterface).Namespace(object.GetNamespace())
	}
	var err error
	switch verb {
	case "create":
		object, err = at.Create(ctx, object, metav1.CreateOptions{})
	case "try":
		object, err = at.Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	case "merge":
		var patch []byte
		if patch, err = json.Marshal(object); err == nil {
			object, err = at.Patch(ctx, object.GetName(), types.MergePatchType, patch,
				metav1.PatchOptions{})
		}
	case "get":
		object, err = at.Get(ctx, object.GetName(), metav1.GetOptions{})
	case "status":
		object, err = at.UpdateStatus(ctx, object, metav1.UpdateOptions{})
	case "clear":
		err = at.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	case "delete":
		err = at.Delete(ctx, object.GetName(), metav1.DeleteOptions{})
	default:
		err = fmt.Errorf("there is no %q", verb)
	}
	if err != nil {
		return "", err
	}
	for _, field := range []string{"uid", "creationTimestamp", "deletionTimestamp",
		"resourceVersion", "managedFields"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	result, err := yaml.Marshal(object)
	return string(result), err
}

// answer is what a client is told.
func answer(ctx context.Context, c dynamic.Interface, verb, text string) string {
	result, err := do(ctx, c, verb, text)
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		s := status.Status()
		message := itsOwn.ReplaceAllString(s.Message, "")
		return fmt.Sprintf("%d %s: %s", s.Code, s.Reason, message)
	}
	if err != nil {
		return noAnswer + err.Error()
	}
	return result
}

// itsOwn is what an object has of its server, as it stands in an error.
var itsOwn = regexp.MustCompile(`\\?"(resourceVersion|uid|creationTimestamp|time)\\?":\\?"[^"]*"`)

// noAnswer begins the answer if a client did not get as far as to ask.
const noAnswer = "no answer: "

// same sends a request to both servers, and compares the answers. It returns ours.
func (b *both) same(t *testing.T, what, verb, text string) string {
	t.Helper()
	b.compared++
	ours := answer(t.Context(), b.clients[0], verb, text)
	if upstream := answer(t.Context(), b.clients[1], verb, text); ours != upstream ||
		strings.HasPrefix(ours, noAnswer) {
		t.Errorf("%s: %s: our server answers\n%s\nand upstream's\n%s", what, verb, ours, upstream)
	}
	return ours
}

// must makes both servers do something.
func (b *both) must(t *testing.T, verb, text string) {
	t.Helper()
	for _, c := range b.clients {
		if _, err := do(t.Context(), c, verb, text); err != nil {
			t.Fatalf("%s: %v\n%s", verb, err, text)
		}
	}
}

// startHook starts a webhook. At /label it adds a label, at /refuse it refuses, at /patch it
// answers with a patch that fails, and at every other path it fails itself.
func startHook(t *testing.T) string {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		switch r.URL.Path {
		case "/label":
			how := admissionv1.PatchTypeJSONPatch
			response.PatchType = &how
			response.Patch = []byte(`[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}]`)
		case "/refuse":
			response.Allowed = false
			response.Result = &metav1.Status{Code: 418, Reason: "Teapot", Message: "not " +
				review.Request.Name + " by " + string(review.Request.Operation)}
		case "/patch":
			how := admissionv1.PatchTypeJSONPatch
			response.PatchType = &how
			response.Patch = []byte(`[{"op":"remove","path":"/metadata/nowhere"}]`)
		default:
			http.Error(w, "out of order", http.StatusTeapot)
			return
		}
		review.Request, review.Response = nil, response
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return "caBundle: " + base64.StdEncoding.EncodeToString(ca) + ", url: '" + s.URL
}

const (
	validating = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: names}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    namespaceSelector: {matchLabels: {policies: "on"}}
    resourceRules:
    - {apiGroups: ["", example.com], apiVersions: ["v1"], operations: [CREATE, UPDATE, DELETE], resources: [configmaps, things]}
  matchConditions: [{name: named, expression: "(object == null ? oldObject : object).metadata.name.startsWith('named-')"}]
  variables: [{name: suffix, expression: params.data.suffix}]
  validations:
  - expression: object == null || object.metadata.name.endsWith(variables.suffix)
    messageExpression: "'names end with ' + variables.suffix"
  - expression: request.operation != 'DELETE'
    message: it stays
    reason: RequestEntityTooLarge
  auditAnnotations: [{key: suffix, valueExpression: string(variables.suffix)}]
`
	validatingBinding = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: names}
spec:
  policyName: names
  paramRef: {name: params, namespace: on, parameterNotFoundAction: Deny}
  validationActions: [Deny, Audit]
`
	mutating = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: teams}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {policies: "on"}}
    resourceRules:
    - {apiGroups: ["", example.com], apiVersions: ["v1"], operations: [CREATE], resources: [configmaps, things]}
  matchConditions: [{name: teamed, expression: "object.metadata.name.startsWith('teamed-')"}]
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'team': object.metadata.name}}}"}
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'by': request.userInfo.groups.exists(g, g == 'system:masters') ? 'an admin' : 'nobody'}}]"}
`
	mutatingBinding = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: teams}
spec: {policyName: teams}
`
	thing = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, default: 3}}}}}}
`
)

// webhooks is a configuration of a kind with one webhook, which is asked about what has this name.
func (a *admission) webhooks(kind, name, path, more string) string {
	return fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: %sWebhookConfiguration
metadata: {name: %s}
webhooks:
- name: %s.example.com
  clientConfig: {%s%s'}
  rules: [{apiGroups: ["", example.com], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps, things]}]
  matchConditions: [{name: it, expression: "object.metadata.name.startsWith('%s-')"}]
  sideEffects: None
  admissionReviewVersions: [v1]
%s`, kind, name, name, a.hook, path, name, more)
}

// configurations compares what can be a configuration of admission, and what becomes of it. One
// difference is left out: of a mutating policy for deletions, ours says which rule is for them.
func (a *admission) configurations(t *testing.T) {
	hooks := a.webhooks("Mutating", "label", "/label", "  reinvocationPolicy: IfNeeded\n")
	for _, c := range []struct{ object, from, to string }{
		{validating, "", ""}, {validatingBinding, "", ""}, {mutating, "", ""},
		{mutatingBinding, "", ""}, {hooks, "", ""},
		{validating, "variables.suffix)\n", "variables.suffix\n"},
		{validating, "endsWith(variables.suffix)", "endsWith(variables.prefix)"},
		{validating, "object == null || object.metadata.name.endsWith(variables.suffix)", `"'a'"`},
		{validating, "expression: params.data.suffix", "expression: nothing"},
		{validating, "  paramKind: {apiVersion: v1, kind: ConfigMap}\n", ""},
		{validating, "{apiVersion: v1, kind: ConfigMap}", "{apiVersion: a/b/c, kind: ''}"},
		{validating, "{name: suffix,", "{name: suf-fix,"},
		{validating, "{name: suffix,", "{name: in,"},
		{validating, "name: named,", "name: not named,"},
		{validating, "operations: [CREATE, UPDATE, DELETE]", "operations: [MERGE]"},
		{validating, "operations: [CREATE, UPDATE, DELETE]", "operations: ['*', CREATE]"},
		{validating, "resources: [configmaps, things]", "resources: ['*', things/*]"},
		{validating, "resources: [configmaps, things]", "resources: ['*', things]"},
		{validating, "resources: [configmaps, things]", "resources: ['*/*', '*']"},
		{validating, "resources: [configmaps, things]", "resources: ['*/*', things, '']"},
		{validating, "resources: [configmaps, things]", "resources: [things/*, things/status, '*/scale', a/scale]"},
		{validating, "resources: [configmaps, things]", "resources: [things/status, things/*, '*/status']"},
		{validating, `apiGroups: ["", example.com]`, "apiGroups: ['*', a]"},
		{validating, `apiVersions: ["v1"]`, "apiVersions: ['*', v1]"},
		{validating, `apiVersions: ["v1"]`, "apiVersions: ['', v1]"},
		{validating, "resources: [configmaps, things]", "resources: [things], resourceNames: [a, a, '*', 'a b']"},
		{validating, "message: it stays", "message: \"a line\\n\""},
		{validating, "{name: suffix,", "{name: '',"},
		{validating, "{name: suffix,", "{name: __suffix,"},
		{validating, "resources: [configmaps, things]", "resources: []"},
		{validating, "\"'names end with '", "\"1"},
		{validating, "message: it stays", "message: ' '"},
		{validating, "message: it stays", "message: \"two\\nlines\""},
		{validating, "reason: RequestEntityTooLarge", "reason: Unauthorized"},
		{validating, "reason: RequestEntityTooLarge", "reason: ''"},
		{validating, "variables: [{name: suffix,", "variables: [{name: suffix, expression: '1'}, {name: suffix,"},
		{validating, "{key: suffix, valueExpression", "{key: 'a b', valueExpression"},
		{validating, "valueExpression: string(variables.suffix)", "valueExpression: '7'"},
		{validating, "policies: \"on\"", "policies: 'o n'"},
		{validating, "  matchConditions:", "  failurePolicy: Never\n  matchConditions:"},
		{validating, validating[strings.Index(validating, "  validations:"):], ""},
		{validatingBinding, "policyName: names", "policyName: ''"},
		{validatingBinding, "policyName: names", "policyName: a b"},
		{validatingBinding, "[Deny, Audit]", "[Deny, Warn]"},
		{validatingBinding, "[Deny, Audit]", "[Deny, Deny]"},
		{validatingBinding, "[Deny, Audit]", "[Refuse]"},
		{validatingBinding, "[Deny, Audit]", "[]"},
		{validatingBinding, ", parameterNotFoundAction: Deny", ""},
		{validatingBinding, "{name: params, ", "{"},
		{validatingBinding, "{name: params, ", "{name: params, selector: {matchLabels: {a: b}}, "},
		{mutating, "labels: {'team': object.metadata.name}", "labels: {'team': 7}"},
		{mutating, "Object{metadata: Object.metadata{labels: {'team': object.metadata.name}}}", "'a'"},
		{mutating, "op: 'add'", "op: 1"},
		{mutating, "patchType: JSONPatch", "patchType: ApplyConfiguration"},
		{mutating, "patchType: ApplyConfiguration", "patchType: Merge"},
		{mutating, "  reinvocationPolicy: IfNeeded\n", ""},
		{mutating, "reinvocationPolicy: IfNeeded", "reinvocationPolicy: Always"},
		{mutating, "operations: [CREATE]", "operations: ['*']"},
		{mutating, "failurePolicy: Fail", "failurePolicy: Maybe"},
		{mutating, mutating[strings.Index(mutating, "  mutations:"):], ""},
		{mutatingBinding, "policyName: teams", "policyName: ''"},
		{mutatingBinding, "policyName: teams", "policyName: teams, paramRef: {name: a}"},
		{hooks, "sideEffects: None", "sideEffects: Some"},
		{hooks, "sideEffects: None", "sideEffects: Unknown"},
		{hooks, "  sideEffects: None\n", ""},
		{hooks, "[v1]\n  rein", "[]\n  rein"},
		{hooks, "[v1]\n  rein", "[v2]\n  rein"},
		{hooks, "[v1]\n  rein", "[v1]\n  timeoutSeconds: 31\n  rein"},
		{hooks, "url: 'https", "url: 'http"},
		{hooks, "/label'", "/label?a=b'"},
		{hooks, "/label'", "/label', service: {name: a, namespace: b}"},
		{hooks, "name: label.example.com", "name: label"},
		{hooks, "reinvocationPolicy: IfNeeded", "reinvocationPolicy: Always"},
		{hooks, "reinvocationPolicy: IfNeeded", "failurePolicy: Always"},
		{hooks, "reinvocationPolicy: IfNeeded", "matchPolicy: Always"},
		{hooks, "startsWith('label-')\"", "startsWith('label-')\"}, {name: it, expression: 'true'"},
		{hooks, "object.metadata.name.startsWith('label-')", "object."},
		{hooks, "apiVersions: [v1], operations", "apiVersions: [], operations"},
		{hooks, "rules: [{", "rules: [{scope: Nowhere, "},
	} {
		if c.from != "" && !strings.Contains(c.object, c.from) {
			t.Fatalf("%q is not in\n%s", c.from, c.object)
		}
		a.same(t, fmt.Sprintf("%q in place of %q", c.to, c.from), "try",
			strings.Replace(c.object, c.from, c.to, 1))
	}
}

// object is one that policies and webhooks are asked about.
func object(kind, namespace, name, more string) string {
	version := "v1"
	if kind == "Thing" {
		version = "example.com/v1"
	}
	return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {namespace: %s, name: %s}%s}", version,
		kind, namespace, name, more)
}

// requests compares what policies and webhooks that are in force make of requests.
func (a *admission) requests(t *testing.T) {
	a.must(t, "create", "{apiVersion: v1, kind: Namespace, metadata: {name: 'on', labels: {policies: 'on'}}}")
	a.must(t, "create", "{apiVersion: v1, kind: Namespace, metadata: {name: 'off'}}")
	a.must(t, "create", thing)
	a.must(t, "create", object("ConfigMap", "'on'", "params", ", data: {suffix: -ok}"))
	for _, text := range []string{validating, strings.Replace(validatingBinding, "namespace: on",
		"namespace: 'on'", 1), mutating, mutatingBinding,
		a.webhooks("Mutating", "label", "/label", "  reinvocationPolicy: IfNeeded\n"),
		a.webhooks("Mutating", "patch", "/patch", ""),
		a.webhooks("Validating", "refuse", "/refuse", ""),
		a.webhooks("Validating", "broken", "/broken", ""),
		a.webhooks("Validating", "lenient", "/broken", "  failurePolicy: Ignore\n"),
		a.webhooks("Validating", "selected", "/refuse", "  objectSelector: {matchLabels: {ask: 'yes'}}\n"),
		a.webhooks("Validating", "elsewhere", "/refuse", "  namespaceSelector: {matchLabels: {policies: 'on'}}\n"),
	} {
		a.must(t, "create", text)
	}
	// All is in force when the answers are as wanted.
	for i, c := range a.clients {
		for probe, want := range map[string]string{"named-bad": "names end with -ok",
			"teamed-a": "team: teamed-a", "label-a": "hooked: ", "patch-a": "nowhere",
			"refuse-a": "not refuse-a", "broken-a": "broken.example.com",
			"selected-a, labels: {ask: 'yes'}": "not selected-a",
			"elsewhere-a":                      "not elsewhere-a"} {
			for _, kind := range []string{"ConfigMap", "Thing"} {
				eventually(t, fmt.Sprintf("server %d answers for the %s %s", i, kind, probe), func() error {
					got := answer(t.Context(), c, "try", object(kind, "'on'", probe, ""))
					if !strings.Contains(got, want) {
						return fmt.Errorf("%q is not in %s", want, got)
					}
					return nil
				})
			}
		}
	}
	for _, kind := range []string{"ConfigMap", "Thing"} {
		for _, name := range []string{"named-bad", "named-ok", "other", "teamed-a", "label-a",
			"patch-a", "refuse-a", "broken-a", "lenient-a", "selected-a", "elsewhere-a"} {
			for _, namespace := range []string{"'on'", "'off'", "missing"} {
				for _, verb := range []string{"try", "create", "merge", "delete"} {
					a.same(t, kind+" "+name+" in "+namespace, verb, object(kind, namespace, name, ""))
				}
			}
		}
		for what, more := range map[string]string{
			"an unknown field":  ", nonsense: true",
			"a wrong type":      ", spec: {size: many}, data: {a: 7}",
			"labels":            ", data: {a: b}",
			"a bad annotation":  ", metadata: {name: other, namespace: 'on', annotations: {'a b': c}}",
			"a selected object": ", metadata: {name: selected-b, namespace: 'on', labels: {ask: 'yes'}}",
			"a taken name":      ", metadata: {name: params, namespace: 'on'}",
			"no name":           ", metadata: {namespace: 'on'}",
			"a generated name":  ", metadata: {namespace: 'on', generateName: refuse-}",
		} {
			text := object(kind, "'on'", "teamed-b", more)
			if strings.Contains(more, "metadata:") {
				text = strings.Replace(text, " metadata: {namespace: 'on', name: teamed-b},", "", 1)
			}
			if what == "a generated name" || what == "a taken name" && kind == "Thing" {
				continue // the names differ; there is no such thing
			}
			a.same(t, kind+" with "+what, "try", text)
		}
	}
}

// namespaces compares what may be done in namespaces that are missing or go, and with those of the
// system.
func (a *admission) namespaces(t *testing.T) {
	const going = "{apiVersion: v1, kind: Namespace, metadata: {name: going}}"
	a.must(t, "create", going)
	a.must(t, "create", object("ConfigMap", "going", "held", ""))
	const held = "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: going, name: held, "
	a.must(t, "merge", held+"finalizers: [example.com/hold]}}")
	a.must(t, "delete", going)
	for _, c := range a.clients {
		eventually(t, "the namespace goes, with what is in it", func() error {
			in, err := c.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(
				"going").Get(t.Context(), "held", metav1.GetOptions{})
			if err == nil && in.GetDeletionTimestamp() == nil {
				err = errors.New("it does not")
			}
			return err
		})
	}
	for _, kind := range []string{"ConfigMap", "Thing"} {
		a.same(t, "in a namespace that goes", "try", object(kind, "going", "a", ""))
		a.same(t, "in no such namespace", "try", object(kind, "missing", "a", ""))
	}
	a.same(t, "what is in it", "merge", object("ConfigMap", "going", "held", ", data: {a: b}"))
	// Our server has no namespace kube-public.
	for _, name := range []string{"default", "kube-system", "missing"} {
		a.same(t, name, "delete", "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")
	}
	for _, name := range []string{"a.b", "A", "''", "default"} {
		a.same(t, "a namespace "+name, "try", "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")
	}
	a.must(t, "merge", held+"finalizers: null}}")
}
