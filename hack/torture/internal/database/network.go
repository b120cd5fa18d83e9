package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Network is what lies between servers and their database: a way for each server, which can be cut
// and slowed.
type Network struct {
	ways []*way
}

// NewNetwork makes a way to each address, one for each server.
func NewNetwork(addresses ...string) (*Network, error) {
	// toxiproxy's links log to the terminal whatever logger they are given.
	zerolog.SetGlobalLevel(zerolog.Disabled)
	n := &Network{}
	hub := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()),
		zerolog.Nop())
	for i, address := range addresses {
		w := &way{
			hub: hub, listen: "127.0.0.1:0", upstream: address, conns: map[net.Conn]struct{}{},
			proxy:  toxiproxy.NewProxy(hub, fmt.Sprint("server ", i), "", address),
			toxics: map[string]bool{},
		}
		if err := w.open(); err != nil {
			return nil, errors.Join(err, n.Close())
		}
		n.ways = append(n.ways, w)
	}
	return n, nil
}

// Through replaces the address in a URL by that of a server's way.
func (n *Network) Through(rawURL string, server int) string {
	u, err := url.Parse(rawURL)
	if n == nil || err != nil {
		return rawURL
	}
	u.Host = n.ways[server%len(n.ways)].listen
	return u.String()
}

// Rewrite changes what the clients of new connections send.
func (n *Network) Rewrite(rewrite func(io.Reader) io.Reader) {
	for _, w := range n.ways {
		w.mu.Lock()
		w.rewrite = rewrite
		w.mu.Unlock()
	}
}

// Add makes a way bad: attributes is JSON. upstream is the direction to the database, else the one
// from it.
func (n *Network) Add(server int, kind string, upstream bool, attributes string) error {
	stream := "downstream"
	if upstream {
		stream = "upstream"
	}
	w, name := n.ways[server], kind+" "+stream
	_, err := w.proxy.Toxics.AddToxicJson(strings.NewReader(
		fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"toxicity":1,"attributes":%s}`, name, kind,
			stream, attributes)))
	if err == nil {
		w.toxics[name] = true
	}
	return err
}

// Cut ends all connections of a server, and lets it make no new ones.
func (n *Network) Cut(server int) { n.ways[server].shut() }

// Heal makes a way good again.
func (n *Network) Heal(ctx context.Context, server int) error {
	w := n.ways[server]
	var errs []error
	for name := range w.toxics {
		errs = append(errs, w.proxy.Toxics.RemoveToxic(ctx, name))
		delete(w.toxics, name)
	}
	return errors.Join(append(errs, w.open())...)
}

// Reset ends all connections of a server. It may make new ones.
func (n *Network) Reset(server int) error {
	n.ways[server].shut()
	return n.ways[server].open()
}

// Point leads all ways to another address. Connections end.
func (n *Network) Point(address string) error {
	for _, w := range n.ways {
		w.shut()
		w.upstream = address
		if err := w.open(); err != nil {
			return err
		}
	}
	return nil
}

// Close ends all connections.
func (n *Network) Close() error {
	if n == nil {
		return nil
	}
	for _, w := range n.ways {
		w.shut()
	}
	return nil
}

// way accepts connections and makes toxiproxy's links of them. toxiproxy's own listener is not
// used: its links stop to read when their peer is gone, and a toxic cannot be removed from a link
// that nobody reads (it waits for the link, which waits for a lock that the removal holds). The
// links of a way are read to their end.
type way struct {
	hub   *toxiproxy.ApiServer
	proxy *toxiproxy.Proxy
	// toxics are the names of the toxics that it has.
	toxics map[string]bool
	// upstream is where it leads; it is changed only while the way is shut.
	upstream string

	mu sync.Mutex
	// rewrite, if not nil, changes what clients send.
	rewrite func(io.Reader) io.Reader
	// listen is where it begins; the port is chosen when it is opened first.
	listen   string
	listener net.Listener
	conns    map[net.Conn]struct{}
	links    int
}

// open begins to accept connections, if it does not yet.
func (w *way) open() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", w.listen)
	if err != nil {
		return err
	}
	w.listener, w.listen = l, l.Addr().String()
	upstream := w.upstream
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.connect(l, conn, upstream)
		}
	}()
	return nil
}

// connect leads a connection, accepted by l, on.
func (w *way) connect(l net.Listener, from net.Conn, upstream string) {
	to, err := net.Dial("tcp", upstream)
	if err != nil {
		_ = from.Close()
		return
	}
	w.mu.Lock()
	if w.listener != l {
		w.mu.Unlock()
		_, _ = from.Close(), to.Close()
		return
	}
	w.conns[from], w.conns[to] = struct{}{}, struct{}{}
	w.links++
	name := fmt.Sprint("link ", w.links)
	var sent io.Reader = from
	if w.rewrite != nil {
		sent = w.rewrite(from)
	}
	w.mu.Unlock()
	w.proxy.Toxics.StartLink(w.hub, name+" upstream", sent, &sink{Conn: to, w: w}, stream.Upstream)
	w.proxy.Toxics.StartLink(w.hub, name+" downstream", to, &sink{Conn: from, w: w},
		stream.Downstream)
}

// shut ends all connections and accepts none.
func (w *way) shut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener != nil {
		_ = w.listener.Close()
		w.listener = nil
	}
	for conn := range w.conns {
		_ = conn.Close()
	}
	clear(w.conns)
}

// sink is the end of a link. It takes what it is given even if it cannot be sent.
type sink struct {
	net.Conn
	w    *way
	gone bool
}

func (s *sink) Write(p []byte) (int, error) {
	if !s.gone {
		if _, err := s.Conn.Write(p); err != nil {
			s.gone = true
			_ = s.Conn.Close()
		}
	}
	return len(p), nil
}

func (s *sink) Close() error {
	s.w.mu.Lock()
	delete(s.w.conns, s.Conn)
	s.w.mu.Unlock()
	return s.Conn.Close()
}
