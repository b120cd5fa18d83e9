package tests

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// reviewer is a server for admission webhooks, with a certificate for a Service. At /mutate it
// labels pipelines, at /validate it refuses those without a timeout, at /convert it converts boxes.
func reviewer(t *testing.T) (_ *httptest.Server, caBundle string) {
	t.Helper()
	pair, err := pki.SelfSigned(pki.Service("hooks", "reviewer", "127.0.0.1"),
		time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM, err := pair.PEM()
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		if r.URL.Path == "/convert" {
			convertBoxes(w, r)
			return
		}
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
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, base64.StdEncoding.EncodeToString(certPEM)
}

// hook is a configuration with one webhook for pipelines, which clientConfig leads to.
func hook(kind, name, clientConfig string) string {
	return `apiVersion: admissionregistration.k8s.io/v1
kind: ` + kind + `
metadata: {name: ` + name + `}
webhooks:
- name: ` + name + `.example.com
  clientConfig: {` + clientConfig + `}
  rules: [{apiGroups: [ci.rowkeeper.dev], apiVersions: [v1], operations: [CREATE], resources: [pipelines]}]
  sideEffects: None
  admissionReviewVersions: [v1]
`
}

// Where there is a core API, webhooks are called for the kinds of the server itself, after its own
// plugin; they are told of v1, whichever version the client uses.
func TestWebhooks(t *testing.T) {
	hooks, ca := reviewer(t)
	s := start(t, t.TempDir(), "--enable-crds")
	configuration := func(kind, name string) string {
		return hook(kind, name, fmt.Sprintf("url: '%s/%s', caBundle: %s", hooks.URL, name, ca))
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

// A webhook is called by the Service that it names, if the server was told where that is.
func TestWebhookServices(t *testing.T) {
	hooks, ca := reviewer(t)
	s := start(t, t.TempDir(), "--enable-crds",
		"--webhook-service=hooks/reviewer="+hooks.Listener.Addr().String())
	config := func(service, path string) string {
		return fmt.Sprintf("service: {namespace: hooks, name: %s, path: %s, port: 9443}, caBundle: %s",
			service, path, ca)
	}
	s.define(t, boxes(config("reviewer", "/convert")), "boxes.store.example.com")
	s.ok(t, "apiVersion: store.example.com/v1\nkind: Box\nmetadata: {name: one}\nspec: {size: 3x4}",
		"create", "-f", "-")
	has(t, s.ok(t, "", "get", "boxes.v2.store.example.com", "one", "-o",
		"jsonpath={.spec.width}"), "3")

	service := func(name, at string) string {
		return hook("MutatingWebhookConfiguration", name, config(at, "/mutate"))
	}
	s.ok(t, service("mutate", "reviewer"), "create", "-f", "-")
	create := func() result {
		return s.kubectl(t, manifest("build", "make"), "create", "--dry-run=server", "-o", "yaml",
			"-f", "-")
	}
	eventually(t, "the webhook is known", func() bool {
		return strings.Contains(create().stdout, "reviewed:")
	})
	s.ok(t, service("other", "other"), "create", "-f", "-")
	eventually(t, "the other webhook is known", func() bool { return create().code != 0 })
	has(t, create().stderr, `failed calling webhook "other.example.com"`,
		"the server was not told where the Service hooks/other is")
}
