package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// databaseAway stops the database for a while, and asks the servers meanwhile: each request has to
// fail within its deadline, by 503 or 504; one that has written nothing says when to try again;
// servers are alive and not ready.
func databaseAway(ctx context.Context, e *Env) error {
	if err := e.process().Stop(ctx); err != nil {
		return err
	}
	for i := range e.Servers {
		err := until(ctx, 15*time.Second, func(ctx context.Context) error {
			if e.ready(i)(ctx) == nil {
				return errors.New("it is ready")
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			e.Fail("away", "server %d, without its database: %v", i, err)
		}
	}
	until := time.Now().Add(5 * time.Second)
	if e.Long {
		until = time.Now().Add(45 * time.Second)
	}
	var slowest atomic.Int64
	var asked, retry atomic.Int64
	var wg sync.WaitGroup
	for i, endpoint := range e.Endpoints {
		for _, ask := range []func(context.Context) error{
			func(ctx context.Context) error {
				_, err := endpoint.Create(ctx,
					history.Object{Key: fmt.Sprintf("%s/away/a%d", api.Pipelines,
						time.Now().UnixNano()), Value: "away", Image: "none"})
				return err
			},
			func(ctx context.Context) error {
				_, err := endpoint.List(ctx, history.Selector{Resource: api.Pipelines},
					url.Values{})
				return err
			},
			func(ctx context.Context) error {
				_, err := endpoint.Get(ctx, api.Pipelines+"/away/nothing")
				return err
			},
		} {
			wg.Go(func() {
				for time.Now().Before(until) && ctx.Err() == nil {
					began := time.Now()
					err := ask(ctx)
					took := time.Since(began)
					asked.Add(1)
					slowest.Store(max(slowest.Load(), int64(took)))
					var status *api.StatusError
					switch {
					case !errors.As(err, &status) ||
						status.Code != http.StatusServiceUnavailable &&
							status.Code != http.StatusGatewayTimeout &&
							status.Code != http.StatusTooManyRequests:
						e.Fail("away", "server %d, without its database, answered %v", i, err)
					case took > requestTimeout+2*time.Second:
						e.Fail("away", "server %d, without its database, answered after %s", i,
							took)
					case status.RetryAfter:
						retry.Add(1)
					}
					if err := endpoint.Check(ctx, "/livez"); err != nil {
						e.Fail("away", "server %d, without its database, is not alive: %v", i, err)
					}
					Wait(ctx, 50*time.Millisecond)
				}
			})
		}
	}
	wg.Wait()
	if retry.Load() == 0 {
		e.Fail("away", "of %d answers without a database, none had Retry-After", asked.Load())
	}
	e.Note("%d requests without a database failed by 503 or 504 within %.1f s, %d of them with "+
		"Retry-After", asked.Load(), time.Duration(slowest.Load()).Seconds(), retry.Load())
	return e.process().Start(ctx)
}

// memory runs f, and returns what each server had at most meanwhile of what is measured, and before
// it.
func (e *Env) memory(ctx context.Context, measure func(context.Context) (float64, error),
	f func() error) (before, peak float64, err error) {
	done := make(chan error, 1)
	if before, err = measure(ctx); err != nil {
		return 0, 0, err
	}
	go func() { done <- f() }()
	for {
		now, err := measure(ctx)
		if err != nil {
			return 0, 0, err
		}
		peak = max(peak, now)
		select {
		case err := <-done:
			return before, peak, err
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// residents is the memory of the server that has most.
func (e *Env) residents(context.Context) (float64, error) {
	most := 0.0
	for _, s := range e.Servers {
		resident, err := residentMemory(s.Pid())
		if err != nil {
			return 0, err
		}
		most = max(most, resident)
	}
	return most, nil
}

// live is the live heap of the server that has most of that: what its last collection kept. The
// resident memory has garbage, too, of which a busy machine has more.
func (e *Env) live(ctx context.Context) (float64, error) {
	most := 0.0
	for _, endpoint := range e.Endpoints {
		metrics, err := endpoint.Metrics(ctx)
		if err != nil {
			return 0, err
		}
		live := sum(metrics, "go_gc_heap_live_bytes")
		if live == 0 {
			return 0, errors.New("the server does not tell how much of its heap is live")
		}
		most = max(most, live)
	}
	return most, nil
}

// bounded fails if a server's memory grew beyond a bound, in MB.
func (e *Env) bounded(what string, before, peak, bound float64) {
	e.Note("%s: at most %.0f MB of memory in a server, after %.0f MB before", what, peak/1e6,
		before/1e6)
	if peak-before > bound*1e6 {
		e.Fail("memory", "%s: a server's memory rose from %.0f to %.0f MB", what,
			before/1e6, peak/1e6)
	}
}

// deaf opens connections that send a request and never read the answer.
func (e *Env) deaf(ctx context.Context, server int, paths []string) (closeAll func(), err error) {
	var conns []net.Conn
	closeAll = func() {
		for _, c := range conns {
			_ = c.Close() // nobody reads it
		}
	}
	config, err := e.Servers[server].Config()
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		c, err := dialTLS(ctx, config)
		if err != nil {
			closeAll()
			return nil, err
		}
		conns = append(conns, c)
		host, _, _ := strings.Cut(strings.TrimPrefix(config.Host, "https://"), "/")
		if _, err := fmt.Fprintf(c,
			"GET %s HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\n\r\n", path,
			host); err != nil {
			closeAll()
			return nil, err
		}
	}
	return closeAll, nil
}

// stuckWatchers opens watches and lists that nobody reads, while the load goes on: memory stays
// bounded, and the other watchers see everything, which is checked in the end.
func stuckWatchers(ctx context.Context, e *Env) error {
	var paths []string
	for range 100 {
		paths = append(paths, api.Path(api.Pipelines, "", "")+"?watch=true&resourceVersion=1",
			api.Path(api.Chunks, "", "")+"?watch=true&allowWatchBookmarks=true",
			api.Path(api.Pipelines, "", ""))
	}
	before, peak, err := e.memory(ctx, e.residents, func() error {
		closeAll, err := e.deaf(ctx, 0, paths)
		if err != nil {
			return err
		}
		defer closeAll()
		e.Hold(ctx, 5*time.Second, 60*time.Second)
		return nil
	})
	if err != nil {
		return err
	}
	e.bounded(fmt.Sprintf("%d watches and lists that nobody reads", len(paths)), before, peak, 400)
	return nil
}

// manyWatchers opens 10,000 watches at one server, and waits until each has seen a write.
func manyWatchers(ctx context.Context, e *Env) error {
	count := 1000
	if e.Long {
		count = 10_000
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	config, err := e.Servers[0].Config()
	if err != nil {
		return err
	}
	const perEndpoint = 200 // streams of an HTTP/2 connection
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var opened, saw atomic.Int64
	var trouble atomic.Value
	var wg sync.WaitGroup
	before, peak, err := e.memory(ctx, e.residents, func() error {
		var endpoint *api.Endpoint
		for n := range count {
			if n%perEndpoint == 0 {
				if endpoint, err = api.Dial(config, ""); err != nil {
					return err
				}
			}
			watch := endpoint
			wg.Go(func() {
				var once sync.Once
				// A server that is busy may refuse a watch for now, but not end one.
				for isOpen := false; ctx.Err() == nil && !isOpen; Wait(ctx, 100*time.Millisecond) {
					q := url.Values{"sendInitialEvents": {"true"},
						"resourceVersionMatch": {"NotOlderThan"}, "allowWatchBookmarks": {"true"}}
					err := watch.Follow(ctx, history.Selector{Resource: api.Pipelines,
						Namespace: "crowd"}, q, func(event history.Event) {
						if event.InitialEnd {
							isOpen = true
							opened.Add(1)
						}
						if event.Type == history.Added {
							once.Do(func() { saw.Add(1) })
						}
					})
					if isOpen && ctx.Err() == nil {
						e.Fail("watchers", "one of %d watches ended: %v", count, err)
					}
					if !isOpen && err != nil {
						trouble.Store(err.Error())
					}
				}
			})
		}
		if err := until(ctx, recoverWithin, func(context.Context) error {
			if n := opened.Load(); n < int64(count) {
				return fmt.Errorf("%d of %d watches are open; the last one that was refused "+
					"said: %v", n, count, trouble.Load())
			}
			return nil
		}); err != nil {
			return err
		}
		began := time.Now()
		if _, err := e.Endpoints[1].Create(ctx, history.Object{Key: api.Pipelines + "/crowd/event",
			Value: fmt.Sprint("crowd-", began.UnixNano()), Image: "none"}); err != nil {
			return err
		}
		if err := until(ctx, recoverWithin, func(context.Context) error {
			if n := saw.Load(); n < int64(count) {
				return fmt.Errorf("%d of %d watches saw the event", n, count)
			}
			return nil
		}); err != nil {
			return err
		}
		e.Note("%d watches of one server saw a write of another one within %.2f s", count,
			time.Since(began).Seconds())
		return nil
	})
	cancel()
	wg.Wait()
	if err != nil {
		return err
	}
	// An apiserver keeps about 60 kB per watch and connection; the bound finds what grows with the
	// events.
	e.bounded(fmt.Sprintf("%d watches", count), before, peak, 200+float64(count)*0.15)
	_, err = e.Endpoints[0].Remove(context.WithoutCancel(ctx), api.Pipelines+"/crowd/event")
	return err
}

// hoppingWatchers has watches broken off and resumed all the time. Again and again writers pause,
// and every watch has to have the last event before they go on. The checker judges each stream.
func hoppingWatchers(ctx context.Context, e *Env) error {
	count, rounds := 90, 5
	if e.Long {
		count, rounds = 300, 60
	}
	before := len(e.History.Streams())
	each := count / len(e.Servers)
	for i := range e.Servers {
		e.Load.Restless(i, each)
	}
	var slowest time.Duration
	for range rounds {
		Wait(ctx, 2*time.Second)
		release := e.Load.HoldWrites()
		began := time.Now()
		seen, err := e.caughtUp(ctx)
		release()
		if err != nil || !seen {
			return err
		}
		slowest = max(slowest, time.Since(began))
	}
	e.Note("%d watches began %d times; when writers paused, all had the last event within %.1f s",
		each*len(e.Servers), len(e.History.Streams())-before, slowest.Seconds())
	return nil
}

// burst writes as much as it can at once.
func burst(ctx context.Context, e *Env) error {
	total := int64(5000)
	if e.Long {
		total = 100_000
	}
	const writers = 128
	var next, done, refused atomic.Int64
	began := time.Now()
	before, peak, err := e.memory(ctx, e.residents, func() error {
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				// Each writer goes over the same keys again, so that the live objects are few.
				for n := next.Add(1); n <= total && ctx.Err() == nil; n = next.Add(1) {
					o := history.Object{Key: fmt.Sprintf("%s/burst/w%d", api.Chunks, w),
						Value: fmt.Sprintf("burst-%d-%d", w, n)}
					endpoint := e.Endpoints[w%len(e.Endpoints)]
					_, err := endpoint.Patch(ctx, o)
					var status *api.StatusError
					if errors.As(err, &status) && status.Code == http.StatusNotFound {
						_, err = endpoint.Create(ctx, o)
					}
					switch outcome, _ := api.Classify(err); outcome {
					case history.Done:
						done.Add(1)
					case history.NotDone:
						refused.Add(1)
					default:
						e.Fail("burst", "a write of the burst was answered by %v", err)
					}
				}
			})
		}
		wg.Wait()
		return nil
	})
	if err != nil {
		return err
	}
	e.Note("%d writes by %d writers, and %d refused for now, in %.1f s", done.Load(), writers,
		refused.Load(), time.Since(began).Seconds())
	// The apiserver's watch caches keep the events of the last 75 s, decoded, up to 102,400 of them
	// for each resource: about 5 kB each, and a busy heap is up to three times what lives in it.
	e.bounded("the burst", before, peak, 500+float64(min(total, 102_400))*0.015)
	return nil
}

// bigList fills the database with a million objects, and lists them while the load goes on.
func bigList(ctx context.Context, e *Env) error {
	count := 5000
	if e.Long {
		count = 1_000_000
	}
	began := time.Now()
	if err := e.fill(ctx, count, 0, 0); err != nil {
		return err
	}
	e.Say("%d objects were written in %.0f s", count, time.Since(began).Seconds())
	path := api.Path("pipelineruns", "", "")
	for _, list := range []struct {
		what  string
		limit int
	}{{"in pages of 500", 500}, {"at once", 0}} {
		began := time.Now()
		listed := 0
		before, peak, err := e.memory(ctx, e.residents, func() (err error) {
			listed, err = countItems(ctx, e.Endpoints[0], path, list.limit)
			return err
		})
		if err != nil {
			return err
		}
		if listed != count {
			e.Fail("list", "a list %s has %d of %d objects", list.what, listed, count)
		}
		e.Note("%d objects were listed %s in %.1f s", count, list.what, time.Since(began).Seconds())
		// A list at once is held as a whole, as in any API server; a page is not.
		bound := 300.0
		if list.limit == 0 {
			bound += float64(count) * 0.01
		}
		e.bounded(fmt.Sprintf("the list %s", list.what), before, peak, bound)
	}
	return nil
}

// flood lets large objects expire all at once while the load goes on: every server hears of them
// and reaps them, and none holds most of them. Its groups, its reads and its newest events have
// 109 MB together, and what watchers are sent is decoded and encoded besides.
func flood(ctx context.Context, e *Env) error {
	count := 640
	if e.Long {
		count = 1000
	}
	const size, hour = 1 << 20, 3600
	var began time.Time
	before, peak, err := e.memory(ctx, e.live, func() error {
		if err := e.fill(ctx, count, size, hour); err != nil {
			return err
		}
		began = time.Now()
		if err := e.Rows.ExpireAll(ctx); err != nil {
			return err
		}
		return until(ctx, recoverWithin, func(ctx context.Context) error {
			left, err := e.Rows.Expiring(ctx)
			if err == nil && left > 0 {
				err = fmt.Errorf("%d objects are still there", left)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	e.Note("%d objects of 1 MiB, expired all at once, were reaped within %.1f s, the reapers' "+
		"pause of a minute included", count, time.Since(began).Seconds())
	e.bounded("the flood", before, peak, float64(count)*size*3/4/1e6)
	return nil
}

// countItems lists without keeping what is listed.
func countItems(ctx context.Context, e *api.Endpoint, path string, limit int) (int, error) {
	total, next := 0, ""
	for {
		q := url.Values{}
		if limit > 0 {
			q.Set("limit", fmt.Sprint(limit))
		}
		if next != "" {
			q.Set("continue", next)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+path+"?"+q.Encode(),
			nil)
		if err != nil {
			return 0, err
		}
		response, err := e.HTTP.Do(request)
		if err != nil {
			return 0, err
		}
		n, token, err := countPage(response)
		if err != nil {
			return 0, err
		}
		total += n
		if next = token; next == "" {
			return total, nil
		}
	}
}

func countPage(response *http.Response) (n int, next string, err error) {
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		content, err := io.ReadAll(response.Body)
		return 0, "", errors.Join(fmt.Errorf("%s: %s", response.Status, content), err)
	}
	in := json.NewDecoder(response.Body)
	var page struct {
		Metadata struct{ Continue string }
		Items    []struct{}
	}
	err = in.Decode(&page)
	return len(page.Items), page.Metadata.Continue, err
}
