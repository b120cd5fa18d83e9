package accounts

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

const issuer = "https://rowkeeper.example.com"

// keys are those of servers that have a key at a time.
type keys struct {
	mu             sync.Mutex
	stored, signer *ecdsa.PrivateKey // in the database, and as of the last round
	renewed        atomic.Int64
}

func (k *keys) Renew(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.signer = k.stored
	k.renewed.Add(1)
	return nil
}

func (k *keys) Signer(ctx context.Context) (crypto.Signer, error) {
	_ = k.Renew(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.signer, nil
}

func (k *keys) Accepted() []crypto.PublicKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []crypto.PublicKey{k.signer.Public()}
}

func (k *keys) Close() {}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (k *keys) replace(t *testing.T) {
	t.Helper()
	key := newKey(t)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stored = key
}

var robot = metav1.ObjectMeta{Namespace: "default", Name: "robot", UID: "1"}

// database has the account robot, if it is not away.
type database struct{ away atomic.Bool }

func (d *database) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if d.away.Load() {
		return nil, errors.New("the database is away")
	}
	if name != robot.Name {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), name)
	}
	return &core.ServiceAccount{ObjectMeta: robot}, nil
}

func newTokens(t *testing.T) (*Tokens, *keys, *database) {
	t.Helper()
	k, d := &keys{stored: newKey(t)}, &database{}
	tokens := New(k, []string{issuer}, []string{issuer}, nil)
	tokens.Serve(d, d)
	if err := tokens.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tokens, k, d
}

// token is one for an account of this name, by a generator.
func token(t *testing.T, by serviceaccount.TokenGenerator, name string) string {
	t.Helper()
	of := robot
	of.Name = name
	claims, private, err := serviceaccount.Claims(core.ServiceAccount{ObjectMeta: of}, nil, nil, nil,
		nil, nil, 3600, 0, []string{issuer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	made, err := by.GenerateToken(t.Context(), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// forger signs by a key of its own.
type forger struct {
	key    *ecdsa.PrivateKey
	issuer string
}

func (f forger) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	g, err := serviceaccount.JWTTokenGenerator(f.issuer, f.key)
	if err != nil {
		return "", err
	}
	return g.GenerateToken(ctx, claims, private)
}

// somebody is another authenticator, who takes whatever comes.
type somebody struct{ asked atomic.Int64 }

func (s *somebody) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	s.asked.Add(1)
	return &authenticator.Response{User: &user.DefaultInfo{Name: "somebody"}}, true, nil
}

func ask(a authenticator.Request, token string, certificate bool) (string, error) {
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	r.TLS = &tls.ConnectionState{}
	if certificate {
		r.TLS.PeerCertificates = []*x509.Certificate{{}}
	}
	found, ok, err := a.AuthenticateRequest(r)
	if !ok || err != nil {
		return "", err
	}
	return found.User.GetName(), nil
}

// TestBeside: a wrong token of ours goes to nobody else, also while the database is away. All other
// tokens do. A certificate comes first.
func TestBeside(t *testing.T) {
	tokens, _, db := newTokens(t)
	good := token(t, tokens, "robot")
	forged := token(t, forger{newKey(t), issuer}, "robot")
	others := token(t, forger{newKey(t), "https://other.example.com"}, "robot")
	other := &somebody{}
	beside := tokens.Beside(other)
	for _, c := range []struct {
		what, token, want string
		certificate, away bool
	}{
		{what: "a good token", token: good, want: "system:serviceaccount:default:robot"},
		{what: "a good token while the database is away", token: good, away: true},
		{what: "a forged token", token: forged},
		{what: "a token of an account that is gone", token: token(t, tokens, "gone")},
		{what: "another issuer's token", token: others, want: "somebody"},
		{what: "what is no token", token: "secret", want: "somebody"},
		{what: "a certificate with a good token", token: good, certificate: true, want: "somebody"},
		{what: "a certificate with a forged token", token: forged, certificate: true,
			want: "somebody"},
	} {
		db.away.Store(c.away)
		other.asked.Store(0)
		is, err := ask(beside, c.token, c.certificate)
		if is != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: the user is %q, %v", c.what, is, err)
		}
		if c.want == "" && other.asked.Load() > 0 {
			t.Errorf("%s is given to somebody else", c.what)
		}
	}
}

// TestUnknownKeys: anybody can send tokens by keys that nobody knows. A server does not look at the
// database for each, and hears of a new key nevertheless.
func TestUnknownKeys(t *testing.T) {
	tokens, k, _ := newTokens(t)
	forged := token(t, forger{newKey(t), issuer}, "robot")
	before, start := k.renewed.Load(), time.Now()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if is, _ := ask(tokens.Beside(nil), forged, false); is != "" {
					t.Errorf("a forged token is %s", is)
				}
			}
		})
	}
	wg.Wait()
	if looked, most := k.renewed.Load()-before, int64(time.Since(start)/lookAfter)+1; looked > most {
		t.Errorf("forged tokens had the server look %d times at the keys, and not %d", looked, most)
	}
	k.replace(t)
	fresh := token(t, forger{k.stored, issuer}, "robot") // by another server
	for end := time.Now().Add(time.Minute); ; {
		_, _ = ask(tokens.Beside(nil), forged, false)
		if is, _ := ask(tokens.Beside(nil), fresh, false); is != "" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the server does not hear of a new key")
		}
		<-time.After(10 * time.Millisecond)
	}
}

// TestPublish: however rounds and tokens meet, what is accepted at the end is what was read last.
func TestPublish(t *testing.T) {
	tokens, k, _ := newTokens(t)
	for range 50 {
		k.replace(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := tokens.Renew(t.Context()); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if _, err := tokens.GenerateToken(t.Context(), &jwt.Claims{},
					map[string]any{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if is := tokens.known(t.Context(), ""); len(is) != 1 || !k.stored.PublicKey.Equal(is[0].PublicKey) {
			t.Fatal("an earlier key is accepted")
		}
	}
}
