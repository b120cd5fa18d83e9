package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
)

// webhooks is a server for admission webhooks, which records who it was asked about.
type webhooks struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func newWebhooks(t *testing.T) *webhooks {
	t.Helper()
	w := &webhooks{}
	w.Server = httptest.NewTLSServer(w)
	t.Cleanup(w.Close)
	return w
}

// ServeHTTP puts an annotation on everything at /mutate, and refuses pipelines whose image ends in
// ":latest" at /validate.
func (w *webhooks) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(rw, "no review", http.StatusBadRequest)
		return
	}
	request := review.Request
	w.mu.Lock()
	w.asked = append(w.asked, strings.Join([]string{r.URL.Path, string(request.Operation),
		request.Kind.Kind, request.UserInfo.Username}, " "))
	w.mu.Unlock()
	review.Response = &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true}
	var object unstructured.Unstructured
	if len(request.Object.Raw) > 0 {
		if err := json.Unmarshal(request.Object.Raw, &object.Object); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
	}
	switch r.URL.Path {
	case "/mutate":
		patch := `[{"op":"add","path":"/metadata/annotations","value":{"example.com/mutated":"yes"}}]`
		if object.GetAnnotations() != nil {
			patch = `[{"op":"add","path":"/metadata/annotations/example.com~1mutated","value":"yes"}]`
		}
		review.Response.Patch, review.Response.PatchType = []byte(patch),
			ptr.To(admissionv1.PatchTypeJSONPatch)
	case "/validate":
		if image, _, _ := unstructured.NestedString(object.Object, "spec",
			"image"); strings.HasSuffix(image, ":latest") {
			review.Response.Allowed = false
			review.Response.Result = &metav1.Status{Message: "images must not be the latest"}
		}
	}
	review.Request = nil
	rw.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(rw).Encode(review); err != nil {
		panic(err)
	}
}

func (w *webhooks) wasAsked(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.asked, what)
}

// clientConfig is how the cluster reaches the webhook.
func (w *webhooks) clientConfig(t *testing.T,
	path string) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	ca, err := cert.EncodeCertificates(w.Certificate())
	if err != nil {
		t.Fatal(err)
	}
	return admissionregistrationv1.WebhookClientConfig{URL: ptr.To(w.URL + path), CABundle: ca}
}

// ours matches our kinds in all versions.
func ours(operations ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: operations,
		Rule: admissionregistrationv1.Rule{APIGroups: []string{group},
			APIVersions: []string{"*"}, Resources: []string{"pipelines"}},
	}}
}

// inNamespace selects one namespace.
func inNamespace(ns string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}}
}

