package crdstest_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/internal/signingkeys"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
	"github.com/rowkeeper/rowkeeper/storage/storagetest"
)

// signers is a server, or one of two on a database, with the means to sign as it does.
type signers struct {
	*testkit.Server
	*testing.T
	kubernetes.Interface
}

func newSigners(t *testing.T, o testkit.Options) *signers {
	t.Helper()
	s := crdstest.Start(t, o)
	return &signers{s, t, kubernetes.NewForConfigOrDie(s.Config)}
}

// prefix is that of servers in these tests, which know the keys in the database.
const prefix = storage.DefaultPrefix

// keys are those in the database, at a time.
func (s *signers) keys(now time.Time) *signingkeys.Keys {
	s.Helper()
	stored := options.NewStorageOptions(prefix, nil, nil)
	keys, err := signingkeys.Open(stored, &genericapiserver.Config{}, s.Store, signingkeys.Files{},
		clocktesting.NewFakePassiveClock(now))
	if err == nil {
		err = keys.Renew(s.Context())
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(keys.Close)
	return keys
}

// deleteKeys deletes the keys in the database, and nothing else.
func (s *signers) deleteKeys() {
	s.Helper()
	if err := storagetest.Restore(s.Context(), s.Store,
		storagetest.Nothing(prefix+"/rowkeeper.dev/signing.keys")); err != nil {
		s.Fatal(err)
	}
}

// account creates an account.
func (s *signers) account(namespace, name string) *corev1.ServiceAccount {
	s.Helper()
	made, err := s.CoreV1().ServiceAccounts(namespace).Create(s.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return made
}

// token asks for a token.
func (s *signers) token(of *corev1.ServiceAccount, spec authenticationv1.TokenRequestSpec) string {
	s.Helper()
	made, err := s.CoreV1().ServiceAccounts(of.Namespace).CreateToken(s.Context(), of.Name,
		&authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return made.Status.Token
}

// code is what a request with a token is answered, to which most accounts have no right.
func (s *signers) code(token string) int {
	s.Helper()
	_, code := s.get(token, "/api/v1/namespaces/default/configmaps")
	return code
}

func (s *signers) get(token, path string) (string, int) {
	s.Helper()
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = token
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		s.Fatal(err)
	}
	answer, err := client.Get(config.Host + path)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		s.Fatal(err)
	}
	return string(body), answer.StatusCode
}

// known and refused fail the test if a token is not what they say.
func (s *signers) known(token, what string) {
	s.Helper()
	if code := s.code(token); code != http.StatusForbidden {
		s.Errorf("%s: %d", what, code)
	}
}

func (s *signers) refused(token, what string) {
	s.Helper()
	if code := s.code(token); code != http.StatusUnauthorized {
		s.Errorf("%s: %d", what, code)
	}
}

// TestTokens: a token stands for its account, with its groups, until the account, the namespace or
// what the token is bound to is gone, even if there is another one of the name.
func TestTokens(t *testing.T) {
	s := newSigners(t, testkit.Options{})
	s.ConfigFor(testkit.User{Name: "system:serviceaccount:default:reader",
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""},
			Resources: []string{"configmaps"}}}})
	if code := s.code(s.token(s.account("default", "reader"),
		authenticationv1.TokenRequestSpec{})); code != http.StatusOK {
		t.Errorf("what the account may do: %d", code)
	}
	a := s.account("default", "a")
	s.known(s.token(a, authenticationv1.TokenRequestSpec{}), "a token")

	secrets := s.CoreV1().Secrets("default")
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}}
	secret, err := secrets.Create(t.Context(), key, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bound := authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
		Kind: "Secret", APIVersion: "v1", Name: "key", UID: secret.UID}}
	token := s.token(a, bound)
	s.known(token, "a token that is bound")
	if err := secrets.Delete(t.Context(), "key", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.refused(token, "its secret is gone")
	if _, err := secrets.Create(t.Context(), key, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.refused(token, "another secret has the name")
	_, err = s.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "a",
		&authenticationv1.TokenRequest{Spec: bound}, metav1.CreateOptions{})
	if !apierrors.IsConflict(err) {
		t.Errorf("a token for the secret that was there: %v", err)
	}
	for _, kind := range []string{"Pod", "Node"} {
		_, err := s.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "a",
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: kind, APIVersion: "v1",
					Name: "key"}}}, metav1.CreateOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("a token that is bound to a %s: %v", kind, err)
		}
	}

	token = s.token(a, authenticationv1.TokenRequestSpec{})
	accounts := s.CoreV1().ServiceAccounts("default")
	if err := accounts.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.refused(token, "its account is gone")
	s.account("default", "a")
	s.refused(token, "another account has the name")

	if _, err := s.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var found *corev1.ServiceAccount
	eventually(t, "the namespace has an account", func(ctx context.Context) (bool, error) {
		found, err = s.CoreV1().ServiceAccounts("team").Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	token = s.token(found, authenticationv1.TokenRequestSpec{})
	s.known(token, "a token of the default account")
	if err := s.CoreV1().Namespaces().Delete(t.Context(), "team",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is gone", func(ctx context.Context) (bool, error) {
		_, err := s.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	s.refused(token, "its namespace is gone")
	// Nobody has to delete the account of a namespace that stays.
	if err := accounts.Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the default account comes back", func(ctx context.Context) (bool, error) {
		_, err := accounts.Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
}

// TestForgedTokens: tokens that differ from a good one in one thing are refused.
func TestForgedTokens(t *testing.T) {
	s := newSigners(t, testkit.Options{Prefix: prefix})
	a := s.account("default", "a")
	keys := s.keys(time.Now())
	signer, err := keys.Signer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	public := signer.Public().(*ecdsa.PublicKey)
	// The name of the key is as in a token of the server's.
	good, err := jwt.ParseSigned(s.token(a, authenticationv1.TokenRequestSpec{}))
	if err != nil {
		t.Fatal(err)
	}
	kid := good.Headers[0].KeyID
	claims := func(change func(map[string]any)) map[string]any {
		c := map[string]any{"iss": definitions.DefaultIssuer, "aud": []string{definitions.DefaultIssuer},
			"sub": "system:serviceaccount:default:a",
			"iat": time.Now().Unix(), "nbf": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
			"kubernetes.io": map[string]any{"namespace": "default",
				"serviceaccount": map[string]any{"name": "a", "uid": string(a.UID)}}}
		change(c)
		return c
	}
	with := func(name string, value any) map[string]any {
		return claims(func(c map[string]any) { c[name] = value })
	}
	sign := func(algorithm jose.SignatureAlgorithm, key any, kid string, c map[string]any) string {
		t.Helper()
		o := (&jose.SignerOptions{}).WithHeader("kid", kid)
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, o)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Signed(signer).Claims(c).CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	same := claims(func(map[string]any) {})
	s.known(sign(jose.ES256, signer, kid, same), "the one from which others differ")
	s.known(sign(jose.ES256, signer, "", same), "one that does not name its key")
	text := func(public crypto.PublicKey) []byte {
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := public.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	unsigned := func() string {
		parts := strings.Split(sign(jose.ES256, signer, kid, same), ".")
		return "eyJhbGciOiJub25lIn0." + parts[1] + "." // {"alg":"none"}
	}
	account := func(name, uid string) any {
		return map[string]any{"namespace": "default",
			"serviceaccount": map[string]any{"name": name, "uid": uid}}
	}
	hour := func(hours int) int64 { return time.Now().Add(time.Duration(hours) * time.Hour).Unix() }
	for what, token := range map[string]string{
		"signed by another key":                sign(jose.ES256, other, kid, same),
		"signed by a key of a name of its own": sign(jose.ES256, other, "other", same),
		"not signed":                           unsigned(),
		"a MAC by the public key's text":       sign(jose.HS256, text(public), kid, same),
		"a MAC by the public key":              sign(jose.HS256, point, kid, same),
		"expired":                              sign(jose.ES256, signer, kid, with("exp", hour(-1))),
		"not valid yet":                        sign(jose.ES256, signer, kid, with("nbf", hour(1))),
		"issued later":                         sign(jose.ES256, signer, kid, with("iat", hour(1))),
		"of another issuer":                    sign(jose.ES256, signer, kid, with("iss", "https://example.com")),
		"of the issuer of secrets":             sign(jose.ES256, signer, kid, with("iss", "kubernetes/serviceaccount")),
		"for somebody else":                    sign(jose.ES256, signer, kid, with("aud", []string{"vault"})),
		"for an account that is not there":     sign(jose.ES256, signer, kid, with("kubernetes.io", account("b", string(a.UID)))),
		"for another account of the name":      sign(jose.ES256, signer, kid, with("kubernetes.io", account("a", "other"))),
		"for nobody":                           sign(jose.ES256, signer, kid, with("kubernetes.io", account("", ""))),
		"asked for with another audience":      s.token(a, authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}),
		"good, with something after it":        sign(jose.ES256, signer, kid, same) + "x",
	} {
		s.refused(token, "a token that is "+what)
	}
}

// TestTokenLifetime: a token ends after at most a year.
func TestTokenLifetime(t *testing.T) {
	s := newSigners(t, testkit.Options{})
	a := s.account("default", "a")
	for asked, want := range map[time.Duration]time.Duration{
		10 * time.Minute: 10 * time.Minute, 24 * time.Hour: 24 * time.Hour,
		100000 * time.Hour: definitions.TokenLifetime,
	} {
		token := s.token(a, authenticationv1.TokenRequestSpec{
			ExpirationSeconds: ptr.To(int64(asked.Seconds()))})
		parsed, err := jwt.ParseSigned(token)
		if err != nil {
			t.Fatal(err)
		}
		var claims jwt.Claims
		if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil {
			t.Fatal(err)
		}
		if is := claims.Expiry.Time().Sub(claims.IssuedAt.Time()); is != want {
			t.Errorf("a token that was asked for %s is valid for %s", asked, is)
		}
	}
}

// replicas are two servers on a database.
func replicas(t *testing.T) (one, other *signers) {
	t.Helper()
	o := testkit.Options{Prefix: prefix, Database: testkit.Database{Driver: sqlite.Driver,
		URL: "sqlite://" + filepath.ToSlash(filepath.Join(t.TempDir(), "state.db"))}}
	return newSigners(t, o), newSigners(t, o)
}

// TestTokensOfReplicas: a token of one server is accepted by another at once, and a deletion at one
// holds at the other at once. So it is if the keys were deleted, which ends all tokens.
func TestTokensOfReplicas(t *testing.T) {
	one, other := replicas(t)
	a := one.account("default", "a")
	var last string
	for range 3 {
		for _, from := range []*signers{one, other} {
			last = from.token(a, authenticationv1.TokenRequestSpec{})
			one.known(last, "at one server")
			other.known(last, "at the other")
		}
		if err := other.CoreV1().ServiceAccounts("default").Delete(t.Context(), "a",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		one.refused(last, "at one server, after the account was deleted at the other")
		other.refused(last, "at the other, which has deleted the account")
		a = one.account("default", "a")
	}
	before := one.token(a, authenticationv1.TokenRequestSpec{})
	one.deleteKeys()
	last = other.token(a, authenticationv1.TokenRequestSpec{})
	other.known(last, "a token by new keys")
	one.known(last, "a token by keys that the server has not heard of")
	one.refused(before, "a token by keys that were deleted")
	other.refused(before, "a token by keys that were deleted")
}

// TestRotatedKeys: a key is published for a day before it signs, and accepted until its last token
// has ended, by servers that hear of it as they go on.
func TestRotatedKeys(t *testing.T) {
	one, other := replicas(t)
	a := one.account("default", "a")
	kid := func(token string) string {
		parsed, err := jwt.ParseSigned(token)
		if err != nil {
			t.Fatal(err)
		}
		return parsed.Headers[0].KeyID
	}
	published := func(s *signers) map[string]bool {
		t.Helper()
		body, code := s.get(s.Config.BearerToken, "/openid/v1/jwks")
		var set jose.JSONWebKeySet
		if err := json.Unmarshal([]byte(body), &set); err != nil || code != http.StatusOK {
			t.Fatal(code, err, body)
		}
		ids := map[string]bool{}
		for _, key := range set.Keys {
			if !key.Valid() || !key.IsPublic() {
				t.Errorf("a key is published that is none, or private")
			}
			ids[key.KeyID] = true
		}
		return ids
	}
	// As if the servers had begun to sign nine months ago, and had made the next key two days ago.
	one.deleteKeys()
	one.keys(time.Now().Add(-definitions.TokenLifetime * 3 / 4))
	renewing := one.keys(time.Now().Add(-48 * time.Hour))
	signer, err := renewing.Signer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(definitions.DefaultIssuer, signer)
	if err != nil {
		t.Fatal(err)
	}
	claims, private, err := serviceaccount.Claims(core.ServiceAccount{ObjectMeta: a.ObjectMeta}, nil,
		nil, nil, nil, nil, 3600, 0, []string{definitions.DefaultIssuer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	first, err := generator.GenerateToken(t.Context(), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	second := one.token(a, authenticationv1.TokenRequestSpec{})
	if kid(first) == kid(second) {
		t.Error("a key that was published for a day does not sign")
	}
	// A server whose clock says that it is time makes the next key, which signs tomorrow.
	one.keys(time.Now().Add(definitions.TokenLifetime * 3 / 4))
	third := other.token(a, authenticationv1.TokenRequestSpec{})
	if kid(second) != kid(third) {
		t.Error("a key signs that has just been made")
	}
	for _, s := range []*signers{one, other} {
		s.known(first, "a token by the key before")
		s.known(second, "a token by the key that signs")
		s.known(third, "another token by the key that signs")
	}
	if ids := published(other); len(ids) != 3 || !ids[kid(first)] || !ids[kid(second)] {
		t.Errorf("these are published: %v", slices.Collect(maps.Keys(ids)))
	}
}

// TestDiscovery: the keys are published as OpenID Connect has it, and anonymous users are not told.
func TestDiscovery(t *testing.T) {
	s := newSigners(t, testkit.Options{})
	body, code := s.get(s.Config.BearerToken, "/.well-known/openid-configuration")
	var config struct {
		Issuer string `json:"issuer"`
		JWKS   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal([]byte(body), &config); err != nil || code != http.StatusOK ||
		config.Issuer != definitions.DefaultIssuer || config.JWKS != s.Config.Host+"/openid/v1/jwks" {
		t.Errorf("the configuration is %s, %d, %v", body, code, err)
	}
	for _, path := range []string{"/.well-known/openid-configuration", "/openid/v1/jwks"} {
		if _, code := s.get("", path); code != http.StatusUnauthorized && code != http.StatusForbidden {
			t.Errorf("%s for anybody: %d", path, code)
		}
	}
}

// TestRollbackOfTokens: a rollback ends the tokens of accounts that come after the snapshot, and no
// other, whenever they were made. The default accounts are there, and stay the same.
func TestRollbackOfTokens(t *testing.T) {
	s := newSigners(t, testkit.Options{})
	before := s.account("default", "before")
	early := s.token(before, authenticationv1.TokenRequestSpec{})
	is, err := s.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	snapshot := s.Snapshot()
	for range 3 {
		late := s.token(before, authenticationv1.TokenRequestSpec{})
		gone := s.token(s.account("default", "after"), authenticationv1.TokenRequestSpec{})
		for _, name := range []string{"before", "default"} {
			if err := s.CoreV1().ServiceAccounts("default").Delete(t.Context(), name,
				metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.refused(early, "the account was deleted")
		s.Rollback(snapshot)
		s.known(early, "a token from before the snapshot")
		s.known(late, "a token from after it, of an account from before")
		s.refused(gone, "a token of an account from after it")
		now, err := s.CoreV1().ServiceAccounts("default").Get(t.Context(), "default",
			metav1.GetOptions{})
		if err != nil || now.UID != is.UID {
			t.Errorf("the default account was %s, and is %+v, %v", is.UID, now, err)
		}
	}
	eventually(t, "no account is left of a namespace that was not there",
		func(ctx context.Context) (bool, error) {
			list, err := s.CoreV1().ServiceAccounts("team").List(ctx, metav1.ListOptions{})
			return err == nil && len(list.Items) == 0, err
		})
}
