package options_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/dynamic"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// A server that stops waits for no connection of its own, be it idle or in use until the server
// stops: its client is the one that ends them.
func TestStopHangsUp(t *testing.T) {
	for name, use := range map[string]func(context.Context, dynamic.ResourceInterface) error{
		"list": func(ctx context.Context, client dynamic.ResourceInterface) error {
			_, err := client.List(ctx, metav1.ListOptions{})
			return err
		},
		"watch": func(ctx context.Context, client dynamic.ResourceInterface) error {
			_, err := client.Watch(ctx, metav1.ListOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, err := storage.Open(t.Context(), storage.Config{
				URL: "memory:", Drivers: []storage.Driver{sqlite.Driver}, Migrate: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			serving := genericoptions.NewSecureServingOptions()
			serving.Listener, serving.BindAddress = tcp, net.IPv4(127, 0, 0, 1)
			api := newAPI(t)
			config := api.NewConfig()
			config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
			if err := options.ApplySecureServing(serving, &config.Config); err != nil {
				t.Fatal(err)
			}
			dialed := make(chan *connection, 10)
			dial := config.LoopbackClientConfig.Dial
			if dial == nil {
				dial = new(net.Dialer).DialContext
			}
			config.LoopbackClientConfig.Dial = func(
				ctx context.Context, network, address string,
			) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				c := &connection{Conn: conn, byClient: make(chan bool, 1)}
				dialed <- c
				return c, nil
			}
			stored := options.NewStorageOptions("/registry", api.Scheme, api.Codecs)
			if err := stored.ApplyTo(&config.Config, db); err != nil {
				t.Fatal(err)
			}
			server, err := api.New(config)
			if err != nil {
				t.Fatal(err)
			}
			used := make(chan error, 1)
			server.AddPostStartHookOrDie("use",
				func(hook genericapiserver.PostStartHookContext) error {
					go func() {
						used <- use(hook, client(hook.LoopbackClientConfig))
					}()
					return nil
				})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stopped := make(chan error, 1)
			go func() { stopped <- server.PrepareRun().RunWithContext(ctx) }()
			if err := <-used; err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-stopped; err != nil {
				t.Fatal(err)
			}
			if !<-(<-dialed).byClient {
				t.Error("the server has ended the connection")
			}
			if n := len(dialed); n > 0 {
				t.Errorf("there were %d more connections", n)
			}
		})
	}
}

// connection tells once who has ended it. If it is the server, it tells its client, who reads no
// more when it closes the connection, too.
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

func (c *connection) Close() error {
	c.once.Do(func() { c.byClient <- c.reading.Load() })
	return c.Conn.Close()
}
