// Package dockerhost finds containers that testcontainers has started.
package dockerhost

import (
	"context"
	"net"
	"time"

	"github.com/testcontainers/testcontainers-go"
)

// Address returns the host and port at which a container's port, such as 5432/tcp, answers. This is
// mostly 127.0.0.1, whatever testcontainers infers from signs that it runs in a container itself.
func Address(ctx context.Context, c testcontainers.Container, port string) (string, error) {
	mapped, err := c.MappedPort(ctx, port)
	if err != nil {
		return "", err
	}
	address := net.JoinHostPort("127.0.0.1", mapped.Port())
	d := net.Dialer{Timeout: time.Second}
	if conn, err := d.DialContext(ctx, "tcp", address); err == nil {
		return address, conn.Close()
	}
	host, err := c.Host(ctx)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, mapped.Port()), nil
}
