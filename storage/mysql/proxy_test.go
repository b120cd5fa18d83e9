package mysql_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	driver "github.com/go-sql-driver/mysql"
)

// proxy stands between a backend and its server, and interferes with what the backend sends.
type proxy struct {
	// URL is the database's, through the proxy.
	URL string

	mu     sync.Mutex
	target string
	// other, if not nil, logs in to the server to which the connections that are there are led.
	other func() *net.TCPConn
	// intercept is asked about each statement that a client sends. Nil forwards all.
	intercept func(*link, string) verdict
	links     map[*link]struct{}
}

// verdict is what becomes of a statement.
type verdict int

const (
	// forward sends it on.
	forward verdict = iota
	// cut closes both sides before the server has it.
	cut
	// deliver gives it to the server, and closes the client's side before the answer.
	deliver
	// keep closes the client's side and leaves the server's open; the statement can be sent later,
	// by link.release.
	keep
)

// link is a connection through the proxy.
type link struct {
	client, server *net.TCPConn
	// led tells whether the server is not the first one any more.
	led bool
	// kept is the last statement that was asked about.
	kept []byte
	// answered is closed when the server has closed its side.
	answered chan struct{}
}

// finish gives the server its last statement, and returns when it has executed it and found that
// nothing follows.
func (l *link) finish(packet []byte) error {
	if _, err := l.server.Write(packet); err != nil {
		return err
	}
	if err := l.server.CloseWrite(); err != nil {
		return err
	}
	<-l.answered
	return nil
}

// release sends a statement that was kept.
func (l *link) release() error { return l.finish(l.kept) }

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

// newProxy starts a proxy in front of the database of a URL.
func newProxy(t testing.TB, databaseURL string) *proxy {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{target: u.Host, links: map[*link]struct{}{}}
	u.Host = listener.Addr().String()
	q := u.Query()
	q.Set("tls", "false") // the proxy reads what is sent
	u.RawQuery = q.Encode()
	p.URL = u.String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(client.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		p.cutAll()
		wg.Wait()
	})
	return p
}

// on sets what is asked about statements.
func (p *proxy) on(intercept func(*link, string) verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.intercept = intercept
}

// redirect leads new connections elsewhere.
func (p *proxy) redirect(databaseURL string) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		panic(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = u.Host
}

// lead leads all connections elsewhere: those that are there, too, when they send their next
// statement.
func (p *proxy) lead(t testing.TB, databaseURL string) {
	c := login(t, databaseURL)
	p.redirect(databaseURL)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.other = func() (server *net.TCPConn) {
		c := *c
		c.Params = map[string]string{"sql_mode": "''"} // no settings of ours
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				server = conn.(*net.TCPConn)
			}
			return conn, err
		}
		connector, err := driver.NewConnector(&c)
		if err == nil {
			_, err = connector.Connect(t.Context()) // the link closes it
		}
		if err != nil {
			t.Errorf("log in to the other server: %v", err)
			return nil
		}
		return server
	}
	for l := range p.links {
		l.led = false
	}
}

// stay ends that: only the links that were led elsewhere are there.
func (p *proxy) stay() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.other = nil
}

// follow leads a link elsewhere if the proxy does.
func (p *proxy) follow(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.other == nil || l.led {
		return
	}
	l.led = true
	if server := p.other(); server != nil {
		l.server.Close()
		l.server = server
		go p.answer(l, server)
	}
}

// answer passes on what a server sends.
func (p *proxy) answer(l *link, server *net.TCPConn) {
	buf := make([]byte, 1<<16)
	for {
		n, err := server.Read(buf)
		_, _ = l.client.Write(buf[:n]) // what a client that is gone would have been told is lost
		if err != nil {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.server == server { // and not led elsewhere
		l.client.Close()
		close(l.answered)
	}
}

// cutAll closes all connections, and also connections that are made while it does.
func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

func (p *proxy) serve(client *net.TCPConn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		client.Close()
		return
	}
	l := &link{client: client, server: server.(*net.TCPConn), answered: make(chan struct{}), led: true}
	p.mu.Lock()
	p.links[l] = struct{}{}
	p.mu.Unlock()
	go p.answer(l, l.server)
	for {
		packet, err := readPacket(client)
		if err != nil {
			l.server.Close()
			return
		}
		if packet[3] == 0 { // a command
			p.follow(l)
		}
		v := forward
		p.mu.Lock()
		intercept := p.intercept
		p.mu.Unlock()
		// In the command phase a client's packets are numbered from 0. 3 is a query.
		if intercept != nil && len(packet) > 5 && packet[3] == 0 && packet[4] == 3 {
			l.kept = packet
			v = intercept(l, string(packet[5:]))
		}
		switch v {
		case cut:
			l.close()
			return
		case keep:
			client.Close()
			return
		case deliver:
			client.Close()
			if err := l.finish(packet); err != nil {
				l.server.Close()
			}
			return
		}
		if _, err := l.server.Write(packet); err != nil {
			client.Close()
			return
		}
	}
}

// readPacket reads one packet with its header.
func readPacket(r io.Reader) ([]byte, error) {
	packet := make([]byte, 4)
	if _, err := io.ReadFull(r, packet); err != nil {
		return nil, err
	}
	n := int(packet[0]) | int(packet[1])<<8 | int(packet[2])<<16
	packet = append(packet, make([]byte, n)...)
	_, err := io.ReadFull(r, packet[4:])
	return packet, err
}

// commits tells whether a statement is the second text of a commit group.
func commits(statement string) bool {
	return strings.Contains(statement, "INSERT INTO rowkeeper_log") &&
		strings.Contains(statement, "COMMIT")
}
