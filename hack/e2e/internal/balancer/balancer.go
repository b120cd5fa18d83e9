// Package balancer is a small TCP balancer on the loopback interface. It stands in for kube-proxy:
// new connections go to the backends in turn; a connection that exists stays with its backend, also
// when that is no longer among the backends.
//
// Only when no backend is left, all connections are closed. Kube-apiserver takes an APIService for
// unavailable when its Service has no endpoints; of a Service of type ExternalName it does not know
// that, and would ask for discovery over the connection that it has.
package balancer

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
)

// Balancer forwards connections to its port. The zero value is not usable; see New.
type Balancer struct {
	// Ready, if it is set before backends are, tells whether a backend may have a new connection.
	// The next ones are asked if not.
	Ready func(address string) bool

	listener net.Listener

	mu       sync.Mutex
	backends []string
	next     int
	open     map[net.Conn]struct{}
	done     sync.WaitGroup
}

// New starts a balancer without backends on a free port of 127.0.0.1: it accepts connections and
// closes them at once.
func New() (*Balancer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &Balancer{listener: listener, open: map[net.Conn]struct{}{}}
	b.done.Go(b.accept)
	return b, nil
}

// Port is where the balancer listens.
func (b *Balancer) Port() int { return b.listener.Addr().(*net.TCPAddr).Port }

// Set replaces the backends, each an address with a port.
func (b *Balancer) Set(backends ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = slices.Clone(backends)
	if len(backends) == 0 {
		for conn := range b.open {
			conn.Close()
		}
	}
}

// Close ends the balancer and its connections.
func (b *Balancer) Close() error {
	err := b.listener.Close()
	b.mu.Lock()
	for conn := range b.open {
		err = errors.Join(err, conn.Close())
	}
	b.mu.Unlock()
	b.done.Wait()
	return err
}

func (b *Balancer) accept() {
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.done.Go(func() { b.forward(conn) })
	}
}

// pick connects to the next backend. There is no second try with another one, as there is none with
// kube-proxy.
func (b *Balancer) pick() (net.Conn, error) {
	b.mu.Lock()
	b.next++
	backends, next := b.backends, b.next
	b.mu.Unlock()
	for i := range backends {
		address := backends[(next+i)%len(backends)]
		if b.Ready == nil || b.Ready(address) {
			return net.Dial("tcp", address)
		}
	}
	return nil, errors.New("there is no backend")
}

func (b *Balancer) forward(client net.Conn) {
	defer client.Close()
	server, err := b.pick()
	if err != nil {
		return
	}
	defer server.Close()
	b.mu.Lock()
	b.open[client] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.open, client)
		b.mu.Unlock()
	}()
	var halves sync.WaitGroup
	for _, half := range [][2]net.Conn{{client, server}, {server, client}} {
		halves.Go(func() {
			// An error ends the connection like its end does, and the other side notices either.
			_, _ = io.Copy(half[0], half[1])
			_ = half[0].(*net.TCPConn).CloseWrite()
		})
	}
	halves.Wait()
}
