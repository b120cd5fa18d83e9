package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/etcdclient"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/load"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/prom"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// env is two servers on one database, clients that use them a little, and a Prometheus.
type env struct {
	kind      programs.Kind
	dir       string
	rowkeeper string
	out       io.Writer
	db        database.Database
	rows      *rows.DB
	servers   []*server.Server
	targets   []load.Endpoint
	// metrics are where Prometheus reads.
	metrics []prom.Target
	load    *load.Load
	prom    *prom.Server
}

const (
	servers = 2
	// rate is how many requests a second all clients send.
	rate          = 40
	clientTimeout = 20 * time.Second
	startWithin   = time.Minute
	// mendWithin is how long the servers may take to work again after a fault, and the alerts to
	// end. An unknown outcome is looked into for 30 s, and alerts look back for 15 s, or for 30 s.
	mendWithin = 2 * time.Minute
)

// open starts all. The alternative is a database on a small file system, which can be filled, or
// "rowkeeper etcd" in place of API servers.
func open(ctx context.Context, kind programs.Kind, rowkeeper string, rules *prom.Rules,
	out io.Writer, small, etcd bool) (_ *env, err error) {
	e := &env{kind: kind, rowkeeper: rowkeeper, out: out}
	if e.dir, err = os.MkdirTemp("", "rowkeeper-alerts-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if err := os.Chmod(e.dir, 0o755); err != nil { // database servers run as other users
		return nil, err
	}
	switch {
	case small:
		e.db, err = database.NewSmall(ctx, kind, servers, e.dir)
	case kind == programs.SQLite:
		e.db = database.NewSQLite(e.dir)
	default:
		e.db, err = database.NewRotating(ctx, kind, servers, e.dir)
	}
	if err != nil {
		return nil, err
	}
	for i := range servers {
		if err := e.startServer(ctx, i, etcd); err != nil {
			return nil, err
		}
	}
	if e.rows, err = rows.Open(e.db.Direct(), "", "default"); err != nil {
		return nil, err
	}
	for _, s := range e.servers {
		if !etcd {
			t, err := e.monitored(ctx, s)
			if err != nil {
				return nil, err
			}
			e.metrics = append(e.metrics, t)
		}
	}
	if e.prom, err = prom.Start(ctx, filepath.Join(e.dir, "prometheus"), rules,
		e.metrics); err != nil {
		return nil, err
	}
	e.use(ctx, rate)
	return e, nil
}

// use lets clients send so many requests a second; 0: as many as they can.
func (e *env) use(ctx context.Context, rate int) {
	if e.load != nil {
		e.load.Stop()
	}
	e.load = load.Start(ctx, history.New(), e.targets, load.Options{Clients: 4, Rate: rate,
		Timeout: clientTimeout, Namespaces: 12})
}

// startServer starts a server. What it does by the minute, it does by the second, and its timeouts
// are shorter than the faults.
func (e *env) startServer(ctx context.Context, i int, etcd bool) error {
	where := "--database=" + e.db.URL(i)
	if r, ok := e.db.(*database.Rotating); ok {
		if err := r.Write(); err != nil {
			return err
		}
		where = "--database-file=" + r.File(i)
	}
	s, err := server.New(e.rowkeeper, filepath.Join(e.dir, fmt.Sprint("server", i)), where,
		"--database-timeout=4s")
	if err != nil {
		return err
	}
	if etcd {
		metrics, flags, err := metricsOfEtcd(s)
		if err != nil {
			return err
		}
		e.metrics = append(e.metrics, metrics)
		s.Command = []string{"etcd", "--listen-client-urls=http://" + s.Address()}
		s.Args = append(append(s.Args, "--auto-compaction-retention=10s"), flags...)
	} else {
		s.Args = append(s.Args, "--request-timeout=10s", "--compaction-interval=1s",
			"--compaction-window=10s", "--compaction-keep=100",
			"--shutdown-watch-termination-grace-period=1s",
			// Lists of this kind are read from the database.
			"--watch-cache-sizes=pipelineruns.ci.rowkeeper.dev#0")
	}
	e.servers = append(e.servers, s)
	if err := s.Start(); err != nil {
		return err
	}
	return e.until(ctx, startWithin, func(ctx context.Context) error {
		if len(e.targets) <= i {
			target, err := dial(s, etcd)
			if err != nil {
				return err
			}
			e.targets = append(e.targets, target)
		}
		if !s.Running() {
			return fmt.Errorf("it has ended: %s", s.Log())
		}
		return e.targets[i].Ready(ctx)
	})
}

