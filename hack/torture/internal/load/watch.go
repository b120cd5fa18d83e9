package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
)

// watcher is one of the ways in which clients watch.
type watcher struct {
	name     string
	selector history.Selector
	// initial: watch-list, that is, the initial events come with the watch. Otherwise a list comes
	// before it.
	initial bool
	// bookmarks asks for them.
	bookmarks bool
	// hops is the number of events after which the watch is broken off and resumed from an event
	// that was seen before. 0: never.
	hops int
	// chance breaks the watch off at any moment instead. nil: it does not.
	chance *rand.Rand
}

// A watch that is broken off by chance lasts for so many events, or so long, at most.
const (
	mostEvents   = 80
	longestWatch = time.Second
)

func watchers() []watcher {
	return []watcher{
		{name: "list+watch", selector: history.Selector{Resource: api.Pipelines}, bookmarks: true},
		{name: "list+watch of pieces", selector: history.Selector{Resource: api.Chunks},
			bookmarks: true},
		{name: "watch-list", selector: history.Selector{Resource: api.Pipelines}, initial: true,
			bookmarks: true, hops: 300},
		{name: "watch-list by label", selector: history.Selector{Resource: api.Chunks,
			Colour: colours[1]}, initial: true, bookmarks: true, hops: 100},
		{name: "resume", selector: history.Selector{Resource: api.Pipelines}, hops: 80},
		{name: "resume with bookmarks", selector: history.Selector{Resource: api.Chunks},
			bookmarks: true, hops: 130},
		{name: "by label", selector: history.Selector{Resource: api.Pipelines, Colour: colours[0]},
			bookmarks: true},
		{name: "by field", selector: history.Selector{Resource: api.Pipelines, Image: images[0]},
			bookmarks: true},
		{name: "by name", selector: history.Selector{Resource: api.Chunks, Name: "k1"}},
		{name: "by namespace", selector: history.Selector{Resource: api.Pipelines,
			Namespace: "n00001"}, bookmarks: true},
		{name: "by label and field", selector: history.Selector{Resource: api.Pipelines,
			Colour: colours[2], Image: images[1]}, bookmarks: true, hops: 30},
	}
}

// Watchers is how many watchers there are per server.
func Watchers() int { return len(watchers()) }

// Restless starts watches of a server that are broken off and resumed at any moment while clients
// write.
func (l *Load) Restless(server, count int) {
	kinds := watchers()
	for i := range count {
		w := kinds[i%len(kinds)]
		w.name = fmt.Sprintf("restless %s %d", w.name, i/len(kinds))
		w.initial = w.bookmarks
		w.chance = rand.New(rand.NewPCG(l.opts.Seed, uint64(server*count+i)))
		l.watchers.Go(func() { l.follow(server, w) })
	}
}

func (l *Load) watch(server int) {
	for _, w := range watchers() {
		l.watchers.Go(func() { l.follow(server, w) })
	}
}

// follow watches on and on: a stream that breaks is resumed from what was seen last, and one that
// has expired begins anew.
func (l *Load) follow(server int, w watcher) {
	e := l.endpoints[server]
	from := int64(0)
	for l.ctx.Err() == nil {
		if from == 0 && !w.initial {
			op := history.Op{Client: 20_000 + server, Verb: history.List, Match: history.Consistent,
				Selector: w.selector}
			ok := l.request(l.ctx, server, op, func(ctx context.Context, op *history.Op) error {
				err := l.pages(ctx, e, url.Values{}, 0, op)
				from = op.RV
				return err
			})
			if !ok {
				from = 0
				wait(l.ctx, pauseAfterTrouble)
				continue
			}
		}
		var err error
		from, err = l.stream(server, w, from)
		if expired(err) {
			from = 0
		}
		if err != nil {
			wait(l.ctx, pauseAfterTrouble)
		}
	}
}

func expired(err error) bool {
	var status *api.StatusError
	return errors.As(err, &status) &&
		(status.Code == http.StatusGone || status.Code == http.StatusInternalServerError)
}

