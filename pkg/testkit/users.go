package testkit

import (
	"context"
	"crypto/rand"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/internal/access"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// User is somebody who uses a server.
type User struct {
	Name   string
	Groups []string
	// Rules are what the user may do, in all namespaces, besides finding out what is served. They
	// are not asked if there is an [Options.Authorizer].
	Rules []rbacv1.PolicyRule
}

// ConfigFor makes a user, and returns his configuration.
func (s *Instance) ConfigFor(u User) *rest.Config {
	config := rest.CopyConfig(s.Config)
	config.BearerToken = s.users.add(u)
	return config
}

func (s *Instance) configFor(address net.Addr, token string) *rest.Config {
	identity, _ := serverIdentity() // which was made before
	return &rest.Config{
		Host:            "https://" + address.String(),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAData: identity.certPEM},
		// Tests do not wait for one another.
		QPS: -1,
	}
}

// users are known by tokens.
type users struct {
	administrator string // its token
	mu            sync.RWMutex
	byToken       map[string]*user.DefaultInfo
	rules         map[string][]rbacv1.PolicyRule // by name
}

func newUsers() *users {
	u := &users{byToken: map[string]*user.DefaultInfo{}, rules: map[string][]rbacv1.PolicyRule{}}
	u.administrator = u.add(User{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	return u
}

func (u *users) add(one User) (token string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	token = rand.Text()
	u.byToken[token] = &user.DefaultInfo{Name: one.Name, Groups: slices.Clone(one.Groups)}
	u.rules[one.Name] = append(u.rules[one.Name], one.Rules...)
	return token
}

func (u *users) authenticator() authenticator.Request {
	return group.NewAuthenticatedGroupAdder(bearertoken.New(authenticator.TokenFunc(
		func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			u.mu.RLock()
			defer u.mu.RUnlock()
			info, ok := u.byToken[token]
			if !ok {
				return nil, false, nil
			}
			return &authenticator.Response{User: info}, true, nil
		})))
}

// authorizer lets the administrator do everything, and leaves the others to the author's
// authorizer, or to their rules.
func (u *users) authorizer(own authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context,
		a authorizer.Attributes) (authorizer.Decision, string, error) {
		if slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup) {
			return authorizer.DecisionAllow, "", nil
		}
		if own != nil {
			return own.Authorize(ctx, a)
		}
		u.mu.RLock()
		defer u.mu.RUnlock()
		if isDiscovery(a) || slices.ContainsFunc(u.rules[a.GetUser().GetName()],
			func(r rbacv1.PolicyRule) bool {
				return access.Allows(r, a)
			}) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "none of the rules of the user allows it", nil
	})
}

func isDiscovery(a authorizer.Attributes) bool {
	root, _, _ := strings.Cut(strings.TrimPrefix(a.GetPath(), "/"), "/")
	return !a.IsResourceRequest() && a.GetVerb() == "get" &&
		slices.Contains([]string{"api", "apis", "openapi", "version", "healthz", "livez", "readyz"},
			root)
}

// identity is the certificate by which clients know the servers.
type identity struct {
	certPEM []byte
	content dynamiccertificates.CertKeyContentProvider
}

// serverIdentity makes the certificate, one for all servers of the process.
var serverIdentity = sync.OnceValues(func() (*identity, error) {
	now := time.Now()
	pair, err := pki.SelfSigned(pki.Server("localhost", "127.0.0.1"), now.Add(-time.Hour),
		now.AddDate(1, 0, 0))
	if err != nil {
		return nil, err
	}
	certPEM, keyPEM, err := pair.PEM()
	if err != nil {
		return nil, err
	}
	content, err := dynamiccertificates.NewStaticCertKeyContent("testkit", certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	return &identity{certPEM: certPEM, content: content}, nil
})