// metricsOfEtcd gives "rowkeeper etcd" a URL for metrics alone, with a certificate, and returns the
// flags for it.
func metricsOfEtcd(s *server.Server) (t prom.Target, flags []string, err error) {
	port, err := programs.FreePort()
	if err != nil {
		return t, nil, err
	}
	pair, err := pki.SelfSigned(pki.Server("127.0.0.1"), time.Now(), time.Now().AddDate(1, 0, 0))
	if err != nil {
		return t, nil, err
	}
	certPEM, keyPEM, err := pair.PEM()
	if err != nil {
		return t, nil, err
	}
	t = prom.Target{Address: fmt.Sprint("127.0.0.1:", port), CA: filepath.Join(s.Dir, "tls.crt")}
	key := filepath.Join(s.Dir, "tls.key")
	return t, []string{"--listen-metrics-urls=https://" + t.Address, "--cert-file=" + t.CA,
			"--key-file=" + key}, errors.Join(os.MkdirAll(s.Dir, 0o755),
			os.WriteFile(t.CA, certPEM, 0o600), os.WriteFile(key, keyPEM, 0o600))
}

func dial(s *server.Server, etcd bool) (load.Endpoint, error) {
	if etcd {
		return etcdclient.Dial(s.Address(), "/alerts")
	}
	config, err := s.Config()
	if err != nil {
		return nil, err
	}
	return api.Dial(config, "")
}

// monitored makes a certificate by which Prometheus reads a server's metrics, and nothing else.
func (e *env) monitored(ctx context.Context, s *server.Server) (t prom.Target, err error) {
	dir := filepath.Join(s.Dir, ".rowkeeper")
	cmd := exec.CommandContext(ctx, e.rowkeeper, "kubeconfig", "--data-dir", dir, "--user",
		"prometheus", "--group", "system:monitoring")
	content, err := cmd.Output()
	if err != nil {
		return t, fmt.Errorf("rowkeeper kubeconfig: %w", err)
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		return t, err
	}
	user := config.AuthInfos["prometheus"]
	t = prom.Target{Address: s.Address(), CA: filepath.Join(dir, "pki", "ca.crt"),
		Cert: filepath.Join(s.Dir, "prometheus.crt"), Key: filepath.Join(s.Dir, "prometheus.key")}
	return t, errors.Join(os.WriteFile(t.Cert, user.ClientCertificateData, 0o600),
		os.WriteFile(t.Key, user.ClientKeyData, 0o600))
}

func (e *env) say(format string, args ...any) {
	fmt.Fprintf(e.out, "%s %s: %s\n", time.Now().UTC().Format(time.TimeOnly), e.kind,
		fmt.Sprintf(format, args...))
}

// until repeats a question until it is answered without an error.
func (e *env) until(ctx context.Context, within time.Duration,
	ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		asked, done := context.WithTimeout(ctx, 5*time.Second)
		err := ok(asked)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", within, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// calm waits until every server takes a write, and no alert fires or is about to.
func (e *env) calm(ctx context.Context) error {
	for i, s := range e.servers {
		err := e.until(ctx, mendWithin, func(ctx context.Context) error {
			return errors.Join(e.targets[i].Ready(ctx), e.load.Probe(ctx, i))
		})
		if err != nil {
			return fmt.Errorf("server %d does not work: %w; it wrote: %s", i, err, s.Log())
		}
	}
	return e.until(ctx, mendWithin, func(ctx context.Context) error {
		firing, pending, err := e.prom.Firing(ctx)
		if err == nil && (pending || len(firing) > 0) {
			err = fmt.Errorf("alerts go on: %v; others may follow: %t", firing, pending)
		}
		return err
	})
}

func (e *env) close() error {
	var errs []error
	if e.load != nil {
		e.load.Stop()
	}
	if e.prom != nil {
		errs = append(errs, e.prom.Close())
	}
	for _, s := range e.servers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, _ = s.End(ctx, syscall.SIGKILL) // nothing depends on how it ends
		cancel()
	}
	for _, t := range e.targets {
		t.Close()
	}
	if e.rows != nil {
		errs = append(errs, e.rows.Close())
	}
	if e.db != nil {
		errs = append(errs, e.db.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(e.dir))...)
}

// hold waits for a while, and for the alerts that are to come.
func (e *env) hold(ctx context.Context, d time.Duration, wanted []string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
	}
	_ = e.until(ctx, holdLonger, func(ctx context.Context) error { // what is missing is told later
		firing, _, err := e.prom.Firing(ctx)
		for _, name := range wanted {
			if err == nil && !slices.Contains(firing, name) {
				err = errors.New(name + " does not fire")
			}
		}
		return err
	})
	return ctx.Err()
}

// holdLonger is for a machine that is slow, and for a commit that a fault has broken off: its
// outcome is looked into for 30 s, in which no other commit begins, and so none fails.
const holdLonger = time.Minute

func short(names []string) string {
	var list []string
	for _, n := range names {
		list = append(list, strings.TrimPrefix(n, prefix))
	}
	return strings.Join(list, ", ")
}
