package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
)

// proxyCertificate issues a certificate like the one with which the cluster's API server proves who
// it is.
func (e *environment) proxyCertificate(t *testing.T) *pki.Pair {
	t.Helper()
	return issue(t, e.FrontProxyCA, cluster.FrontProxyName)
}

// issue issues a client certificate. One of a nil authority is signed by itself.
func issue(t *testing.T, authority *pki.Pair, name string, groups ...string) *pki.Pair {
	t.Helper()
	pair, err := cluster.Sign(authority, pki.Client(name, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// direct configures a client that calls a replica itself, not through the cluster's API server,
// with a certificate unless that is nil, and with the front proxy's headers for a user unless that
// is empty.
func (e *environment) direct(t *testing.T, pair *pki.Pair, user string,
	groups ...string) *rest.Config {
	t.Helper()
	return e.directTo(t, e.installation.pods(t)[0], pair, user, groups...)
}

// directTo is the same for a certain replica.
func (e *environment) directTo(t *testing.T, pod corev1.Pod, pair *pki.Pair, user string,
	groups ...string) *rest.Config {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(e.installation.dir, "components", "certs", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{Host: "https://" + pod.Status.PodIP + ":8443", QPS: -1}
	config.TLSClientConfig = rest.TLSClientConfig{CAData: ca, ServerName: "rowkeeper." +
		namespace + ".svc"}
	if pair != nil {
		if config.CertData, config.KeyData, err = pair.PEM(); err != nil {
			t.Fatal(err)
		}
	}
	if user != "" {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				r = r.Clone(r.Context())
				r.Header.Set("X-Remote-User", user)
				for _, g := range groups {
					r.Header.Add("X-Remote-Group", g)
				}
				return next.RoundTrip(r)
			})
		})
	}
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// testAccess tries who may do what.
func testAccess(t *testing.T) {
	ns := newNamespace(t)
	create(t, ns, pipeline("a"))
	list := func(config *rest.Config) error {
		_, err := clientOf(t, config).Resource(pipelinesV1).Namespace(ns).List(t.Context(),
			metav1.ListOptions{})
		return err
	}
	write := func(config *rest.Config) error {
		_, err := clientOf(t, config).Resource(pipelinesV1).Namespace(ns).Create(t.Context(),
			pipeline("b"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	nobody, viewer, editor := user(t, ns, "nobody", ""), user(t, ns, "viewer", "view"),
		user(t, ns, "editor", "edit")

	// The roles that ship with Kubernetes include our kinds, a little after their rules were
	// aggregated.
	for name, f := range map[string]func() error{
		"viewer lists": func() error {
			return list(viewer)
		}, "editor lists": func() error {
			return list(editor)
		}, "editor writes": func() error { return write(editor) },
	} {
		eventually(t, 30*time.Second, func() error {
			if err := f(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	expect(t, "through the cluster, without rights", list(nobody), metav1.StatusReasonForbidden)
	expect(t, "through the cluster, writing with the right to read", write(viewer),
		metav1.StatusReasonForbidden)

	// Calls to the server itself, which asks the cluster.
	proxy := env.proxyCertificate(t)
	if err := list(env.direct(t, proxy, "viewer")); err != nil {
		t.Errorf("the front proxy, for a user with rights: %v", err)
	}
	expect(t, "the front proxy, for a user without rights", list(env.direct(t, proxy, "nobody")),
		metav1.StatusReasonForbidden)
	expect(t, "the front proxy, for a user who may only read",
		write(env.direct(t, proxy, "viewer")), metav1.StatusReasonForbidden)
	expect(t, "headers without a certificate", list(env.direct(t, nil, "admin", "system:masters")),
		metav1.StatusReasonUnauthorized)
	expect(t, "headers with a certificate of the front proxy's authority for another name",
		list(env.direct(t, issue(t, env.FrontProxyCA, "somebody-else"), "admin", "system:masters")),
		metav1.StatusReasonUnauthorized)
	expect(t, "headers with a certificate that is signed by itself",
		list(env.direct(t, issue(t, nil, cluster.FrontProxyName), "admin", "system:masters")),
		metav1.StatusReasonUnauthorized)
	// A user's own certificate is good for himself, whatever headers he sends.
	expect(t, "headers with a certificate of a user",
		list(env.direct(t, issue(t, env.CA, "nobody"), "admin", "system:masters")),
		metav1.StatusReasonForbidden)
	if err := list(env.direct(t, issue(t, env.CA, "viewer"), "")); err != nil {
		t.Errorf("a user's certificate: %v", err)
	}
	expect(t, "no credentials", list(env.direct(t, nil, "")), metav1.StatusReasonUnauthorized)
	anonymous := rest.AnonymousClientConfig(env.Admin)
	expect(t, "no credentials, through the cluster", list(anonymous), metav1.StatusReasonForbidden)

	testServiceAccount(t, ns, list)
	testImpersonation(t, list)
	testHealthIsOpen(t)
}

// testServiceAccount calls with the token of a service account, through the cluster and directly.
func testServiceAccount(t *testing.T, ns string, list func(*rest.Config) error) {
	t.Helper()
	accounts := env.client.CoreV1().ServiceAccounts(ns)
	account, err := accounts.Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bind(t, ns, "view", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: account.Name,
		Namespace: ns})
	token, err := accounts.CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	through := rest.AnonymousClientConfig(env.Admin)
	through.BearerToken = token.Status.Token
	direct := env.direct(t, nil, "")
	direct.BearerToken = token.Status.Token
	for name, config := range map[string]*rest.Config{"through the cluster": through,
		"directly": direct} {
		if err := list(config); err != nil {
			t.Errorf("a service account's token, %s: %v", name, err)
		}
	}
	direct = env.direct(t, nil, "")
	direct.BearerToken = "not-a-token"
	expect(t, "a token that is none", list(direct), metav1.StatusReasonUnauthorized)
}

// testImpersonation acts as another user, through the cluster and directly.
func testImpersonation(t *testing.T, list func(*rest.Config) error) {
	t.Helper()
	for name, base := range map[string]*rest.Config{
		"through the cluster": env.Admin, "directly": env.direct(t, env.proxyCertificate(t),
			"admin", "system:masters"),
	} {
		as := func(user string) *rest.Config {
			config := rest.CopyConfig(base)
			config.Impersonate = rest.ImpersonationConfig{UserName: user}
			return config
		}
		if err := list(as("viewer")); err != nil {
			t.Errorf("the administrator as the viewer, %s: %v", name, err)
		}
		expect(t, "the administrator as nobody, "+name, list(as("nobody")),
			metav1.StatusReasonForbidden)
	}
	viewer := env.direct(t, issue(t, env.CA, "viewer"), "")
	viewer.Impersonate = rest.ImpersonationConfig{UserName: "editor"}
	expect(t, "the viewer as the editor", list(viewer), metav1.StatusReasonForbidden)
}

// testHealthIsOpen asks for the server's health without credentials, as probes do.
func testHealthIsOpen(t *testing.T) {
	t.Helper()
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/readyz?verbose": 200,
		"/metrics": 401, "/apis": 401} {
		if code, body := get(t, env.direct(t, nil, ""), path); code != want {
			t.Errorf("%s without credentials answers %d, want %d: %s", path, code, want, body)
		}
	}
}

// testMetrics reads the metrics of every replica as the ServiceMonitor says it to Prometheus: with
// the token, and under the name, that are in the component.
func testMetrics(t *testing.T) {
	i := env.installation
	kubectl(t, "apply", "--server-side", "-f", filepath.Join(i.dir, "components", "prometheus",
		"rbac.yaml"))
	var token string
	eventually(t, 30*time.Second, func() error {
		// The controller for tokens writes it.
		secret, err := env.client.CoreV1().Secrets(namespace).Get(t.Context(),
			"rowkeeper-metrics-token", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if token = string(secret.Data[corev1.ServiceAccountTokenKey]); token == "" {
			return fmt.Errorf("the Secret %s has no token yet", secret.Name)
		}
		return nil
	})
	for _, pod := range i.pods(t) {
		config := env.directTo(t, pod, nil, "")
		config.BearerToken = token
		if code, body := get(t, config, "/metrics"); code != 200 || !strings.Contains(body,
			"apiserver_request_total") || !strings.Contains(body, "rowkeeper_head_revision") {
			t.Errorf("/metrics of %s answers %d", pod.Name, code)
		}
		_, err := clientOf(t, config).Resource(pipelinesV1).List(t.Context(), metav1.ListOptions{})
		expect(t, "listing with the token for metrics", err, metav1.StatusReasonForbidden)
	}
}

// testLeastPrivilege compares what the server's service account may do with what it has done in all
// other tests: it was refused nothing, and its role has no right that it did not use.
func testLeastPrivilege(t *testing.T) {
	log, err := os.ReadFile(env.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	used, refused := map[string]bool{}, map[string]bool{}
	for _, event := range parseAuditEvents(string(log)) {
		if event.User.Username != "system:serviceaccount:"+namespace+":rowkeeper" ||
			event.ObjectRef == nil || event.ResponseStatus == nil {
			continue
		}
		right := event.Verb + " " + event.ObjectRef.Resource + "." + event.ObjectRef.APIGroup
		used[right] = true
		if event.Verb == "watch" {
			// Where the cluster's API server does not stream lists, the same client lists before it
			// watches.
			used["list"+strings.TrimPrefix(right, "watch")] = true
		}
		// Each API server wants to note in the status of a new FlowSchema that its priority level
		// exists. Kube-apiserver does it for all.
		if event.ResponseStatus.Code == http.StatusForbidden &&
			(right != "patch flowschemas.flowcontrol.apiserver.k8s.io" ||
				event.ObjectRef.Subresource != "status") {
			refused[right] = true
		}
	}
	for right := range refused {
		t.Errorf("the server may not %s, and tried to", right)
	}
	for _, rule := range find[rbacv1.ClusterRole](t, env.installation.rendered, "ClusterRole",
		"rowkeeper").Rules {
		for _, apiGroup := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if right := verb + " " + resource + "." + apiGroup; !used[right] {
						t.Errorf("the server may %s, and never did", right)
					}
				}
			}
		}
	}
	for _, right := range []string{"create tokenreviews.authentication.k8s.io",
		"create subjectaccessreviews.authorization.k8s.io", "watch configmaps."} {
		if !used[right] {
			t.Errorf("the server did not %s, so this test has not seen what it did", right)
		}
	}
}

// get asks a server, and returns the status code and the body.
func get(t *testing.T, config *rest.Config, path string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}
