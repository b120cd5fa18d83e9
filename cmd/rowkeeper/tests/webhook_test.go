package tests

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// reviewer is a server for admission webhooks. At /mutate it labels pipelines, at /validate it
// refuses those without a timeout.
func reviewer(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var pipeline civ1.Pipeline
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Errorf("a review: %v", err)
			return
		}
		if err := json.Unmarshal(review.Request.Object.Raw, &pipeline); err != nil {
			t.Errorf("the object of a review: %v", err)
		}
		response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		switch r.URL.Path {
		case "/mutate":
			patchType := admissionv1.PatchTypeJSONPatch
			response.PatchType, response.Patch = &patchType,
				[]byte(`[{"op":"add","path":"/metadata/labels","value":{"reviewed":"yes"}}]`)
		case "/validate":
			// It sees what the other one, and our own plugin, have made of the object.
			if pipeline.Labels["reviewed"] != "yes" ||
				strings.HasPrefix(pipeline.Spec.Image, "docker.io/") {
				t.Errorf("the pipeline to validate is %+v", pipeline)
			}
			if pipeline.Spec.Steps[0].TimeoutSeconds == nil {
				response.Allowed, response.Result = false,
					&metav1.Status{Message: "every step needs a timeout"}
			}
		}
		review.Request, review.Response = nil, response
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Errorf("answer a review: %v", err)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// Where there is a core API, webhooks are called for the kinds of the server itself, after its own
// plugin; they are told of v1, whichever version the client uses.
func TestWebhooks(t *testing.T) {
	hooks := reviewer(t)
	ca, err := cert.EncodeCertificates(hooks.Certificate())
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, t.TempDir(), "--enable-crds")
	configuration := func(kind, name string) string {
		return `apiVersion: admissionregistration.k8s.io/v1
kind: ` + kind + `
metadata: {name: ` + name + `}
webhooks:
- name: ` + name + `.example.com
  clientConfig: {url: "` + hooks.URL + "/" + name + `", caBundle: ` + base64.StdEncoding.EncodeToString(ca) + `}
  rules: [{apiGroups: [ci.rowkeeper.dev], apiVersions: [v1], operations: [CREATE], resources: [pipelines]}]
  sideEffects: None
  admissionReviewVersions: [v1]
`
	}
	s.ok(t,
		"apiVersion: ci.rowkeeper.dev/v1\nkind: PipelinePolicy\nmetadata: {name: mirror}\nspec: {bannedNames: [tmp], mirrors: [{prefix: docker.io/, replacement: mirror.example.com/}]}", "create", "-f", "-")
	s.ok(t, configuration("MutatingWebhookConfiguration", "mutate"), "create", "-f", "-")
	const flat = "apiVersion: ci.rowkeeper.dev/v1alpha1\nkind: Pipeline\nmetadata: {name: flat}\nspec: {image: 'docker.io/golang:1.26', commands: [make]}"
	dryRun := func() result {
		return s.kubectl(t, flat, "create", "--dry-run=server", "-o", "yaml", "-f", "-")
	}
	eventually(t, "the policy and the webhook are known", func() bool {
		r := dryRun()
		return strings.Contains(r.stdout, "reviewed:") &&
			strings.Contains(r.stdout, "mirror.example.com")
	})
	s.ok(t, configuration("ValidatingWebhookConfiguration", "validate"), "create", "-f", "-")
	eventually(t, "the other webhook is known", func() bool { return dryRun().code != 0 })
	s.refused(t, flat,
		`admission webhook "validate.example.com" denied the request: every step needs a timeout`,
		"create", "-f", "-")
	timely := strings.Replace(manifest("timely", "make"), "  - name: main",
		"  - name: main\n    timeoutSeconds: 60", 1)
	s.ok(t, strings.Replace(timely, "golang:", "docker.io/golang:", 1), "create", "-f", "-")
	if got := s.jsonpath(t, "timely", ".metadata.labels.reviewed") + " " +
		s.jsonpath(t, "timely", ".spec.image"); got != "yes mirror.example.com/golang:1.26" {
		t.Errorf("label and image are %s", got)
	}

	// A webhook that does not answer refuses everything: that is its failurePolicy.
	hooks.Close()
	s.refused(t, strings.Replace(timely, "name: timely", "name: late", 1),
		`failed calling webhook "mutate.example.com"`, "create", "-f", "-")
	s.ok(t, "", "label", "pl", "timely", "a=b") // it is for creations

	// Namespaces are respected.
	s.refused(t, timely, `namespaces "missing" not found`, "create", "-n", "missing", "-f", "-")
}
