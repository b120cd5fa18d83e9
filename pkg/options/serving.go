package options

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// ApplySecureServing does what SecureServingOptions.WithLoopback().ApplyToConfig does: it sets
// c.SecureServing, and c.LoopbackClientConfig for the server's own requests to itself. The
// connections for these end when the server stops and no request is under way any more.
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
	content, err := dynamiccertificates.NewStaticSNICertKeyContent("loopback", certPEM, keyPEM,
		genericapiserver.LoopbackClientServerNameOverride)
	if err != nil {
		return fmt.Errorf("cannot make a certificate for the loopback connection: %w", err)
	}
	// In front of all others, as none of them may answer to this name.
	c.SecureServing.SNICerts = slices.Insert(c.SecureServing.SNICerts, 0, content)
	c.LoopbackClientConfig, err = c.SecureServing.NewLoopbackClientConfig(uuid.NewString(), certPEM)
	if err != nil {
		return err
	}
	return shareConnection(c.LoopbackClientConfig, c.DrainedNotify())
}

// shareConnection makes all clients of the configuration use one connection, which ends when the
// channel is closed. A function of one's own that dials is not enough: client-go takes it for
// another one at each client, and each client would have a transport and a connection of its own.
func shareConnection(c *rest.Config, end <-chan struct{}) error {
	base := rest.AnonymousClientConfig(c)
	base.Dial = dialUntil(end)
	shared, err := rest.TransportFor(base)
	if err != nil {
		return fmt.Errorf("cannot make the loopback connection: %w", err)
	}
	self, err := url.Parse(c.Host)
	if err != nil {
		return fmt.Errorf("cannot make the loopback connection: %w", err)
	}
	c.Wrap(func(http.RoundTripper) http.RoundTripper {
		return &loopback{self: self.Host, shared: shared}
	})
	return nil
}

// loopback sends requests to the server itself over the shared transport. It sends none to others:
// the token of the configuration, with which everything may be done, would come with them. Upstream
// gives the configuration to webhooks that are named like a cluster's API server.
type loopback struct {
	self   string
	shared http.RoundTripper
}

func (l *loopback) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == l.self {
		return l.shared.RoundTrip(r)
	}
	if r.Body != nil {
		r.Body.Close()
	}
	return nil, fmt.Errorf("the server's own credentials are for %s, and not for %s", l.self,
		r.URL.Host)
}

// dialUntil makes connections that end when the channel is closed. A client over HTTP/2 keeps a
// connection that has become idle, also when the server says goodbye, and a server that stops waits
// a second for it. To close the idle connections of the client would be too late after the goodbye,
// and too early before the informers have given up their watches.
func dialUntil(end <-chan struct{}) func(context.Context, string, string) (net.Conn, error) {
	ended := wait.ContextForChannel(end)
	// The times are client-go's.
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		forget := context.AfterFunc(ended, func() { conn.Close() })
		return endingConn{conn, forget}, nil
	}
}

// endingConn is forgotten when it is closed.
type endingConn struct {
	net.Conn
	forget func() bool
}

func (c endingConn) Close() error {
	c.forget()
	return c.Conn.Close()
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
