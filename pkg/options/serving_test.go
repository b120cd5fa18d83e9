package options_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// serving is a server that runs until it is stopped.
type serving struct {
	config   *genericapiserver.RecommendedConfig
	loopback *rest.Config
	listener *listener
	// stop stops the server and waits for its end.
	stop func()
}

// serve runs a server with a listener that watches its connections.
func serve(t *testing.T) *serving {
	t.Helper()
	store, err := storage.Open(t.Context(), storage.Config{URL: "memory:",
		Drivers: []storage.Driver{sqlite.Driver}, Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &serving{listener: &listener{Listener: tcp, conns: make(chan *connection, 10)}}
	secure := genericoptions.NewSecureServingOptions()
	secure.Listener, secure.BindAddress = s.listener, net.IPv4(127, 0, 0, 1)
	api := newAPI(t)
	s.config = api.NewConfig()
	s.config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	if err := options.ApplySecureServing(secure, &s.config.Config); err != nil {
		t.Fatal(err)
	}
	stored := options.NewStorageOptions("/registry", api.Scheme, api.Codecs)
	if err := stored.ApplyTo(&s.config.Config, store); err != nil {
		t.Fatal(err)
	}
	server, err := api.New(s.config)
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	server.AddPostStartHookOrDie("started", func(hook genericapiserver.PostStartHookContext) error {
		s.loopback = hook.LoopbackClientConfig
		close(started)
		return nil
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- server.PrepareRun().RunWithContext(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	<-started
	return s
}

// TestStopHangsUp: the clients of the loopback configuration share one connection. A server that
// stops does not wait for it, be it idle or in use until the server stops: the client ends it.
func TestStopHangsUp(t *testing.T) {
	for name, watches := range map[string]bool{"list": false, "watch": true} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			for range 3 {
				c := client(s.loopback)
				if _, err := c.List(t.Context(), metav1.ListOptions{}); err != nil {
					t.Fatal(err)
				}
				if watches {
					if _, err := c.Watch(t.Context(), metav1.ListOptions{}); err != nil {
						t.Fatal(err)
					}
				}
			}
			s.stop()
			if !<-(<-s.listener.conns).byClient {
				t.Error("the server has ended the connection")
			}
			if n := len(s.listener.conns); n > 0 {
				t.Errorf("there were %d more connections", n)
			}
		})
	}
}

// TestStopEndsWatches: a server whose author says nothing about it ends the watches of others when
// it stops. It would wait for them for a minute.
func TestStopEndsWatches(t *testing.T) {
	s := serve(t)
	// A transport of its own, which does not end with the server.
	config := rest.CopyConfig(s.loopback)
	config.WrapTransport = nil
	w, err := client(config).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan time.Duration)
	go func() {
		began := time.Now()
		for event := range w.ResultChan() {
			if event.Type != watch.Bookmark {
				t.Errorf("the watch got %+v", event)
			}
		}
		ended <- time.Since(began)
	}()
	go s.stop()
	if took := <-ended; took > s.config.ShutdownWatchTerminationGracePeriod {
		t.Errorf("the watch ended after %s", took)
	}
}

// listener hands its connections to the test, too.
type listener struct {
	net.Listener
	conns chan *connection
}

func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, byClient: make(chan bool, 1)}
	l.conns <- c
	return c, nil
}

// connection tells once who has ended it. If it is the client, a write fails, or the server does
// not read any more when it closes the connection.
type connection struct {
	net.Conn
	reading  atomic.Bool
	once     sync.Once
	byClient chan bool
}

func (c *connection) Read(p []byte) (int, error) {
	c.reading.Store(true)
	n, err := c.Conn.Read(p)
	c.reading.Store(errors.Is(err, net.ErrClosed))
	return n, err
}

func (c *connection) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.end(true)
	}
	return n, err
}

func (c *connection) Close() error {
	c.end(!c.reading.Load())
	return c.Conn.Close()
}

func (c *connection) end(byClient bool) { c.once.Do(func() { c.byClient <- byClient }) }
