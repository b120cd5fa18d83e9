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
	// logged is why the store cannot be used, as the log has it.
	logged atomic.Value
}

// log logs why a store cannot be used, once for each reason.
func (s *etcdStore) log(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if s.logged.Swap(text) != text && err != nil {
		klog.ErrorS(err, "A store cannot be used", "store", s.name)
	}
}

// front answers the clients of a store while it is open, or tells them that it is not.
type front struct {
	calls, pages *branch
	grpc         *grpc.Server
	http         *http.Server
	// ready says why the store cannot be used, for the operator.
	ready func(context.Context) error
	// room has an element for each connection.
	room    chan struct{}
	running sync.WaitGroup
}

func (c *etcdCommand) newFront(s *etcdStore, g *grpc.Server, ready func(context.Context) error,
	metrics prometheus.Gatherer) *front {
	f := &front{calls: newBranch(), pages: newBranch(), grpc: g, ready: ready,
		room: make(chan struct{}, c.maxConnections)}
	f.http = newHTTPServer(pages(metrics, func(r *http.Request) (string, bool) {
		err := ready(r.Context())
		if !errors.Is(r.Context().Err(), context.Canceled) { // else the client has left
			s.log(err)
		}
		if err != nil {
			return unusable(s.name), false
		}
		return "", true
	}))
	// They end when they are closed, and for no other reason.
	f.running.Go(func() { _ = f.grpc.Serve(f.calls) })
	f.running.Go(func() { _ = f.http.Serve(f.pages) })
	return f
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

const (
	// opening is how many stores are opened at a time. One that takes longer than openWait is
	// opened beside these, so that a few slow stores do not keep the others waiting.
	opening  = 8
	openWait = time.Second
	// startWait is how long the stores may take to open until the process listens nevertheless. So
	// clients are seldom told that a store is being opened.
	startWait = 2 * time.Second
)

var errOpening = errors.New("the store is being opened")

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
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave := sync.OnceFunc(func() { <-c.slots })
	defer leave()
	defer time.AfterFunc(openWait, leave).Stop()
	return storage.Open(ctx, config)
}

// firstOpened waits until each store was tried to be opened once. If none could be, it returns why:
// nothing can be served, and a person has to hear it. What is wrong with all is said once.
func firstOpened(ctx context.Context, firsts <-chan error) error {
	failed, said := 0, map[string]bool{}
	var errs []error
	for range cap(firsts) {
		err := <-firsts
		if err == nil {
			continue
		}
		failed++
		if !said[err.Error()] {
			said[err.Error()] = true
			errs = append(errs, err)
		}
	}
	if failed < cap(firsts) || ctx.Err() != nil {
		return nil
	}
	return errors.Join(errs...)
}

// reopenWait is how long it takes until a store is opened again that could not be opened, or was
// dropped.
const reopenWait = 5 * time.Second

// keep serves a store until ctx ends. One that cannot be opened, or was dropped, is opened again
// when it is there. firsts takes the outcome of the first time.
func (c *etcdCommand) keep(ctx context.Context, s *etcdStore, registry *prometheus.Registry,
	firsts chan<- error) error {
	labeled := prometheus.WrapRegistererWith(prometheus.Labels{"store": s.name}, registry)
	for first := true; ; first = false {
		var now *front
		var dropped <-chan struct{}
		db, openErr := c.open(ctx, s.name)
		if openErr == nil {
			now, dropped, openErr = c.serve(ctx, s, db)
		}
		if openErr != nil {
			if ctx.Err() == nil {
				s.log(openErr)
			}
			now = c.unserved(s, openErr)
		} else {
			labeled.MustRegister(db.Collector())
			s.log(nil)
		}
		before := s.now.Swap(now)
		if first {
			firsts <- openErr
		}
		before.close()
		var again <-chan time.Time
		if openErr != nil {
			again = time.After(reopenWait)
		}
		select {
		case <-ctx.Done():
		case <-again:
		case <-dropped:
			klog.InfoS("A store was dropped", "store", s.name)
		}
		if openErr == nil {
			labeled.Unregister(db.Collector())
			s.now.Swap(c.unserved(s, errOpening)).close()
		}
		var err error
		if db != nil {
			err = db.Close()
		}
		if ctx.Err() != nil {
			s.now.Load().close()
			return err
		}
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
	return c.newFront(s, g, db.Ready, registry), server.Dropped(), nil
}

// unserved tells the clients of a store that it cannot be used now, and the operator why.
func (c *etcdCommand) unserved(s *etcdStore, why error) *front {
	err := status.Error(codes.Unavailable, unusable(s.name))
	g := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return err }))
	return c.newFront(s, g, func(context.Context) error { return why }, prometheus.NewRegistry())
}

// unusable is what clients are told of a store that cannot be used. The reason may name what they
// are not to know, such as where the database is.
func unusable(store string) string {
	return fmt.Sprintf("the store %q cannot be used now: the server's log says why", store)
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
