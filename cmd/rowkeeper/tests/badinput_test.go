package tests

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// A server that cannot start says why in one sentence, and exits with 1, or with 2 if it was called
// wrongly.
func TestStartErrors(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	_, port, _ := net.SplitHostPort(used.Addr().String())
	running := start(t, t.TempDir())

	dir := t.TempDir()
	file := func(name, content string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	garbage := file("garbage.db", strings.Repeat("This is no database. ", 1000))
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"unknown command": {[]string{"frobnicate"}, 2,
			`unknown command "frobnicate" (see rowkeeper --help)`},
		"unknown flag": {[]string{"serve", "--frobnicate"}, 2,
			"unknown flag: --frobnicate (see rowkeeper serve --help)"},
		"argument": {[]string{"serve", "here"}, 2, `unexpected argument "here"`},
		"nothing to serve": {[]string{"serve"}, 2,
			"there is nothing to serve: give --enable-crds, for"},
		"bad value": {[]string{"serve", "--secure-port=high"}, 2,
			`invalid argument "high" for "--secure-port" flag`},
		"impossible value": {[]string{"serve", "--secure-port=123456"}, 2,
			"--secure-port 123456 must be between 1 and 65535"},
		"used port": {[]string{"serve", "--secure-port=" + port}, 1,
			"bind: address already in use; choose another --secure-port or --bind-address"},
		"used data directory": {[]string{"serve", "--data-dir=" + filepath.Join(running.dir,
			".rowkeeper")}, 1, "is in use by the server with process id"},
		"no scheme": {[]string{"serve", "--database=/tmp/x.db"}, 1,
			"the database URL has no scheme"},
		"unknown scheme": {[]string{"serve", "--database=oracle://scott:tiger@host/db"},
			1, "no driver for database URLs that begin with oracle:"},
		"no such directory": {[]string{"serve", "--database=sqlite://" +
			filepath.Join(dir, "missing", "state.db")}, 1, "missing"},
		"not a database": {[]string{"serve", "--database=sqlite://" + garbage}, 1,
			"garbage.db"},
		"no database file": {[]string{"serve", "--database-file=" +
			filepath.Join(dir, "missing")}, 1, "cannot read --database-file: open "},
		"unreadable certificate": {[]string{"serve", "--tls-cert-file=" +
			filepath.Join(dir, "tls.crt"), "--tls-private-key-file=" +
			filepath.Join(dir, "tls.key")}, 1, "tls.crt: no such file or directory"},
		"half a certificate": {[]string{"serve", "--tls-cert-file=" + garbage}, 2,
			"--tls-cert-file and --tls-private-key-file need each other"},
		"malformed certificate": {[]string{"serve", "--tls-cert-file=" + garbage,
			"--tls-private-key-file=" + garbage}, 1, "cannot serve with the certificate "},
		"unreadable encryption": {[]string{"serve", "--encryption-provider-config=" +
			filepath.Join(dir, "missing")}, 1, "cannot use --encryption-provider-config: "},
		"malformed encryption": {[]string{"serve", "--encryption-provider-config=" + garbage},
			1, "cannot use --encryption-provider-config: "},
		"data directory is a file": {[]string{"serve", "--data-dir=" + garbage}, 1,
			"cannot create the data directory: "},
		"no authentication": {[]string{"serve", "--authentication-config=" +
			filepath.Join(dir, "missing")}, 1,
			"cannot use --authentication-config: cannot read the authentication configuration"},
		"malformed authentication": {[]string{"serve", "--authentication-config=" + garbage}, 1,
			"garbage.db is not an AuthenticationConfiguration"},
		"webhooks without definitions": {[]string{"serve", "--webhook-service=hooks/x=host:443"}, 2,
			"--webhook-service needs --enable-crds"},
		"no Service": {[]string{"serve", "--enable-crds", "--webhook-service=x=host:443"}, 2,
			`--webhook-service: "x" is not the NAMESPACE/NAME of a Service`},
		"the server's Service": {[]string{"serve", "--enable-crds",
			"--webhook-service=default/kubernetes=127.0.0.1:9443"}, 2,
			"the Service default/kubernetes is an API server itself in a cluster"},
		"nowhere": {[]string{"serve", "--enable-crds", "--webhook-service=hooks/x=host"}, 2,
			`the Service hooks/x is at "host", which is not a HOST:PORT`},
		"no port": {[]string{"serve", "--enable-crds", "--webhook-service=hooks/x=host:https"}, 2,
			`the Service hooks/x is at "host:https", which is not a HOST:PORT`},
		"no configuration": {[]string{"serve", "--config=" + filepath.Join(dir, "missing")},
			2, "cannot read --config: open "},
		"malformed configuration": {[]string{"serve", "--config=" +
			file("bad.yaml", "- a\n- b\n")}, 2, "is not a YAML mapping of flags to values"},
		"unknown configuration": {[]string{"serve", "--config=" + file("unknown.yaml",
			"secure-prot: 8443\n")}, 2, `sets "secure-prot", which is not a flag`},
		"migrate nothing": {[]string{"migrate", "up"}, 2,
			"no database is named: give --database, --database-file or --database-env"},
		"migrate nonsense": {[]string{"migrate", "status", "--database=x"}, 1,
			"the database URL has no scheme"},
		"version as what": {[]string{"version", "-o", "xml"}, 2,
			`--output "xml" is neither json nor yaml`},
	} {
		t.Run(name, func(t *testing.T) {
			args := tc.args
			if args[0] == "serve" && len(args) > 1 {
				args = append(args[:1:1], append([]string{"--example"}, args[1:]...)...)
			}
			if args[0] == "serve" && !strings.Contains(strings.Join(args, " "), "--secure-port") {
				args = append(args[:1:1], append([]string{"--secure-port=0"}, args[1:]...)...)
			}
			r := run(t, t.TempDir(), "", nil, rowkeeperProgram, args...)
			if r.code != tc.code || r.stdout != "" {
				t.Errorf("exit code %d, want %d; stdout %q", r.code, tc.code, r.stdout)
			}
			if !strings.HasPrefix(r.stderr, "rowkeeper: ") || strings.Count(r.stderr, "\n") != 1 ||
				!strings.Contains(r.stderr, tc.want) {
				t.Errorf("want one sentence with %q, got:\n%s", tc.want, r.stderr)
			}
			if strings.Contains(r.stderr, "tiger") {
				t.Error("the sentence has the password")
			}
		})
	}
}

