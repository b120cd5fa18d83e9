package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/server/pki"
)

func init() {
	// Several servers in one process.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
}

// fakeCluster answers what an aggregated server asks a cluster: it has a namespace, an authority for clients and one for the front proxy, the
// token "good" of the user "robot", and lets the user "nobody" do nothing and all others everything.
type fakeCluster struct {
	*httptest.Server
	t                    *testing.T
	dir                  string
	clients, frontProxy  *pki.Authority
	mu                   sync.Mutex
	tokenReviews, access int
	// users are those whose access was asked about, by name.
	users map[string]authorizationv1.SubjectAccessReviewSpec
}

func newFakeCluster(t *testing.T) *fakeCluster {
	t.Helper()
	c := &fakeCluster{t: t, dir: t.TempDir(), users: map[string]authorizationv1.SubjectAccessReviewSpec{}}
	c.clients, c.frontProxy = c.authority("clients"), c.authority("front-proxy")
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(func() {
		c.CloseClientConnections() // watches
		c.Close()
	})
	return c
}

func (c *fakeCluster) file(name string) string { return filepath.Join(c.dir, name) }

func (c *fakeCluster) authority(name string) *pki.Authority {
	c.t.Helper()
	a, _, err := pki.EnsureAuthority(c.file(name+"-ca.crt"), c.file(name+"-ca.key"), clock.RealClock{})
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

// client issues a certificate, and returns a way of presenting it.
func (c *fakeCluster) client(a *pki.Authority, name string) func(*call) {
	c.t.Helper()
	files := pki.Certificate{CertFile: c.file(name + ".crt"), KeyFile: c.file(name + ".key"), Template: pki.Client(name)}
	if err := a.Issue(files); err != nil {
		c.t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		c.t.Fatal(err)
	}
	return func(call *call) { call.certificate = &pair }
}

// kubeconfig writes a kubeconfig for the cluster.
func (c *fakeCluster) kubeconfig() string {
	c.t.Helper()
	ca, err := cert.EncodeCertificates(c.Certificate())
	if err != nil {
		c.t.Fatal(err)
	}
	config := api.NewConfig()
	config.Clusters["c"] = &api.Cluster{Server: c.URL, CertificateAuthorityData: ca}
	config.Contexts["c"] = &api.Context{Cluster: "c"}
	config.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*config, c.file("kubeconfig")); err != nil {
		c.t.Fatal(err)
	}
	return c.file("kubeconfig")
}

func (c *fakeCluster) counts() (tokenReviews, access int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tokenReviews, c.access
}

func (c *fakeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := func(object any) {
		if err := json.NewEncoder(w).Encode(object); err != nil && r.Context().Err() == nil {
			c.t.Errorf("answer %s: %v", r.URL, err)
		}
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			c.t.Errorf("a review of a token: %v", err)
		}
		c.mu.Lock()
		c.tokenReviews++
		c.mu.Unlock()
		review.Status.Authenticated = review.Spec.Token == "good"
		review.Status.User.Username = "robot"
		answer(review)
	case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			c.t.Errorf("a review of access: %v", err)
		}
		c.mu.Lock()
		c.access++
		c.users[review.Spec.User] = review.Spec
		c.mu.Unlock()
		review.Status.Allowed = review.Spec.User != "nobody" && review.Spec.User != "system:anonymous"
		answer(review)
	case r.URL.Query().Get("sendInitialEvents") != "":
		// As a server that cannot: clients list, and watch then.
		w.WriteHeader(http.StatusUnprocessableEntity)
		answer(map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422})
	case r.URL.Query().Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case strings.HasSuffix(r.URL.Path, "/configmaps"):
		answer(list("v1", "ConfigMapList", map[string]any{
			"metadata": map[string]any{"namespace": "kube-system", "name": "extension-apiserver-authentication"},
			"data": map[string]any{
				"client-ca-file": c.read("clients-ca.crt"), "requestheader-client-ca-file": c.read("front-proxy-ca.crt"),
				"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-group-headers": `["X-Remote-Group"]`,
				"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`, "requestheader-allowed-names": `["front-proxy"]`,
			},
		}))
	case strings.HasSuffix(r.URL.Path, "/namespaces"):
		answer(list("v1", "NamespaceList", map[string]any{"metadata": map[string]any{"name": "default"}}))
	case emptyLists[path.Base(r.URL.Path)] != "":
		parts := strings.Split(r.URL.Path, "/")
		answer(list(parts[2]+"/"+parts[3], emptyLists[path.Base(r.URL.Path)]))
	default:
		w.WriteHeader(http.StatusNotFound)
		answer(map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})
	}
}

