package testkit

import (
	"net"
	"sync"
)

// listener knows its open connections.
type listener struct {
	net.Listener
	mu          sync.Mutex
	connections map[net.Conn]bool
	closed      bool
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
	} else {
		l.connections[c] = true
	}
	return &connection{Conn: c, listener: l}, nil
}

// closeConnections closes them all, and all that are still accepted.
func (l *listener) closeConnections() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.connections {
		c.Close()
	}
	clear(l.connections)
}

type connection struct {
	net.Conn
	listener *listener
}

func (c *connection) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.connections, c.Conn)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
