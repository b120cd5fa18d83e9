package scenario

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
	"github.com/rowkeeper/rowkeeper/storage/login"
)

// neighbour uses the default store of the database by the library, while the servers use another
// one. The faults of that one are no concern of its own: its watch stays open, and has each object
// that it creates once and in order. Only where the whole database loses its newest commits does
// the history of every store begin anew.
type neighbour struct {
	e       *Env
	db      *storage.Store
	things  apistorage.Interface
	release func()
	mayEnd  bool
	// stop ends it, and says what is wrong.
	stop func()

	mu      sync.Mutex
	written map[string]int64
	seen    map[string]int64
	slowest time.Duration
	refused int
}

// neighbourPause is between two of its writes.
const neighbourPause = 20 * time.Millisecond

// startNeighbour creates the store of the servers, and begins to use the default one.
func (e *Env) startNeighbour(ctx context.Context) (*neighbour, error) {
	way := e.Config.Servers // which no fault is about
	if _, galera := e.DB.(*database.Galera); galera {
		way = 0
	}
	config := storage.Config{URL: e.DB.URL(way), Drivers: drivers.All(), Store: e.store()}
	if r, ok := e.DB.(*database.Rotating); ok {
		config.Login = login.File(r.File(way))
	}
	if _, err := storage.CreateStore(ctx, config); err != nil {
		return nil, err
	}
	config.Store, config.Timeout = "", databaseTimeout
	db, err := storage.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	n := &neighbour{e: e, db: db, written: map[string]int64{}, seen: map[string]int64{},
		mayEnd: e.Scenario.Loses && e.Scenario.Open != nil && e.Kind != programs.SQLite}
	n.things, n.release, err = db.Resource(storage.ResourceConfig{
		Codec:          unstructured.UnstructuredJSONScheme,
		NewFunc:        func() runtime.Object { return &unstructured.Unstructured{} },
		Prefix:         e.prefix(),
		ResourcePrefix: "/things",
		GroupResource:  schema.GroupResource{Group: "torture.rowkeeper.dev", Resource: "things"},
	})
	if err != nil {
		db.Close()
		return nil, err
	}
	w, err := n.watch(ctx)
	if err != nil {
		db.Close()
		return nil, err
	}
	var writer, follower sync.WaitGroup
	following, unfollow := context.WithCancel(context.WithoutCancel(ctx))
	writing, stopWriting := context.WithCancel(following)
	follower.Go(func() { n.follow(following, w) })
	writer.Go(func() { n.write(writing) })
	n.stop = sync.OnceFunc(func() {
		stopWriting()
		writer.Wait()
		n.settle(ctx)
		unfollow()
		follower.Wait()
		n.release()
		if err := db.Close(); err != nil {
			e.Fail("neighbour", "it does not close: %v", err)
		}
	})
	return n, nil
}

// watch watches from now on.
func (n *neighbour) watch(ctx context.Context) (watch.Interface, error) {
	head, err := n.db.CurrentRevision(ctx)
	if err != nil {
		return nil, err
	}
	return n.things.Watch(ctx, "/things", apistorage.ListOptions{Recursive: true,
		ResourceVersion: strconv.FormatInt(head, 10), Predicate: apistorage.Everything})
}

// write creates things until the context ends. No write is repeated that is refused, or of which
// nobody knows.
func (n *neighbour) write(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("n%07d", i)
		thing, out := &unstructured.Unstructured{}, &unstructured.Unstructured{}
		thing.SetAPIVersion("torture.rowkeeper.dev/v1")
		thing.SetKind("Thing")
		thing.SetName(name)
		began := time.Now()
		err := n.things.Create(ctx, "/things/"+name, thing, out, 0)
		took := time.Since(began)
		n.mu.Lock()
		if err == nil {
			n.written[name], n.slowest = revisionOf(out), max(n.slowest, took)
		} else {
			n.refused++
		}
		n.mu.Unlock()
		Wait(ctx, neighbourPause)
	}
}

func revisionOf(obj *unstructured.Unstructured) int64 {
	revision, _ := strconv.ParseInt(obj.GetResourceVersion(), 10, 64) // 0 is found to be wrong
	return revision
}

// follow takes what the watch has, until the context ends.
func (n *neighbour) follow(ctx context.Context, w watch.Interface) {
	for ctx.Err() == nil {
		err := n.take(ctx, w)
		w.Stop()
		if ctx.Err() != nil {
			return
		}
		if !n.mayEnd {
			n.e.Fail("neighbour", "its watch has ended: %v", err)
		}
		for w, err = n.watch(ctx); err != nil && ctx.Err() == nil; w, err = n.watch(ctx) {
			Wait(ctx, neighbourPause)
		}
	}
}

func (n *neighbour) take(ctx context.Context, w watch.Interface) error {
	last := int64(0)
	for {
		var e watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open = <-w.ResultChan():
		}
		thing, ok := e.Object.(*unstructured.Unstructured)
		if !open || !ok {
			return fmt.Errorf("%s %v", e.Type, e.Object)
		}
		revision, name := revisionOf(thing), thing.GetName()
		n.mu.Lock()
		_, again := n.seen[name]
		n.seen[name] = revision
		n.mu.Unlock()
		if again || revision <= last || e.Type != watch.Added {
			n.e.Fail("neighbour", "its watch has %s %s at %d after %d, seen before: %t", e.Type,
				name, revision, last, again)
		}
		last = revision
	}
}

// settle waits until the watch has all that was written, and compares.
func (n *neighbour) settle(ctx context.Context) {
	missing := func() (names []string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for name, revision := range n.written {
			if n.seen[name] != revision {
				names = append(names, fmt.Sprintf("%s at %d (%d)", name, revision, n.seen[name]))
			}
		}
		slices.Sort(names)
		return names
	}
	if !n.mayEnd {
		err := until(ctx, settleWithin, func(context.Context) error {
			if names := missing(); len(names) > 0 {
				return fmt.Errorf("its watch has not %v", names[:min(len(names), 10)])
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			n.e.Fail("neighbour", "%v", err)
		}
	}
	list := &unstructured.UnstructuredList{}
	err := n.things.GetList(ctx, "/things", apistorage.ListOptions{Recursive: true,
		Predicate: apistorage.Everything}, list)
	if err != nil {
		n.e.Fail("neighbour", "it cannot list: %v", err)
		return
	}
	there := map[string]int64{}
	for i := range list.Items {
		there[list.Items[i].GetName()] = revisionOf(&list.Items[i])
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, revision := range n.written {
		if there[name] != revision && !n.mayEnd {
			n.e.Fail("neighbour", "%s was written at %d and is listed at %d", name, revision,
				there[name])
		}
	}
	n.e.Note("the neighbour wrote %d objects, the slowest within %.2f s; %d writes failed",
		len(n.written), n.slowest.Seconds(), n.refused)
}
