// Package partial is for tests of what a server does with requests of which only a part comes.
package partial

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
)

// Dialer returns what dials for a client of gRPC. All its connections together send so many bytes,
// and keep the rest, though the client hears that it was sent.
func Dialer(network string, bytes int64) func(ctx context.Context, address string) (net.Conn, error) {
	left := &atomic.Int64{}
	left.Store(bytes)
	return func(ctx context.Context, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(address, "unix://"))
		return &conn{c, left}, err
	}
}

type conn struct {
	net.Conn
	left *atomic.Int64
}

func (c *conn) Write(p []byte) (int, error) {
	if c.left.Add(-int64(len(p))) > 0 {
		return c.Conn.Write(p)
	}
	return len(p), nil
}