// stream is one watch. It returns where the next one may begin.
func (l *Load) stream(server int, w watcher, from int64) (next int64, err error) {
	s := &history.Stream{Name: w.name, Server: server, Selector: w.selector, From: from,
		Initial: w.initial && from == 0, Begun: l.h.Now()}
	q := api.Query(w.selector)
	if w.bookmarks {
		q.Set("allowWatchBookmarks", "true")
	}
	if s.Initial {
		q.Set("sendInitialEvents", "true")
		q.Set("resourceVersionMatch", "NotOlderThan")
	} else {
		q.Set("resourceVersion", strconv.FormatInt(from, 10))
	}
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	l.h.AddStream(s)
	hop := func() {
		if l.clientsC.Err() == nil && !l.held.Load() {
			cancel()
		}
	}
	hops, keep := w.hops, w.hops-w.hops/4
	if w.chance != nil {
		hops = 1 + w.chance.IntN(mostEvents)
		keep = 1 + w.chance.IntN(hops)
		timer := time.AfterFunc(time.Duration(w.chance.Int64N(int64(longestWatch))), hop)
		defer timer.Stop()
	}
	n, back, complete := 0, from, !s.Initial
	err = l.endpoints[server].Follow(ctx, w.selector, q, func(event history.Event) {
		event.Time = l.h.Now()
		s.Add(event)
		if event.InitialEnd {
			complete = true
			back = event.Object.RV
		}
		if !complete {
			return
		}
		n++
		if hops > 0 && n == keep {
			back = event.Object.RV
		}
		if hops > 0 && n >= hops {
			hop()
		}
	})
	s.End(fmt.Sprint(err))
	if ctx.Err() != nil && l.ctx.Err() == nil {
		return back, nil // it was broken off, and resumes where it was before
	}
	if !complete {
		return 0, err
	}
	return s.Seen(), err
}

// Informers are those of client-go, one for each resource.
type Informers struct {
	server    int
	factory   dynamicinformer.DynamicSharedInformerFactory
	informers map[string]cache.SharedIndexInformer
	stop      chan struct{}
}

// StartInformers starts the informers of a server.
func StartInformers(config *rest.Config, server int) (*Informers, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	i := &Informers{server: server, factory: dynamicinformer.NewDynamicSharedInformerFactory(client,
		0), informers: map[string]cache.SharedIndexInformer{},
		stop: make(chan struct{})}
	for _, resource := range []string{api.Pipelines, api.Chunks} {
		i.informers[resource] = i.factory.ForResource(schema.GroupVersionResource{Group: "ci.rowkeeper.dev", Version: "v1", Resource: resource}).Informer()
		// Its errors come with every fault.
		if err := i.informers[resource].SetWatchErrorHandler(func(*cache.Reflector,
			error) {
		}); err != nil {
			return nil, err
		}
	}
	i.factory.Start(i.stop)
	return i, nil
}

// Stop ends the informers.
func (i *Informers) Stop() {
	close(i.stop)
	i.factory.Shutdown()
}

// objects are what an informer has in its cache.
func (i *Informers) objects(resource string) ([]history.Object, error) {
	var objects []history.Object
	for _, item := range i.informers[resource].GetStore().List() {
		var s rows.Stored
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.(*unstructured.Unstructured).Object, &s); err != nil {
			return nil, err
		}
		o, err := s.Object(resource)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// Settle waits until the informers have what a list has, and takes a note of both.
func (i *Informers) Settle(ctx context.Context, h *history.History, e *api.Endpoint) error {
	for _, resource := range []string{api.Pipelines, api.Chunks} {
		page, err := e.List(ctx, history.Selector{Resource: resource}, url.Values{})
		if err != nil {
			return err
		}
		want := map[history.Object]bool{}
		for _, o := range page.Items {
			want[o] = true
		}
		for {
			have, err := i.objects(resource)
			if err != nil {
				return err
			}
			same := len(have) == len(want)
			for _, o := range have {
				same = same && want[o]
			}
			if same || ctx.Err() != nil {
				h.AddInformer(history.Informer{Name: fmt.Sprintf("the informer of %s at server %d",
					resource, i.server), Cache: have, List: page.Items})
				break
			}
			wait(ctx, 50*time.Millisecond)
		}
	}
	return nil
}
