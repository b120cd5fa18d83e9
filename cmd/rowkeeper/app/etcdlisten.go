package app

import (
	"bufio"
	"container/list"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// tlsFiles are the files of certificates, and who may connect by them. The files are read again for
// each connection, so a certificate that was renewed is used at once. While a file cannot be read,
// or is half written, what was read last is used.
type tlsFiles struct {
	cert, key, authority string
	// require says that clients need a certificate, as they do if there is an authority. names,
	// unless it is nil, refuses those whose certificate has another common name.
	require bool
	names   map[string]bool

	mu   sync.Mutex
	last *tls.Config
}

// config reads the files.
func (f *tlsFiles) config() (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.load()
	if err == nil {
		f.last = c
	}
	if f.last == nil {
		return nil, err
	}
	return f.last, nil
}

func (f *tlsFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("cannot use the certificate %s with the key %s: %w", f.cert, f.key,
			err)
	}
	// A session that is resumed would have been checked by what was true when it began. Clients of
	// gRPC know HTTP/2 alone. A client that knows HTTP/1.1, too, asks for pages, and is answered by
	// HTTP/1.1: so the splitter tells them apart.
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		NextProtos: []string{"http/1.1", "h2"}, SessionTicketsDisabled: true}
	if f.authority == "" {
		return c, nil
	}
	content, err := os.ReadFile(f.authority)
	if err != nil {
		return nil, fmt.Errorf("cannot read the trusted certificates: %w", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%s has no certificate", f.authority)
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	if f.names != nil {
		c.VerifyConnection = f.admit
	}
	return c, nil
}

// admit refuses a client, whose certificate was verified, by its common name.
func (f *tlsFiles) admit(s tls.ConnectionState) error {
	name := ""
	if len(s.PeerCertificates) > 0 {
		name = s.PeerCertificates[0].Subject.CommonName
	}
	if name != "" && f.names[name] {
		return nil
	}
	err := fmt.Errorf("a client certificate with the common name %q does not open this store: see "+
		"--store-client-name", name)
	klog.ErrorS(err, "A client was refused", "serverName", s.ServerName)
	return err
}

// secure puts TLS on a listener. The server name for which a client asks says which files are used.
func secure(l net.Listener, files func(serverName string) *tlsFiles) net.Listener {
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			return files(hello.ServerName).config()
		}})
}

// door is what is listened on for clients.
type door struct {
	url string
	// store is the one whose clients connect here, but for clients that ask for one of names by
	// TLS.
	store *etcdStore
	names map[string]*etcdStore
}

// leadsTo is the store of a client that asks for a server name.
func (d *door) leadsTo(serverName string) *etcdStore {
	if s := d.names[strings.ToLower(serverName)]; s != nil {
		return s
	}
	return d.store
}

// open tells whether a client without a certificate gets into a store here, if there is TLS.
func (d *door) open() bool {
	for _, s := range d.names {
		if !s.tls.require {
			return true
		}
	}
	return !d.store.tls.require
}

// splitter gives the connections of a door to the servers of its store: connections that begin like
// gRPC to one server, and the others to another. etcd answers HTTP on the port of its API, and
// programs ask /version and /health there.
type splitter struct {
	l    net.Listener
	door *door
	// wait is prefaceWait, and most is maxWaiting, but in tests.
	wait   time.Duration
	most   int
	closed chan struct{}

	mu sync.Mutex
	// waiting are the connections that have not said what they are, the oldest first.
	waiting list.List
}

const (
	// preface is what an HTTP/2 connection begins with, as all of gRPC do.
	preface = "PRI"
	// prefaceWait is how long a client may take for that, with the handshake of TLS.
	prefaceWait = 3 * time.Second
	// acceptPause is the time until it is tried again to accept connections.
	acceptPause = 100 * time.Millisecond
	// maxWaiting bounds the connections that have not said what they are. The oldest one is closed
	// when another one comes, since a client that means it has said so by then: who only connects
	// keeps nobody out.
	maxWaiting = 1_000
)

