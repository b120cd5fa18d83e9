package app

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
)

// failing is a listener that runs out of files now and then.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, &net.OpError{Op: "accept", Err: err}
}

// TestAcceptGoesOn: a connection that cannot be accepted does not keep others from being accepted.
func TestAcceptGoesOn(t *testing.T) {
	l := &failing{errs: []error{syscall.EMFILE, syscall.ECONNABORTED, net.ErrClosed}}
	newSplitter(l, nil).run()
	if len(l.errs) > 0 {
		t.Errorf("nothing is accepted after an error; there are %v left", l.errs)
	}
}

// doorway is a splitter that serves pages, all of which are not found.
type doorway struct {
	t       *testing.T
	address string
	secure  bool
}

// listenFor makes a doorway of what a test serves on the listener.
func listenFor(t *testing.T, secured bool) (*doorway, net.Listener) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &doorway{t: t, address: l.Addr().String(), secure: secured}
	if secured {
		dir := certFiles(t)
		files := &tlsFiles{cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
		l = secure(l, func(string) *tlsFiles { return files })
	}
	return d, l
}

// openDoor makes a doorway in which a client may take its time, and so many may take it at once.
func openDoor(t *testing.T, secured bool, wait time.Duration, most int) *doorway {
	t.Helper()
	d, l := listenFor(t, secured)
	store := &etcdStore{calls: newBranch(), pages: newBranch(),
		server: etcd.New(nil, etcd.ServerConfig{})}
	pages := newHTTPServer(http.NotFoundHandler())
	s := newSplitter(l, &door{store: store})
	s.wait, s.most = wait, most
	var running sync.WaitGroup
	running.Go(func() { _ = pages.Serve(store.pages) }) // ends when it is closed
	running.Go(s.run)
	t.Cleanup(func() {
		l.Close()
		pages.Close()
		running.Wait()
		if n := s.waiting.Len(); n > 0 {
			t.Errorf("%d connections are still waited for", n)
		}
	})
	return d
}

// connect connects, and says something.
func (d *doorway) connect(text string) net.Conn {
	d.t.Helper()
	c, err := net.Dial("tcp", d.address)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(time.Minute))
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { c.Close() })
	_, _ = io.WriteString(c, text) // it may be closed by now
	return c
}

// shake is the client's side of TLS.
func shake(c net.Conn) net.Conn {
	return tls.Client(c, &tls.Config{InsecureSkipVerify: true}) // it does not matter who serves
}

// ends waits until a connection ends.
func (d *doorway) ends(c net.Conn) {
	d.t.Helper()
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		d.t.Error("the connection is still there")
	}
}

// serves waits until a client that speaks is answered.
func (d *doorway) serves() {
	d.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		c := d.connect("")
		if d.secure {
			c = shake(c)
		}
		answer := make([]byte, len("HTTP/1.1 404"))
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if err == nil {
			_, err = io.ReadFull(c, answer)
		}
		c.Close()
		if err == nil && string(answer) == "HTTP/1.1 404" {
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("a client that speaks is answered %q, %v", answer, err)
		}
	}
}

// TestSilentConnections: clients that connect and do not say what they want, with and without TLS,
// are not waited for.
func TestSilentConnections(t *testing.T) {
	t.Run("plain", func(t *testing.T) {
		d := openDoor(t, false, time.Second, 10)
		for _, c := range []net.Conn{d.connect(""), d.connect("PR")} {
			d.ends(c)
		}
		d.serves()
	})
	t.Run("tls", func(t *testing.T) {
		d := openDoor(t, true, time.Second, 10)
		// Nothing, and an unfinished record of TLS.
		conns := []net.Conn{d.connect(""), d.connect("\x16\x03\x01\x02\x00")}
		// The beginning of gRPC's beginning, when TLS has begun.
		c := shake(d.connect(""))
		_, _ = io.WriteString(c, "PR") // on a slow machine it may be closed by now
		for _, c := range append(conns, c) {
			d.ends(c)
		}
		d.serves()
	})
}

// TestManySilentConnections: clients that do not say what they want keep nobody out. Of these, only
// so many are waited for, and the oldest one gives way.
func TestManySilentConnections(t *testing.T) {
	const most = 3
	for name, secured := range map[string]bool{"plain": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			d := openDoor(t, secured, time.Hour, most)
			var silent []net.Conn
			for range 3 * most {
				silent = append(silent, d.connect(""))
			}
			for _, c := range silent[:2*most] {
				d.ends(c)
			}
			d.serves()
			d.ends(silent[2*most]) // in place of which a client was served
		})
	}
}

