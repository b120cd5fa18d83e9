package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Chain is a certificate with its private key, as it is kept. The first of the certificates is the
// current one. After an authority come its predecessors that are still valid, so that a client that
// trusts the certificates trusts what they have signed, too. The zero Chain has nothing.
type Chain struct {
	Certs []*x509.Certificate
	Key   crypto.Signer
}

// ParseChain reads certificates, and the private key of the first of them. The names say in errors
// where these are from.
func ParseChain(certName string, certPEM []byte, keyName string, keyPEM []byte) (Chain, error) {
	certs, err := cert.ParseCertsPEM(certPEM)
	if err != nil {
		return Chain{}, unusable(certName, err)
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return Chain{}, unusable(keyName, err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return Chain{}, unusable(keyName, errors.New("it is not a private key that can sign"))
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(certs[0].PublicKey) {
		return Chain{}, unusable(keyName, errors.New("it does not belong to the certificate"))
	}
	return Chain{Certs: certs, Key: key}, nil
}

func unusable(name string, err error) error { return fmt.Errorf("cannot use %s: %w", name, err) }

// PEM returns the certificates and the private key as text.
func (c Chain) PEM() (certPEM, keyPEM []byte, err error) {
	if certPEM, err = cert.EncodeCertificates(c.Certs...); err != nil {
		return nil, nil, fmt.Errorf("cannot encode a certificate: %w", err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(c.Key); err != nil {
		return nil, nil, fmt.Errorf("cannot encode a private key: %w", err)
	}
	return certPEM, keyPEM, nil
}

// Issue makes a certificate, which is valid for a lifetime from now on.
func (p *Pair) Issue(t Template, now time.Time, lifetime time.Duration) (*Pair, error) {
	return p.Sign(t, now.Add(-Backdate), now.Add(lifetime))
}

// Trusted tells whether the current certificate is for what is wanted and valid, and whether one of
// the authorities has signed it.
func (c Chain) Trusted(wanted Template, authorities Chain, now time.Time) bool {
	return len(c.Certs) > 0 && !now.Before(c.Certs[0].NotBefore) &&
		now.Before(c.Certs[0].NotAfter) && wanted.fits(c.Certs[0]) &&
		slices.ContainsFunc(authorities.Certs, func(a *x509.Certificate) bool {
			return now.Before(a.NotAfter) && c.Certs[0].CheckSignatureFrom(a) == nil
		})
}

// Pair is the current certificate with its key.
func (c Chain) Pair() *Pair { return &Pair{Cert: c.Certs[0], Key: c.Key} }

// authorityName begins the names of authorities.
const authorityName = "rowkeeper-ca@"

// Foreign tells whether there is a certificate that was neither made by an authority of ours, nor
// signed by one of the authorities of another file. What cannot be read is told when it is used.
func Foreign(certFile, authorityFile string) bool {
	certs, err := cert.CertsFromFile(certFile)
	if err != nil || strings.HasPrefix(certs[0].Issuer.CommonName, authorityName) {
		return false
	}
	authorities, _ := cert.CertsFromFile(authorityFile)
	return !slices.ContainsFunc(authorities, func(a *x509.Certificate) bool {
		return certs[0].CheckSignatureFrom(a) == nil
	})
}

// Authority returns the chain of an authority. It is c, unless c has no key, is not valid yet, or
// has come into the last third of its lifetime: then a new authority comes first, and fresh is
// true.
func (c Chain) Authority(now time.Time, lifetime time.Duration) (chain Chain, fresh bool,
	err error) {
	if c.Key != nil && good(c.Certs[0], now) {
		return c, false, nil
	}
	// The name has the time, so that an authority and the one that replaces it can be told apart.
	pair, err := NewAuthority(fmt.Sprintf("%s%d", authorityName, now.UnixNano()),
		now.Add(-Backdate), now.Add(lifetime))
	if err != nil {
		return Chain{}, false, err
	}
	chain = pair.Chain()
	for _, before := range c.Certs {
		if now.Before(before.NotAfter) {
			chain.Certs = append(chain.Certs, before)
		}
	}
	return chain, true, nil
}

// Serves tells whether the current certificate is for what is wanted, of the authority, valid, and
// not in the last third of its lifetime.
func (c Chain) Serves(wanted Template, authority *Pair, now time.Time) bool {
	return len(c.Certs) > 0 && good(c.Certs[0], now) && wanted.fits(c.Certs[0]) &&
		c.Certs[0].CheckSignatureFrom(authority.Cert) == nil
}