// testWebhooks lets a mutating and a validating webhook of the cluster act on our kinds.
func testWebhooks(t *testing.T) {
	ns := newNamespace(t)
	hooks := newWebhooks(t)
	registrations := env.client.AdmissionregistrationV1()
	mutating, err := registrations.MutatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: "mutate.example.com", ClientConfig: hooks.clientConfig(t, "/mutate"),
				Rules: ours(admissionregistrationv1.Create,
					admissionregistrationv1.Update),
				NamespaceSelector:       inNamespace(ns),
				SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"},
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := registrations.MutatingWebhookConfigurations().Delete(env.context, mutating.Name,
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	validating, err := registrations.ValidatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "validate.example.com", ClientConfig: hooks.clientConfig(t, "/validate"),
				Rules:                   ours(admissionregistrationv1.OperationAll),
				NamespaceSelector:       inNamespace(ns),
				SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"},
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := registrations.ValidatingWebhookConfigurations().Delete(env.context,
			validating.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	client := env.dynamic.Resource(pipelinesV1).Namespace(ns)
	// The replicas learn of it through informers, each for itself.
	onEachReplica(t, ns, func(client dynamic.ResourceInterface) error {
		created, err := client.Create(t.Context(), pipeline("mutated"),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && created.GetAnnotations()["example.com/mutated"] != "yes" {
			err = fmt.Errorf("the annotations are %v", created.GetAnnotations())
		}
		return err
	})
	if created := create(t, ns,
		pipeline("stays")); created.GetAnnotations()["example.com/mutated"] != "yes" {
		t.Errorf("what was created has the annotations %v", created.GetAnnotations())
	}
	refused := pipeline("refused")
	if err := unstructured.SetNestedField(refused.Object, "golang:latest", "spec",
		"image"); err != nil {
		t.Fatal(err)
	}
	onEachReplica(t, ns, func(client dynamic.ResourceInterface) error {
		_, err := client.Create(t.Context(), refused,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "images must not be the latest") {
			return fmt.Errorf("creating with an image that the webhook refuses: %w", err)
		}
		return nil
	})
	_, err = client.Patch(t.Context(), "stays", types.MergePatchType,
		[]byte(`{"spec":{"image":"golang:latest"}}`), metav1.PatchOptions{})
	if err == nil || !strings.Contains(err.Error(), "images must not be the latest") {
		t.Errorf("a patch to an image that the webhook refuses: %v", err)
	}
	if err := client.Delete(t.Context(), "stays", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"/mutate CREATE Pipeline admin",
		"/validate CREATE Pipeline admin", "/validate UPDATE Pipeline admin",
		"/validate DELETE Pipeline admin"} {
		if !hooks.wasAsked(what) {
			t.Errorf("the webhooks were not asked %q, but %v", what, hooks.asked)
		}
	}
	// A webhook that does not answer refuses, as its failure policy says.
	hooks.Close()
	_, err = client.Create(t.Context(), pipeline("closed"), metav1.CreateOptions{})
	expect(t, "creating while the webhook is away", err, metav1.StatusReasonInternalError)
}

// testPolicy lets a ValidatingAdmissionPolicy of the cluster act on our kinds.
func testPolicy(t *testing.T) {
	ns := newNamespace(t)
	registrations := env.client.AdmissionregistrationV1()
	policy, err := registrations.ValidatingAdmissionPolicies().Create(t.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{
					ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
						Rule: admissionregistrationv1.Rule{APIGroups: []string{group},
							APIVersions: []string{"v1"}, Resources: []string{"pipelines"}},
					}}},
					NamespaceSelector: inNamespace(ns),
				},
				Validations: []admissionregistrationv1.Validation{{
					Expression:        "size(object.spec.steps) <= 2",
					MessageExpression: `"pipelines in " + namespaceObject.metadata.name + " have at most two steps"`,
				}},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding, err := registrations.ValidatingAdmissionPolicyBindings().Create(t.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName:        policy.Name,
				ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range []error{
			registrations.ValidatingAdmissionPolicyBindings().Delete(env.context, binding.Name,
				metav1.DeleteOptions{}),
			registrations.ValidatingAdmissionPolicies().Delete(env.context, policy.Name,
				metav1.DeleteOptions{}),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	long := pipeline("long")
	var steps []any
	for _, name := range []string{"one", "two", "three"} {
		steps = append(steps, map[string]any{"name": name, "command": []any{"true"}})
	}
	if err := unstructured.SetNestedSlice(long.Object, steps, "spec", "steps"); err != nil {
		t.Fatal(err)
	}
	onEachReplica(t, ns, func(client dynamic.ResourceInterface) error {
		_, err := client.Create(t.Context(), long,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "pipelines in "+ns+
			" have at most two steps") {
			return fmt.Errorf("creating with three steps: %w", err)
		}
		return nil
	})
	create(t, ns, pipeline("short"))

	// The policy is for v1; an object that comes in v1alpha1 is converted to it first.
	other := pipelineV1alpha1("long")
	if err := unstructured.SetNestedStringSlice(other.Object, []string{"true", "true", "true"},
		"spec", "commands"); err != nil {
		t.Fatal(err)
	}
	if _, err := env.dynamic.Resource(pipelinesV1alpha1).Namespace(ns).Create(t.Context(), other,
		metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "at most two steps") {
		t.Errorf("creating with three commands in v1alpha1: %v, want the policy's message", err)
	}
}

// onEachReplica calls every replica itself, as the administrator, until f succeeds there.
func onEachReplica(t *testing.T, ns string, f func(dynamic.ResourceInterface) error) {
	t.Helper()
	for _, pod := range env.installation.pods(t) {
		client := clientOf(t, env.directTo(t, pod, env.proxyCertificate(t), "admin",
			"system:masters")).Resource(pipelinesV1).Namespace(ns)
		eventually(t, time.Minute, func() error { return f(client) })
	}
}
