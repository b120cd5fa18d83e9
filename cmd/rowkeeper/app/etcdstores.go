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

	"github.com/rowkeeper/rowkeeper/pkg/support/monitoring"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
)

// etcdStore is a store that the command serves. It is open while its clients need it; see
// [etcd.StorePool].
type etcdStore struct {
	name string
	// alone: the process serves no other store, so its clients may see the metrics of the process.
	alone bool
	// urls are the URLs that the list of members names.
	urls []string
	// tls says who may connect. Listeners without TLS do not use it.
	tls *tlsFiles

	pool storePool
	// calls and pages take the connections that server admits, and grpc and http answer them.
	calls, pages *branch
	server       *etcd.Server
	grpc         *grpc.Server
	http         *http.Server
	running      sync.WaitGroup
	// failed is why the store could not be opened. It is nil if it could be.
	failed atomic.Pointer[error]
	// doubts has an element when there is reason to find out anew whether the store can be opened.
	doubts chan struct{}
	// logged is why the store cannot be used, as the log has it.
	logged atomic.Value
	// answers asks whether the store, which could be opened, is ready.
	answers joined
}

// storePool has the stores of a database, or those of a directory.
type storePool interface {
	Use(ctx context.Context, name string) (store *etcd.Store, release func(), err error)
	Ready(ctx context.Context, name string) error
	IsOpen(name string) bool
	Collector(name string) prometheus.Collector
	Close() error
}

// joined asks something that many may want to know at a time. Those who come while it is asked
// share what is answered next. So they need no more than one connection to the database.
type joined struct {
	ask func(context.Context) error
	// turn has an element while it is asked. Its holder uses began, when it was asked last, and
	// err, which was the answer.
	turn  chan struct{}
	began time.Time
	err   error
}

func newJoined(ask func(context.Context) error) joined {
	return joined{ask: ask, turn: make(chan struct{}, 1)}
}

func (j *joined) get(ctx context.Context) error {
	came := time.Now()
	select {
	case j.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-j.turn }()
	if !j.began.After(came) {
		began := time.Now()
		err := j.ask(ctx)
		if ctx.Err() != nil {
			return err // it is the answer to somebody who has left
		}
		j.began, j.err = began, err
	}
	return j.err
}

// begin begins to answer the connections that the store is given.
func (s *etcdStore) begin(pool storePool, p *etcd.Process) {
	s.pool, s.calls, s.pages = pool, newBranch(), newBranch()
	s.doubts = make(chan struct{}, 1)
	s.failed.Store(&errOpening)
	s.answers = newJoined(func(ctx context.Context) error { return pool.Ready(ctx, s.name) })
	s.server = p.Server(s.open, s.urls)
	s.grpc = grpc.NewServer(s.server.Options()...)
	s.server.Register(s.grpc)
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(pool.Collector(s.name))
	metrics.MustRegister(s.etcdMetrics(), s.certificates())
	if s.alone {
		metrics.MustRegister(process()...)
	}
	served := pages(metrics, func(r *http.Request) (string, bool) {
		if s.ready(r.Context()) != nil {
			return s.unusable(), false
		}
		return "", true
	})
	gateway := s.server.Gateway()
	served.Handle("/v3/", gateway)
	served.Handle("/v3beta/", gateway)
	s.http = newHTTPServer(served)
	s.http.ConnState = etcd.FollowCalls
	// They end when they are closed, and for no other reason.
	s.running.Go(func() { _ = s.grpc.Serve(s.calls) })
	s.running.Go(func() { _ = s.http.Serve(s.pages) })
}

// etcdMetrics are the metrics of etcd's names, with the label store as all of a store have.
func (s *etcdStore) etcdMetrics() prometheus.Collector {
	return prometheus.WrapCollectorWith(prometheus.Labels{"store": s.name}, s.server.Collector())
}

// certificates collects when those end that clients of the store need.
func (s *etcdStore) certificates() prometheus.Collector {
	var list monitoring.Certificates
	if s.tls.cert != "" {
		serving := monitoring.File("serving", s.tls.cert)
		serving.Authorities = false
		list = append(list, serving)
	}
	if s.tls.authority != "" {
		list = append(list, monitoring.File("trusted-ca", s.tls.authority))
	}
	return prometheus.WrapCollectorWith(prometheus.Labels{"store": s.name}, list)
}

// stopWait is how long calls may take to end when the server stops. Watches do not end by
// themselves.
const stopWait = time.Second