// TestManySilentClients: clients that begin as those of gRPC do and make no call, or none more,
// keep nobody out either. Those that have a call keep their connections.
func TestManySilentClients(t *testing.T) {
	const most = 3
	// The beginning of HTTP/2, and a frame of settings, which are the usual ones.
	const begin = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for name, secured := range map[string]bool{"plain": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			d, l := listenFor(t, secured)
			entered := make(chan struct{}, 10)
			server := etcd.New(func(ctx context.Context) (*etcd.Store, func(), error) {
				entered <- struct{}{}
				<-ctx.Done()
				return nil, nil, ctx.Err()
			}, etcd.ServerConfig{MaxConnections: most})
			store := &etcdStore{calls: newBranch(), pages: newBranch(), server: server}
			calls, pages := grpc.NewServer(server.Options()...), newHTTPServer(http.NotFoundHandler())
			server.Register(calls)
			pages.ConnState = etcd.FollowCalls
			s := newSplitter(l, &door{store: store})
			s.wait = time.Hour
			var running sync.WaitGroup
			running.Go(func() { _ = calls.Serve(store.calls) }) // ends when it is closed
			running.Go(func() { _ = pages.Serve(store.pages) })
			running.Go(s.run)
			t.Cleanup(func() {
				l.Close()
				pages.Close()
				calls.Stop()
				server.Close()
				running.Wait()
			})
			creds := insecure.NewCredentials()
			if secured {
				creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
			}
			client, err := grpc.NewClient(d.address, grpc.WithTransportCredentials(creds))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := pb.NewKVClient(client).Range(ctx, &pb.RangeRequest{Key: []byte("k")},
					grpc.WaitForReady(true))
				ended <- err
			}()
			<-entered
			var silent []net.Conn
			for range 3 * most {
				c := d.connect("")
				if secured {
					c = shake(c)
				}
				_, err := io.WriteString(c, begin)
				if err == nil {
					_, err = io.ReadFull(c, make([]byte, 9)) // the server begins, too
				}
				if err != nil {
					t.Fatalf("a new connection: %v", err)
				}
				silent = append(silent, c)
			}
			for _, c := range silent[:2*most+1] { // one of three has a call
				d.ends(c)
			}
			d.serves()
			d.ends(silent[2*most+1]) // in place of which a client was served
			cancel()
			if err := <-ended; status.Code(err) != codes.Canceled {
				t.Errorf("a connection with a call: %v", err)
			}
		})
	}
}

// TestManyPageConnections: a URL of pages is not locked either, by clients that say nothing, or
// nothing more when they were answered.
func TestManyPageConnections(t *testing.T) {
	const most = 3
	for name, secured := range map[string]bool{"plain": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			d, l := listenFor(t, secured)
			pages := newHTTPServer(http.NotFoundHandler())
			pages.ReadTimeout = time.Hour
			n := &newest{Listener: l, most: most}
			var running sync.WaitGroup
			running.Go(func() { _ = pages.Serve(n) }) // ends when it is closed
			var conns []net.Conn
			for i := range 3 * most {
				c := d.connect("")
				if conns = append(conns, c); i%2 == 0 {
					continue
				}
				if secured {
					c = shake(c)
				}
				_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
				if err == nil {
					_, err = io.ReadFull(c, make([]byte, len("HTTP/1.1 404")))
				}
				if err != nil {
					t.Errorf("a client that speaks: %v", err)
				}
			}
			for _, c := range conns[:2*most] {
				d.ends(c)
			}
			d.serves()
			pages.Close()
			running.Wait()
			if n.open.Len() > 0 {
				t.Errorf("%d connections are still counted", n.open.Len())
			}
		})
	}
}

// TestReadinessIsShared: many who ask at a time whether a store is ready need one answer, which is
// none to a question before theirs. One who leaves answers nobody.
func TestReadinessIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, release := 0, make(chan error)
		j := newJoined(func(ctx context.Context) error {
			asked++
			select {
			case err := <-release:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		answers := make(chan error, 100)
		get := func(ctx context.Context) {
			go func() { answers <- j.get(ctx) }()
			synctest.Wait()
			<-time.After(time.Millisecond) // of the test's clock: nobody comes at the same moment
		}
		get(t.Context())
		for range 50 {
			get(t.Context())
		}
		release <- errors.New("before")
		if err := <-answers; err == nil {
			t.Error("the first is answered by what comes later")
		}
		release <- nil
		for range 50 {
			if err := <-answers; err != nil {
				t.Errorf("what was answered before is the answer: %v", err)
			}
		}
		if asked != 2 {
			t.Errorf("it was asked %d times", asked)
		}
		leaving, leave := context.WithCancel(t.Context())
		get(leaving)
		get(t.Context())
		leave()
		if err := <-answers; !errors.Is(err, context.Canceled) {
			t.Errorf("who has left is answered by %v", err)
		}
		release <- nil
		if err := <-answers; err != nil {
			t.Errorf("who stays is answered by %v", err)
		}
	})
}
