// Package load lets clients and watchers use servers, and takes notes of all that they are told.
package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// Options say how many do what.
type Options struct {
	// Clients per server.
	Clients int
	// Rate bounds the requests per second of all clients; 0: as fast as they can.
	Rate int
	// Timeout is how long a client waits for an answer.
	Timeout time.Duration
	// Namespaces bounds the number of namespaces, and so that of the objects; 0: new ones all the
	// time.
	Namespaces int64
	// Seed decides who does what.
	Seed uint64
}

const (
	keysPerNamespace      = 6
	writesPerNamespace    = 120
	recentNamespaces      = 4
	pauseAfterTrouble     = 20 * time.Millisecond
	resources             = 2
	oldestListedBehindNow = 200
)

var (
	colours = []string{"red", "green", "blue"}
	images  = []string{"golang:1.26", "rust:1.99", "python:3.20"}
)

// Endpoint is a server as clients find it. A method is a request of Kubernetes' API, which is not
// repeated if it has no answer; an answer that is no success is an *api.StatusError.
type Endpoint interface {
	// Ready asks whether the server is ready.
	Ready(ctx context.Context) error
	Create(ctx context.Context, o history.Object) (*history.Object, error)
	// Update replaces the object of the resourceVersion.
	Update(ctx context.Context, o history.Object) (*history.Object, error)
	// Patch changes value and colour, whatever the resourceVersion is.
	Patch(ctx context.Context, o history.Object) (*history.Object, error)
	// Delete deletes the object of the resourceVersion.
	Delete(ctx context.Context, key string, rv int64) error
	Get(ctx context.Context, key string) (*history.Object, error)
	// List reads a page. The query has what is not in the selector, and what a selector in it says
	// is in the selector, too.
	List(ctx context.Context, s history.Selector, q url.Values) (*api.Page, error)
	// Follow watches, and calls each for every event until the stream ends. It returns why.
	Follow(ctx context.Context, s history.Selector, q url.Values, each func(history.Event)) error
	// Close closes the connections.
	Close()
}

// Load is a running load.
type Load struct {
	h         *history.History
	endpoints []Endpoint
	opts      Options

	ctx      context.Context
	stopAll  context.CancelFunc
	clients  sync.WaitGroup
	stop     context.CancelFunc
	clientsC context.Context
	watchers sync.WaitGroup

	writes, values atomic.Int64
	// done counts requests that were answered, by server.
	done   []atomic.Int64
	total  atomic.Int64
	newest atomic.Int64
	pace   <-chan time.Time
	ticker *time.Ticker

	// gate is held while writers may not write. Nobody breaks a watch off while held is true.
	gate sync.RWMutex
	held atomic.Bool

	mu    sync.Mutex
	known map[string]int64
	// slowest is the longest time that a request took.
	slowest time.Duration
}

// Start starts the clients and the watchers.
func Start(ctx context.Context, h *history.History, endpoints []Endpoint, opts Options) *Load {
	l := &Load{h: h, endpoints: endpoints, opts: opts, done: make([]atomic.Int64, len(endpoints)),
		known: map[string]int64{}}
	l.ctx, l.stopAll = context.WithCancel(ctx)
	l.clientsC, l.stop = context.WithCancel(l.ctx)
	if opts.Rate > 0 {
		l.ticker = time.NewTicker(time.Second / time.Duration(opts.Rate))
		l.pace = l.ticker.C
	}
	for s := range endpoints {
		l.watch(s)
	}
	for s := range endpoints {
		for c := range opts.Clients {
			id := s*opts.Clients + c
			l.clients.Go(func() { l.client(id, s) })
		}
	}
	return l
}

// Total is how many requests were answered so far.
func (l *Load) Total() int64 { return l.total.Load() }

// Answered is how many requests a server has answered so far.
func (l *Load) Answered(server int) int64 { return l.done[server].Load() }

// Newest is the newest resourceVersion that a client was told.
func (l *Load) Newest() int64 { return l.newest.Load() }

// Slowest is the longest time that a request took.
func (l *Load) Slowest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slowest
}

// HoldWrites waits for the writes under way and lets none begin until the returned function is
// called. Watches are not broken off meanwhile.
func (l *Load) HoldWrites() (release func()) {
	l.gate.Lock()
	l.held.Store(true)
	return sync.OnceFunc(func() {
		l.held.Store(false)
		l.gate.Unlock()
	})
}

