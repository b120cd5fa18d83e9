package crdstest_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// impostor is the address of a server that answers for kubernetes.default.svc, as one does that
// has taken the name: a proxy leads there, since no name is resolved by a test.
var impostor atomic.Value

func TestMain(m *testing.M) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address, _ := impostor.Load().(string)
		if r.Method != http.MethodConnect || r.Host != "kubernetes.default.svc:443" {
			http.Error(w, "no way to "+r.Host, http.StatusBadGateway)
			return
		}
		to, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close()
		w.WriteHeader(http.StatusOK)
		from, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer from.Close()
		go func() {
			io.Copy(to, from) // either end may hang up
			to.Close()
		}()
		io.Copy(from, to) // either end may hang up
	}))
	// It is read once in a process. Addresses of this machine are never asked for by a proxy.
	if err := os.Setenv("HTTPS_PROXY", proxy.URL); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A webhook that is named like a cluster's API server is called without the server's credentials,
// with which everything may be done.
func TestWebhookNamedLikeServer(t *testing.T) {
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("kubernetes.default.svc", nil,
		[]string{"apiserver-loopback-client"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	type call struct{ path, authorization string }
	calls := make(chan call, 100)
	hook := httptest.NewUnstartedServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			calls <- call{r.URL.Path, r.Header.Get("Authorization")}
			var review struct {
				Kind    string         `json:"kind"`
				Version string         `json:"apiVersion"`
				Request map[string]any `json:"request"`
			}
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			objects, _ := review.Request["objects"].([]any)
			for _, o := range objects {
				o.(map[string]any)["apiVersion"] = review.Request["desiredAPIVersion"]
			}
			json.NewEncoder(w).Encode(map[string]any{ //nolint:errcheck // whoever asked has gone
				"kind": review.Kind, "apiVersion": review.Version, "response": map[string]any{
					"uid": review.Request["uid"], "allowed": true, "convertedObjects": objects,
					"result": map[string]any{"status": "Success"}}})
		}))
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	hook.StartTLS()
	defer hook.Close()
	impostor.Store(hook.Listener.Addr().String())

	s := crdstest.Start(t, testkit.Options{})
	seen := map[string]bool{}
	look := func() {
		for {
			select {
			case c := <-calls:
				seen[c.path] = true
				if c.authorization != "" {
					t.Errorf("%s is called with credentials: %q", c.path, c.authorization)
				}
			default:
				return
			}
		}
	}
	const there = "https://kubernetes.default.svc"

	d := definition("example.com")
	d.Spec.Versions = append(d.Spec.Versions, *d.Spec.Versions[0].DeepCopy())
	d.Spec.Versions[1].Name, d.Spec.Versions[1].Storage = "v2", false
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{ConversionReviewVersions: []string{"v1"},
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: ptr.To(there + "/convert"),
				CABundle: certPEM}}}
	establish(t, s, d)
	objects := dynamic.NewForConfigOrDie(s.Config)
	if _, err := objects.Resource(gadgets).Namespace("default").Create(t.Context(), gadget("one"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	second := gadgets
	second.Version = "v2"
	if _, err := objects.Resource(second).Namespace("default").Get(t.Context(), "one",
		metav1.GetOptions{}); err != nil {
		t.Errorf("it cannot be converted: %v", err)
	}
	if look(); !seen["/convert"] {
		t.Error("the webhook of the conversion is not called")
	}

	client := kubernetes.NewForConfigOrDie(s.Config)
	config := func(path string) admissionv1.WebhookClientConfig {
		return admissionv1.WebhookClientConfig{URL: ptr.To(there + path), CABundle: certPEM}
	}
	rules := []admissionv1.RuleWithOperations{{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
			Resources: []string{"configmaps"}}}}
	if _, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(
		t.Context(), &admissionv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "hook"},
			Webhooks: []admissionv1.MutatingWebhook{{Name: "mutate.example.com",
				ClientConfig: config("/mutate"), Rules: rules,
				SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"}}},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(
		t.Context(), &admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "hook"},
			Webhooks: []admissionv1.ValidatingWebhook{{Name: "validate.example.com",
				ClientConfig: config("/validate"), Rules: rules,
				SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"}}},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the webhooks of admission are called", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}},
			metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		look()
		return seen["/mutate"] && seen["/validate"], nil
	})
}
