package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
)

// etcdCommand is the command "etcd": etcd's API, for a kube-apiserver as it is built upstream. Its
// flags have the names of etcd's where they mean the same.
type etcdCommand struct {
	storage *options.StorageOptions
	config  etcd.Config

	clientURLs, metricsURLs []string
	tls                     tlsFiles
	plainText               bool
	compactionMode          string
	compactionRetention     string
}

func newEtcdCommand() *cobra.Command {
	c := &etcdCommand{storage: newStorageOptions()}
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Serve a database by etcd's API, for a kube-apiserver",
		Long: "Etcd serves a database by etcd's v3 API, so that a kube-apiserver as it is built " +
			"upstream keeps its objects there: give it the client URL as --etcd-servers. Any " +
			"number of processes may serve one database. The database is compacted when " +
			"kube-apiserver says so. Do not serve the same database by \"rowkeeper serve\".",
		Example: "  rowkeeper etcd --database sqlite:///var/lib/rowkeeper/state.db \\\n    --listen-client-urls unix:///run/rowkeeper/etcd.sock",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.validate(); err != nil {
				return server.UsageError{Err: err}
			}
			return c.run(cmd.Context())
		},
	}
	c.addFlags(cmd.Flags())
	cmd.AddCommand(newEtcdImportCommand(), newEtcdExportCommand())
	return cmd
}

func (c *etcdCommand) addFlags(fs *pflag.FlagSet) {
	c.storage.AddDatabaseFlags(fs)
	fs.BoolVar(&c.storage.Migrate, "database-migrate", true,
		"Bring the schema of the database to the newest version at start. If false, a database "+
			"with an older schema is refused.")
	fs.StringVar(&c.config.Name, "name", "rowkeeper", "What the list of members calls this server.")
	fs.StringSliceVar(&c.clientURLs, "listen-client-urls", []string{"http://127.0.0.1:2379"},
		"Where clients connect: https://host:port, http://host:port, unix:///path or "+
			"unixs:///path. /health, /readyz, /version and /metrics are served there, too.")
	fs.StringSliceVar(&c.config.ClientURLs, "advertise-client-urls", nil,
		"The client URLs that the list of members names. Default: those of --listen-client-urls.")
	fs.StringSliceVar(&c.metricsURLs, "listen-metrics-urls", nil,
		"Where /health, /readyz, /version and /metrics are served besides, without client "+
			"certificates.")
	fs.StringVar(&c.tls.cert, "cert-file", "", "The serving certificate, which is read again "+
		"for each connection.")
	fs.StringVar(&c.tls.key, "key-file", "", "The private key of --cert-file.")
	fs.StringVar(&c.tls.authority, "trusted-ca-file", "",
		"The certificates that sign those of clients, which are then asked for one.")
	fs.BoolVar(&c.tls.require, "client-cert-auth", false,
		"Refuse clients without a certificate that --trusted-ca-file has signed.")
	fs.BoolVar(&c.plainText, "allow-plain-text", false,
		"Listen without TLS on other addresses than those of this machine, too. Whoever reaches "+
			"such an address can read and change everything.")
	fs.IntVar(&c.config.MaxRequestBytes, "max-request-bytes", 3<<19,
		"The greatest size of a request.")
	fs.IntVar(&c.config.MaxTxnOps, "max-txn-ops", 128,
		"The greatest number of operations of a transaction.")
	fs.Uint32Var(&c.config.MaxConcurrentStreams, "max-concurrent-streams", 10_000,
		"How many calls a connection may have at a time.")
	fs.StringVar(&c.compactionMode, "auto-compaction-mode", "periodic",
		"What --auto-compaction-retention means: periodic for a time, revision for a number of "+
			"revisions.")
	fs.StringVar(&c.compactionRetention, "auto-compaction-retention", "0",
		"How much history is kept: hours or a duration, or a number of revisions. 0 means that "+
			"only clients compact, as kube-apiserver does every five minutes.")
}

func (c *etcdCommand) validate() error {
	errs := c.storage.ValidateDatabase()
	reject := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	reject((c.tls.cert == "") != (c.tls.key == ""), "--cert-file and --key-file go together")
	reject(c.tls.require && c.tls.authority == "", "--client-cert-auth needs --trusted-ca-file")
	reject(c.tls.authority != "" && c.tls.cert == "", "--trusted-ca-file needs --cert-file")
	reject(len(c.clientURLs) == 0, "--listen-client-urls names nothing to listen on")
	reject(c.config.MaxRequestBytes <= 0 || c.config.MaxTxnOps <= 0 ||
		c.config.MaxConcurrentStreams == 0, "--max-request-bytes, --max-txn-ops and "+
		"--max-concurrent-streams must be greater than 0")
	for _, u := range append(c.clientURLs, c.metricsURLs...) {
		if _, err := c.endpoint(u); err != nil {
			errs = append(errs, err)
		}
	}
	if _, err := c.compaction(); err != nil {
		errs = append(errs, err)
	}
	return utilerrors.NewAggregate(errs)
}

