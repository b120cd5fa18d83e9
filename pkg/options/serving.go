package options

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/rowkeeper/rowkeeper/pkg/server/pki"
)

// ApplySecureServing does what SecureServingOptions.WithLoopback().ApplyToConfig does: it sets
// c.SecureServing, and c.LoopbackClientConfig for the server's own requests to itself.
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

// selfSigned makes a certificate that outlives every process. Nothing is stored.
func selfSigned(name string) (certPEM, keyPEM []byte, err error) {
	now := time.Now()
	pair, err := pki.SelfSigned(pki.Server(name), now.Add(-time.Hour), now.AddDate(30, 0, 0))
	if err != nil {
		return nil, nil, err
	}
	return pair.PEM()
}
