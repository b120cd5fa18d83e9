package etcd

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"

	"google.golang.org/grpc/peer"
)

// clientConn is a connection of a client that counts until it is closed. While it has no call, it
// gives way to another one when there are as many as there may be. So clients who connect, and say
// nothing or nothing more, keep nobody out.
type clientConn struct {
	net.Conn
	idle *idle

	// The mutex of idle protects these. calls is how many there are, and place where the connection
	// is among the idle ones while there are none. ended: it does not count any more.
	calls int
	place *list.Element
	ended bool
}

// idle are the connections of a store's clients that have no call, in the order in which they have
// none since.
type idle struct {
	// counted are all connections.
	counted *bound

	mu    sync.Mutex
	conns list.List
}

// Connect returns a connection that counts until it is closed. If there are as many as there may
// be, the one that has had no call for longest is closed. It returns false if each has one.
func (s *Server) Connect(conn net.Conn) (counted net.Conn, ok bool) {
	i := &s.idle
	for !i.counted.take(1) {
		if !i.drop() {
			return nil, false
		}
	}
	c := &clientConn{Conn: conn, idle: i}
	i.mu.Lock()
	defer i.mu.Unlock()
	c.place = i.conns.PushBack(c)
	return c, true
}

// drop closes the first connection, if there is one.
func (i *idle) drop() bool {
	i.mu.Lock()
	first := i.conns.Front()
	if first == nil {
		i.mu.Unlock()
		return false
	}
	c := first.Value.(*clientConn)
	c.endLocked()
	i.mu.Unlock()
	// TLS would wait until its client takes notice. Who serves the connection hears that it is
	// gone.
	below := c.Conn
	for {
		over, ok := below.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		below = over.NetConn()
	}
	_ = below.Close()
	return true
}

// endLocked ends the count, once.
func (c *clientConn) endLocked() {
	if c.ended {
		return
	}
	c.ended = true
	if c.place != nil {
		c.idle.conns.Remove(c.place)
		c.place = nil
	}
	c.idle.counted.add(-1)
}

// Close closes the connection.
func (c *clientConn) Close() error {
	c.idle.mu.Lock()
	c.endLocked()
	c.idle.mu.Unlock()
	return c.Conn.Close()
}

// FollowCalls tells a connection whether it has a call of HTTP, as the ConnState of a server whose
// connections are counted. Calls of gRPC are followed without it.
func FollowCalls(conn net.Conn, state http.ConnState) {
	c, _ := conn.(*clientConn)
	switch state {
	case http.StateActive:
		c.has(1)
	case http.StateIdle:
		c.has(-1)
	}
}

// has says that the connection has a call more, or, by -1, less. If the connection does not count,
// it is nil.
func (c *clientConn) has(more int) {
	if c == nil {
		return
	}
	c.idle.mu.Lock()
	defer c.idle.mu.Unlock()
	if c.place != nil {
		c.idle.conns.Remove(c.place)
		c.place = nil
	}
	if c.calls += more; c.calls == 0 && !c.ended {
		c.place = c.idle.conns.PushBack(c)
	}
}

// RemoteAddr leads from a call of gRPC to its connection.
func (c *clientConn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

type address struct {
	net.Addr
	conn *clientConn
}

// connOf is the connection of a call, nil if it does not count.
func connOf(ctx context.Context) *clientConn {
	if p, ok := peer.FromContext(ctx); ok {
		a, _ := p.Addr.(address)
		return a.conn
	}
	return nil
}
