package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/clustertest"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

func init() {
	// Several servers in one process.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
}

// client returns a way of presenting a certificate.
func client(t *testing.T, authority *pki.Pair, name string) func(*call) {
	t.Helper()
	pair := clustertest.Sign(t, authority, pki.Client(name))
	return func(call *call) { call.certificate = &pair }
}

// aggregated is a server in this process.
type aggregated struct {
	t     *testing.T
	url   string
	roots *x509.CertPool
}

// certFiles writes a serving certificate, and returns the directory of its files.
func certFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var stderr bytes.Buffer
	if code := Run(t.Context(), []string{"certs", "--dir", dir, "--host", "127.0.0.1"}, io.Discard,
		&stderr); code != exitOK {
		t.Fatal(stderr.String())
	}
	return dir
}

// startAggregated runs "rowkeeper serve" with flags besides the ones that it needs, and waits until
// it is ready.
func startAggregated(t *testing.T, kubeconfig string, flags ...string) *aggregated {
	t.Helper()
	dir := certFiles(t)
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
		args := append([]string{"serve", "--kubeconfig", kubeconfig, "--database=memory:",
			"--tls-cert-file", filepath.Join(dir, "tls.crt"), "--tls-private-key-file",
			filepath.Join(dir, "tls.key"), "--secure-port",
			a.url[strings.LastIndex(a.url, ":")+1:]}, flags...)
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
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", port)
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
	request, err := http.NewRequestWithContext(a.t.Context(), c.method, a.url+c.path,
		strings.NewReader(c.body))
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
	c := clustertest.New(t)
	a := startAggregated(t, c.Kubeconfig)
	proxy := client(t, c.Proxies, "front-proxy")
	a.want(200, "a token", pipelinesPath, token("good"))
	a.want(401, "another token", pipelinesPath, token("bad"))
	a.want(401, "nothing", pipelinesPath)
	a.want(401, "nothing", "/metrics")
	a.want(200, "nothing", "/livez")
	a.want(200, "a user's certificate", pipelinesPath, client(t, c.Users, "somebody"))
	a.want(403, "a user's certificate, without rights", pipelinesPath, client(t, c.Users, "nobody"))
	a.want(200, "the front proxy", pipelinesPath, proxy, header("X-Remote-User", "somebody"))
	a.want(403, "the front proxy, for a user without rights", pipelinesPath, proxy,
		header("X-Remote-User", "nobody"))
	a.want(401, "headers without certificate", pipelinesPath, header("X-Remote-User", "somebody"))
	a.want(401, "headers with the certificate for another name", pipelinesPath,
		client(t, c.Proxies, "other"), header("X-Remote-User", "somebody"))
	a.want(201, "creating", pipelinesPath, token("good"), post(newPipeline))
	a.want(404, "creating in a namespace that does not exist",
		strings.Replace(pipelinesPath, "default", "missing", 1), token("good"), post(newPipeline))
	a.want(200, "priority and fairness", "/debug/api_priority_and_fairness/dump_priority_levels",
		token("good"))

	// All of that was asked once and remembered.
	tokens, access := c.Reviews()
	for range 3 {
		a.want(200, "a token", pipelinesPath, token("good"))
		a.want(401, "another token", pipelinesPath, token("bad"))
		a.want(403, "the front proxy, for a user without rights", pipelinesPath, proxy,
			header("X-Remote-User", "nobody"))
	}
	if tokensNow, accessNow := c.Reviews(); tokensNow != tokens || accessNow != access {
		t.Errorf("the cluster was asked again: %d tokens, %d times about access", tokensNow-tokens,
			accessNow-access)
	}
}

