package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"time"
)

// Pair is a certificate and its private key, in memory. Keys use the curve P-256: a server would
// spend most of its start on an RSA key.
type Pair struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// Template says whom a certificate names, and for what. DNS and IPs are the names and addresses of
// a server.
type Template struct {
	Subject pkix.Name
	DNS     []string
	IPs     []net.IP
	Usage   x509.ExtKeyUsage
}

// Server is the template of a serving certificate for hosts, which are names or addresses.
func Server(hosts ...string) Template {
	t := Template{Subject: pkix.Name{CommonName: hosts[0]}, Usage: x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			t.IPs = append(t.IPs, ip)
		} else {
			t.DNS = append(t.DNS, host)
		}
	}
	return t
}

// Service is the template of a serving certificate for a Service of a cluster, and for further
// hosts. The cluster's API server asks for the first of these names, whatever address it connects
// to.
func Service(namespace, name string, hosts ...string) Template {
	host := name + "." + namespace + ".svc"
	return Server(append([]string{host, host + ".cluster.local"}, hosts...)...)
}

// Client is the template of a certificate for a user, who is in groups.
func Client(user string, groups ...string) Template {
	return Template{
		Subject: pkix.Name{CommonName: user, Organization: groups},
		Usage:   x509.ExtKeyUsageClientAuth,
	}
}

// NewAuthority makes an authority, which is valid from one time to another.
func NewAuthority(name string, from, to time.Time) (*Pair, error) {
	return sign(nil, &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             from,
		NotAfter:              to,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	})
}

// SelfSigned makes a certificate that is signed by itself, and valid from one time to another.
func SelfSigned(t Template, from, to time.Time) (*Pair, error) {
	return sign(nil, t.leaf(from, to))
}

// Sign makes a certificate that the authority signs, and that is valid from one time to another.
func (p *Pair) Sign(t Template, from, to time.Time) (*Pair, error) {
	return sign(p, t.leaf(from, to))
}

func (t Template) leaf(from, to time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:               t.Subject,
		DNSNames:              t.DNS,
		IPAddresses:           t.IPs,
		NotBefore:             from,
		NotAfter:              to,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{t.Usage},
		BasicConstraintsValid: true,
	}
}

func sign(authority *Pair, template *x509.Certificate) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a private key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate: %w", err)
	}
	template.SerialNumber = serial
	if authority == nil {
		authority = &Pair{Cert: template, Key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Cert, key.Public(),
		authority.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate: %w", err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate that was made: %w", err)
	}
	return &Pair{Cert: c, Key: key}, nil
}

// PEM returns the certificate and the private key as text.
func (p *Pair) PEM() (certPEM, keyPEM []byte, err error) {
	return p.Chain().PEM()
}

// Chain is the pair as it is kept.
func (p *Pair) Chain() Chain { return Chain{Certs: []*x509.Certificate{p.Cert}, Key: p.Key} }

// Write stores the pair; an interruption leaves the old files or the new ones.
func (p *Pair) Write(certFile, keyFile string) error {
	return writePair(certFile, keyFile, p.Chain())
}
