package controllers

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	cmscheme "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned/scheme"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	// Its controllers, which register themselves, and the issuers that need no network.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/metrics"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/util"
	"github.com/cert-manager/cert-manager/pkg/util/pki"
	webhooktest "github.com/cert-manager/cert-manager/test/webhook"
)

const certManagerModule = "github.com/cert-manager/cert-manager"

// certManager issues certificates. The modules of its programs cannot be had from a proxy, so that
// their parts run in the test: the controllers, the webhook, and the injector, which writes the
// webhook's authority into the configuration. Each signs in by a token of its own service account.
var certManager = project{
	in:          ".",
	module:      certManagerModule,
	definitions: "deploy/crds/*.yaml",
	webhook:     "cert-manager/cert-manager-webhook",
	start:       startCertManager,
	scenario:    lifeOfCertificates,
	kinds: []string{"cert-manager.io/v1 Issuer", "cert-manager.io/v1 Certificate",
		"cert-manager.io/v1 CertificateRequest", "v1 Secret"},
}

func startCertManager(u user, webhook *front) {
	u.create(`{apiVersion: v1, kind: Namespace, metadata: {name: cert-manager}}`)
	grantToCertManager(u)
	runControllers(u.T, u.account("cert-manager", "cert-manager"))
	runInjector(u.T, u.account("cert-manager", "cert-manager-cainjector"))
	served, stop := webhooktest.StartWebhookServer(u.T, []string{
		"--kubeconfig=" + u.account("cert-manager", "cert-manager-webhook"),
		"--dynamic-serving-ca-secret-namespace=cert-manager",
		"--dynamic-serving-ca-secret-name=cert-manager-webhook-ca",
		"--dynamic-serving-dns-names=cert-manager-webhook.cert-manager.svc"})
	u.Cleanup(stop)
	webhook.lead(0, served.URL[len("https://"):])
	for _, does := range []struct{ kind, operations, resources, path string }{
		{"MutatingWebhookConfiguration", "CREATE", "certificaterequests", "/mutate"},
		{"ValidatingWebhookConfiguration", "CREATE, UPDATE", "*/*", "/validate"},
	} {
		u.create(`
apiVersion: admissionregistration.k8s.io/v1
kind: %s
metadata:
  name: cert-manager-webhook
  annotations: {cert-manager.io/inject-ca-from-secret: cert-manager/cert-manager-webhook-ca}
webhooks:
- name: webhook.cert-manager.io
  rules:
  - apiGroups: [cert-manager.io, acme.cert-manager.io]
    apiVersions: [v1]
    operations: [%s]
    resources: ["%s"]
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig:
    service: {namespace: cert-manager, name: cert-manager-webhook, path: %s}
`, does.kind, does.operations, does.resources, does.path)
	}
}

// grantToCertManager makes the service accounts of cert-manager's programs, with the rights that
// its chart gives them.
func grantToCertManager(u user) {
	u.Helper()
	helm := filepath.Join(u.TempDir(), "helm")
	run(u.T, "go", "-C", "../../tools/helm", "build", "-o", helm, "helm.sh/helm/v4/cmd/helm")
	args := []string{"template", "cert-manager", filepath.Join(run(u.T, "go", "list", "-m", "-f",
		"{{.Dir}}", certManagerModule), "deploy", "charts", "cert-manager"), "--namespace",
		"cert-manager"}
	for _, file := range []string{"serviceaccount", "rbac", "cainjector-serviceaccount",
		"cainjector-rbac", "webhook-serviceaccount", "webhook-rbac"} {
		args = append(args, "--show-only", "templates/"+file+".yaml")
	}
	granted := 0
	for manifest := range strings.SplitSeq(run(u.T, helm, args...), "\n---\n") {
		if o := u.object("%s", manifest); o.GetKind() != "" {
			u.create("%s", manifest)
			granted++
		}
	}
	if granted < 30 {
		u.Fatalf("the chart of cert-manager has %d accounts, roles and bindings", granted)
	}
}