// TestAggregatedFlags shows for each flag of the section that it is not ignored.
func TestAggregatedFlags(t *testing.T) {
	c := clustertest.New(t)
	proxy := client(t, c.Proxies, "front-proxy")
	other := clustertest.Authority(t)
	otherFile := clustertest.WritePEM(t, other)
	for name, test := range map[string]struct {
		flags []string
		check func(*testing.T, *aggregated)
	}{
		"authentication-token-webhook-cache-ttl": {[]string{"--authentication-token-webhook-cache-ttl=1ns"}, func(t *testing.T, a *aggregated) {
			a.want(200, "a token", pipelinesPath, token("good"))
			before, _ := c.Reviews()
			a.want(200, "a token", pipelinesPath, token("good"))
			if after, _ := c.Reviews(); after != before+1 {
				t.Errorf("the cluster was asked %d times about a token that it was asked about before", after-before)
			}
		}},
		"authorization-webhook-cache-authorized-ttl": {[]string{"--authorization-webhook-cache-authorized-ttl=1ns"}, func(t *testing.T, a *aggregated) {
			a.want(200, "the front proxy", pipelinesPath, proxy,
				header("X-Remote-User", "somebody"))
			_, before := c.Reviews()
			a.want(200, "the front proxy", pipelinesPath, proxy,
				header("X-Remote-User", "somebody"))
			if _, after := c.Reviews(); after != before+1 {
				t.Errorf("the cluster was asked %d times about access that it was asked about before", after-before)
			}
		}},
		"authorization-webhook-cache-unauthorized-ttl": {[]string{"--authorization-webhook-cache-unauthorized-ttl=1ns"}, func(t *testing.T, a *aggregated) {
			a.want(403, "the front proxy", pipelinesPath, proxy, header("X-Remote-User", "nobody"))
			_, before := c.Reviews()
			a.want(403, "the front proxy", pipelinesPath, proxy, header("X-Remote-User", "nobody"))
			if _, after := c.Reviews(); after != before+1 {
				t.Errorf("the cluster was asked %d times about access that it was asked about before", after-before)
			}
		}},
		"authorization-always-allow-paths": {[]string{"--authorization-always-allow-paths=/readyz,/metrics"}, func(t *testing.T, a *aggregated) {
			a.want(200, "nothing", "/metrics")
			a.want(401, "nothing", "/livez")
		}},
		"client-ca-file": {[]string{"--client-ca-file=" + otherFile},
			func(t *testing.T, a *aggregated) {
				a.want(200, "a certificate of the file's authority", pipelinesPath,
					client(t, other, "somebody"))
				a.want(401, "a certificate of the cluster's authority", pipelinesPath,
					client(t, c.Users, "somebody"))
			}},
		"requestheader": {[]string{
			"--requestheader-client-ca-file=" + otherFile,
			"--requestheader-username-headers=X-Remote-User,X-User",
			"--requestheader-uid-headers=X-Remote-Uid,X-Uid",
			"--requestheader-group-headers=X-Remote-Group,X-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-,X-Extra-",
			"--requestheader-allowed-names=other-proxy",
		}, func(t *testing.T, a *aggregated) {
			proxy := client(t, other, "other-proxy")
			a.want(401, "the cluster's front proxy", pipelinesPath,
				client(t, c.Proxies, "front-proxy"), header("X-User", "somebody"))
			a.want(401, "a certificate of the file's authority for another name", pipelinesPath,
				client(t, other, "somebody"), header("X-User", "somebody"))
			a.want(403, "a user without rights", pipelinesPath, proxy, header("X-User", "nobody"))
			// Members of this group may do everything, whatever their names.
			a.want(200, "a group", pipelinesPath, proxy, header("X-User", "nobody"),
				header("X-Group", "system:masters"))
			a.want(200, "a user with everything", pipelinesPath, proxy,
				header("X-User", "somebody"), header("X-Uid", "17"), header("X-Extra-Team", "red"))
			if u := c.Reviewed("somebody"); u.UID != "17" || len(u.Extra["team"]) != 1 ||
				u.Extra["team"][0] != "red" {
				t.Errorf("the cluster was asked about %+v", u)
			}
		}},
		"enable-priority-and-fairness": {[]string{"--enable-priority-and-fairness=false"},
			func(t *testing.T, a *aggregated) {
				a.want(404, "priority and fairness",
					"/debug/api_priority_and_fairness/dump_priority_levels", token("good"))
			}},
		"disable-admission-plugins": {[]string{"--disable-admission-plugins=NamespaceLifecycle"},
			func(t *testing.T, a *aggregated) {
				a.want(201, "creating in a namespace that does not exist",
					strings.Replace(pipelinesPath, "default", "missing", 1), token("good"),
					post(newPipeline))
				a.want(200, "the check of the plugin for policies", "/readyz/policies",
					token("good"))
			}},
		"disable-admission-plugins, ours": {[]string{"--disable-admission-plugins=PipelinePolicy"},
			func(t *testing.T, a *aggregated) {
				a.want(201, "a policy", policiesPath, token("good"), post(newPolicy))
				a.want(404, "the check of the plugin for policies", "/readyz/policies",
					token("good"))
				a.want(201, "what the policy forbids", pipelinesPath, token("good"),
					post(newPipeline))
				a.want(404, "a namespace that does not exist",
					strings.Replace(pipelinesPath, "default", "missing", 1), token("good"),
					post(newPipeline))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			test.check(t, startAggregated(t, c.Kubeconfig, test.flags...))
		})
	}
	t.Run("kubeconfigs", func(t *testing.T) {
		tokens, access := clustertest.New(t), clustertest.New(t)
		a := startAggregated(t, c.Kubeconfig, "--authentication-kubeconfig="+tokens.Kubeconfig,
			"--authorization-kubeconfig="+access.Kubeconfig)
		before, beforeAccess := c.Reviews()
		a.want(200, "a token", pipelinesPath, token("good"))
		if after, afterAccess := c.Reviews(); after != before || afterAccess != beforeAccess {
			t.Error("the cluster of --kubeconfig was asked about tokens or access")
		}
		if n, _ := tokens.Reviews(); n != 1 {
			t.Errorf("the cluster of --authentication-kubeconfig was asked about %d tokens, want 1",
				n)
		}
		if _, n := access.Reviews(); n != 1 {
			t.Errorf("the cluster of --authorization-kubeconfig was asked %d times about access, "+
				"want once", n)
		}
		a.want(200, "a certificate of the authority of --authentication-kubeconfig", pipelinesPath,
			client(t, tokens.Users, "somebody"))
	})
	t.Run("admission-control-config-file", func(t *testing.T) {
		dir := certFiles(t)
		var stderr bytes.Buffer
		code := Run(t.Context(), []string{"serve", "--kubeconfig", c.Kubeconfig,
			"--database=memory:", "--secure-port=0", "--admission-control-config-file=missing.yaml",
			"--tls-cert-file", filepath.Join(dir, "tls.crt"), "--tls-private-key-file",
			filepath.Join(dir, "tls.key")}, io.Discard, &stderr)
		if code != exitFailure || !strings.Contains(stderr.String(), "missing.yaml") {
			t.Errorf("code %d, %s", code, stderr.String())
		}
	})
}
