package standalone

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	authorityLifetime   = 10 * 365 * 24 * time.Hour
	certificateLifetime = 365 * 24 * time.Hour
	// backdate makes a new certificate valid for clients whose clock is behind.
	backdate = 5 * time.Minute
	// AdminUser is the user that the administrator's certificate names.
	AdminUser = "admin"
)

// PKI is the authority in a data directory, the serving certificate and the administrator's certificate.
type PKI struct {
	dir   *Dir
	names Names
	clock clock.WithTicker
}

// Names are what the serving certificate is for.
type Names struct {
	DNS []string
	IPs []net.IP
}

// NewPKI returns the PKI of a directory. Nothing exists before Ensure was called.
func NewPKI(dir *Dir, names Names, clock clock.WithTicker) *PKI {
	return &PKI{dir: dir, names: names, clock: clock}
}

// The files. The authority's file holds the current certificate first, and after it those that it replaced and that are still valid.
func (p *PKI) AuthorityFile() string { return p.dir.Path("pki", "ca.crt") }
func (p *PKI) ServingCert() string   { return p.dir.Path("pki", "serving.crt") }
func (p *PKI) ServingKey() string    { return p.dir.Path("pki", "serving.key") }
func (p *PKI) AdminCert() string     { return p.dir.Path("pki", "admin.crt") }
func (p *PKI) AdminKey() string      { return p.dir.Path("pki", "admin.key") }
func (p *PKI) authorityKey() string  { return p.dir.Path("pki", "ca.key") }

// Ensure makes what is missing, what has come into the last third of its lifetime, and what does not fit: a serving certificate for other names, or a certificate of
// another authority. It tells whether it has made anything. Files that are there and cannot be read are an error, never replaced.
func (p *PKI) Ensure() (changed bool, err error) {
	authority, key, fresh, err := p.ensureAuthority()
	if err != nil {
		return false, err
	}
	serving, err := p.ensureCertificate(authority, key, p.ServingCert(), p.ServingKey(), &x509.Certificate{
		Subject:     pkix.Name{CommonName: "rowkeeper"},
		DNSNames:    p.names.DNS,
		IPAddresses: p.names.IPs,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return false, err
	}
	admin, err := p.ensureCertificate(authority, key, p.AdminCert(), p.AdminKey(), &x509.Certificate{
		Subject:     pkix.Name{CommonName: AdminUser, Organization: []string{user.SystemPrivilegedGroup}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return fresh || serving || admin, err
}

// Renew calls Ensure once an hour until ctx ends, and renewed after something was made. The server reloads the files by itself.
func (p *PKI) Renew(ctx context.Context, renewed func() error) {
	ticker := p.clock.NewTicker(time.Hour)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		changed, err := p.Ensure()
		if err == nil && changed {
			err = renewed()
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot renew the certificates; trying again in an hour")
		}
	}
}

func (p *PKI) ensureAuthority() (authority *x509.Certificate, key crypto.Signer, fresh bool, err error) {
	bundle, key, err := readPair(p.AuthorityFile(), p.authorityKey())
	if err != nil {
		return nil, nil, false, err
	}
	now := p.clock.Now()
	if len(bundle) > 0 && !p.old(bundle[0]) {
		return bundle[0], key, false, nil
	}
	if key, err = newKey(); err != nil {
		return nil, nil, false, err
	}
	template := &x509.Certificate{
		// The name has the time, so that an authority and the one that replaces it can be told apart.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("rowkeeper-ca@%d", now.Unix())},
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	authority, err = p.sign(template, template, key, key)
	if err != nil {
		return nil, nil, false, err
	}
	certs := []*x509.Certificate{authority}
	for _, c := range bundle {
		if now.Before(c.NotAfter) {
			certs = append(certs, c)
		}
	}
	return authority, key, true, writePair(p.AuthorityFile(), p.authorityKey(), certs, key)
}

func (p *PKI) ensureCertificate(authority *x509.Certificate, authorityKey crypto.Signer, certFile, keyFile string, template *x509.Certificate) (fresh bool, err error) {
	certs, _, err := readPair(certFile, keyFile)
	if err != nil {
		return false, err
	}
	if len(certs) > 0 {
		c := certs[0]
		if !p.old(c) && c.CheckSignatureFrom(authority) == nil && sameNames(c, template) {
			return false, nil
		}
	}
	key, err := newKey()
	if err != nil {
		return false, err
	}
	template.NotAfter = p.clock.Now().Add(certificateLifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	c, err := p.sign(template, authority, key, authorityKey)
	if err != nil {
		return false, err
	}
	return true, writePair(certFile, keyFile, []*x509.Certificate{c}, key)
}

// old tells whether a certificate is in the last third of its lifetime.
func (p *PKI) old(c *x509.Certificate) bool {
	return p.clock.Now().After(c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3))
}

func sameNames(c, wanted *x509.Certificate) bool {
	return slices.Equal(c.DNSNames, wanted.DNSNames) && slices.EqualFunc(c.IPAddresses, wanted.IPAddresses, net.IP.Equal)
}

func (p *PKI) sign(template, parent *x509.Certificate, key, parentKey crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore = p.clock.Now().Add(-backdate)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func newKey() (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a private key: %w", err)
	}
	return key, nil
}

// readPair reads certificates and the private key of the first of them. It returns none if neither file exists.
func readPair(certFile, keyFile string) ([]*x509.Certificate, crypto.Signer, error) {
	certPEM, certErr := os.ReadFile(certFile)
	keyPEM, keyErr := os.ReadFile(keyFile)
	if errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist) {
		return nil, nil, nil
	}
	unusable := func(file string, err error) error {
		return fmt.Errorf("cannot use %s: %w; mend it, or remove both %s and %s to have new ones made", file, err, certFile, keyFile)
	}
	if certErr != nil {
		return nil, nil, unusable(certFile, certErr)
	}
	if keyErr != nil {
		return nil, nil, unusable(keyFile, keyErr)
	}
	certs, err := cert.ParseCertsPEM(certPEM)
	if err != nil {
		return nil, nil, unusable(certFile, err)
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil, nil, unusable(keyFile, err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, nil, unusable(keyFile, errors.New("it is not a private key that can sign"))
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(certs[0].PublicKey) {
		return nil, nil, unusable(keyFile, errors.New("it does not belong to the certificate"))
	}
	return certs, key, nil
}

func writePair(certFile, keyFile string, certs []*x509.Certificate, key crypto.Signer) error {
	certPEM, err := cert.EncodeCertificates(certs...)
	if err != nil {
		return fmt.Errorf("cannot encode a certificate: %w", err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("cannot encode a private key: %w", err)
	}
	if err := errors.Join(writeFile(keyFile, keyPEM, 0o600), writeFile(certFile, certPEM, 0o644)); err != nil {
		return fmt.Errorf("cannot store a certificate: %w", err)
	}
	return nil
}
