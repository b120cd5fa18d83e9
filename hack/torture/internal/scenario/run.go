// Package scenario runs servers, load and faults together, and has the history judged.
package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/check"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/etcdclient"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/front"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/load"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/plant"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Config says what to run.
type Config struct {
	// Rowkeeper is the program.
	Rowkeeper string
	Scenario  *Scenario
	Kind      programs.Kind
	// URL is a database to use, in place of one of our own.
	URL string
	// Seed decides all that is random. The timing of the machine is not.
	Seed uint64
	// Operations is how many requests have to be answered at least, Faults how many faults are
	// injected.
	Operations, Faults int
	// Servers is the number of replicas, Clients that of clients of each.
	Servers, Clients int
	// Rate bounds the requests per second; 0: as many as possible.
	Rate int
	// Namespaces is the number of namespaces; 0: new ones all the time.
	Namespaces int
	// Long holds faults for longer than every timeout of the product's defaults.
	Long bool
	// Soak is how long a steady load goes on while the servers are looked at.
	Soak time.Duration
	// Neighbour: the servers use a second store, and somebody else the default one meanwhile.
	Neighbour bool
	// Etcd: the servers store by etcd's API, each in a "rowkeeper etcd" of its own.
	Etcd bool
	// EtcdClients: the servers are "rowkeeper etcd", and the clients use etcd's API.
	EtcdClients bool
	// Plant is a bug to be found.
	Plant plant.Bug
	// Progress is told what goes on.
	Progress io.Writer
}

// Result is what came out.
type Result struct {
	Scenario, Database, Version string
	Seed                        uint64
	Faults                      int
	Report                      check.Report
	// Recovery is the longest time from the end of a fault until every server was ready and took a
	// write. Slowest is the slowest request.
	Recovery, Slowest, Took time.Duration
	// Codes counts the HTTP status of requests that did not succeed.
	Codes map[int]int
	// Notes are figures of the scenario's own.
	Notes []string
	// Samples are those of a soak.
	Samples []Sample
}

// Env is what a fault can touch.
type Env struct {
	Config
	DB      database.Database
	Servers []*server.Server
	// Targets are what the load uses: the servers. Endpoints are the same if the servers are API
	// servers.
	Targets   []load.Endpoint
	Endpoints []*api.Endpoint
	Rows      *rows.DB
	Recorder  *rows.Recorder
	Load      *load.Load
	History   *history.History
	Rand      *rand.Rand
	// Dir is for files.
	Dir string

	neighbour *neighbour

	mu       sync.Mutex
	notes    []string
	failures []check.Violation
}

// The timeouts of the servers in a run, shorter than the defaults, so that faults outlast them.
const (
	databaseTimeout = 4 * time.Second
	requestTimeout  = 10 * time.Second
	clientTimeout   = 20 * time.Second
	// recoverWithin is how long a server may take to be ready after a fault has ended. Unknown
	// outcomes are looked into for 30 s.
	recoverWithin = 2 * time.Minute
	// settleWithin is how long watchers and informers may take to see the last events.
	settleWithin = time.Minute
)

// Say tells what goes on.
func (e *Env) Say(format string, args ...any) {
	fmt.Fprintf(e.Progress, "%s %s/%s: %s\n", time.Now().UTC().Format(time.TimeOnly),
		e.Scenario.Name, e.Kind, fmt.Sprintf(format, args...))
}

