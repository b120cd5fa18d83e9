package storage

import (
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// aDatabase has the stores "default", "fast" and "other".
type aDatabase struct {
	*testing.T
	config Config
}

func withStores(t *testing.T, d dbtest.DB) aDatabase {
	t.Helper()
	db := aDatabase{t, Config{URL: d.URL, Drivers: []Driver{d.Driver}, Migrate: true}}
	for _, name := range []string{"fast", "other"} {
		c := db.config
		c.Store = name
		if _, err := CreateStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

var podsOf = schema.GroupResource{Resource: "pods"}

// assigned has pods in a store, "" for none that is named.
func (d aDatabase) assigned(store string) Config {
	c := d.config
	if store != "" {
		c.StoreFor = map[schema.GroupResource]string{podsOf: store}
	}
	return c
}

func (d aDatabase) open(store string) *Store {
	d.Helper()
	db, err := Open(d.Context(), d.assigned(store))
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { d.close(db) })
	return db
}

func (d aDatabase) close(store *Store) {
	d.Helper()
	if err := store.Close(); err != nil {
		d.Error(err)
	}
}

// refused: pods are not served from the store, and the error says the words.
func (d aDatabase) refused(store string, words ...string) {
	d.Helper()
	db := d.open(store)
	defer d.close(db)
	_, _, err := db.Resource(podConfig())
	d.says(err, words...)
}

func (d aDatabase) says(err error, words ...string) {
	d.Helper()
	if err == nil {
		d.Errorf("there is no error that says %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			d.Errorf("%q does not say %q", err, w)
		}
	}
}

// count counts the pods in a store.
func (d aDatabase) count(store string) int64 {
	d.Helper()
	n, _, err := d.backend(store).Count(d.Context(), "/registry/pods/", "/registry/pods0", 0, 0)
	if err != nil {
		d.Fatal(err)
	}
	return n
}

func (d aDatabase) move(to string, want int64) {
	d.Helper()
	n, err := MoveResource(d.Context(), d.config, "", podsOf, to)
	if err != nil || n != want {
		d.Fatalf("moved %d objects to %s, want %d, %v", n, to, want, err)
	}
}

// expired: a watch that resumes at a revision is told that it cannot.
func (d aDatabase) expired(r *objectStore, resourceVersion string) {
	d.Helper()
	w := startWatch(d, r, apistorage.ListOptions{ResourceVersion: resourceVersion})
	if got := brief(d, next(d, w)); got != "ERROR 410 Expired" {
		d.Errorf("a watch resumes at %s and has %s", resourceVersion, got)
	}
}

// TestStoreFor: the objects of a resource are in the store that is named for it and nowhere else;
// who is told otherwise does not serve them; and moved objects are there as they were, beyond
// everything that was seen.
func TestStoreFor(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		plain := x.open("")
		seen := list(t, pods(t, plain), apistorage.ListOptions{}).ResourceVersion
		once := prometheus.NewPedanticRegistry()
		for range 2 { // as when a store is dropped and created again
			once.MustRegister(plain.Collector())
			if _, err := once.Gather(); err != nil || !once.Unregister(plain.Collector()) {
				t.Errorf("the metrics cannot be unregistered, or gathered: %v", err)
			}
		}
		x.close(plain)
		_, err := Open(t.Context(), x.assigned("unknown"))
		x.says(err, "pods", `no store "unknown"`, "rowkeeper stores create unknown")
		_, err = Open(t.Context(), x.assigned("In valid"))
		x.says(err, `no store can have the name "In valid"`)

		// While there are no objects, the first who serves the resource assigns it.
		store := x.open("fast")
		r := pods(t, store)
		x.expired(r, seen)
		created := create(t, r, pod("a"))
		if err := r.Create(t.Context(), podKey("mortal"), pod("mortal"), nil, 3600); err != nil {
			t.Fatal(err)
		}
		nodes := podConfig()
		nodes.ResourcePrefix, nodes.GroupResource.Resource = "/nodes", "nodes"
		if err := open(t, store, nodes).Create(t.Context(), "/nodes/n", pod("n"), nil, 0); err != nil {
			t.Fatal(err)
		}
		if here, there := x.count("default"), x.count("fast"); here != 0 || there != 2 {
			t.Errorf("the database's own store has %d pods, and the other one %d", here, there)
		}
		for end, want := range map[string]string{"/registry/nodes0": "/registry/nodes/n",
			"/registry/pods0": "/registry/pods/ns/a"} {
			begin := strings.TrimSuffix(end, "0") + "/"
			if got, err := store.FirstKey(t.Context(), begin, end); err != nil || got != want {
				t.Errorf("the first key is %q, %v, want %q", got, err, want)
			}
		}
		for from, want := range map[string]int64{"nodes/": 1, "pods/": 2, "pods/ns/b": 1,
			"services/": 0} {
			end := "/registry/" + strings.Split(from, "/")[0] + "0"
			if n, err := store.CountKeys(t.Context(), "/registry/"+from, end); err != nil ||
				n != want {
				t.Errorf("from %s on, there are %d keys, %v, want %d", from, n, err, want)
			}
		}
		if err := store.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(store.Collector())
		if _, err := registry.Gather(); err != nil {
			t.Error(err)
		}
		w := startWatch(t, r, apistorage.ListOptions{ResourceVersion: created.ResourceVersion})
		if got := brief(t, next(t, w)); got != "ADDED mortal " {
			t.Errorf("the watch has %s", got)
		}
		x.close(store)
		x.refused("", `the objects of pods are kept in the store "fast", not in "default"`,
			"--store-for pods=fast", "rowkeeper stores move pods --to default`")
		x.refused("other", `not in "other"`)
		elsewhere := x.open("")
		_, err = NewRESTOptionsGetter(elsewhere, RESTOptions{Codec: codec})
		x.says(err, `kept in the store "fast"`)
		// Another prefix is not concerned.
		if _, err = NewRESTOptionsGetter(elsewhere, RESTOptions{Codec: codec, Prefix: "/b"}); err != nil {
			t.Error(err)
		}
		b := podConfig()
		b.Prefix = "/b"
		open(t, elsewhere, b)
		x.close(elsewhere)

		x.move("default", 2)
		store = x.open("")
		r = pods(t, store)
		l := list(t, r, apistorage.ListOptions{})
		if len(l.Items) != 2 || l.Items[0].Name != "a" || l.Items[1].Name != "mortal" ||
			l.Items[0].UID != created.UID {
			t.Errorf("there is %+v", l.Items)
		}
		if moved := revisionOf(t, &l.Items[0]); moved <= revisionOf(t, created)+1<<23 {
			t.Errorf("the object has the revision %d, and had %d", moved, revisionOf(t, created))
		}
		x.expired(r, created.ResourceVersion)
		_, left, err := x.backend("").Expired(t.Context(), 1)
		if err != nil || left <= 50*time.Minute || left > time.Hour {
			t.Errorf("the next object expires in %v, %v", left, err)
		}
		if n := x.count("fast"); n != 0 {
			t.Errorf("the old store has %d pods", n)
		}
		if err := open(t, store, nodes).Get(t.Context(), "/nodes/n", apistorage.GetOptions{},
			pod("n")); err != nil {
			t.Errorf("what else was there: %v", err)
		}
		x.close(store)

		// Objects that exist keep a server from looking elsewhere.
		x.refused("other", `kept in the store "default", not in "other": leave --store-for out`,
			"rowkeeper stores move pods --to other`")
		x.move("other", 2)
		x.move("other", 0)
		x.refused("")
		store = x.open("other")
		if n := len(list(t, pods(t, store), apistorage.ListOptions{}).Items); n != 2 {
			t.Errorf("there are %d pods", n)
		}
		other := x.config
		other.Store = "other"
		_, err = DropStore(t.Context(), other)
		x.says(err, `the store "other" keeps the objects of pods of the store "default"`,
			"rowkeeper stores move pods --to default`")
		other.Store = "fast"
		if dropped, err := DropStore(t.Context(), other); err != nil || !dropped {
			t.Errorf("a store that is not needed: %t, %v", dropped, err)
		}
	})
}