func newSplitter(l net.Listener, d *door) *splitter {
	return &splitter{l: l, door: d, wait: prefaceWait, most: maxWaiting,
		closed: make(chan struct{})}
}

// await notes a connection that has not said what it is, and closes the oldest one if there are too
// many. Call what it returns when the waiting is over.
func (s *splitter) await(conn net.Conn) (over func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting.Len() >= s.most {
		// Not by Close, which waits for a handshake of TLS that is under way.
		_ = s.waiting.Remove(s.waiting.Front()).(net.Conn).SetDeadline(time.Unix(1, 0))
	}
	e := s.waiting.PushBack(conn)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting.Remove(e) // which does nothing if it was removed
	}
}

// run accepts connections until the listener is closed.
func (s *splitter) run() {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(s.closed)
	for {
		conn, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Too many files are open, or the like: connections that are there go on, and some will
			// end.
			klog.ErrorS(err, "No connection can be accepted; trying again")
			<-time.After(acceptPause)
			continue
		}
		// Before the time that it has begins, so nothing that comes later makes it longer.
		_ = conn.SetDeadline(time.Now().Add(s.wait)) // a closed one cannot be read
		over := s.await(conn)
		wg.Go(func() {
			defer over()
			s.route(conn, over)
		})
	}
}

func (s *splitter) route(conn net.Conn, over func()) {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-s.closed:
			_ = conn.SetDeadline(time.Unix(1, 0)) // or it is closed
		case <-stop:
		}
	}()
	// The handshake writes, too, and a client may read nothing: the deadline is for both.
	r := bufio.NewReaderSize(conn, 1<<12)
	begun := &begunConn{Conn: conn, r: r, end: func() {}}
	first, err := r.Peek(len(preface))
	if err != nil {
		conn.Close()
		return
	}
	over()
	_ = conn.SetDeadline(time.Time{}) // one that was just dropped as the oldest is kept
	serverName := ""
	if t, ok := conn.(*tls.Conn); ok {
		serverName = t.ConnectionState().ServerName
	}
	store := s.door.leadsTo(serverName)
	to := store.pages
	if string(first) == preface {
		to = store.calls
	}
	counted, ok := store.server.Connect(begun)
	if !ok {
		conn.Close() // clients connect again
		return
	}
	select {
	case to.conns <- counted:
	case <-to.closed:
		counted.Close()
	}
}

// newest is a listener that hangs up its oldest connection when there would be too many: so those
// who connect and say nothing, or nothing more, keep nobody out.
type newest struct {
	net.Listener
	most int

	mu sync.Mutex
	// open are its connections, the oldest first.
	open list.List
}

func (n *newest) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open.Len() >= n.most {
		oldest := n.open.Remove(n.open.Front()).(net.Conn)
		if t, ok := oldest.(*tls.Conn); ok {
			oldest = t.NetConn() // its own Close waits for a handshake that is under way
		}
		_ = oldest.Close() // its server hears that
	}
	e := n.open.PushBack(conn)
	return &begunConn{Conn: conn, r: conn, end: func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.open.Remove(e) // which does nothing if it was removed
	}}, nil
}

// branch is the listener of a server that is given its connections.
type branch struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func newBranch() *branch {
	return &branch{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (b *branch) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

func (b *branch) Addr() net.Addr { return branchAddress{} }

func (b *branch) Close() error {
	b.close.Do(func() { close(b.closed) })
	return nil
}

// branchAddress is the address of a branch, which has none.
type branchAddress struct{}

func (branchAddress) Network() string { return "branch" }
func (branchAddress) String() string  { return "branch" }

// begunConn is a connection that is read by r, as its beginning may have been read already. end is
// called when it is closed.
type begunConn struct {
	net.Conn
	r   io.Reader
	end func()
}

// NetConn is the connection below, as for TLS.
func (c *begunConn) NetConn() net.Conn { return c.Conn }

func (c *begunConn) Close() error {
	c.end()
	return c.Conn.Close()
}

func (c *begunConn) Read(p []byte) (int, error) { return c.r.Read(p) }