// Note adds a figure to the result.
func (e *Env) Note(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

// Fail adds a violation.
func (e *Env) Fail(rule, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failures = append(e.failures, check.Violation{Rule: rule, Text: fmt.Sprintf(format, args...)})
}

// Hold waits for the short or the long time, or until the context ends.
func (e *Env) Hold(ctx context.Context, short, long time.Duration) {
	Wait(ctx, e.held(short, long))
}

func (e *Env) held(short, long time.Duration) time.Duration {
	if e.Long {
		return long
	}
	return short
}

// Wait waits.
func Wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// until repeats a question until it is answered by yes, or the time is up. A no counts only if the
// question was asked after that: what takes long to look at has changed meanwhile.
func until(parent context.Context, within time.Duration, ok func(context.Context) error) error {
	timed, cancel := context.WithTimeout(parent, within)
	defer cancel()
	for {
		ctx := timed
		late := timed.Err() != nil
		if late {
			ctx = parent
		}
		err := ok(ctx)
		if err == nil {
			return nil
		}
		if parent.Err() != nil {
			return parent.Err()
		}
		if late {
			return fmt.Errorf("not within %s: %w", within, err)
		}
		Wait(timed, 20*time.Millisecond)
	}
}

// ready asks a server whether it is ready.
func (e *Env) ready(server int) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return e.Targets[server].Ready(ctx)
	}
}

