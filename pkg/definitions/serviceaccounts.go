package definitions

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/internal/signingkeys"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// DefaultIssuer is whom tokens name as their issuer, as in many clusters.
const DefaultIssuer = "https://kubernetes.default.svc"

// TokenLifetime is how long the token of a service account is valid at most.
const TokenLifetime = pki.TokenLifetime

// ServiceAccounts says how the tokens of service accounts are signed. It must be the same in all
// servers of a database. By the zero value, the servers make the keys themselves, keep them in the
// database, and replace them.
type ServiceAccounts struct {
	// Issuers are whom tokens name: new ones the first, and tokens of all are accepted. They become
	// the audiences of a configuration that has none. Default: [DefaultIssuer].
	Issuers []string
	// SigningKeyFile has a private key that signs tokens, in place of those of the servers.
	SigningKeyFile string
	// KeyFiles have further keys, public or private ones, by which tokens are accepted.
	KeyFiles []string
}

// WithDefaults returns s with the defaults of what is not set.
func (s ServiceAccounts) WithDefaults() ServiceAccounts {
	if len(s.Issuers) == 0 {
		s.Issuers = []string{DefaultIssuer}
	}
	return s
}

// Validate tells what is wrong with the issuers, as kube-apiserver does.
func (s ServiceAccounts) Validate() error {
	var errs []error
	for i, issuer := range s.Issuers {
		_, err := url.Parse(issuer)
		switch {
		case issuer == "":
			errs = append(errs, errors.New("an issuer of service accounts has no name"))
		case strings.Contains(issuer, ":") && err != nil:
			errs = append(errs, fmt.Errorf("the issuer %q of service accounts has a ':', and is not "+
				"a URL: %w", issuer, err))
		case slices.Contains(s.Issuers[:i], issuer):
			errs = append(errs, fmt.Errorf("the issuer %q of service accounts is there twice",
				issuer))
		}
	}
	return errors.Join(errs...)
}

// SigningKeys are the keys by which the tokens of service accounts are signed.
type SigningKeys interface {
	// Renew learns what other servers have made, and makes and drops keys where it is time for
	// that. It is called before the first of the others, again and again, and when a token names a
	// key that is not known.
	Renew(context.Context) error
	// Signer returns the key that signs a token now.
	Signer(context.Context) (crypto.Signer, error)
	// Accepted returns the keys by which tokens are accepted.
	Accepted() []crypto.PublicKey
	// Close is called when the server has ended.
	Close()
}

// SigningKeys returns the keys that the options describe. The storage was applied to the
// configuration.
func (o Options) SigningKeys(c *genericapiserver.Config) (SigningKeys, error) {
	return signingkeys.Open(o.Storage, c, o.Store, signingkeys.Files{
		Signing: o.ServiceAccounts.SigningKeyFile, Accepted: o.ServiceAccounts.KeyFiles,
	}, clock.RealClock{})
}