// backend opens a store as another process would.
func (d aDatabase) backend(store string) contract.Backend {
	d.Helper()
	b, err := contract.OpenBackend(d.Context(), d.config.Drivers[0], d.config.URL,
		contract.DriverOptions{Store: store, Logger: slog.New(slog.DiscardHandler), Timeout: time.Minute})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		if err := b.Close(); err != nil {
			d.Error(err)
		}
	})
	return b
}

// TestStoreForWhileAServerRuns: a server that serves objects where they are not kept any more ends
// its watches, writes nothing more, and says why it is not ready.
func TestStoreForWhileAServerRuns(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		runs, unconcerned := x.open(""), x.open("")
		r := pods(t, runs)
		w := startWatch(t, r, everything(
			list(t, r, apistorage.ListOptions{}).ResourceVersion))
		nodes := podConfig()
		nodes.ResourcePrefix, nodes.GroupResource.Resource = "/nodes", "nodes"
		open(t, unconcerned, nodes)
		fast := x.open("fast")
		pods(t, fast)
		ended(t, w)
		if err := r.Create(t.Context(), podKey("lost"), pod("lost"), nil, 0); err == nil {
			t.Error("an object was written where nobody looks for it")
		}
		x.says(runs.Ready(t.Context()), `kept in the store "fast"`)
		for _, store := range []*Store{unconcerned, fast} {
			if err := store.Ready(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestStoreForIsAssignedOnce: of several servers that assign a resource at the same time, to
// different stores, those of one store go on.
func TestStoreForIsAssignedOnce(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		var served [2]atomic.Int32
		var wg sync.WaitGroup
		var dbs []*Store
		for i := range 6 {
			dbs = append(dbs, x.open([]string{"fast", "other"}[i%2]))
		}
		for i, store := range dbs {
			wg.Go(func() {
				_, release, err := store.Resource(podConfig())
				if err == nil {
					served[i%2].Add(1)
					release()
				} else if !strings.Contains(err.Error(), "are kept in the store") {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if a, b := served[0].Load(), served[1].Load(); a+b != 3 || a*b != 0 {
			t.Errorf("%d serve from one store, and %d from the other", a, b)
		}
	})
}

func TestParseResource(t *testing.T) {
	for text, want := range map[string]schema.GroupResource{
		"events":                     {Resource: "events"},
		"coordination.k8s.io/leases": {Group: "coordination.k8s.io", Resource: "leases"},
		"":                           {},
		"/events":                    {},
		"apps/":                      {},
		"a/b/c":                      {},
		"leases.coordination.k8s.io": {},
	} {
		got, err := ParseResource(text)
		if got != want || (err == nil) != (want.Resource != "") {
			t.Errorf("%q is %v, %v", text, got, err)
		}
		if err == nil && resourceName(got) != text {
			t.Errorf("%q becomes %q", text, resourceName(got))
		}
	}
}

// TestWindowFor: a store has a window of its own.
func TestWindowFor(t *testing.T) {
	x := withStores(t, dbtest.Open(t, dbtest.SQLite))
	c := x.assigned("fast")
	c.Compaction = CompactionPolicy{Window: -1, Keep: 3, Interval: time.Millisecond}
	c.WindowFor = map[string]time.Duration{"fast": time.Nanosecond}
	store, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer x.close(store)
	nodes := podConfig()
	nodes.ResourcePrefix, nodes.GroupResource.Resource = "/nodes", "nodes"
	kept, fast := open(t, store, nodes), pods(t, store)
	before, fenced := kept.CompactRevision(), fast.CompactRevision()
	for i := range 10 {
		if err := kept.Create(t.Context(), "/nodes/"+numbered(i), pod(numbered(i)), nil, 0); err != nil {
			t.Fatal(err)
		}
		create(t, fast, pod(numbered(i)))
	}
	eventually(t, "the compaction of the store with a window", func() bool {
		return fast.CompactRevision() > fenced
	})
	if at := kept.CompactRevision(); at != before {
		t.Errorf("the store without a window is compacted up to %d", at)
	}
}