// emptyLists are the resources of which there are none, and the kinds of their lists.
var emptyLists = map[string]string{
	"flowschemas":                       "FlowSchemaList",
	"prioritylevelconfigurations":       "PriorityLevelConfigurationList",
	"mutatingwebhookconfigurations":     "MutatingWebhookConfigurationList",
	"validatingwebhookconfigurations":   "ValidatingWebhookConfigurationList",
	"mutatingadmissionpolicies":         "MutatingAdmissionPolicyList",
	"mutatingadmissionpolicybindings":   "MutatingAdmissionPolicyBindingList",
	"validatingadmissionpolicies":       "ValidatingAdmissionPolicyList",
	"validatingadmissionpolicybindings": "ValidatingAdmissionPolicyBindingList",
}

func (c *fakeCluster) read(name string) string {
	content, err := os.ReadFile(c.file(name))
	if err != nil {
		c.t.Error(err)
	}
	return string(content)
}

func list(version, kind string, items ...map[string]any) map[string]any {
	return map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"resourceVersion": "1"}, "items": append([]map[string]any{}, items...)}
}

// aggregated is a server in this process.
type aggregated struct {
	t     *testing.T
	url   string
	roots *x509.CertPool
}

// startAggregated runs "rowkeeper serve" with flags besides those that it needs, and waits until it is ready.
func startAggregated(t *testing.T, kubeconfig string, flags ...string) *aggregated {
	t.Helper()
	dir := t.TempDir()
	certsOptions := certsOptions{dir: dir, namespace: "n", service: "s", hosts: []string{"127.0.0.1"}}
	if err := certsOptions.run(io.Discard, clock.RealClock{}); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	a := &aggregated{t: t, url: "https://" + freeAddress(t), roots: x509.NewCertPool()}
	a.roots.AppendCertsFromPEM(ca)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan string, 1)
	go func() {
		var stderr bytes.Buffer
		args := append([]string{"serve", "--kubeconfig", kubeconfig, "--database=memory:", "--tls-cert-file", filepath.Join(dir, "tls.crt"), "--tls-private-key-file", filepath.Join(dir, "tls.key"),
			"--secure-port", a.url[strings.LastIndex(a.url, ":")+1:]}, flags...)
		code := Run(ctx, args, io.Discard, &stderr)
		done <- fmt.Sprintf("exit code %d: %s", code, stderr.String())
	}()
	t.Cleanup(func() {
		cancel()
		if end := <-done; end != "exit code 0: " {
			t.Error(end)
		}
	})
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := a.try(call{path: "/readyz?verbose"})
		if err == nil && r.code == http.StatusOK {
			return a
		}
		select {
		case end := <-done:
			done <- end
			t.Fatalf("the server ends: %s", end)
		case <-deadline.C:
			t.Fatalf("the server does not become ready: %v, %v", r, err)
		case <-tick.C:
		}
	}
}

// freeAddress is an address that is free now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// call is a request.
type call struct {
	method, path, body string
	header             http.Header
	certificate        *tls.Certificate
}

type response struct {
	code int
	body string
}