// Requests that cannot be right are answered by the status that kube-apiserver has for them.
func TestBadRequests(t *testing.T) {
	s := start(t, t.TempDir())
	s.ok(t, manifest("there", "x"), "create", "-f", "-")
	config := s.config(t)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	const collection = "/apis/ci.rowkeeper.dev/v1/namespaces/default/pipelines"
	pipeline := func(spec string) string {
		return `{"apiVersion":"ci.rowkeeper.dev/v1","kind":"Pipeline","metadata":{"name":"bad"},"spec":` + spec + `}`
	}
	const steps = `"steps":[{"name":"a","image":"alpine:3","command":["ls"]}]`
	for name, tc := range map[string]struct {
		method, path, contentType, body string
		status                          int
		want                            string
	}{
		"malformed JSON": {"POST", collection, "application/json", "{", 400,
			"unexpected end of JSON input"},
		"malformed YAML": {"POST", collection, "application/yaml", "a: [", 400,
			"yaml: line 1: did not find expected node content"},
		"no content": {"POST", collection, "application/json", "", 400, ""},
		"unknown media type": {"POST", collection, "text/html", "<p>", 415,
			"the body of the request was in an unknown format"},
		"not acceptable": {"GET", collection, "accept:text/html", "", 406,
			"406: Not Acceptable"},
		"another kind": {"POST", collection, "application/json",
			`{"apiVersion":"ci.rowkeeper.dev/v1","kind":"Recipe"}`, 400,
			`no kind \"Recipe\" is registered`},
		"another version": {"POST", collection, "application/json",
			`{"apiVersion":"ci.rowkeeper.dev/v1alpha1","kind":"Pipeline","metadata":{"name":"x"}}`,
			400, "does not match the expected API version"},
		"wrong type": {"POST", collection, "application/json",
			pipeline(`{"maxParallelRuns":"many"}`), 400, "cannot unmarshal string into Go struct " +
				"field PipelineSpec.spec.maxParallelRuns of type int32"},
		"number too large": {"POST", collection, "application/json",
			pipeline(`{"maxParallelRuns":2147483648}`), 400, "cannot unmarshal number 2147483648"},
		"unknown field": {"POST", collection + "?fieldValidation=Strict",
			"application/json", pipeline(`{"parallelism":1,` + steps + `}`), 400,
			`unknown field \"spec.parallelism\"`},
		"duplicate field": {"POST", collection + "?fieldValidation=Strict",
			"application/json", pipeline(`{"image":"a:1","image":"b:1",` + steps + `}`), 400,
			`duplicate field \"spec.image\"`},
		"invalid": {"POST", collection, "application/json", pipeline(`{}`), 422,
			"spec.steps: Required value: a pipeline has at least one step"},
		"too large": {"POST", collection, "application/json", pipeline(`{"image":"` +
			strings.Repeat("x", 3<<20) + `"}`), 413, "Request entity too large: limit is 3145728"},
		"longest name": {"POST", collection, "application/json",
			strings.Replace(pipeline(`{`+steps+`}`), `"bad"`, `"`+strings.Repeat("n", 253)+`"`, 1),
			201, ""},
		"unicode": {"POST", collection, "application/json",
			`{"apiVersion":"ci.rowkeeper.dev/v1","kind":"Pipeline","metadata":{"name":"unicode"},"spec":{"steps":[{"name":"a","image":"alpine:3","command":["echo","日本語 🚀 \u0000"]}]}}`, 201, "日本語 🚀 \\u0000"},
		"impossible conversion": {"POST", strings.Replace(collection, "/v1/", "/v1alpha1/", 1),
			"application/json",
			`{"apiVersion":"ci.rowkeeper.dev/v1alpha1","kind":"Pipeline","metadata":{"name":"x","annotations":{"ci.rowkeeper.dev/structured":"{"}},"spec":{"image":"a:1","commands":["ls"]}}`, 400, "the annotation ci.rowkeeper.dev/structured cannot be read"},
		"long name": {"POST", collection, "application/json",
			strings.Replace(pipeline(`{`+steps+`}`), `"bad"`, `"`+strings.Repeat("n", 254)+`"`, 1),
			422, "metadata.name: Invalid value"},
		"name that is there": {"POST", collection, "application/json",
			strings.Replace(pipeline(`{`+steps+`}`), `"bad"`, `"there"`, 1), 409, "already exists"},
		"name with unicode": {"POST", collection, "application/json",
			strings.Replace(pipeline(`{`+steps+`}`), `"bad"`, `"müll"`, 1), 422,
			"a lowercase RFC 1123 subdomain"},
		"another namespace": {"POST", collection, "application/json",
			strings.Replace(pipeline(`{`+steps+`}`), `"bad"`, `"bad","namespace":"other"`, 1), 400,
			"the namespace of the provided object does not match the namespace sent on the request"},
		"bad limit": {"GET", collection + "?limit=many", "", "", 400, "invalid syntax"},
		"bad continue": {"GET", collection + "?limit=1&continue=nonsense", "", "", 400,
			"continue key is not valid"},
		"bad revision": {"GET", collection + "?resourceVersion=abc", "", "", 400,
			"Invalid value"},
		"unknown resource": {"GET", "/apis/ci.rowkeeper.dev/v1/recipes", "", "", 404,
			"could not find the requested resource"},
		"unknown version": {"GET", "/apis/ci.rowkeeper.dev/v7/pipelines", "", "", 404,
			"could not find the requested resource"},
		"not allowed": {"PATCH", collection, "application/merge-patch+json", "{}", 405,
			"the server does not allow this method"},
		"unknown patch": {"PATCH", collection + "/there", "application/json", "{}", 415,
			"415: Unsupported Media Type"},
		"malformed patch": {"PATCH", collection + "/there", "application/json-patch+json",
			"{}", 400, "error decoding patch"},
		"patch to invalid": {"PATCH", collection + "/there", "application/merge-patch+json",
			`{"spec":{"image":"A B"}}`, 422, "spec.image: Invalid value"},
		"delete with a body": {"DELETE", collection + "/there", "application/json",
			`{"gracePeriodSeconds":-1,"propagationPolicy":"Sometimes"}`, 422, "propagationPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), tc.method, config.Host+tc.path,
				strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			if accept, ok := strings.CutPrefix(tc.contentType, "accept:"); ok {
				request.Header.Set("Accept", accept)
			} else {
				request.Header.Set("Content-Type", tc.contentType)
				request.Header.Set("Accept", "application/json")
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
			if response.StatusCode != tc.status || !strings.Contains(string(body), tc.want) {
				t.Errorf("status %d, want %d with %q:\n%s", response.StatusCode, tc.status,
					tc.want, body)
			}
		})
	}
	s.ok(t, "", "get", "pl", "there") // nothing of this has harmed it
}

