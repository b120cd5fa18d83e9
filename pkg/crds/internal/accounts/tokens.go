package accounts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/rowkeeper/rowkeeper/pkg/definitions"
)

const (
	// renewEvery is the time between two looks at the keys, and lookAfter that before a token which
	// names an unknown key is a reason for another look. Anybody can send such a token.
	renewEvery = time.Minute
	lookAfter  = time.Second
)

// Tokens makes and checks the tokens of service accounts.
type Tokens struct {
	keys      definitions.SigningKeys
	issuers   []string
	audiences authenticator.Audiences
	webhooks  admissionclient.AdmissionregistrationV1Interface

	// accounts and secrets read what is stored. They are set before anything is served.
	accounts, secrets rest.Getter

	public atomic.Pointer[serviceaccount.PublicKeysGetter] // nil before the first look

	mu     sync.Mutex
	looked time.Time

	publishing sync.Mutex
}

var (
	_ serviceaccount.TokenGenerator            = &Tokens{}
	_ serviceaccount.PublicKeysGetter          = &Tokens{}
	_ serviceaccount.ServiceAccountTokenGetter = &Tokens{}
)

// New returns the tokens of issuers: the first is in new ones, and those of all are accepted, if
// they are for one of the audiences. The client reads the configurations of webhooks.
func New(keys definitions.SigningKeys, issuers []string, audiences authenticator.Audiences,
	client admissionclient.AdmissionregistrationV1Interface) *Tokens {
	return &Tokens{keys: keys, issuers: issuers, audiences: audiences, webhooks: client}
}

// Serve is called before anything is served. The getters must read what is stored at the time.
func (t *Tokens) Serve(accounts, secrets rest.Getter) { t.accounts, t.secrets = accounts, secrets }

// Renew looks at the keys.
func (t *Tokens) Renew(ctx context.Context) error {
	if err := t.keys.Renew(ctx); err != nil {
		return err
	}
	return t.publish()
}

// publish accepts tokens by the keys from now on. Whoever publishes later has read later.
func (t *Tokens) publish() error {
	t.publishing.Lock()
	defer t.publishing.Unlock()
	var keys []any
	for _, key := range t.keys.Accepted() {
		keys = append(keys, key)
	}
	public, err := serviceaccount.StaticPublicKeysGetter(keys)
	if err != nil {
		return fmt.Errorf("cannot check tokens of service accounts: %w", err)
	}
	t.public.Store(&public)
	return nil
}

// Check tells whether the keys are known, and is called by readiness checks.
func (t *Tokens) Check(*http.Request) error {
	if t.public.Load() == nil {
		return errors.New("the keys of service accounts have not been read yet; the log says why")
	}
	return nil
}

// Run looks at the keys at once, and again and again until the context ends.
func (t *Tokens) Run(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true,
		func(ctx context.Context) (bool, error) {
			return t.renewOrSay(ctx), nil
		}) // it ends with the context
	wait.UntilWithContext(ctx, func(ctx context.Context) { t.renewOrSay(ctx) }, renewEvery)
}

func (t *Tokens) renewOrSay(ctx context.Context) bool {
	err := t.Renew(ctx)
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Trying again to look after the keys of service accounts")
	}
	return err == nil
}

// CheckSigner tells whether the key that signs can do so.
func (t *Tokens) CheckSigner(ctx context.Context) error {
	key, err := t.keys.Signer(ctx)
	if err == nil {
		_, err = serviceaccount.JWTTokenGenerator(t.issuers[0], key)
	}
	return err
}

// GenerateToken implements serviceaccount.TokenGenerator.
func (t *Tokens) GenerateToken(ctx context.Context, claims *jwt.Claims,
	private any) (string, error) {
	key, err := t.keys.Signer(ctx)
	if err != nil {
		return "", err
	}
	if err := t.publish(); err != nil { // others may have been made
		return "", err
	}
	generator, err := serviceaccount.JWTTokenGenerator(t.issuers[0], key)
	if err != nil {
		return "", err
	}
	return generator.GenerateToken(ctx, claims, private)
}

// AddListener implements serviceaccount.PublicKeysGetter. Whoever needs the keys asks for them each
// time, so nobody has to hear of others.
func (t *Tokens) AddListener(serviceaccount.Listener) {}

