package database

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Network is what lies between servers and their database: a way for each server, which can be cut and slowed.
type Network struct {
	mu   sync.Mutex
	ways []*toxiproxy.Proxy
	// toxics are the names of those that each way has.
	toxics []map[string]bool
}

// NewNetwork makes a way to the address for each server.
func NewNetwork(address string, servers int) (*Network, error) {
	// Its links log to the terminal whatever logger they are given.
	zerolog.SetGlobalLevel(zerolog.Disabled)
	n := &Network{}
	hub := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	for i := range servers {
		p := toxiproxy.NewProxy(hub, fmt.Sprint("server ", i), "127.0.0.1:0", address)
		if err := p.Start(); err != nil {
			return nil, errors.Join(err, n.Close())
		}
		n.ways = append(n.ways, p)
		n.toxics = append(n.toxics, map[string]bool{})
	}
	return n, nil
}

// through replaces the address in a URL by that of a server's way.
func (n *Network) through(rawURL string, server int) string {
	u, err := url.Parse(rawURL)
	if n == nil || err != nil {
		return rawURL
	}
	u.Host = n.ways[server%len(n.ways)].Listen
	return u.String()
}

// Add makes a way bad: attributes is JSON. upstream is the direction to the database, else the one from it.
func (n *Network) Add(server int, kind string, upstream bool, attributes string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	stream := "downstream"
	if upstream {
		stream = "upstream"
	}
	name := kind + " " + stream
	_, err := n.ways[server].Toxics.AddToxicJson(strings.NewReader(
		fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"toxicity":1,"attributes":%s}`, name, kind, stream, attributes)))
	if err == nil {
		n.toxics[server][name] = true
	}
	return err
}

// Cut ends all connections of a server, and lets it make no new ones.
func (n *Network) Cut(server int) { n.ways[server].Stop() }

// Heal makes a way good again.
func (n *Network) Heal(ctx context.Context, server int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for name := range n.toxics[server] {
		errs = append(errs, n.ways[server].Toxics.RemoveToxic(ctx, name))
		delete(n.toxics[server], name)
	}
	if !n.ways[server].Enabled {
		errs = append(errs, n.ways[server].Start())
	}
	return errors.Join(errs...)
}

// Reset ends all connections of a server. It may make new ones.
func (n *Network) Reset(server int) error {
	n.ways[server].Stop()
	return n.ways[server].Start()
}

// Point leads all ways to another address. Connections end.
func (n *Network) Point(address string) error {
	for _, p := range n.ways {
		p.Stop()
		p.Upstream = address
		if err := p.Start(); err != nil {
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
	for _, p := range n.ways {
		p.Stop()
	}
	return nil
}
