package options

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// ApplySecureServing does what SecureServingOptions.WithLoopback().ApplyToConfig does: it sets c.SecureServing, and c.LoopbackClientConfig for the
// server's own requests to itself. The certificate for the latter has an elliptic-curve key, since making an RSA key would take most
// of the time that a server needs to start.
func ApplySecureServing(o *genericoptions.SecureServingOptions, c *genericapiserver.Config) error {
	if err := o.ApplyTo(&c.SecureServing); err != nil {
		return fmt.Errorf("cannot serve: %w", err)
	}
	if c.SecureServing == nil {
		return nil
	}
	certPEM, keyPEM, err := selfSigned(genericapiserver.LoopbackClientServerNameOverride)
	if err != nil {
		return fmt.Errorf("cannot make a certificate for the loopback connection: %w", err)
	}
	content, err := dynamiccertificates.NewStaticSNICertKeyContent("loopback", certPEM, keyPEM, genericapiserver.LoopbackClientServerNameOverride)
	if err != nil {
		return fmt.Errorf("cannot make a certificate for the loopback connection: %w", err)
	}
	// In front of all others, as none of them may answer to this name.
	c.SecureServing.SNICerts = slices.Insert(c.SecureServing.SNICerts, 0, content)
	c.LoopbackClientConfig, err = c.SecureServing.NewLoopbackClientConfig(uuid.NewString(), certPEM)
	return err
}

// selfSigned makes a certificate that outlives every process.
func selfSigned(name string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(30, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	if certPEM, err = cert.EncodeCertificates(parsed); err != nil {
		return nil, nil, err
	}
	keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key)
	return certPEM, keyPEM, err
}
