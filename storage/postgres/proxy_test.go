package postgres_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy is a network between a client and the server, which can be stopped and cut.
type proxy struct {
	listener net.Listener
	server   string

	mu sync.Mutex
	// room is how many bytes may still pass to the server; negative: any number. changed is closed
	// and replaced when it changes.
	room    int
	changed chan struct{}
	held    int
	clients []net.Conn
	wg      sync.WaitGroup
}

// newProxy returns a proxy, and the URL of the database through it.
func newProxy(t testing.TB, database string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, server: u.Host, room: -1, changed: make(chan struct{})}
	u.Host = l.Addr().String()
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.pass(-1)
		p.cut()
		p.wg.Wait()
	})
	return p, u.String()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.clients = append(p.clients, client)
		p.mu.Unlock()
		p.wg.Go(func() {
			io.Copy(client, server)
			client.Close()
		})
		p.wg.Go(func() {
			// When the client is gone, what it has sent still arrives, and then the end.
			defer server.Close()
			buf := make([]byte, 32<<10)
			for {
				n, err := client.Read(buf)
				for sent := 0; sent < n; {
					m := p.take(n - sent)
					if _, err := server.Write(buf[sent : sent+m]); err != nil {
						return
					}
					sent += m
				}
				if err != nil {
					return
				}
			}
		})
	}
}

// take waits until bytes may pass, and returns how many.
func (p *proxy) take(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.room == 0 {
		changed := p.changed
		p.held++
		p.mu.Unlock()
		<-changed
		p.mu.Lock()
		p.held--
	}
	if p.room > 0 {
		n = min(n, p.room)
		p.room -= n
	}
	return n
}

// pass lets n more bytes pass to the server, any number if n is negative.
func (p *proxy) pass(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room = n
	close(p.changed)
	p.changed = make(chan struct{})
}

// holding tells whether bytes are being held back.
func (p *proxy) holding() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held > 0
}

// cut cuts the connections of the clients; what they have sent passes on.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		c.Close()
	}
	p.clients = nil
}