func (s *etcdStore) end() {
	_ = s.http.Close() // closes listeners that return no error
	timer := time.AfterFunc(stopWait, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
	s.server.Close()
	s.running.Wait()
}

// startWait is how long the stores may take to open until the process listens nevertheless. So
// clients are seldom told that a store is being opened.
const startWait = 2 * time.Second

var errOpening = errors.New("the store is being opened")

// open opens the store for a call. While that is known not to work, clients are told at once.
func (s *etcdStore) open(ctx context.Context) (*etcd.Store, func(), error) {
	if s.failed.Load() == nil {
		store, release, err := s.pool.Use(ctx, s.name)
		if err == nil || ctx.Err() != nil {
			return store, release, err
		}
		s.failed.Store(&err)
		s.doubt()
	}
	return nil, nil, status.Error(codes.Unavailable, s.unusable())
}

// ready says why the store cannot be used, for the operator, and logs it.
func (s *etcdStore) ready(ctx context.Context) error {
	if failed := s.failed.Load(); failed != nil {
		return *failed
	}
	err := s.answers.get(ctx)
	if errors.Is(ctx.Err(), context.Canceled) {
		return err // who has asked has left
	}
	s.log(err)
	if err != nil {
		s.doubt()
	}
	return err
}

// rests tells whether the store could be opened, and is closed since nobody uses it.
func (s *etcdStore) rests() bool { return s.failed.Load() == nil && !s.pool.IsOpen(s.name) }

// doubt makes keepOpening find out whether the store can be opened.
func (s *etcdStore) doubt() {
	select {
	case s.doubts <- struct{}{}:
	default:
	}
}

// reopenWait is how long it takes until a store is opened again that could not be opened, or was
// dropped.
const reopenWait = 5 * time.Second

// keepOpening opens the store, so that the pool knows what is due in it, and again for as long as
// that fails, and when there are doubts. firsts takes the outcome of the first time.
func (s *etcdStore) keepOpening(ctx context.Context, firsts chan<- error) {
	for first := true; ; first = false {
		_, release, err := s.pool.Use(ctx, s.name)
		if err == nil {
			release()
		}
		if first {
			firsts <- err
		}
		if ctx.Err() != nil {
			return
		}
		s.tried(err)
		if err == nil {
			select {
			case <-s.doubts:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(reopenWait):
		case <-ctx.Done():
			return
		}
	}
}

// tried notes whether the store could be opened. One that is open need not be ready: if nothing was
// known to be wrong with opening it, what the log says of it still holds.
func (s *etcdStore) tried(err error) {
	if err != nil {
		s.log(err)
		s.failed.Store(&err)
	} else if s.failed.Swap(nil) != nil {
		s.log(nil)
	}
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

// unusable is what clients are told of a store that cannot be used. The reason may name what they
// are not to know, such as where the database is.
func (s *etcdStore) unusable() string {
	return fmt.Sprintf("the store %q cannot be used now: the server's log says why", s.name)
}

// firstOpened waits until each store was tried to be opened once. If none could be, it returns why:
// nothing can be served, and a person has to hear it. A fault that all have in common is said once.
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

// process collects the metrics of the process, and of what it is made of.
func process() []prometheus.Collector {
	return []prometheus.Collector{collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), monitoring.Build{}}
}

// maxPageConnections bounds the connections to a URL of --listen-metrics-urls. When another one
// comes, the oldest is closed.
const maxPageConnections = 1_000

// newHTTPServer makes a server of pages. A client that sends or reads nothing holds a connection
// for a bounded time.
func newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadTimeout: prefaceWait, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, ErrorLog: klog.NewStandardLogger("INFO")}
}

// overview are the pages of the whole process. It is ready while one of its stores is, so that one
// tenant's trouble is not the others'; the answer tells what is wrong, and ?store=NAME asks for one
// store. One of the closed stores, for which the database is asked over a new connection, stands
// for all of them.
func overview(stores []*etcdStore, registry *prometheus.Registry) http.Handler {
	registry.MustRegister(process()...)
	return pages(registry, func(r *http.Request) (string, bool) {
		wanted := r.URL.Query().Get("store")
		var asked []*etcdStore
		closed := false
		for _, s := range stores {
			rests := wanted == "" && s.rests()
			if wanted != "" && s.name != wanted || rests && closed {
				continue
			}
			closed = closed || rests
			asked = append(asked, s)
		}
		errs := make([]error, len(asked))
		var wg sync.WaitGroup
		for i, s := range asked {
			wg.Go(func() { errs[i] = s.ready(r.Context()) })
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

// maxScrapes bounds how many clients are answered with metrics at a time, all of which are in
// memory then. Others are told to try again.
const maxScrapes = 10

// readyWait is how long the database may take to answer whether a store is ready.
const readyWait = 5 * time.Second

// pages are what is served by HTTP, in etcd's form. ready says what is wrong, and whether clients
// can be served nevertheless.
func pages(metrics prometheus.Gatherer, ready func(*http.Request) (string, bool)) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes}))
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
			"etcdcluster": etcd.ClusterVersion, "storage": etcd.ClusterVersion})
	})
	return mux
}
