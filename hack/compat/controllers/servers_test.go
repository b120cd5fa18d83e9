package controllers

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/process"
)

// front is one address before several servers. Each connection goes to the next running server.
type front struct {
	listener net.Listener

	mu      sync.Mutex
	servers []string // the addresses, empty for one that does not run; protected by mu
	next    int      // protected by mu
}

func newFront(t *testing.T, servers int) *front {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{listener: listener, servers: make([]string, servers)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // it was closed
			}
			running.Go(func() { f.pass(ctx, client) })
		}
	})
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		running.Wait()
	})
	return f
}

func (f *front) address() string { return f.listener.Addr().String() }

// lead leads to a server at this address from now on, or past it if that is empty.
func (f *front) lead(server int, address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers[server] = address
}

// choose returns the address of the next server that runs, or an empty one.
func (f *front) choose() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range f.servers {
		f.next = (f.next + 1) % len(f.servers)
		if address := f.servers[f.next]; address != "" {
			return address
		}
	}
	return ""
}

// pass passes a connection on. If that is not possible the client loses it, as if the server had
// just ended, and comes again.
func (f *front) pass(ctx context.Context, client net.Conn) {
	defer client.Close()
	address := f.choose()
	if address == "" {
		return
	}
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	// When one side ends, both do. How a copy ends tells nothing then.
	end := sync.OnceFunc(func() {
		client.Close()
		server.Close()
	})
	defer context.AfterFunc(ctx, end)()
	var copying sync.WaitGroup
	copying.Go(func() { defer end(); _, _ = io.Copy(server, client) })
	copying.Go(func() { defer end(); _, _ = io.Copy(client, server) })
	copying.Wait()
}

// newDatabase makes one on PostgreSQL.
func newDatabase(t *testing.T) string {
	t.Helper()
	server, err := dbserver.Start(t.Context(), dbserver.Postgres, dbserver.Options{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	database, err := server.CreateDatabase(t.Context(), "controllers")
	if err != nil {
		t.Fatal(err)
	}
	return database
}

// servers are one server, or several replicas.
type servers struct {
	*testing.T
	kubeconfig string // leads to the front
	front      *front
	replicas   []*replica
}

type replica struct {
	options process.Options
	*process.Server
}

func startServers(t *testing.T, program string, replicas int, args []string) *servers {
	t.Helper()
	s := &servers{T: t, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"),
		front: newFront(t, replicas), replicas: make([]*replica, replicas)}
	args = append([]string{"--enable-crds"}, args...)
	for i := range s.replicas {
		r := &replica{options: process.Options{Program: program, Args: args, Dir: t.TempDir(),
			Stderr: logFile(t, "a server")}}
		s.replicas[i] = r
		if i > 0 {
			// The replicas have one authority, so that a client knows all by one kubeconfig.
			if err := os.CopyFS(filepath.Join(r.options.Dir, "pki"),
				os.DirFS(filepath.Join(s.replicas[0].options.Dir, "pki"))); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.launch(t.Context(), i); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	config, err := clientcmd.LoadFromFile(s.replicas[0].Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		c.Server = "https://" + s.front.address()
	}
	if err := clientcmd.WriteToFile(*config, s.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return s
}

// launch starts a server.
func (s *servers) launch(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r := s.replicas[i]
	server, err := process.Launch(ctx, r.options)
	if err != nil {
		return err
	}
	r.Server = server
	host, err := r.ready(ctx)
	if err != nil {
		return err
	}
	s.front.lead(i, host)
	return nil
}

// ready asks a server whether it is ready, and returns where it is.
func (r *replica) ready(ctx context.Context) (host string, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig)
	if err != nil {
		return "", err
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	_, err = c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return strings.TrimPrefix(config.Host, "https://"), err
}

// killAtRandom kills one server at a time, at a random moment, and starts it again, until ctx ends.
// All are ready then. It returns how often it did so.
func (s *servers) killAtRandom(ctx context.Context) (kills int) {
	for {
		select {
		case <-ctx.Done():
			return kills
		case <-time.After(time.Second + rand.N(9*time.Second)): // nothing tells it: it is random
		}
		i := rand.N(len(s.replicas))
		r := s.replicas[i]
		// It has served until now: none ends by itself.
		if _, err := r.ready(s.Context()); err != nil {
			s.Errorf("server %d is not ready before it is killed: %v", i, err)
		}
		if err := r.Kill(); err != nil {
			s.Error(err)
		}
		s.front.lead(i, "")
		kills++
		if err := s.launch(s.Context(), i); err != nil {
			s.Errorf("server %d cannot be started again: %v", i, err)
			return kills
		}
	}
}
