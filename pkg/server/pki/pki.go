// Package pki is for server programs. It keeps an authority and the certificates that it signs in
// files, and renews them before they expire.
//
// Everything can be asked for again and again: what exists and fits is left alone. Several processes must not do so at the same time.
package pki

import (
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
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"
)

const (
	// AuthorityLifetime is how long an authority is valid.
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	// CertificateLifetime is how long a certificate is valid.
	CertificateLifetime = 365 * 24 * time.Hour
	// backdate makes a new certificate valid for clients whose clock is behind.
	backdate = 5 * time.Minute
)

// Authority signs certificates.
type Authority struct {
	cert  *x509.Certificate
	key   crypto.Signer
	clock clock.PassiveClock
}

// Certificate says what a certificate is for, and where it is kept.
type Certificate struct {
	CertFile, KeyFile string
	// Subject is whom it names, DNS and IPs are the names and addresses of a server.
	Subject pkix.Name
	DNS     []string
	IPs     []net.IP
	Usage   x509.ExtKeyUsage
}

// EnsureAuthority returns the authority of the files. It makes one if the files do not exist, or the authority has come into the last third of its lifetime;
// fresh tells so. The file of certificates has the current one first, and after it those that it replaced and that are still valid, so that
// whoever trusts the file trusts what they have signed, too. Files that are there and cannot be read are an error, never replaced.
func EnsureAuthority(certFile, keyFile string, clock clock.PassiveClock) (a *Authority, fresh bool, err error) {
	bundle, key, err := readPair(certFile, keyFile)
	if err != nil {
		return nil, false, err
	}
	now := clock.Now()
	if len(bundle) > 0 && !old(bundle[0], now) {
		return &Authority{cert: bundle[0], key: key, clock: clock}, false, nil
	}
	a = &Authority{clock: clock}
	if a.key, err = newKey(); err != nil {
		return nil, false, err
	}
	template := &x509.Certificate{
		// The name has the time, so that an authority and the one that replaces it can be told apart.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("rowkeeper-ca@%d", now.Unix())},
		NotAfter:              now.Add(AuthorityLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	if a.cert, err = sign(template, template, a.key, a.key, now); err != nil {
		return nil, false, err
	}
	certs := []*x509.Certificate{a.cert}
	for _, c := range bundle {
		if now.Before(c.NotAfter) {
			certs = append(certs, c)
		}
	}
	return a, true, writePair(certFile, keyFile, certs, a.key)
}

// Ensure makes a certificate if its files do not exist, if it has come into the last third of its lifetime, or if it does not fit: if it is for other
// names, or of another authority; fresh tells so. Files that are there and cannot be read are an error, never replaced.
func (a *Authority) Ensure(wanted Certificate) (fresh bool, err error) {
	certs, _, err := readPair(wanted.CertFile, wanted.KeyFile)
	if err != nil {
		return false, err
	}
	if len(certs) > 0 && !old(certs[0], a.clock.Now()) && certs[0].CheckSignatureFrom(a.cert) == nil && wanted.fits(certs[0]) {
		return false, nil
	}
	return true, a.Issue(wanted)
}

// Issue makes a certificate, and replaces the one in the files, if there is one.
func (a *Authority) Issue(wanted Certificate) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	now := a.clock.Now()
	c, err := sign(&x509.Certificate{
		Subject:     wanted.Subject,
		DNSNames:    wanted.DNS,
		IPAddresses: wanted.IPs,
		NotAfter:    now.Add(CertificateLifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{wanted.Usage},
	}, a.cert, key, a.key, now)
	if err != nil {
		return err
	}
	return writePair(wanted.CertFile, wanted.KeyFile, []*x509.Certificate{c}, key)
}

// fits tells whether a certificate is for the wanted names.
func (w Certificate) fits(c *x509.Certificate) bool {
	return slices.Equal(c.DNSNames, w.DNS) && slices.EqualFunc(c.IPAddresses, w.IPs, net.IP.Equal)
}

// RenewAt is when a certificate comes into the last third of its lifetime.
func RenewAt(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

func old(c *x509.Certificate, now time.Time) bool { return now.After(RenewAt(c)) }

func sign(template, parent *x509.Certificate, key, parentKey crypto.Signer, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore = now.Add(-backdate)
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

// readPair reads certificates and the private key of the first of them. It returns none if neither
// file exists. If writePair was interrupted, it finishes that work first.
func readPair(certFile, keyFile string) ([]*x509.Certificate, crypto.Signer, error) {
	if err := replacePair(certFile, keyFile); err != nil {
		return nil, nil, fmt.Errorf("cannot finish storing a certificate: %w", err)
	}
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

// next is the end of the names of a pair's files until both are written.
const next = ".next"

// writePair stores a pair, so that an interruption at any time leaves the old pair or the new one.
// It writes both files under other names, the certificate last: once that file exists, the new pair
// is complete, and replacePair needs no more than these files to put it in place.
func writePair(certFile, keyFile string, certs []*x509.Certificate, key crypto.Signer) error {
	certPEM, err := cert.EncodeCertificates(certs...)
	if err != nil {
		return fmt.Errorf("cannot encode a certificate: %w", err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("cannot encode a private key: %w", err)
	}
	for _, step := range []func() error{
		// An earlier pair may be complete and not in place. Its certificate does not fit the new key.
		func() error { return ignoreMissing(os.Remove(certFile + next)) },
		func() error { return WriteFile(keyFile+next, keyPEM, 0o600) },
		func() error { return WriteFile(certFile+next, certPEM, 0o644) },
		func() error { return replacePair(certFile, keyFile) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("cannot store a certificate: %w", err)
		}
	}
	return nil
}

// replacePair puts a pair in place that writePair completed, if there is one. It can be repeated
// after an interruption: the key may be in place already, the certificate comes last.
func replacePair(certFile, keyFile string) error {
	if _, err := os.Stat(certFile + next); err != nil {
		return ignoreMissing(err)
	}
	if err := ignoreMissing(os.Rename(keyFile+next, keyFile)); err != nil {
		return err
	}
	return os.Rename(certFile+next, certFile)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// WriteFile replaces a file by another content at once, so that a reader sees the old or the new one. It makes the directory, for its owner only, if there is none.
func WriteFile(name string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	if _, err := temp.Write(content); err != nil {
		temp.Close()
		return err
	}
	if err := errors.Join(temp.Chmod(mode), temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), name)
}