func (a *aggregated) try(c call) (*response, error) {
	config := &tls.Config{RootCAs: a.roots}
	if c.certificate != nil {
		config.Certificates = []tls.Certificate{*c.certificate}
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(a.t.Context(), c.method, a.url+c.path, strings.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	for name, values := range c.header {
		request.Header[name] = values
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return &response{answer.StatusCode, string(body)}, err
}

// want makes a request and checks the status code of its answer.
func (a *aggregated) want(code int, what string, path string, options ...func(*call)) {
	a.t.Helper()
	c := call{path: path}
	for _, o := range options {
		o(&c)
	}
	r, err := a.try(c)
	if err != nil {
		a.t.Fatalf("%s: %v", what, err)
	}
	if r.code != code {
		a.t.Errorf("%s: %s answers %d, want %d: %s", what, path, r.code, code, r.body)
	}
}

func header(name, value string) func(*call) {
	return func(c *call) {
		if c.header == nil {
			c.header = http.Header{}
		}
		c.header[http.CanonicalHeaderKey(name)] = []string{value}
	}
}

func post(body string) func(*call) {
	return func(c *call) {
		c.method, c.body = http.MethodPost, body
		header("Content-Type", "application/json")(c)
	}
}

func token(token string) func(*call) { return header("Authorization", "Bearer "+token) }

const (
	pipelinesPath = "/apis/ci.rowkeeper.dev/v1/namespaces/default/pipelines"
	policiesPath  = "/apis/ci.rowkeeper.dev/v1/pipelinepolicies"
	newPolicy     = `{"apiVersion":"ci.rowkeeper.dev/v1","kind":"PipelinePolicy","metadata":{"name":"none"},"spec":{"bannedImages":["*"]}}`
	newPipeline   = `{"apiVersion":"ci.rowkeeper.dev/v1","kind":"Pipeline","metadata":{"generateName":"a-"},"spec":{"steps":[{"name":"a","image":"a:1","command":["a"]}]}}`
)

func TestAggregated(t *testing.T) {
	c := newFakeCluster(t)
	a := startAggregated(t, c.kubeconfig())
	proxy := c.client(c.frontProxy, "front-proxy")
	a.want(200, "a token", pipelinesPath, token("good"))
	a.want(401, "another token", pipelinesPath, token("bad"))
	a.want(401, "nothing", pipelinesPath)
	a.want(401, "nothing", "/metrics")
	a.want(200, "nothing", "/livez")
	a.want(200, "a user's certificate", pipelinesPath, c.client(c.clients, "somebody"))
	a.want(403, "a user's certificate, without rights", pipelinesPath, c.client(c.clients, "nobody"))
	a.want(200, "the front proxy", pipelinesPath, proxy, header("X-Remote-User", "somebody"))
	a.want(403, "the front proxy, for a user without rights", pipelinesPath, proxy, header("X-Remote-User", "nobody"))
	a.want(401, "headers without certificate", pipelinesPath, header("X-Remote-User", "somebody"))
	a.want(401, "headers with the certificate for another name", pipelinesPath, c.client(c.frontProxy, "other"), header("X-Remote-User", "somebody"))
	a.want(201, "creating", pipelinesPath, token("good"), post(newPipeline))
	a.want(404, "creating in a namespace that does not exist", strings.Replace(pipelinesPath, "default", "missing", 1), token("good"), post(newPipeline))
	a.want(200, "priority and fairness", "/debug/api_priority_and_fairness/dump_priority_levels", token("good"))

	// All of that was asked once and remembered.
	tokens, access := c.counts()
	for range 3 {
		a.want(200, "a token", pipelinesPath, token("good"))
		a.want(401, "another token", pipelinesPath, token("bad"))
		a.want(403, "the front proxy, for a user without rights", pipelinesPath, proxy, header("X-Remote-User", "nobody"))
	}
	if tokensNow, accessNow := c.counts(); tokensNow != tokens || accessNow != access {
		t.Errorf("the cluster was asked again: %d tokens, %d times about access", tokensNow-tokens, accessNow-access)
	}
}

// TestAggregatedFlags shows for each flag of the section that it is not ignored.
func TestAggregatedFlags(t *testing.T) {
	c := newFakeCluster(t)
	proxy := c.client(c.frontProxy, "front-proxy")
	other := c.authority("other")
	for name, test := range map[string]struct {
		flags []string
		check func(*testing.T, *aggregated)
	}{
		"authentication-token-webhook-cache-ttl": {[]string{"--authentication-token-webhook-cache-ttl=1ns"}, func(t *testing.T, a *aggregated) {
			a.want(200, "a token", pipelinesPath, token("good"))
			before, _ := c.counts()
			a.want(200, "a token", pipelinesPath, token("good"))
			if after, _ := c.counts(); after != before+1 {
				t.Errorf("the cluster was asked %d times about a token that it was asked about before", after-before)
			}
		}},
		"authorization-webhook-cache-authorized-ttl": {[]string{"--authorization-webhook-cache-authorized-ttl=1ns"}, func(t *testing.T, a *aggregated) {
			a.want(200, "the front proxy", pipelinesPath, proxy, header("X-Remote-User", "somebody"))
			_, before := c.counts()
			a.want(200, "the front proxy", pipelinesPath, proxy, header("X-Remote-User", "somebody"))
			if _, after := c.counts(); after != before+1 {
				t.Errorf("the cluster was asked %d times about access that it was asked about before", after-before)
			}
		}},
		"authorization-webhook-cache-unauthorized-ttl": {[]string{"--authorization-webhook-cache-unauthorized-ttl=1ns"}, func(t *testing.T, a *aggregated) {
			a.want(403, "the front proxy", pipelinesPath, proxy, header("X-Remote-User", "nobody"))
			_, before := c.counts()
			a.want(403, "the front proxy", pipelinesPath, proxy, header("X-Remote-User", "nobody"))
			if _, after := c.counts(); after != before+1 {
				t.Errorf("the cluster was asked %d times about access that it was asked about before", after-before)
			}
		}},
		"authorization-always-allow-paths": {[]string{"--authorization-always-allow-paths=/readyz,/metrics"}, func(t *testing.T, a *aggregated) {
			a.want(200, "nothing", "/metrics")
			a.want(401, "nothing", "/livez")
		}},
		"client-ca-file": {[]string{"--client-ca-file=" + c.file("other-ca.crt")}, func(t *testing.T, a *aggregated) {
			a.want(200, "a certificate of the file's authority", pipelinesPath, c.client(other, "somebody"))
			a.want(401, "a certificate of the cluster's authority", pipelinesPath, c.client(c.clients, "somebody"))
		}},
		"requestheader": {[]string{
			"--requestheader-client-ca-file=" + c.file("other-ca.crt"), "--requestheader-username-headers=X-Remote-User,X-User", "--requestheader-uid-headers=X-Remote-Uid,X-Uid",
			"--requestheader-group-headers=X-Remote-Group,X-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-,X-Extra-", "--requestheader-allowed-names=other-proxy",
		}, func(t *testing.T, a *aggregated) {
			proxy := c.client(other, "other-proxy")
			a.want(401, "the cluster's front proxy", pipelinesPath, c.client(c.frontProxy, "front-proxy"), header("X-User", "somebody"))
			a.want(401, "a certificate of the file's authority for another name", pipelinesPath, c.client(other, "somebody"), header("X-User", "somebody"))
			a.want(403, "a user without rights", pipelinesPath, proxy, header("X-User", "nobody"))
			// Who is in this group may do everything, whatever his name.
			a.want(200, "a group", pipelinesPath, proxy, header("X-User", "nobody"), header("X-Group", "system:masters"))
			a.want(200, "a user with everything", pipelinesPath, proxy, header("X-User", "somebody"), header("X-Uid", "17"), header("X-Extra-Team", "red"))
			c.mu.Lock()
			defer c.mu.Unlock()
			if u := c.users["somebody"]; u.UID != "17" || len(u.Extra["team"]) != 1 || u.Extra["team"][0] != "red" {
				t.Errorf("the cluster was asked about %+v", u)
			}
		}},
		"enable-priority-and-fairness": {[]string{"--enable-priority-and-fairness=false"}, func(t *testing.T, a *aggregated) {
			a.want(404, "priority and fairness", "/debug/api_priority_and_fairness/dump_priority_levels", token("good"))
		}},
		"disable-admission-plugins": {[]string{"--disable-admission-plugins=NamespaceLifecycle"}, func(t *testing.T, a *aggregated) {
			a.want(201, "creating in a namespace that does not exist", strings.Replace(pipelinesPath, "default", "missing", 1), token("good"), post(newPipeline))
			a.want(200, "the check of the plugin for policies", "/readyz/policies", token("good"))
		}},
		"disable-admission-plugins, ours": {[]string{"--disable-admission-plugins=PipelinePolicy"}, func(t *testing.T, a *aggregated) {
			a.want(201, "a policy", policiesPath, token("good"), post(newPolicy))
			a.want(404, "the check of the plugin for policies", "/readyz/policies", token("good"))
			a.want(201, "what the policy forbids", pipelinesPath, token("good"), post(newPipeline))
			a.want(404, "a namespace that does not exist", strings.Replace(pipelinesPath, "default", "missing", 1), token("good"), post(newPipeline))
		}},
	} {
		t.Run(name, func(t *testing.T) { test.check(t, startAggregated(t, c.kubeconfig(), test.flags...)) })
	}
	t.Run("kubeconfigs", func(t *testing.T) {
		tokens, access := newFakeCluster(t), newFakeCluster(t)
		a := startAggregated(t, c.kubeconfig(), "--authentication-kubeconfig="+tokens.kubeconfig(), "--authorization-kubeconfig="+access.kubeconfig())
		before, beforeAccess := c.counts()
		a.want(200, "a token", pipelinesPath, token("good"))
		if after, afterAccess := c.counts(); after != before || afterAccess != beforeAccess {
			t.Error("the cluster of --kubeconfig was asked about tokens or access")
		}
		if n, _ := tokens.counts(); n != 1 {
			t.Errorf("the cluster of --authentication-kubeconfig was asked about %d tokens, want 1", n)
		}
		if _, n := access.counts(); n != 1 {
			t.Errorf("the cluster of --authorization-kubeconfig was asked %d times about access, want once", n)
		}
		a.want(200, "a certificate of the authority of --authentication-kubeconfig", pipelinesPath, tokens.client(tokens.clients, "somebody"))
	})
	t.Run("admission-control-config-file", func(t *testing.T) {
		var stderr bytes.Buffer
		code := Run(t.Context(), []string{"serve", "--kubeconfig", c.kubeconfig(), "--database=memory:", "--secure-port=0", "--admission-control-config-file=missing.yaml",
			"--tls-cert-file", c.file("front-proxy.crt"), "--tls-private-key-file", c.file("front-proxy.key")}, io.Discard, &stderr)
		if code != exitFailure || !strings.Contains(stderr.String(), "missing.yaml") {
			t.Errorf("code %d, %s", code, stderr.String())
		}
	})
}
