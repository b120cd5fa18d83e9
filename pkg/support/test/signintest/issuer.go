// Package signintest has an issuer of tokens for tests.
package signintest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Issuer signs tokens, and publishes its key as OpenID Connect says.
type Issuer struct {
	*httptest.Server
	Key *rsa.PrivateKey
}

// New starts an issuer, for as long as the test runs.
func New(t *testing.T) *Issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &Issuer{Key: key}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch r.URL.Path {
			case "/.well-known/openid-configuration":
				_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL,
					"jwks_uri": i.URL + "/keys"})
			case "/keys":
				_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]string{
					"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1",
					"n": encode(key.N.Bytes()),
					"e": encode(big.NewInt(int64(key.E)).Bytes())}}})
			default:
				http.NotFound(w, r)
			}
		}))
	t.Cleanup(i.Close)
	return i
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Token is one for jane in the group dev, with the given claims in place of the usual ones.
func (i *Issuer) Token(t *testing.T, other map[string]any) string {
	t.Helper()
	claims := map[string]any{"iss": i.URL, "aud": "rowkeeper", "sub": "1", "email": "jane@example.com",
		"email_verified": true, "groups": []string{"dev"},
		"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	maps.Copy(claims, other)
	content, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed := encode([]byte(`{"alg":"RS256","kid":"1"}`)) + "." + encode(content)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.Key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + encode(signature)
}

// Config takes tokens of the issuers for an audience. Users and groups get the prefix "oidc:".
func Config(audience string, issuers ...*Issuer) string {
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n"
	for _, i := range issuers {
		ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
		text += fmt.Sprintf(`- issuer:
    url: %s
    audiences: [%s]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: email, prefix: "oidc:"}
    groups: {claim: groups, prefix: "oidc:"}
`, i.URL, audience, strings.ReplaceAll(strings.TrimSpace(ca), "\n", "\n      "))
	}
	return text
}
