package standalone

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// ApplyTo makes the server know its clients by certificates of the authority, and allow them what
// the package documentation says.
func (p *PKI) ApplyTo(c *genericapiserver.Config) error {
	authority, err := dynamiccertificates.NewDynamicCAContentFromFile("standalone-ca",
		p.AuthorityFile())
	if err != nil {
		return fmt.Errorf("cannot use the authority's certificate: %w", err)
	}
	if err := c.Authentication.ApplyClientCert(authority, c.SecureServing); err != nil {
		return err
	}
	// Without a client for TokenReviews, certificates are the only way in.
	c.Authentication.Authenticator, _,
		err = authenticatorfactory.DelegatingAuthenticatorConfig{ClientCertificateCAContentProvider: authority}.New()
	if err != nil {
		return fmt.Errorf("cannot set up authentication: %w", err)
	}
	c.Authorization.Authorizer = authorizer.AuthorizerFunc(authorize)
	return nil
}

// authorize lets the administrator do everything, and everybody who is authenticated find out what
// the server is.
func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup):
		return authorizer.DecisionAllow, "", nil
	case !a.IsResourceRequest() && (a.GetVerb() == "get" || a.GetVerb() == "head") &&
		discovery.MatchString(a.GetPath()):
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "a standalone server gives rights to the group " +
		user.SystemPrivilegedGroup + " only", nil
}

// discovery matches the paths that tell what is served and whether it works.
var discovery = regexp.MustCompile(`^/(api|apis|openapi|version|healthz|livez|readyz)(/.*)?$`)