// compaction is what the flags --auto-compaction-* say.
func (c *etcdCommand) compaction() (p storage.CompactionPolicy, err error) {
	number, notNumber := strconv.ParseInt(c.compactionRetention, 10, 64)
	switch {
	case notNumber == nil && number == 0:
		return storage.CompactionPolicy{Window: -1}, nil
	case c.compactionMode == "revision" && notNumber == nil && number > 0:
		return storage.CompactionPolicy{Window: time.Nanosecond, Keep: number}, nil
	case c.compactionMode == "periodic" && notNumber == nil && number > 0:
		p.Window = time.Duration(number) * time.Hour
	case c.compactionMode == "periodic":
		p.Window, err = time.ParseDuration(c.compactionRetention)
	default:
		return p, fmt.Errorf("--auto-compaction-mode is periodic or revision, and " +
			"--auto-compaction-retention fits it")
	}
	if err != nil || p.Window <= 0 {
		return p, fmt.Errorf("--auto-compaction-retention %q is no time", c.compactionRetention)
	}
	p.Keep = 1
	return p, nil
}

// endpoint is a URL that is listened on.
type endpoint struct {
	network, address string
	tls              bool
}

func (c *etcdCommand) endpoint(text string) (e endpoint, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return e, fmt.Errorf("%q is not a URL: %w", text, err)
	}
	e = endpoint{network: "tcp", address: u.Host, tls: u.Scheme == "https" || u.Scheme == "unixs"}
	switch u.Scheme {
	case "http", "https":
		if u.Port() == "" {
			return e, fmt.Errorf("the URL %q has no port", text)
		}
	case "unix", "unixs":
		e.network, e.address = "unix", u.Host+u.Path
	default:
		return e, fmt.Errorf("the URL %q is of none of the schemes https, http, unix and unixs", text)
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case e.tls && c.tls.cert == "":
		return e, fmt.Errorf("the URL %q needs --cert-file and --key-file", text)
	case !e.tls && e.network == "tcp" && !local && !c.plainText:
		return e, fmt.Errorf("without TLS, %q would let everybody in who reaches it: use https:, or "+
			"an address of this machine, or --allow-plain-text", text)
	}
	return e, nil
}

func (c *etcdCommand) run(ctx context.Context) (err error) {
	config, err := c.storage.Database()
	if err != nil {
		return err
	}
	if config.Compaction, err = c.compaction(); err != nil {
		return err
	}
	db, err := storage.Open(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if len(c.config.ClientURLs) == 0 {
		c.config.ClientURLs = c.clientURLs
	}
	server, err := etcd.New(ctx, db, c.config)
	if err != nil {
		return err
	}
	grpcServer := grpc.NewServer(server.Options()...)
	server.Register(grpcServer)
	httpServer := &http.Server{Handler: pages(db), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: klog.NewStandardLogger("INFO")}

	var serving sync.WaitGroup
	ended := make(chan error, 1)
	end := func(err error) {
		if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) &&
			!errors.Is(err, grpc.ErrServerStopped) {
			select {
			case ended <- err:
			default:
			}
		}
	}
	defer serving.Wait()
	defer httpServer.Close()
	defer stop(grpcServer)
	for _, u := range c.clientURLs {
		l, err := c.listen(u, true)
		if err != nil {
			return err
		}
		s := newSplitter(l)
		serving.Go(func() { end(grpcServer.Serve(s.grpc)) })
		serving.Go(func() { end(httpServer.Serve(s.http)) })
		serving.Go(func() { end(s.run()) })
		klog.FromContext(ctx).Info("serving etcd's API", "url", u)
	}
	for _, u := range c.metricsURLs {
		l, err := c.listen(u, false)
		if err != nil {
			return err
		}
		serving.Go(func() { end(httpServer.Serve(l)) })
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// stopWait is how long calls may take to end when the server stops. Watches do not end by
// themselves.
const stopWait = time.Second

func stop(s *grpc.Server) {
	timer := time.AfterFunc(stopWait, s.Stop)
	defer timer.Stop()
	s.GracefulStop()
}

// listen listens on a URL that was validated. A socket's file that nobody listens on is replaced.
func (c *etcdCommand) listen(text string, clients bool) (net.Listener, error) {
	e, err := c.endpoint(text)
	if err != nil {
		return nil, err
	}
	if e.network == "unix" {
		if conn, err := net.Dial(e.network, e.address); err == nil {
			conn.Close()
			return nil, fmt.Errorf("another process listens on %s", text)
		}
		if err := os.Remove(e.address); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	l, err := net.Listen(e.network, e.address)
	if err != nil {
		return nil, err
	}
	if e.network == "unix" {
		err = os.Chmod(e.address, 0o600)
	}
	if err == nil && e.tls {
		l, err = c.tls.listener(l, clients)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// pages are what is served by HTTP, in etcd's form.
func pages(db *storage.Database) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(db.Collector(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	ready := func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		return db.Ready(ctx)
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		answer, code := map[string]string{"health": "true", "reason": ""}, http.StatusOK
		if err := ready(r); err != nil {
			answer["health"], answer["reason"] = "false", err.Error()
			code = http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(answer)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"etcdserver": etcd.Version,
			"etcdcluster": "3.7.0", "storage": "3.7.0"})
	})
	return mux
}