// StopClients ends the clients. The watchers go on.
func (l *Load) StopClients() {
	l.stop()
	l.clients.Wait()
	if l.ticker != nil {
		l.ticker.Stop()
	}
}

// Stop ends everything.
func (l *Load) Stop() {
	l.StopClients()
	l.stopAll()
	l.watchers.Wait()
}

// Probe writes one object through a server, as a client of its own.
func (l *Load) Probe(ctx context.Context, server int) error {
	o := history.Object{Key: fmt.Sprintf("%s/probes/p%d", api.Pipelines, l.values.Add(1)),
		Value: l.value(), Colour: colours[0], Image: images[0]}
	var outcome error
	l.request(ctx, server, history.Op{Client: 10_000 + server, Verb: history.Create, Key: o.Key,
		Object: &o}, func(ctx context.Context, op *history.Op) error {
		var created *history.Object
		created, outcome = l.endpoints[server].Create(ctx, o)
		return answered(op, created, outcome)
	})
	return outcome
}

func (l *Load) value() string { return "v" + strconv.FormatInt(l.values.Add(1), 10) }

// client sends requests one after the other until it is stopped.
func (l *Load) client(id, server int) {
	rng := rand.New(rand.NewPCG(l.opts.Seed, uint64(id)))
	for l.clientsC.Err() == nil {
		if l.pace != nil {
			select {
			case <-l.pace:
			case <-l.clientsC.Done():
				return
			}
		}
		ok := false
		switch n := rng.IntN(100); {
		case n < 20:
			ok = l.get(rng, id, server)
		case n < 35:
			ok = l.list(rng, id, server)
		default:
			l.gate.RLock()
			ok = l.write(rng, id, server)
			l.gate.RUnlock()
		}
		if !ok {
			wait(l.clientsC, pauseAfterTrouble)
		}
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// request sends a request, and takes a note of it. It tells whether the server has answered.
func (l *Load) request(ctx context.Context, server int, op history.Op,
	send func(context.Context, *history.Op) error) bool {
	// A client that is stopped waits for its answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.opts.Timeout)
	defer cancel()
	op.Server = server
	op.Call = l.h.Now()
	err := send(ctx, &op)
	op.Return = l.h.Now()
	op.Outcome, op.Code = api.Classify(err)
	if op.Verb == history.Get && op.Outcome == history.Refused {
		op.Outcome = history.Done // it found nothing
	}
	if op.Verb == history.List && op.Outcome == history.Refused {
		op.Outcome = history.Unknown
	}
	l.h.AddOp(op)
	l.mu.Lock()
	l.slowest = max(l.slowest, time.Duration(op.Return-op.Call))
	l.mu.Unlock()
	ok := op.Outcome == history.Done || op.Outcome == history.Refused
	if ok {
		l.total.Add(1)
		l.done[server].Add(1)
		for {
			newest := l.newest.Load()
			if op.RV <= newest || l.newest.CompareAndSwap(newest, op.RV) {
				break
			}
		}
	}
	return ok
}

// answered notes the resourceVersion of an answer.
func answered(op *history.Op, o *history.Object, err error) error {
	if err == nil {
		op.RV = o.RV
	}
	return err
}

// key picks a key, mostly of the newest namespace.
func (l *Load) key(rng *rand.Rand) string {
	return fmt.Sprintf("%s/%s/k%d", l.resource(rng), l.namespace(rng), rng.IntN(keysPerNamespace))
}

func (l *Load) resource(rng *rand.Rand) string {
	return [resources]string{api.Pipelines, api.Chunks}[rng.IntN(resources)]
}

func (l *Load) namespace(rng *rand.Rand) string {
	n := l.writes.Load() / writesPerNamespace
	if rng.IntN(5) == 0 {
		n -= rng.Int64N(recentNamespaces)
	}
	n = max(n, 0)
	if l.opts.Namespaces > 0 {
		n %= l.opts.Namespaces
	}
	return fmt.Sprintf("n%05d", n)
}

func (l *Load) get(rng *rand.Rand, id, server int) bool {
	key := l.key(rng)
	return l.request(l.ctx, server, history.Op{Client: id, Verb: history.Get, Key: key},
		func(ctx context.Context, op *history.Op) error {
			o, err := l.endpoints[server].Get(ctx, key)
			op.Object = o
			l.learn(key, o, err)
			return answered(op, o, err)
		})
}

// learn remembers what a key was, for the next write.
func (l *Load) learn(key string, o *history.Object, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	outcome, code := api.Classify(err)
	switch {
	case err == nil && o != nil:
		l.known[key] = o.RV
	case outcome == history.Refused && code == 404:
		delete(l.known, key)
	case outcome == history.Refused:
		l.known[key] = -1 // it exists, at another resourceVersion
	}
}

func (l *Load) write(rng *rand.Rand, id, server int) bool {
	key := l.key(rng)
	l.writes.Add(1)
	l.mu.Lock()
	rv, exists := l.known[key]
	l.mu.Unlock()
	o := history.Object{Key: key, Value: l.value(), Colour: colours[rng.IntN(len(colours))]}
	if resource, _, _ := history.Split(key); resource == api.Pipelines {
		o.Image = images[rng.IntN(len(images))]
	}
	e := l.endpoints[server]
	op := history.Op{Client: id, Key: key, Object: &o}
	send := func(ctx context.Context, op *history.Op) (*history.Object, error) {
		return e.Create(ctx, o)
	}
	switch n := rng.IntN(10); {
	case !exists:
		op.Verb = history.Create
	case n < 2 || rv < 0:
		op.Verb = history.Patch
		send = func(ctx context.Context, op *history.Op) (*history.Object, error) {
			return e.Patch(ctx, o)
		}
	case n < 4:
		op.Verb, op.Expect = history.Delete, rv
		send = func(ctx context.Context, op *history.Op) (*history.Object, error) {
			return &history.Object{}, e.Delete(ctx, key, rv)
		}
	default:
		op.Verb, op.Expect = history.Update, rv
		o.RV = rv
		send = func(ctx context.Context, op *history.Op) (*history.Object, error) {
			return e.Update(ctx, o)
		}
	}
	return l.request(l.ctx, server, op, func(ctx context.Context, op *history.Op) error {
		answer, err := send(ctx, op)
		switch {
		case err == nil && op.Verb == history.Delete:
			l.mu.Lock()
			delete(l.known, key)
			l.mu.Unlock()
		default:
			l.learn(key, answer, err)
		}
		return answered(op, answer, err)
	})
}

func (l *Load) list(rng *rand.Rand, id, server int) bool {
	op := history.Op{Client: id, Verb: history.List, Match: history.Consistent,
		Selector: history.Selector{Resource: l.resource(rng)}}
	limit := 0
	q := url.Values{}
	n := rng.IntN(20)
	if n < 15 {
		op.Selector.Namespace = l.namespace(rng)
	}
	switch m := rng.IntN(6); {
	case m == 0:
		op.Selector.Colour = colours[rng.IntN(len(colours))]
	case m == 1 && op.Selector.Resource == api.Pipelines:
		op.Selector.Image = images[rng.IntN(len(images))]
	}
	switch {
	case n < 10 || n == 15: // consistent
	case n < 12 || n == 16:
		op.Match = history.Any
		q.Set("resourceVersion", "0")
	case n == 12 || n == 17:
		op.Match, op.At = history.Exact, max(1, l.Newest()-rng.Int64N(oldestListedBehindNow))
	case n == 13 || n == 18:
		op.Match, op.At = history.NotOlder, max(1, l.Newest())
	default:
		limit = 1 + rng.IntN(4)
		if op.Selector.Namespace == "" {
			limit = 50
		}
	}
	if op.At != 0 {
		q.Set("resourceVersion", strconv.FormatInt(op.At, 10))
		q.Set("resourceVersionMatch", map[history.Match]string{history.Exact: "Exact",
			history.NotOlder: "NotOlderThan"}[op.Match])
	}
	return l.request(l.ctx, server, op, func(ctx context.Context, op *history.Op) error {
		return l.pages(ctx, l.endpoints[server], q, limit, op)
	})
}

// pages reads all pages of a list.
func (l *Load) pages(ctx context.Context, e Endpoint, q url.Values, limit int,
	op *history.Op) error {
	for key, values := range api.Query(op.Selector) {
		q[key] = values
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	for {
		page, err := e.List(ctx, op.Selector, q)
		if err != nil {
			return err
		}
		if op.Pages == 0 {
			op.RV = page.RV
		}
		op.Pages++
		op.PageRVs = append(op.PageRVs, page.RV)
		op.Items = append(op.Items, page.Items...)
		if page.Continue == "" {
			return nil
		}
		q.Set("continue", page.Continue)
	}
}