// awaitServers waits until every server is ready and has taken a write, and returns how long that
// took.
func (e *Env) awaitServers(ctx context.Context) time.Duration {
	began := time.Now()
	var wg sync.WaitGroup
	for s := range e.Servers {
		wg.Go(func() {
			err := until(ctx, recoverWithin, func(ctx context.Context) error {
				if err := e.ready(s)(ctx); err != nil {
					return err
				}
				return e.Load.Probe(ctx, s)
			})
			if err != nil && ctx.Err() == nil {
				e.Fail("recover", "server %d is not ready, or takes no writes: %v; it wrote: %s", s,
					err, e.Servers[s].Log())
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

// Run runs a scenario.
func Run(ctx context.Context, config Config) (result *Result, err error) {
	began := time.Now()
	e := &Env{Config: config, History: history.New(), Rand: rand.New(rand.NewPCG(config.Seed, 1))}
	e.History.FencesExpected = config.Scenario.Loses
	if e.Progress == nil {
		e.Progress = io.Discard
	}
	if e.Dir, err = os.MkdirTemp("", "rowkeeper-torture-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(e.Dir)
	if err := os.Chmod(e.Dir, 0o755); err != nil { // database servers run as other users
		return nil, err
	}
	e.Say("seed %d, %d operations, %d faults, %d servers", e.Seed, e.Operations, e.Faults,
		e.Config.Servers)
	if err := e.openDatabase(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.DB.Close()) }()
	if e.Neighbour {
		n, err := e.startNeighbour(ctx)
		if err != nil {
			return nil, err
		}
		defer n.stop()
		e.neighbour = n
	}
	if err := e.startServers(ctx); err != nil {
		e.killServers()
		return nil, err
	}
	defer e.killServers()

	if e.Rows, err = rows.Open(e.DB.Direct(), e.prefix(), e.store()); err != nil {
		return nil, err
	}
	defer func() { _ = e.Rows.Close() }() // a fault may have changed it
	if e.Recorder, err = rows.Record(ctx, e.History, e.Rows); err != nil {
		return nil, err
	}
	defer e.Recorder.Close()

	if err := e.declareIndexes(ctx); err != nil {
		return nil, err
	}
	targets := e.Targets
	if e.Plant != "" {
		var closeProxies func()
		if targets, closeProxies, err = e.plant(); err != nil {
			return nil, err
		}
		defer closeProxies()
	}
	e.Load = load.Start(ctx, e.History, targets, load.Options{Clients: e.Clients, Rate: e.Rate,
		Timeout: clientTimeout, Seed: e.Seed, Namespaces: int64(e.Namespaces)})
	defer e.Load.Stop()
	var bundled *bundles
	if e.EtcdClients {
		bundled = e.startBundles(ctx, targets)
		defer bundled.stop()
	}
	var informers []*load.Informers
	for s := range e.Endpoints {
		config, err := e.Servers[s].Config()
		if err != nil {
			return nil, err
		}
		i, err := load.StartInformers(config, s)
		if err != nil {
			return nil, err
		}
		informers = append(informers, i)
		defer i.Stop()
	}

	result = &Result{Scenario: e.Scenario.Name, Database: string(e.Kind), Version: e.DB.Version(),
		Seed: e.Seed, Codes: map[int]int{}}
	if e.Soak > 0 {
		result.Samples, err = e.soak(ctx)
	} else {
		err = e.hurt(ctx, result)
	}
	if err != nil {
		return nil, err
	}
	e.Load.StopClients()
	e.awaitServers(ctx)
	settling := time.Now()
	if err := e.settle(ctx, informers); err != nil {
		return nil, err
	}
	e.Load.Stop()
	if bundled != nil {
		bundled.stop()
	}
	if e.neighbour != nil {
		e.neighbour.stop()
	}
	if err := e.Recorder.Finish(ctx); err != nil {
		return nil, err
	}
	e.Say("settled after %.1f s; checking", time.Since(settling).Seconds())
	if err := e.agree(ctx); err != nil {
		return nil, err
	}
	result.Report = check.Check(e.History)
	result.Report.Violations = append(e.failures, result.Report.Violations...)
	if bundled != nil {
		r := &result.Report
		var found []check.Violation
		found, r.Bundles.Writes, r.Bundles.Reads, r.Bundles.Responses = bundled.judge.Found()
		r.Violations = append(r.Violations, found...)
		e.Note("%d transactions of %d keys, seen by %d reads and %d responses of watches",
			r.Bundles.Writes, etcdclient.BundleSize, r.Bundles.Reads, r.Bundles.Responses)
	}
	result.Slowest, result.Took, result.Notes = e.Load.Slowest(), time.Since(began), e.notes
	for _, note := range e.notes {
		e.Say("%s", note)
	}
	for _, op := range e.History.Ops() {
		if op.Code != 200 {
			result.Codes[op.Code]++
		}
	}
	e.Say("%d operations, %d events, %d faults, %d violations, recovery within %.1f s, %.0f s in all", result.Report.Ops, result.Report.Events, result.Faults,
		len(result.Report.Violations), result.Recovery.Seconds(), result.Took.Seconds())
	return result, nil
}

// hurt injects the faults, spread over the operations.
func (e *Env) hurt(ctx context.Context, result *Result) error {
	next := func(n int) error {
		return until(ctx, 30*time.Minute, func(context.Context) error {
			if done := e.Load.Total(); done < int64(n) {
				return fmt.Errorf("%d of %d operations are done", done, n)
			}
			return nil
		})
	}
	each := e.Operations / (e.Faults + 1)
	target := 0
	for i := range e.Faults {
		target = max(target+each, int(e.Load.Total())+min(each/2, 100))
		if err := next(target); err != nil {
			return err
		}
		fault := e.Scenario
		if of := e.faults(); len(of) > 0 {
			fault = of[e.Rand.IntN(len(of))]
		}
		if fault.Fault == nil {
			break
		}
		e.Say("fault %d of %d: %s", i+1, e.Faults, fault.Name)
		if err := fault.Fault(ctx, e); err != nil {
			return fmt.Errorf("%s: %w", fault.Name, err)
		}
		result.Faults++
		took := e.awaitServers(ctx)
		result.Recovery = max(result.Recovery, took)
		e.Say("recovered after %.1f s, %d operations", took.Seconds(), e.Load.Total())
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return next(e.Operations)
}

// faults are those of a random scenario.
func (e *Env) faults() []*Scenario {
	return slices.DeleteFunc(slices.Clone(e.Scenario.of), func(s *Scenario) bool {
		return !s.Fits(e.Etcd, e.EtcdClients, e.URL != "")
	})
}

func (e *Env) prefix() string { return fmt.Sprintf("/torture-%d", e.Seed) }

// store is the store that the servers use.
func (e *Env) store() string {
	if e.Neighbour {
		return "tortured"
	}
	return "default"
}

// ways is how many processes reach the database, each by a way of its own.
func (e *Env) ways() int {
	if e.Neighbour {
		return e.Config.Servers + 1
	}
	return e.Config.Servers
}

func (e *Env) openDatabase(ctx context.Context) (err error) {
	switch {
	case e.URL != "":
		e.DB, err = database.NewGiven(e.URL, e.ways())
	case e.Scenario.Open != nil:
		e.DB, err = e.Scenario.Open(ctx, e)
	case e.Kind == programs.SQLite:
		e.DB = database.NewSQLite(e.Dir)
	default:
		e.DB, err = database.NewServed(ctx, e.Kind, e.ways(), dbserver.Options{})
	}
	return err
}

// flags are those of every server: compaction runs at full speed, and what is kept is enough for
// the recorder to see every row.
func (e *Env) flags(i int) []string {
	where := "--database=" + e.DB.URL(i)
	if r, ok := e.DB.(*database.Rotating); ok {
		where = "--database-file=" + r.File(i)
	}
	common := []string{
		where,
		"--store=" + e.store(),
		"--database-timeout=" + databaseTimeout.String(),
	}
	if e.EtcdClients {
		return append(common, "--auto-compaction-retention=3s")
	}
	return append(common,
		"--storage-prefix="+e.prefix(),
		"--request-timeout="+requestTimeout.String(),
		"--compaction-window=3s", "--compaction-keep=1000", "--compaction-interval=100ms",
		"--shutdown-watch-termination-grace-period=1s",
		"--feature-gates=AllAlpha=false")
}

func (e *Env) startServers(ctx context.Context) error {
	for i := range e.Config.Servers {
		s, err := server.New(e.Rowkeeper, filepath.Join(e.Dir, fmt.Sprint("server", i)),
			e.flags(i)...)
		if err != nil {
			return err
		}
		s.Args = append(s.Args, e.Scenario.Args...)
		s.Env = append(s.Env, e.Scenario.Env...)
		if e.EtcdClients {
			s.Command = []string{"etcd", "--listen-client-urls=http://" + s.Address()}
		}
		if e.Etcd {
			if s.Program, err = os.Executable(); err != nil {
				return err
			}
			s.Env = append(s.Env, front.ProgramEnv+"="+e.Rowkeeper)
		}
		if e.Scenario.Program != nil && i == 0 {
			program, env, err := e.Scenario.Program(e)
			if err != nil {
				return err
			}
			s.Program, s.Env = program, append(s.Env, env...)
		}
		if err := s.Start(); err != nil {
			return err
		}
		e.Servers = append(e.Servers, s)
	}
	for _, s := range e.Servers {
		err := until(ctx, recoverWithin, func(context.Context) error {
			if !s.Running() {
				return errors.New("it has ended")
			}
			return e.dial(s)
		})
		if err != nil {
			return fmt.Errorf("the server does not start: %w; it wrote: %s", err, s.Log())
		}
	}
	for i, s := range e.Servers {
		if err := until(ctx, recoverWithin, e.ready(i)); err != nil {
			return fmt.Errorf("the server is not ready: %w; it wrote: %s", err, s.Log())
		}
	}
	return nil
}

// dial makes the clients of a server.
func (e *Env) dial(s *server.Server) error {
	if e.EtcdClients {
		endpoint, err := etcdclient.Dial(s.Address(), e.prefix())
		if err == nil {
			e.Targets = append(e.Targets, endpoint)
		}
		return err
	}
	config, err := s.Config()
	if err != nil {
		return err
	}
	endpoint, err := api.Dial(config, "")
	if err != nil {
		return err
	}
	e.Targets, e.Endpoints = append(e.Targets, endpoint), append(e.Endpoints, endpoint)
	return nil
}

func (e *Env) killServers() {
	for _, s := range e.Servers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, _ = s.End(ctx, sigkill) // nothing depends on how it ends
		cancel()
	}
	for _, target := range e.Targets {
		target.Close()
	}
}

// plant puts a proxy with the bug before each server, or gives it to the clients of etcd.
func (e *Env) plant() (targets []load.Endpoint, closeAll func(), err error) {
	if e.EtcdClients {
		closeAll = func() {
			for _, t := range targets {
				t.Close()
			}
		}
		for _, s := range e.Servers {
			t, err := etcdclient.Dial(s.Address(), e.prefix(), e.Plant.Options()...)
			if err != nil {
				closeAll()
				return nil, nil, err
			}
			targets = append(targets, t)
		}
		return targets, closeAll, nil
	}
	var proxies []*plant.Proxy
	closeAll = func() {
		for _, p := range proxies {
			_ = p.Close() // streams may be open
		}
	}
	for i, s := range e.Servers {
		p, err := plant.New(e.Endpoints[i], e.Plant)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		proxies = append(proxies, p)
		config, err := s.Config()
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		endpoint, err := api.Dial(config, p.URL)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		targets = append(targets, endpoint)
	}
	return targets, closeAll, nil
}

// whereTheyStand tells how far the servers' watch caches are, and leaves what all goroutines do in
// files, which stay.
func (e *Env) whereTheyStand(ctx context.Context) string {
	var texts []string
	dir, err := os.MkdirTemp("", "rowkeeper-stalled-")
	if err != nil {
		return err.Error()
	}
	write := func(name string, content []byte, err error) {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	for i, endpoint := range e.Endpoints {
		for _, resource := range []string{api.Pipelines, api.Chunks} {
			page, err := endpoint.List(ctx, history.Selector{Resource: resource},
				url.Values{"resourceVersion": {"0"}})
			if err != nil {
				texts = append(texts, err.Error())
				continue
			}
			texts = append(texts, fmt.Sprintf("server %d's cache of %s is at %d", i,
				resource, page.RV))
		}
		content, err := endpoint.Read(ctx, "/debug/pprof/goroutine?debug=2")
		write(fmt.Sprintf("server-%d.txt", i), content, err)
	}
	var own bytes.Buffer
	err = pprof.Lookup("goroutine").WriteTo(&own, 2)
	write("torture.txt", own.Bytes(), err)
	return strings.Join(append(texts, "what the goroutines did is in "+dir), "; ")
}

// laggards tells which watchers have not seen the last event for them. A watcher is where its
// newest stream is.
func laggards(streams []*history.Stream, last func(history.Selector) int64) error {
	type watcher struct {
		name   string
		server int
	}
	newest := map[watcher]*history.Stream{}
	for _, s := range streams {
		newest[watcher{s.Name, s.Server}] = s
	}
	var behind []string
	for w, s := range newest {
		if seen, end := s.Seen(), last(s.Selector); seen < end {
			events, ended := s.Events()
			behind = append(behind, fmt.Sprintf("%s at server %d has seen %d of %d (a stream from "+
				"%d, begun at %.1f s, with %d events; ended: %t)", w.name, w.server, seen, end,
				s.From, float64(s.Begun)/1e9, len(events), ended))
		}
	}
	if len(behind) == 0 {
		return nil
	}
	slices.Sort(behind)
	return errors.New(strings.Join(behind, "; "))
}

// caughtUp waits until all watchers have seen all events. It tells whether they have.
func (e *Env) caughtUp(ctx context.Context) (bool, error) {
	if err := e.Recorder.Sync(ctx); err != nil {
		return false, err
	}
	last := check.NewLog(e.Recorder.Log()).Lasts()
	err := until(ctx, settleWithin, func(context.Context) error {
		return laggards(e.History.Streams(), last)
	})
	if err != nil && ctx.Err() == nil {
		e.Fail("stalled", "%v; %s", err, e.whereTheyStand(ctx))
	}
	return err == nil, ctx.Err()
}

// settle waits until all watchers have seen all events, and the informers are what lists say.
func (e *Env) settle(ctx context.Context, informers []*load.Informers) error {
	seen, err := e.caughtUp(ctx)
	if err != nil {
		return err
	}
	if seen {
		e.Say("watchers have seen everything")
	}
	for i, informer := range informers {
		ctx, cancel := context.WithTimeout(ctx, settleWithin)
		err := informer.Settle(ctx, e.History, e.Endpoints[i])
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}
