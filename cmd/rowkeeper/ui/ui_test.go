package ui

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const secret = "the-token-of-the-kubeconfig"

// site is a page in front of a server that tells what it was asked.
type site struct {
	*Page
	t      *testing.T
	url    string
	asked  []*http.Request
	cookie *http.Cookie
	key    string
}

func newSite(t *testing.T, answer http.HandlerFunc) *site {
	t.Helper()
	s := &site{t: t}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked = append(s.asked, r)
		answer(w, r)
	}))
	t.Cleanup(upstream.Close)
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r)
	}))
	var err error
	if s.Page, err = New(&rest.Config{Host: upstream.URL, BearerToken: secret}, About{Context: "here"},
		front.Listener.Addr()); err != nil {
		t.Fatal(err)
	}
	front.Start()
	t.Cleanup(front.Close)
	s.url = front.URL
	return s
}

// reply is an answer without its body, which was read.
type reply struct {
	StatusCode int
	Status     string
	Header     http.Header
	cookies    []*http.Cookie
}

// ask sends a request. Headers are pairs of a name and a value; Host is one of them.
func (s *site) ask(method, path, body string, headers ...string) (reply, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if s.cookie != nil {
		r.AddCookie(s.cookie)
		r.Header.Set(keyHeader, s.key)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, seen := range []string{string(content), fmt.Sprint(response.Header)} {
		if strings.Contains(seen, secret) {
			s.t.Errorf("%s %s: the answer has the credentials: %s", method, path, seen)
		}
	}
	if !strings.Contains(response.Header.Get("Content-Security-Policy"), "default-src 'none'") ||
		response.Header.Get("Cache-Control") != "no-store" ||
		response.Header.Get("X-Frame-Options") != "DENY" {
		s.t.Errorf("%s %s: headers of the answer: %v", method, path, response.Header)
	}
	return reply{response.StatusCode, response.Status, response.Header, response.Cookies()}, string(content)
}

func (s *site) begin() {
	s.t.Helper()
	at, err := url.Parse(s.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	token := strings.TrimPrefix(at.Fragment, "token=")
	response, body := s.ask(http.MethodPost, "/session", fmt.Sprintf(`{"token":%q}`, token))
	var session struct{ Key string }
	if err := json.Unmarshal([]byte(body), &session); err != nil || len(response.cookies) != 1 {
		s.t.Fatalf("%s: %s", response.Status, body)
	}
	s.cookie, s.key = response.cookies[0], session.Key
	if !s.cookie.HttpOnly || s.cookie.SameSite != http.SameSiteStrictMode || s.key == s.cookie.Value {
		s.t.Errorf("the cookie is %v", s.cookie)
	}
	s.cookie = &http.Cookie{Name: s.cookie.Name, Value: s.cookie.Value}
	if again, body := s.ask(http.MethodPost, "/session",
		fmt.Sprintf(`{"token":%q}`, token)); again.StatusCode != http.StatusUnauthorized {
		s.t.Errorf("the token is taken twice: %s %s", again.Status, body)
	}
	if empty, _ := s.ask(http.MethodPost, "/session", `{"token":""}`); empty.StatusCode !=
		http.StatusUnauthorized {
		s.t.Error("no token is taken in place of a used one")
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	w.Header().Set("Set-Cookie", "server=1")
	w.Header().Set("Access-Control-Allow-Origin", "*")
	w.Header().Set("Audit-ID", "audit")
	fmt.Fprintf(w, "%s %s", r.Method, r.URL)
}

func TestSession(t *testing.T) {
	s := newSite(t, echo)
	for _, path := range []string{"/about", "/server/version"} {
		if r, body := s.ask(http.MethodGet, path, ""); r.StatusCode != http.StatusUnauthorized ||
			!strings.Contains(body, `"kind":"Status"`) {
			t.Errorf("%s without a session: %s %s", path, r.Status, body)
		}
	}
	if r, _ := s.ask(http.MethodPost, "/session", `{"token":"guess"}`); r.StatusCode !=
		http.StatusUnauthorized {
		t.Errorf("a wrong token: %s", r.Status)
	}
	s.begin()
	r, body := s.ask(http.MethodGet, "/server/apis/ci.example.com/v1/pipelines?limit=5", "",
		"Accept", "application/json", "Authorization", "Bearer other", "Impersonate-User", "root",
		"Connection", "Upgrade", "Upgrade", "SPDY/3.1")
	if r.StatusCode != http.StatusOK || body != "GET /apis/ci.example.com/v1/pipelines?limit=5" ||
		r.Header.Get("Audit-Id") != "audit" {
		t.Errorf("%s %s %v", r.Status, body, r.Header)
	}
	if r.Header.Get("Set-Cookie") != "" || r.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("headers of the server are handed on: %v", r.Header)
	}
	asked := s.asked[0].Header
	if asked.Get("Authorization") != "Bearer "+secret || asked.Get("Accept") != "application/json" {
		t.Errorf("the server was asked with %v", asked)
	}
	for _, name := range []string{"Cookie", keyHeader, "Impersonate-User", "Upgrade", "Origin"} {
		if asked.Get(name) != "" {
			t.Errorf("the server was told %s: %v", name, asked)
		}
	}
	if r, body := s.ask(http.MethodGet, "/about", ""); !strings.Contains(body, `"context":"here"`) {
		t.Errorf("%s %s", r.Status, body)
	}

	// Each half of a session is worth nothing.
	key := s.key
	for _, half := range []func(){
		func() { s.key = "" },
		func() { s.key, s.cookie.Value = key, "guess" },
	} {
		half()
		if r, _ := s.ask(http.MethodGet, "/server/version", ""); r.StatusCode != http.StatusUnauthorized {
			t.Errorf("with half of a session: %s", r.Status)
		}
	}
	if len(s.asked) != 1 {
		t.Errorf("the server was asked %d times", len(s.asked))
	}
}

func TestOrigin(t *testing.T) {
	s := newSite(t, echo)
	s.begin()
	for _, headers := range [][]string{
		{"Host", "evil.example.com"}, {"Host", "evil.example.com:80"}, {"Host", "127.0.0.1"},
		{"Host", "127.0.0.1:1"}, {"Origin", "https://evil.example.com"}, {"Origin", "null"},
		{"Origin", ""}, {"Origin", "http://127.0.0.1:1"}, {"Sec-Fetch-Site", "same-site"},
		{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"},
	} {
		for _, path := range []string{"/server/version", "/about", "/session", "/app.js"} {
			if r, body := s.ask(http.MethodGet, path, "", headers...); r.StatusCode !=
				http.StatusForbidden {
				t.Errorf("%s with %q: %s %s", path, headers, r.Status, body)
			}
		}
	}
	if len(s.asked) != 0 {
		t.Errorf("the server was asked %d times", len(s.asked))
	}
	for path, headers := range map[string][]string{
		"/server/version": {"Origin", s.url, "Sec-Fetch-Site", "same-origin"},
		"/about":          {"Host", strings.Replace(s.hosts[0], "127.0.0.1", "localhost", 1)},
		"/":               {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"},
	} {
		if r, body := s.ask(http.MethodGet, path, "", headers...); r.StatusCode != http.StatusOK {
			t.Errorf("%s with %q: %s %s", path, headers, r.Status, body)
		}
	}
}

func TestLoopback(t *testing.T) {
	for _, address := range []string{"0.0.0.0", "::", "", "192.0.2.1", "example.com"} {
		if l, err := Listen(t.Context(), address, 0); err == nil {
			l.Close()
			t.Errorf("it listens at %q", address)
		} else if !strings.Contains(err.Error(), "not an address of the loopback") {
			t.Errorf("%q: %v", address, err)
		}
	}
	for _, address := range []string{"127.0.0.1", "localhost"} {
		l, err := Listen(t.Context(), address, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if !strings.HasPrefix(l.Addr().String(), "127.0.0.1:") {
			t.Errorf("%q is %s", address, l.Addr())
		}
	}
}

func TestAllowed(t *testing.T) {
	s := newSite(t, echo)
	s.begin()
	const pipelines = "/apis/ci.example.com/v1/namespaces/a/pipelines"
	for _, allowed := range []string{
		"GET /version", "GET /metrics", "GET /api", "GET /api/v1", "GET /apis",
		"GET /apis/ci.example.com", "GET /apis/ci.example.com/v1",
		"GET " + pipelines, "GET " + pipelines + "?watch=true", "GET " + pipelines + "/b",
		"GET " + pipelines + "/b/history?limit=5", "GET " + pipelines + "/-/history",
		"GET /api/v1/namespaces/a", "GET /api/v1/namespaces/a/history", "GET /api/v1/pods/-/history",
		"GET /apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
		"PUT " + pipelines + "/b?dryRun=All", "POST " + pipelines, "PUT /api/v1/namespaces/a",
		"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		"POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
	} {
		method, path, _ := strings.Cut(allowed, " ")
		if r, body := s.ask(method, "/server"+path, ""); r.StatusCode != http.StatusOK ||
			body != allowed {
			t.Errorf("%s: %s %s", allowed, r.Status, body)
		}
	}
	before := len(s.asked)
	for _, refused := range []string{
		"DELETE " + pipelines + "/b", "DELETE " + pipelines, "PATCH " + pipelines + "/b",
		"PUT " + pipelines, "POST " + pipelines + "/b", "PUT " + pipelines + "/b/status",
		"PUT " + pipelines + "/b/history", "POST /api/v1/namespaces/a/pods/b/eviction",
		"POST /api/v1/namespaces/a/serviceaccounts/b/token", "POST /api/v1/namespaces/a/pods/b/exec",
		"GET /api/v1/namespaces/a/pods/b/exec", "GET /api/v1/namespaces/a/pods/b/log",
		"GET /api/v1/namespaces/a/services/b/proxy/history", "GET " + pipelines + "/b/history/c",
		"GET /api/v1/proxy/namespaces/a/pods/b", "GET /api/v1/nodes/a/proxy/metrics",
		"PUT /api/v1/namespaces/a/finalize", "GET /healthz", "GET /logs/x", "GET /debug/pprof/heap",
		"POST /version", "HEAD /version", "OPTIONS " + pipelines, "GET /apis/../debug/pprof",
		"GET /metrics/", "GET //metrics", "GET /apis/a%2f..%2f..%2flogs/x",
		"GET /api/v1/namespaces/a/pods/b%2fexec", "POST /apis/authentication.k8s.io/v1/tokenreviews",
		"POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
	} {
		method, path, _ := strings.Cut(refused, " ")
		if r, body := s.ask(method, "/server"+path, ""); r.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s %s", refused, r.Status, body)
		}
	}
	if len(s.asked) != before {
		t.Errorf("the server was asked for what is refused: %v", s.asked[before].URL)
	}
	if r, _ := s.ask(http.MethodPost, "/server"+pipelines,
		strings.Repeat("x", maxBody+1)); r.StatusCode == http.StatusOK {
		t.Error("a body without bounds is forwarded")
	}
}

// TestFiles: the page needs no session, is whole, and has nothing that its own policy forbids.
func TestFiles(t *testing.T) {
	s := newSite(t, echo)
	for name, kind := range files {
		r, body := s.ask(http.MethodGet, "/"+name, "")
		if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != kind || body == "" {
			t.Errorf("%s: %s %v", name, r.Status, r.Header)
		}
	}
	_, page := s.ask(http.MethodGet, "/", "")
	for _, part := range []string{`src="/app.js"`, `href="/app.css"`, `lang="en"`} {
		if !strings.Contains(page, part) {
			t.Errorf("the page has no %s: %s", part, page)
		}
	}
	for _, part := range []string{"<style", " style=", " on", "http:", "https:"} {
		if strings.Contains(page, part) {
			t.Errorf("the page has %q: %s", part, page)
		}
	}
	for _, name := range []string{"/doc.go", "/dist/app.js", "/../ui.go", "/none"} {
		if r, _ := s.ask(http.MethodGet, name, ""); r.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", name, r.Status)
		}
	}
	if r, _ := s.ask(http.MethodPost, "/", ""); r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a POST to the page: %s", r.Status)
	}
}

// TestUnreachable: what the transport says is told as the server's refusals are.
func TestUnreachable(t *testing.T) {
	s := newSite(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	s.begin()
	r, body := s.ask(http.MethodGet, "/server/version", "")
	var status metav1.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil || status.Kind != "Status" ||
		r.StatusCode != http.StatusBadGateway ||
		!strings.HasPrefix(status.Message, "the server cannot be reached: ") {
		t.Errorf("%s: %s", r.Status, body)
	}
}
