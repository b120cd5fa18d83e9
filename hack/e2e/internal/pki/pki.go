// Package pki makes the certificates of a cluster for tests.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Pair is a certificate and its private key.
type Pair struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// NewAuthority makes an authority.
func NewAuthority(name string) (*Pair, error) {
	return issue(nil, &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	})
}

// Server issues a serving certificate. Names may be IP addresses.
func (a *Pair) Server(names ...string) (*Pair, error) {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: names[0]}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return issue(a, template)
}

// Client issues a certificate for a user. One of a nil authority is signed by itself.
func (a *Pair) Client(user string, groups ...string) (*Pair, error) {
	return issue(a, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func issue(authority *Pair, template *x509.Certificate) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-time.Minute), now.Add(24*time.Hour)
	parent := &Pair{Cert: template, Key: key}
	if authority != nil {
		parent = authority
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.Cert, key.Public(), parent.Key)
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Pair{Cert: c, Key: key}, nil
}

// PEM returns the certificate and the key as text.
func (p *Pair) PEM() (certificate, key []byte, err error) {
	if certificate, err = cert.EncodeCertificates(p.Cert); err != nil {
		return nil, nil, err
	}
	key, err = keyutil.MarshalPrivateKeyToPEM(p.Key)
	return certificate, key, err
}

// Write writes DIR/NAME.crt and DIR/NAME.key.
func (p *Pair) Write(dir, name string) error {
	certificate, key, err := p.PEM()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), certificate, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), key, 0o600)
}
