package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/time/rate"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// load is what clients do, as one of the framework's own scenarios has it.
type load struct {
	name    string
	traffic traffic.Traffic
	keys    traffic.KeyValue
}

var loads = []load{
	{"KubernetesHighTraffic", traffic.Kubernetes, traffic.KeyValueHigh},
	{"KubernetesLowTraffic", traffic.Kubernetes, traffic.KeyValueMedium},
	{"KubernetesCreateDelete", traffic.KubernetesCreateDelete, traffic.KeyValueVeryLow},
}

// defaultStore is the store that each database has.
const defaultStore = "default"

const (
	// requestTimeout is longer than the framework's 200 ms: those are for a machine of its own.
	requestTimeout = time.Second
	// steady is how long the load goes on before a fault, and afterwards.
	steady = time.Second
	// patience is how long a run may take besides, until everything is back and read.
	patience = time.Minute
	// judging is how long the search for a linear order may take.
	judging = 3 * time.Minute
)

// run is a load on the front ends of a database with a fault, and what the judge says.
type run struct {
	program, dir, store string
	kind                programs.Kind
	db                  database.Database
	fault               fault
	load                load
	ends                int
	bug                 bug

	fronts   []*server.Server
	networks []*database.Network
	proxies  []*proxy
	logger   *zap.Logger
	log      bytes.Buffer
	// done are the faults of which this one consisted.
	done []string
}

// verdict is what came of a run.
type verdict struct {
	operations, failed, watches, events, progress, compactions int
	took, judged                                               time.Duration
	// err is what is wrong, if anything is.
	err error
}

func (r *run) do(ctx context.Context) (v verdict, err error) {
	traffic.RequestTimeout = requestTimeout
	began := time.Now()
	r.logger = zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()),
		zapcore.AddSync(&r.log), zap.ErrorLevel))
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	h, err := r.start(ctx)
	if err != nil {
		return v, err
	}
	defer h.Close()
	reports, slow, err := r.drive(ctx)
	if err != nil {
		return v, err
	}
	requests, err := h.requests(ctx)
	if err != nil {
		return v, err
	}
	v.count(reports, requests)
	v.took = time.Since(began)
	began = time.Now()
	result := validate.ValidateAndReturnVisualize(r.logger,
		validate.Config{ExpectRevisionUnique: r.bug != splitRevision}, reports, requests, judging)
	v.judged = time.Since(began)
	if v.err = errors.Join(result.Error(), slow); v.err == nil {
		return v, nil
	}
	return v, r.keepReport(reports, requests, &result, v.err)
}

// start starts the front ends, and lets the database keep its log.
func (r *run) start(ctx context.Context) (*history, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if r.store != defaultStore {
		create := exec.CommandContext(ctx, r.program, "stores", "create", r.store,
			"--database="+r.db.Direct())
		if out, err := create.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("create the store %s: %w\n%s", r.store, err, out)
		}
	}
	for i := range r.ends {
		dir := filepath.Join(r.dir, fmt.Sprint("front-", i))
		s, err := server.New(r.program, dir, "--database="+r.db.URL(i), "--store="+r.store)
		if err != nil {
			return nil, err
		}
		address := "127.0.0.1:" + strconv.Itoa(s.Port)
		s.Command = []string{"etcd", "--listen-client-urls=http://" + address}
		r.fronts = append(r.fronts, s)
		n, err := database.NewNetwork(address)
		if err != nil {
			return nil, err
		}
		r.networks = append(r.networks, n)
		if err := s.Restart(ctx, r.ready(i)); err != nil {
			return nil, err
		}
		if r.bug != "" {
			p, err := newProxy(address, r.bug)
			if err != nil {
				return nil, err
			}
			r.proxies = append(r.proxies, p)
		}
	}
	return keep(ctx, r.db.Direct(), r.store)
}

// ready tells whether a front end answers.
func (r *run) ready(i int) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := clientv3.New(clientv3.Config{Logger: zap.NewNop(),
			Endpoints: []string{"127.0.0.1:" + strconv.Itoa(r.fronts[i].Port)}})
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err = c.Get(ctx, "ready")
		return err
	}
}

