package app

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// tlsFiles are the files of certificates. They are read again for each connection, so a certificate
// that was renewed is used at once. While a file cannot be read, or is half written, what was read
// last is used.
type tlsFiles struct {
	cert, key, authority string
	require              bool
}

func (f *tlsFiles) load(clients bool) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("cannot use --cert-file and --key-file: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		NextProtos: []string{"h2", "http/1.1"}}
	if f.authority == "" || !clients {
		return c, nil
	}
	content, err := os.ReadFile(f.authority)
	if err != nil {
		return nil, fmt.Errorf("cannot read --trusted-ca-file: %w", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("--trusted-ca-file %s has no certificate", f.authority)
	}
	if c.ClientAuth = tls.VerifyClientCertIfGiven; f.require {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// listener puts TLS on a listener. Only clients of etcd's API need certificates.
func (f *tlsFiles) listener(l net.Listener, clients bool) (net.Listener, error) {
	last, err := f.load(clients)
	if err != nil {
		return l, err
	}
	var mu sync.Mutex
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			mu.Lock()
			defer mu.Unlock()
			if c, err := f.load(clients); err == nil {
				last = c
			}
			return last, nil
		}}), nil
}

// splitter gives connections that begin as those of gRPC do to one server, and the others to
// another: etcd answers HTTP on the port of its API, and programs ask /version and /health there.
type splitter struct {
	l          net.Listener
	grpc, http *branch
	closed     chan struct{}
	close      sync.Once
	waiting    chan struct{}
}

const (
	// preface is what an HTTP/2 connection begins with, as all of gRPC do.
	preface = "PRI"
	// prefaceWait is how long a client may take for that, with the handshake of TLS.
	prefaceWait = 10 * time.Second
	// maxWaiting bounds the connections that have not said what they are.
	maxWaiting = 1_000
)

func newSplitter(l net.Listener) *splitter {
	s := &splitter{l: l, closed: make(chan struct{}), waiting: make(chan struct{}, maxWaiting)}
	s.grpc = &branch{s: s, conns: make(chan net.Conn)}
	s.http = &branch{s: s, conns: make(chan net.Conn)}
	return s
}

// run accepts connections until one of the branches is closed.
func (s *splitter) run() error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := s.l.Accept()
		if err != nil {
			var temporary net.Error
			if errors.As(err, &temporary) && temporary.Timeout() {
				continue
			}
			return err
		}
		select {
		case s.waiting <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		wg.Go(func() {
			s.route(conn)
			<-s.waiting
		})
	}
}

func (s *splitter) route(conn net.Conn) {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-s.closed:
			_ = conn.SetReadDeadline(time.Unix(1, 0)) // or it is closed
		case <-stop:
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(prefaceWait)) // a closed one cannot be read
	begun := &begunConn{Conn: conn, r: bufio.NewReaderSize(conn, 1<<12)}
	first, err := begun.r.Peek(len(preface))
	if err != nil {
		conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	to := s.http
	if string(first) == preface {
		to = s.grpc
	}
	select {
	case to.conns <- begun:
	case <-s.closed:
		conn.Close()
	}
}

// branch is one of the two listeners.
type branch struct {
	s     *splitter
	conns chan net.Conn
}

func (b *branch) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.s.closed:
		return nil, net.ErrClosed
	}
}

func (b *branch) Addr() net.Addr { return b.s.l.Addr() }

// Close closes both.
func (b *branch) Close() (err error) {
	b.s.close.Do(func() {
		close(b.s.closed)
		err = b.s.l.Close()
	})
	return err
}

// begunConn is a connection of which the beginning was read.
type begunConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *begunConn) Read(p []byte) (int, error) { return c.r.Read(p) }
