package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
)

// etcdStore is a store that the command serves.
type etcdStore struct {
	name string
	// alone: the process serves no other store, so its clients may see the metrics of the process.
	alone bool
	// urls are those that the list of members names.
	urls []string
	// tls says who may connect. It is of no use to listeners without TLS.
	tls *tlsFiles
	// now is what answers the clients.
	now atomic.Pointer[front]
}

// front answers the clients of a store while it is open, or tells them that it is not.
type front struct {
	calls, pages *branch
	grpc         *grpc.Server
	http         *http.Server
	ready        func(context.Context) error
	// room has an element for each connection.
	room    chan struct{}
	running sync.WaitGroup
}

func (c *etcdCommand) newFront(g *grpc.Server, ready func(context.Context) error,
	metrics prometheus.Gatherer) *front {
	s := &front{calls: newBranch(), pages: newBranch(), grpc: g, ready: ready,
		room: make(chan struct{}, c.maxConnections)}
	s.http = newHTTPServer(pages(metrics, func(r *http.Request) (string, bool) {
		if err := ready(r.Context()); err != nil {
			return err.Error(), false
		}
		return "", true
	}))
	// They end when they are closed, and for no other reason.
	s.running.Go(func() { _ = s.grpc.Serve(s.calls) })
	s.running.Go(func() { _ = s.http.Serve(s.pages) })
	return s
}

// stopWait is how long calls may take to end when the server stops. Watches do not end by
// themselves.
const stopWait = time.Second

func (s *front) close() {
	_ = s.http.Close() // closes listeners that return no error
	timer := time.AfterFunc(stopWait, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
	s.running.Wait()
}

// open opens a store.
func (c *etcdCommand) open(ctx context.Context, store string) (*storage.Database, error) {
	config, err := c.storage.Database()
	if err != nil {
		return nil, err
	}
	if config.Compaction, err = c.compaction(); err != nil {
		return nil, err
	}
	config.Store = store
	return storage.Open(ctx, config)
}

// opened is a store that was opened, or why it was not.
type opened struct {
	db  *storage.Database
	err error
}

// opening is how many stores are opened at a time.
const opening = 8

// openAll opens the stores. If some cannot be opened, the others are served; if none can, that is
// an error.
func (c *etcdCommand) openAll(ctx context.Context, stores []*etcdStore) ([]opened, error) {
	all := make([]opened, len(stores))
	var group errgroup.Group
	group.SetLimit(opening)
	for i, s := range stores {
		group.Go(func() error {
			all[i].db, all[i].err = c.open(ctx, s.name)
			return nil
		})
	}
	_ = group.Wait() // the errors are in all
	var errs []error
	for _, o := range all {
		if o.err == nil {
			return all, nil
		}
		errs = append(errs, o.err)
	}
	return nil, errors.Join(errs...)
}

// reopenWait is how long it takes until a store is opened again that could not be opened, or was
// dropped.
const reopenWait = 5 * time.Second

// keep serves a store until ctx ends. One that cannot be opened, or was dropped, is opened again
// when it is there. ready is called when its clients are answered.
func (c *etcdCommand) keep(ctx context.Context, s *etcdStore, o opened,
	registry *prometheus.Registry, ready func()) error {
	labeled := prometheus.WrapRegistererWith(prometheus.Labels{"store": s.name}, registry)
	logged := ""
	for {
		var now *front
		var dropped <-chan struct{}
		if o.err == nil {
			now, dropped, o.err = c.serve(ctx, s, o.db)
		}
		if o.err != nil {
			if text := o.err.Error(); ctx.Err() == nil && text != logged {
				klog.ErrorS(o.err, "A store is not served until it can be opened", "store", s.name)
				logged = text
			}
			now = c.unserved(s.name)
		} else {
			labeled.MustRegister(o.db.Collector())
			logged = ""
		}
		if before := s.now.Swap(now); before != nil {
			before.close()
		}
		ready()
		var again <-chan time.Time
		if o.err != nil {
			again = time.After(reopenWait)
		}
		select {
		case <-ctx.Done():
		case <-again:
		case <-dropped:
			klog.InfoS("A store was dropped", "store", s.name)
		}
		if o.err == nil {
			labeled.Unregister(o.db.Collector())
			s.now.Swap(c.unserved(s.name)).close()
		}
		var err error
		if o.db != nil {
			err = o.db.Close()
		}
		if ctx.Err() != nil {
			s.now.Load().close()
			return err
		}
		o.db, o.err = c.open(ctx, s.name)
	}
}

// serve serves an open store.
func (c *etcdCommand) serve(ctx context.Context, s *etcdStore,
	db *storage.Database) (*front, <-chan struct{}, error) {
	config := c.config
	config.ClientURLs = s.urls
	server, err := etcd.New(ctx, db, config)
	if err != nil {
		return nil, nil, err
	}
	g := grpc.NewServer(server.Options()...)
	server.Register(g)
	registry := prometheus.NewRegistry()
	prometheus.WrapRegistererWith(prometheus.Labels{"store": s.name},
		registry).MustRegister(db.Collector())
	if s.alone {
		registry.MustRegister(process()...)
	}
	return c.newFront(g, db.Ready, registry), server.Dropped(), nil
}

// unserved tells the clients of a store that it cannot be used now.
func (c *etcdCommand) unserved(store string) *front {
	err := status.Errorf(codes.Unavailable,
		"the store %q cannot be used now: the server's log says why", store)
	g := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return err }))
	reason := errors.New(status.Convert(err).Message())
	return c.newFront(g, func(context.Context) error { return reason }, prometheus.NewRegistry())
}

// process collects the metrics of the process.
func process() []prometheus.Collector {
	return []prometheus.Collector{collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})}
}

func newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: klog.NewStandardLogger("INFO")}
}

// overview are the pages of the whole process. It is ready while one of its stores is, so that one
// tenant's trouble is not the others'; what is wrong is told, and ?store=NAME asks for one store.
func overview(stores []*etcdStore, registry *prometheus.Registry) http.Handler {
	registry.MustRegister(process()...)
	return pages(registry, func(r *http.Request) (string, bool) {
		wanted := r.URL.Query().Get("store")
		var asked []*etcdStore
		for _, s := range stores {
			if wanted == "" || s.name == wanted {
				asked = append(asked, s)
			}
		}
		errs := make([]error, len(asked))
		var wg sync.WaitGroup
		for i, s := range asked {
			wg.Go(func() { errs[i] = s.now.Load().ready(r.Context()) })
		}
		wg.Wait()
		var about []string
		for i, err := range errs {
			if err != nil {
				about = append(about, fmt.Sprintf("%s: %v", asked[i].name, err))
			}
		}
		if len(asked) == 0 {
			return fmt.Sprintf("the store %q is not served here", wanted), false
		}
		return strings.Join(about, "; "), len(about) < len(asked)
	})
}

// readyWait is how long the database may take to answer whether a store is ready.
const readyWait = 5 * time.Second

// pages are what is served by HTTP, in etcd's form. ready says what is wrong, and whether clients
// can be served nevertheless.
func pages(metrics prometheus.Gatherer, ready func(*http.Request) (string, bool)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	ask := func(r *http.Request) (string, bool) {
		ctx, cancel := context.WithTimeout(r.Context(), readyWait)
		defer cancel()
		return ready(r.WithContext(ctx))
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		about, ok := ask(r)
		w.Header().Set("Content-Type", "application/json")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"health": fmt.Sprint(ok), "reason": about})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		about, ok := ask(r)
		if !ok {
			http.Error(w, about, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, strings.TrimSpace("ok\n"+about))
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