// close ends the front ends, and says if one does not end.
func (r *run) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	var errs []error
	for _, p := range r.proxies {
		p.Close()
	}
	for _, n := range r.networks {
		errs = append(errs, n.Close())
	}
	for _, f := range r.fronts {
		_, err := f.End(ctx, syscall.SIGKILL)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// endpoints are where clients find the front ends: behind a network, or a proxy with a bug.
func (r *run) endpoints() (list []string) {
	for _, n := range r.networks {
		list = append(list, strings.TrimPrefix(n.Through("http://front", 0), "http://"))
	}
	for i, p := range r.proxies {
		list[i] = p.address
	}
	return list
}

// drive lets the clients of the framework work while the fault happens, and returns what they
// recorded. slow says that a watch has not come to the end in time.
func (r *run) drive(ctx context.Context) (reports []report.ClientReport, slow, err error) {
	endpoints := r.endpoints()
	ids, base := identity.NewIDProvider(), time.Now()
	clients, watchers := client.NewSet(ids, base), client.NewSet(ids, base)
	defer clients.Close()
	newest, watched := make(chan int64, 1), make(chan error, 1)
	go func() {
		watched <- client.CollectClusterWatchEvents(ctx, client.CollectClusterWatchEventsParam{
			Lg: r.logger, Endpoints: endpoints, MaxRevisionChan: newest, ClientSet: watchers})
	}()
	err = r.work(ctx, endpoints, clients)
	reports = clients.Reports()
	switch {
	case err != nil:
	case r.bug != "":
		newest <- 1 // a bug may keep the last write from a watch
	default:
		newest <- report.OperationsMaxRevision(reports)
	}
	close(newest)
	select {
	case slow = <-watched:
		return append(reports, watchers.Reports()...), slow, err
	case <-time.After(patience):
		// The client of this watch is left open: closed, it would be asked without end.
		return reports, errors.New("a watch does not come to the last write"), err
	}
}

// work is the load with the fault.
func (r *run) work(ctx context.Context, endpoints []string, clients *client.ClientSet) error {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	if err := traffic.CheckEmptyDatabaseAtStart(ctx, r.logger, endpoints, clients); err != nil {
		return err
	}
	var (
		wg       sync.WaitGroup
		finish   = make(chan struct{})
		keys     = traffic.NewKeyStore(10, "key")
		storage  = traffic.NewKubernetesStorage()
		limiter  = rate.NewLimiter(rate.Limit(r.load.keys.MaximalQPS), r.load.keys.BurstableQPS)
		watches  = traffic.WatchDefault
		compacts = traffic.CompactionDefault
	)
	err := errors.Join(
		traffic.SimulateKeyValueTraffic(ctx, &wg, &r.load.keys, endpoints, clients, r.load.traffic,
			traffic.RunTrafficLoopParam{QPSLimiter: limiter, IDs: clients.IdentityProvider(),
				LeaseIDStorage: identity.NewLeaseIDStorage(),
				NonUniqueRequestConcurrencyLimiter: traffic.NewConcurrencyLimiter(
					r.load.keys.MaxNonUniqueRequestConcurrency),
				KeyStore: keys, Storage: storage, Finish: finish}),
		traffic.SimulateWatchTraffic(ctx, &wg, &watches, endpoints, clients, r.load.traffic,
			traffic.RunWatchLoopParam{Config: watches, QPSLimiter: limiter, KeyStore: keys,
				Storage: storage, Finish: finish, Logger: r.logger}),
		traffic.SimulateCompactionTraffic(ctx, &wg, &compacts, endpoints, clients, r.load.traffic,
			traffic.RunCompactLoopParam{Period: compacts.Period, Finish: finish}))
	pause(ctx, steady)
	if err == nil {
		err = r.fault.do(ctx, r)
	}
	for i := range r.fronts {
		err = errors.Join(err, r.ready(i)(ctx))
	}
	pause(ctx, steady)
	close(finish)
	wg.Wait()
	if err != nil {
		return err
	}
	// The judge wants the last write to be one that is answered.
	c, err := clients.NewClient(endpoints)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		last, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err = c.Put(last, "tombstone", "true")
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// pause lets the load go on for a while.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (v *verdict) count(reports []report.ClientReport, requests []model.EtcdRequest) {
	for _, r := range reports {
		for _, op := range r.KeyValue {
			v.operations++
			if op.Output.(model.MaybeEtcdResponse).Error != "" {
				v.failed++
			}
		}
		v.watches += len(r.Watch)
		v.events += r.WatchEventCount()
		for _, w := range r.Watch {
			for _, answer := range w.Responses {
				if answer.IsProgressNotify {
					v.progress++
				}
			}
		}
	}
	for _, request := range requests {
		if request.Type == model.Compact {
			v.compactions++
		}
	}
}

// keepReport leaves what was recorded in the run's directory, in the framework's own form, with the
// log, and the picture of the search for a linear order.
func (r *run) keepReport(reports []report.ClientReport, requests []model.EtcdRequest,
	result *validate.RobustnessResult, wrong error) error {
	path := filepath.Join(r.dir, "report")
	servers := map[string]string{}
	for i, f := range r.fronts {
		servers[fmt.Sprint(i)] = f.Dir
	}
	t, err := report.NewTestReport(zap.NewNop(), path, servers, &report.TrafficDetail{
		ExpectUniqueRevision: r.load.traffic.ExpectUniqueRevision()})
	if err != nil {
		return err
	}
	t.SetClientReports(slices.Clone(reports))
	if err := t.SaveEtcdData(); err != nil {
		return err
	}
	var log bytes.Buffer
	encoder := json.NewEncoder(&log)
	for _, request := range requests {
		if err := encoder.Encode(request); err != nil {
			return err
		}
	}
	if result.Linearization.Model.Step != nil {
		err = porcupine.VisualizePath(result.Linearization.Model, result.Linearization.Info,
			filepath.Join(path, "history.html"))
	}
	return errors.Join(err,
		os.WriteFile(filepath.Join(path, "log.json"), log.Bytes(), 0o600),
		os.WriteFile(filepath.Join(path, "verdict.txt"),
			fmt.Appendf(nil, "%v\n\n%s", wrong, r.log.String()), 0o600))
}