// GetCacheAgeMaxSeconds implements serviceaccount.PublicKeysGetter.
func (t *Tokens) GetCacheAgeMaxSeconds() int { return int(time.Hour / time.Second) }

// GetPublicKeys implements serviceaccount.PublicKeysGetter.
func (t *Tokens) GetPublicKeys(ctx context.Context, id string) []serviceaccount.PublicKey {
	known := t.known(ctx, id)
	if len(known) > 0 || id == "" || !t.mayLook() {
		return known
	}
	t.renewOrSay(ctx)
	return t.known(ctx, id)
}

func (t *Tokens) known(ctx context.Context, id string) []serviceaccount.PublicKey {
	public := t.public.Load()
	if public == nil {
		return nil
	}
	return (*public).GetPublicKeys(ctx, id)
}

// mayLook tells whether an unknown key is a reason to look.
func (t *Tokens) mayLook() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.looked) < lookAfter {
		return false
	}
	t.looked = time.Now()
	return true
}

// Beside takes the tokens of accounts besides what other knows.
func (t *Tokens) Beside(other authenticator.Request) authenticator.Request {
	own := group.NewAuthenticatedGroupAdder(authenticator.RequestFunc(t.authenticate))
	if other == nil {
		return own
	}
	return authenticator.RequestFunc(
		func(r *http.Request) (*authenticator.Response, bool, error) {
			if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
				if found, ok, err := other.AuthenticateRequest(r); ok && err == nil &&
					found.User.GetName() != user.Anonymous {
					return found, true, nil
				}
			}
			if found, ok, err := own.AuthenticateRequest(r); ok || err != nil {
				return found, ok, err
			}
			return other.AuthenticateRequest(r)
		})
}

// authenticate takes a request with a token that names one of the issuers. It neither knows nor
// refuses others.
func (t *Tokens) authenticate(r *http.Request) (*authenticator.Response, bool, error) {
	tokens := serviceaccount.JWTTokenAuthenticator(t.issuers, t, t.audiences,
		serviceaccount.NewValidator(t))
	ours := false
	seen := authenticator.TokenFunc(
		func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			found, ok, err := tokens.AuthenticateToken(ctx, token)
			ours = ok || err != nil
			return found, ok, err
		})
	for _, where := range []authenticator.Request{bearertoken.New(seen),
		websocket.NewProtocolAuthenticator(seen)} {
		if found, ok, err := where.AuthenticateRequest(r); ours {
			return found, ok, err
		}
	}
	return nil, false, nil
}

// GetServiceAccount implements serviceaccount.ServiceAccountTokenGetter, as do the others below. Of
// objects they return the metadata alone.
func (t *Tokens) GetServiceAccount(ctx context.Context, namespace,
	name string) (*corev1.ServiceAccount, error) {
	m, err := stored(ctx, t.accounts, namespace, name)
	return &corev1.ServiceAccount{ObjectMeta: m}, err
}

func (t *Tokens) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	m, err := stored(ctx, t.secrets, namespace, name)
	return &corev1.Secret{ObjectMeta: m}, err
}

// stored reads what says which object one is.
func stored(ctx context.Context, from rest.Getter, namespace,
	name string) (metav1.ObjectMeta, error) {
	obj, err := from.Get(request.WithNamespace(ctx, namespace), name, &metav1.GetOptions{})
	if err != nil {
		return metav1.ObjectMeta{}, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return metav1.ObjectMeta{}, err
	}
	return metav1.ObjectMeta{Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUID(),
		DeletionTimestamp: m.GetDeletionTimestamp()}, nil
}

func (t *Tokens) GetPod(_ context.Context, _, name string) (*corev1.Pod, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
}

func (t *Tokens) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

func (t *Tokens) GetValidatingWebhookConfiguration(ctx context.Context,
	name string) (*admissionv1.ValidatingWebhookConfiguration, error) {
	return t.webhooks.ValidatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
}

func (t *Tokens) GetMutatingWebhookConfiguration(ctx context.Context,
	name string) (*admissionv1.MutatingWebhookConfiguration, error) {
	return t.webhooks.MutatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
}
