// Package member is for the tests of etcd that run beside it: it starts "rowkeeper etcd" where
// their framework would serve etcd's API.
package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

const (
	// ProgramEnv names the program rowkeeper, DatabaseEnv the URL of the database, and DirEnv a
	// directory for the sockets and logs. Its path is short.
	ProgramEnv  = "ROWKEEPER_PROGRAM"
	DatabaseEnv = "ROWKEEPER_DATABASE"
	DirEnv      = "ROWKEEPER_DIR"
)

// Config is what a test wants of a server.
type Config struct {
	// Cluster is the same for the members of a cluster. They serve one store.
	Cluster string
	// Name is the member's, and distinguishes it.
	Name string
	// URL is where clients find the server.
	URL string
	// The files are those of TLS, if there is a certificate.
	CertFile, KeyFile, TrustedCAFile string
	// The others are etcd's defaults if they are 0.
	MaxTxnOps, MaxRequestBytes uint
	ProgressInterval           time.Duration
}

// args are the arguments of the program. It listens on one socket for clients, and on another for
// probes.
func (c *Config) args(dir, store string) []string {
	args := []string{"etcd", "--database=" + os.Getenv(DatabaseEnv), "--store=" + store,
		"--name=" + c.Name, "--advertise-client-urls=" + c.URL,
		"--listen-metrics-urls=unix://" + probes(dir)}
	scheme := "unix://"
	if c.CertFile != "" {
		scheme = "unixs://"
		args = append(args, "--cert-file="+c.CertFile, "--key-file="+c.KeyFile)
		if c.TrustedCAFile != "" {
			args = append(args, "--trusted-ca-file="+c.TrustedCAFile)
		}
	}
	args = append(args, "--listen-client-urls="+scheme+clients(dir))
	if c.MaxTxnOps > 0 {
		args = append(args, fmt.Sprint("--max-txn-ops=", c.MaxTxnOps))
	}
	if c.MaxRequestBytes > 0 {
		args = append(args, fmt.Sprint("--max-request-bytes=", c.MaxRequestBytes))
	}
	if c.ProgressInterval > 0 {
		args = append(args, fmt.Sprint("--watch-progress-notify-interval=", c.ProgressInterval))
	}
	return args
}

var (
	mu sync.Mutex
	// stores are those of the clusters of this process. The first has that of the database.
	stores = map[string]string{}
)

// storeOf returns the store of a cluster, which is created if there is none.
func storeOf(cluster string) (string, error) {
	mu.Lock()
	defer mu.Unlock()
	if name, ok := stores[cluster]; ok {
		return name, nil
	}
	name := "default"
	if len(stores) > 0 {
		name = fmt.Sprint("cluster", len(stores))
		out, err := exec.Command(os.Getenv(ProgramEnv), "stores", "create", name,
			"--database="+os.Getenv(DatabaseEnv)).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("create a store: %w: %s", err, out)
		}
	}
	stores[cluster] = name
	return name, nil
}

func clients(dir string) string { return filepath.Join(dir, "s") }
func probes(dir string) string  { return filepath.Join(dir, "p") }

// patience is how long a server may take to end its calls. etcd's framework waits as long.
const patience = 2 * time.Second

// Serve starts a server, waits until it answers, and hands it what comes in at the listener. The
// listener stays the test's, and clients may have connected before. It returns what stops all that.
func Serve(l net.Listener, c *Config) (stop func(), err error) {
	dir, err := os.MkdirTemp(os.Getenv(DirEnv), "m")
	store, created := storeOf(c.Cluster)
	if err = errors.Join(err, created); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	// A test that ends by a panic stops nothing.
	p := &programs.Program{Dir: dir, Signal: syscall.SIGTERM,
		Attributes: syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
	p.Command = append([]string{os.Getenv(ProgramEnv)}, c.args(dir, store)...)
	if err = p.Start(); err == nil {
		err = p.Await(context.Background(), func(ctx context.Context) error { return ready(ctx, dir) })
	}
	if err != nil {
		return nil, errors.Join(err, p.Kill(context.Background()), l.Close())
	}
	bridge := &bridge{to: clients(dir), open: map[net.Conn]bool{}}
	bridge.running.Go(func() { bridge.accept(l) })
	return func() {
		l.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		// Whoever does not end in time is killed.
		_ = p.Stop(ctx)
		if err := p.Kill(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		bridge.close()
	}, nil
}

// ready asks the server whether it serves.
func ready(ctx context.Context, dir string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", probes(dir))
		}}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); answer.StatusCode != http.StatusOK || err != nil {
		return fmt.Errorf("it is not ready: %s %w", answer.Status, err)
	}
	return nil
}

// bridge carries bytes between the connections of clients and the server's socket.
type bridge struct {
	to      string
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// accept carries what comes in until the listener is closed.
func (b *bridge) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", b.to)
		if err != nil || !b.keep(client, server) {
			client.Close()
			continue
		}
		carry := func(to, from net.Conn) {
			_, _ = io.Copy(to, from) // either side may end it
			client.Close()
			server.Close()
		}
		b.running.Go(func() {
			var back sync.WaitGroup
			back.Go(func() { carry(client, server) })
			carry(server, client)
			back.Wait()
			b.forget(client, server)
		})
	}
}

// keep notes two connections. It refuses them, and closes the second, if all are closed.
func (b *bridge) keep(client, server net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		server.Close()
		return false
	}
	b.open[client], b.open[server] = true, true
	return true
}

func (b *bridge) forget(both ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range both {
		delete(b.open, c)
	}
}

// close closes all connections, and waits until nothing is carried. The listener is closed.
func (b *bridge) close() {
	b.mu.Lock()
	b.closed = true
	for c := range b.open {
		c.Close()
	}
	b.mu.Unlock()
	b.running.Wait()
}
