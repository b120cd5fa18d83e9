package standalone

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// Policy says what users may do.
type Policy interface {
	authorizer.UnconditionalAuthorizer
	authorizer.RuleResolver
}

// ApplyTo makes the server know its clients by certificates of the authority, and of those in a
// file, if one is named. It follows changes of the file. The policy says what clients may do.
func (p *PKI) ApplyTo(c *genericapiserver.Config, others string, policy Policy) error {
	own, err := dynamiccertificates.NewDynamicCAContentFromFile("standalone-ca", p.AuthorityFile())
	if err != nil {
		return fmt.Errorf("cannot use the authority's certificate: %w", err)
	}
	authorities := dynamiccertificates.NewUnionCAContentProvider(own)
	if others != "" {
		named, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", others)
		if err != nil {
			return fmt.Errorf("cannot use the authorities of users: %w", err)
		}
		authorities = dynamiccertificates.NewUnionCAContentProvider(own, named)
	}
	if err := c.Authentication.ApplyClientCert(authorities, c.SecureServing); err != nil {
		return err
	}
	// Without a client for TokenReviews, it takes certificates alone.
	c.Authentication.Authenticator, _,
		err = authenticatorfactory.DelegatingAuthenticatorConfig{ClientCertificateCAContentProvider: authorities}.New()
	if err != nil {
		return fmt.Errorf("cannot set up authentication: %w", err)
	}
	c.Authorization.Authorizer = authorizer.AuthorizerFunc(policy.Authorize)
	c.RuleResolver = policy
	return nil
}
