package scenario

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// dialTLS opens a connection for HTTP/1.1, with a small buffer for what is received.
func dialTLS(ctx context.Context, config *rest.Config) (net.Conn, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	tlsConfig = tlsConfig.Clone()
	tlsConfig.NextProtos = []string{"http/1.1"}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: tlsConfig}
	return d.DialContext(ctx, "tcp", strings.TrimPrefix(config.Host, "https://"))
}
