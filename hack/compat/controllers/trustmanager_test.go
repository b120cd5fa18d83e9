package controllers

import (
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/cert"
)

// trustManager copies certificates into all namespaces, by objects that belong to one without a
// namespace.
var trustManager = project{
	in:          "programs",
	module:      "github.com/cert-manager/trust-manager",
	definitions: "deploy/crds/*.yaml",
	webhook:     "trust/trust-manager",
	start:       startTrustManager,
	scenario:    lifeOfABundle,
	kinds:       []string{"v1 ConfigMap"},
}

func startTrustManager(u user, webhook *front) {
	u.create(`{apiVersion: v1, kind: Namespace, metadata: {name: trust}}`)
	// The program wants to know its port.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		webhook.lead(0, listener.Addr().String())
		err = listener.Close()
	}
	if err != nil {
		u.Fatal(err)
	}
	dir := u.TempDir()
	crt, key := newCertificate(u, "trust-manager.trust.svc")
	for name, text := range map[string][]byte{"tls.crt": crt, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			u.Fatal(err)
		}
	}
	port := listener.Addr().(*net.TCPAddr).Port
	runProgram(u.T, u.kubeconfig, "github.com/cert-manager/trust-manager/cmd/trust-manager",
		"--trust-namespace=trust", "--leader-elect=false", "--metrics-port=0",
		"--readiness-probe-port=0", "--webhook-certificate-dir="+dir, "--webhook-host=127.0.0.1",
		"--webhook-port="+strconv.Itoa(port))
	u.create(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: trust-manager}
webhooks:
- name: trust.cert-manager.io
  rules:
  - apiGroups: [trust.cert-manager.io]
    apiVersions: [v1alpha1]
    operations: [CREATE, UPDATE]
    resources: [bundles]
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig:
    caBundle: %s
    service:
      name: trust-manager
      namespace: trust
      path: /validate-trust-cert-manager-io-v1alpha1-bundle
`, base64.StdEncoding.EncodeToString(crt))
}

// newCertificate returns a certificate with its authority, and the key.
func newCertificate(u user, host string) (crt, key []byte) {
	u.Helper()
	crt, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		u.Fatal(err)
	}
	return crt, key
}

// lifeOfABundle copies a certificate into all namespaces.
func lifeOfABundle(u user, round string) {
	const bundleOf = `
apiVersion: trust.cert-manager.io/v1alpha1
kind: Bundle
metadata: {name: %s}
spec:
  sources: [{configMap: {name: %s, key: crt}}]
  target: {configMap: {key: crt}}
`
	u.refused("trust.cert-manager.io", bundleOf, round, round) // it would be its own source
	configMap := func(namespace, name string) *unstructured.Unstructured {
		return u.object(`{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: %s}}`,
			name, namespace)
	}
	red, _ := newCertificate(u, "red")
	blue, _ := newCertificate(u, "blue")
	source := u.create(`
apiVersion: v1
kind: ConfigMap
metadata: {name: %s-source, namespace: trust}
data: {crt: %q}
`, round, red)
	bundle := u.create(bundleOf, round, round+"-source")
	in := func(namespace, color string) *unstructured.Unstructured {
		u.Helper()
		copied := configMap(namespace, round)
		u.see("is "+color, copied, func() error {
			text, _, err := unstructured.NestedString(copied.Object, "data", "crt")
			if err != nil {
				return err
			}
			certificates, err := cert.ParseCertsPEM([]byte(text))
			if err != nil {
				return err
			}
			for _, c := range certificates {
				if !strings.HasPrefix(c.Subject.CommonName, color) {
					return fmt.Errorf("it has a certificate for %s", c.Subject.CommonName)
				}
			}
			return nil
		})
		return copied
	}
	copies := []*unstructured.Unstructured{in("team", "red"), in("trust", "red")}
	u.change(source, string(blue), "data", "crt")
	u.delete(in("team", "blue"))
	copies = append(copies, in("team", "blue"), in("trust", "blue")) // the one was made again
	u.holds("Synced", bundle)

	// A namespace that comes later has it, too, and goes with it.
	later := u.create(`{apiVersion: v1, kind: Namespace, metadata: {name: %s}}`, round)
	copies = append(copies, in(round, "blue"))
	u.delete(later)
	u.gone(later)

	u.delete(bundle)
	u.gone(bundle)
	for _, c := range copies {
		u.gone(c)
	}
	u.delete(source)
}