// Fields that the server does not know are refused, warned of, or dropped, as the client wants it.
func TestUnknownFields(t *testing.T) {
	s := start(t, t.TempDir())
	unknown := strings.Replace(manifest("unknown", "make"), "spec:", "spec:\n  parallelism: 3", 1)
	s.refused(t, unknown, `unknown field "spec.parallelism"`, "create", "--validate=strict", "-f",
		"-")
	if r := s.kubectl(t, unknown, "create", "--validate=warn", "-f", "-"); r.code != 0 ||
		!strings.Contains(r.stderr, `Warning: unknown field "spec.parallelism"`) {
		t.Errorf("%d %s", r.code, r.stderr)
	}
	if r := s.kubectl(t, strings.Replace(unknown, "name: unknown", "name: ignored", 1), "create",
		"--validate=ignore", "-f", "-"); r.code != 0 || r.stderr != "" {
		t.Errorf("%d %s", r.code, r.stderr)
	}
	if got := s.ok(t, "", "get", "pl", "ignored", "-o", "yaml"); strings.Contains(got,
		"parallelism") {
		t.Errorf("an unknown field was stored:\n%s", got)
	}
}

// Two who write the spec and the status at the same time, each as fast as it can, lose nothing of
// what they write.
func TestWritersOfSpecAndStatus(t *testing.T) {
	s := start(t, t.TempDir())
	s.ok(t, manifest("both", "make"), "create", "-f", "-")
	client := s.dynamic(t).Resource(pipelines).Namespace("default")
	const rounds = 50
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range rounds {
			patch := fmt.Sprintf(`{"spec":{"maxParallelRuns":%d}}`, i+100)
			if _, err := client.Patch(t.Context(), "both", types.MergePatchType, []byte(patch),
				metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for i := range rounds {
			patch := fmt.Sprintf(`{"spec":{"maxParallelRuns":7},"status":{"activeRuns":%d,"observedGeneration":1}}`, i+1)
			if _, err := client.Patch(t.Context(), "both", types.MergePatchType, []byte(patch),
				metav1.PatchOptions{}, "status"); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if got := s.jsonpath(t, "both", ".spec.maxParallelRuns") + " " +
		s.jsonpath(t, "both", ".status.activeRuns") + " " +
		s.jsonpath(t, "both", ".metadata.generation"); got != "149 50 51" {
		t.Errorf("maxParallelRuns, activeRuns and generation are %s", got)
	}
}

// Nobody gets in without a certificate of this server's authority.
func TestAccess(t *testing.T) {
	s := start(t, t.TempDir())
	other := start(t, t.TempDir())
	get := func(config *rest.Config, path string) int {
		t.Helper()
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			s.config(t).Host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	insecure := func(config *rest.Config) *rest.Config {
		config.TLSClientConfig.Insecure, config.TLSClientConfig.CAData = true, nil
		return config
	}
	anonymous := insecure(rest.AnonymousClientConfig(s.config(t)))
	token := insecure(rest.AnonymousClientConfig(s.config(t)))
	token.BearerToken = "secret"
	stranger := insecure(other.config(t))
	for _, path := range []string{"/", "/apis", "/livez", "/readyz", "/version", "/metrics",
		"/apis/ci.rowkeeper.dev/v1/pipelines"} {
		for who, config := range map[string]*rest.Config{"anonymous": anonymous,
			"with a token": token, "with another server's certificate": stranger} {
			if status := get(config, path); status != http.StatusUnauthorized {
				t.Errorf("GET %s %s: %d, want 401", path, who, status)
			}
		}
		if status := get(s.config(t), path); status != http.StatusOK {
			t.Errorf("GET %s as the administrator: %d", path, status)
		}
	}
	// The client in turn trusts no other server.
	config := other.config(t)
	config.Host = s.config(t).Host
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	var unverified *tls.CertificateVerificationError
	response, err := client.Get(config.Host)
	if err == nil {
		response.Body.Close()
	}
	if err == nil || !errors.As(err, &unverified) {
		t.Errorf("the client trusts a server with another authority: %v", err)
	}
}