// runControllers does what the program cert-manager-controller does, with its default settings.
func runControllers(t *testing.T, kubeconfig string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig: kubeconfig, KubernetesAPIQPS: 20, KubernetesAPIBurst: 50,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: "cert-manager"},
		CertificateOptions: controller.CertificateOptions{EnableOwnerRef: true,
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	shared, err := factory.Build()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	for name, construct := range controller.Known() {
		one, err := construct(factory)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		go func() { done <- one.Run(5, ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range controller.Known() {
			if err := <-done; err != nil {
				t.Errorf("a controller of cert-manager: %v", err)
			}
		}
	})
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
}

// runInjector does what the program cert-manager-cainjector does.
func runInjector(t *testing.T, kubeconfig string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config = util.RestConfigWithUserAgent(config, "cainjector")
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(cmscheme.AddToScheme(scheme))
	manager, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		Client: client.Options{Cache: &client.CacheOptions{
			DisableFor: []client.Object{&corev1.Secret{}}}},
		// There is such a controller for each setup.
		Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnabledReconcilersFor: map[string]bool{cainjector.MutatingWebhookConfigurationName: true,
			cainjector.ValidatingWebhookConfigurationName: true}}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- manager.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the injector of cert-manager: %v", err)
		}
	})
}

// lifeOfCertificates makes an authority and certificates by it.
func lifeOfCertificates(u user, round string) {
	const issuerOf = `
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: %s, namespace: team}
spec: %s
`
	const certificateOf = `
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: %[1]s, namespace: team}
spec: {secretName: %[1]s, dnsNames: [%[1]s.example.com], issuerRef: {name: %[2]s}, %[3]s}
`
	selfSigned, ca, leaf, short := round+"-self-signed", round+"-ca", round+"-leaf", round+"-short"
	u.refused("webhook.cert-manager.io", certificateOf, leaf, ca, "duration: 59m")

	ready := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		u.Helper()
		u.holds("Ready", o)
		// Until it is issued entirely, cert-manager writes the same certificate to the secret
		// again.
		u.see("is issued", o, func() error {
			if c, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions"); len(c) != 1 {
				return fmt.Errorf("its conditions are %v", c)
			}
			return nil
		})
		return o
	}
	of := []*unstructured.Unstructured{
		ready(u.create(issuerOf, selfSigned, "{selfSigned: {}}")),
		ready(u.create(certificateOf, ca, selfSigned, "isCA: true")),
		ready(u.create(issuerOf, ca, "{ca: {secretName: "+ca+"}}")),
	}
	certificate := ready(u.create(certificateOf, leaf, ca, ""))
	secret, first := u.issued(leaf, "")
	u.delete(secret)
	u.issued(leaf, first)

	// Its dependents are collected, or else the next one of this name would not get ready. The next
	// one may take the secret over before that is collected.
	u.delete(certificate)
	next := ready(u.create(certificateOf, leaf, ca, ""))
	u.see("belongs to the next certificate", secret, func() error {
		if owners := secret.GetOwnerReferences(); len(owners) != 1 || owners[0].UID != next.GetUID() {
			return fmt.Errorf("it belongs to %v, and the certificate is %s", owners, next.GetUID())
		}
		return nil
	})
	of = append(of, next)

	// An hour is the shortest that the webhook lets through. This one is renewed after ten seconds.
	renewed := u.create(certificateOf, short, ca, "duration: 1h, renewBefore: 59m50s")
	_, serial := u.issued(short, "")
	u.issued(short, serial)
	of = append(of, ready(renewed))

	for _, o := range of {
		u.delete(o)
	}
	for _, o := range of {
		u.gone(o)
	}
}

// issued waits until a secret has a certificate other than the one before, signed by the authority
// that the secret has, too. It returns the serial number.
func (u user) issued(name, before string) (secret *unstructured.Unstructured, serial string) {
	u.Helper()
	secret = u.object(`{apiVersion: v1, kind: Secret, metadata: {name: %s, namespace: team}}`, name)
	u.see("has a new certificate", secret, func() error {
		pem := func(key string) []byte {
			text, _, _ := unstructured.NestedString(secret.Object, "data", key)
			decoded, _ := base64.StdEncoding.DecodeString(text) // what is no certificate is refused below
			return decoded
		}
		leaf, err := pki.DecodeX509CertificateBytes(pem("tls.crt"))
		if err != nil {
			return err
		}
		if serial = leaf.SerialNumber.String(); serial == before {
			return errors.New("it is the one before")
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem("ca.crt")) {
			return errors.New("the secret has no authority")
		}
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: leaf.DNSNames[0]})
		return err
	})
	return secret, serial
}
