package signin

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/signintest"
)

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// open opens a file with this content, and waits for its issuers.
func open(t *testing.T, content string) *File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "authentication.yaml")
	write(t, name, content)
	f, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	var missing error
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			missing = f.issuers.Load().check()
			return missing == nil, nil
		}); err != nil {
		t.Fatal(err, missing)
	}
	return f
}

// ask sends a request with headers to an authenticator that knows nobody else.
func ask(f *File, path string, header http.Header) (*authenticator.Response, bool, error) {
	nobody := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, nil
	})
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header = header
	return f.Beside(nobody, nil).AuthenticateRequest(r)
}

func bearer(token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token}}
}

// TestTokens has tokens that stand for a user, and others.
func TestTokens(t *testing.T) {
	i, other := signintest.New(t), signintest.New(t)
	f := open(t, signintest.Config("rowkeeper", i, other))
	for _, from := range []*signintest.Issuer{i, other} {
		answer, ok, err := ask(f, "/api", bearer(from.Token(t, nil)))
		if err != nil || !ok {
			t.Fatalf("a good token: %t, %v", ok, err)
		}
		if u := answer.User; u.GetName() != "oidc:jane@example.com" ||
			!slices.Equal(u.GetGroups(), []string{"oidc:dev", user.AllAuthenticated}) {
			t.Errorf("the user is %+v", u)
		}
	}
	web := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
		"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io." +
			base64.RawURLEncoding.EncodeToString([]byte(i.Token(t, nil))) + ", v5.channel.k8s.io"}}
	if _, ok, err := ask(f, "/api", web); !ok || err != nil {
		t.Errorf("a token in a web socket's protocols: %t, %v", ok, err)
	}
	forged := &signintest.Issuer{Server: i.Server, Key: other.Key}
	for what, token := range map[string]string{
		"for another audience": i.Token(t, map[string]any{"aud": "other"}),
		"that has expired":     i.Token(t, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}),
		"of another issuer":    i.Token(t, map[string]any{"iss": "https://issuer.example.com"}),
		"with another's key":   forged.Token(t, nil),
		"without a name":       i.Token(t, map[string]any{"email": 7}),
		"that is none":         "secret",
	} {
		if _, ok, err := ask(f, "/api", bearer(token)); ok || err == nil {
			t.Errorf("a token %s: %t, %v", what, ok, err)
		}
	}
	if _, ok, _ := ask(f, "/api", nil); ok {
		t.Error("a request without a token has a user")
	}
}

// TestOwnIssuer: the file does not name an issuer that the server is itself, neither when it starts
// nor later.
func TestOwnIssuer(t *testing.T) {
	own, other := signintest.New(t), signintest.New(t)
	name := filepath.Join(t.TempDir(), "authentication.yaml")
	write(t, name, signintest.Config("rowkeeper", own))
	if _, err := Open(name, own.URL); err == nil || !strings.Contains(err.Error(), own.URL) {
		t.Errorf("the server's own issuer: %v", err)
	}
	write(t, name, signintest.Config("rowkeeper", other))
	f, err := Open(name, own.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if err := f.use(t.Context(), []byte(signintest.Config("rowkeeper", own))); err == nil ||
		!strings.Contains(err.Error(), own.URL) {
		t.Errorf("the server's own issuer in a changed file: %v", err)
	}
}

// TestAnonymous lets requests without a user in where the file says so, and none with a wrong
// token.
func TestAnonymous(t *testing.T) {
	i := signintest.New(t)
	f := open(t, signintest.Config("rowkeeper", i)+"anonymous: {enabled: true, conditions: [{path: /livez}]}\n")
	answer, ok, err := ask(f, "/livez", nil)
	if err != nil || !ok || answer.User.GetName() != user.Anonymous {
		t.Fatalf("/livez without a token: %v, %t, %v", answer, ok, err)
	}
	if _, ok, _ := ask(f, "/api", nil); ok {
		t.Error("/api without a token has a user")
	}
	wrong := i.Token(t, map[string]any{"aud": "other"})
	if _, ok, err := ask(f, "/livez", bearer(wrong)); ok || err == nil {
		t.Errorf("/livez with a wrong token: %t, %v", ok, err)
	}
}

// TestChange changes the file. A file that cannot be used changes nothing.
func TestChange(t *testing.T) {
	first, second := signintest.New(t), signintest.New(t)
	f := open(t, signintest.Config("rowkeeper", first))
	accepts := func(i *signintest.Issuer, audience string) bool {
		_, ok, _ := ask(f, "/api", bearer(i.Token(t, map[string]any{"aud": audience})))
		return ok
	}
	if changed, err := f.file.Look(t.Context(), f.use); changed || err != nil {
		t.Fatalf("the file is as it was: %t, %v", changed, err)
	}
	away := signintest.New(t)
	away.Close()
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for what, c := range map[string]struct {
		ctx     context.Context
		content string
		says    string
	}{
		"no YAML":   {t.Context(), "jwt: [", "is not an AuthenticationConfiguration"},
		"a typo":    {t.Context(), signintest.Config("rowkeeper", second) + "anonimous: {}\n", "anonimous"},
		"no issuer": {t.Context(), strings.Replace(signintest.Config("rowkeeper", second), second.URL, "''", 1), "jwt[0].issuer.url"},
		"anonymous": {t.Context(), signintest.Config("rowkeeper", second) + "anonymous: {enabled: true}\n", "restart the server"},
		"away":      {short, signintest.Config("rowkeeper", second, away), away.URL},
	} {
		write(t, f.file.Name(), c.content)
		if changed, err := f.file.Look(c.ctx, f.use); changed || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %t, %v", what, changed, err)
		}
		if !accepts(first, "rowkeeper") || accepts(second, "rowkeeper") {
			t.Errorf("%s: the file before is not in effect", what)
		}
	}
	write(t, f.file.Name(), signintest.Config("other", second))
	if changed, err := f.file.Look(t.Context(), f.use); !changed || err != nil {
		t.Fatalf("a good change: %t, %v", changed, err)
	}
	if accepts(first, "rowkeeper") || accepts(second, "rowkeeper") || !accepts(second, "other") {
		t.Error("the change is not in effect")
	}
}

// TestOpen refuses files that cannot be used.
func TestOpen(t *testing.T) {
	for what, c := range map[string]struct{ content, says string }{
		"another kind": {"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n" +
			"authorizers: []\n", "AuthorizationConfiguration, and must have an"},
		"nothing": {"", "is not an AuthenticationConfiguration"},
		"plain HTTP": {"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n" +
			"jwt:\n- issuer: {url: 'http://issuer.example.com', audiences: [a]}\n" +
			"  claimMappings: {username: {claim: sub, prefix: ''}}\n", "https"},
	} {
		name := filepath.Join(t.TempDir(), "authentication.yaml")
		write(t, name, c.content)
		if f, err := Open(name); err == nil || !strings.Contains(err.Error(), c.says) ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", what, f, err)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file is accepted")
	}
}
