package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
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
	c := d.config
	c.Store = store
	var n int64
	err := c.withBackend(d.Context(), func(b contract.Backend) (err error) {
		n, _, err = b.Count(d.Context(), "/registry/pods/", "/registry/pods0", 0, 0)
		return err
	})
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
func (d aDatabase) expired(r *resource, resourceVersion string) {
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
	c := d.config.withDefaults()
	c.Store = store
	b, err := contract.OpenBackend(d.Context(), c.Drivers[0], c.URL, c.driverOptions())
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

// TestMoveIsInterrupted: after each of its steps, no server serves the objects, and they are all
// there after the move was repeated, or taken back.
func TestMoveIsInterrupted(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		db := x.open("")
		for _, name := range []string{"a", "b"} {
			create(t, pods(t, db), pod(name))
		}
		x.close(db)
		at := "default"
		for steps := 1; steps <= 4; steps++ {
			for _, to := range []string{"fast", "default", "other"}[:2+steps/4] {
				from, next := at, "fast"
				if from == next {
					next = "default"
				}
				x.interrupt(next, steps)
				x.refused(to, "being moved between the stores",
					"rowkeeper stores move pods --to "+to)
				if _, err := MoveResource(t.Context(), x.config, "", podsOf, to); err != nil {
					t.Fatalf("from %s to %s after %d steps, then to %s: %v", from, next, steps,
						to, err)
				}
				at = to
				for _, store := range []string{"default", "fast", "other"} {
					want := int64(0)
					if store == to {
						want = 2
					}
					if n := x.count(store); n != want {
						t.Fatalf("from %s to %s after %d steps, then to %s: %s has %d pods", from,
							next, steps, to, store, n)
					}
				}
				db := x.open(to)
				if n := len(list(t, pods(t, db), apistorage.ListOptions{}).Items); n != 2 {
					t.Errorf("%d pods are served from %s", n, to)
				}
				x.close(db)
			}
		}
	})
}

// interrupt does the first steps of a move.
func (d aDatabase) interrupt(to string, steps int) {
	d.Helper()
	ctx := d.Context()
	own, err := openOne(ctx, d.config.withDefaults())
	if err != nil {
		d.Fatal(err)
	}
	defer d.close(own)
	m := move{store: own, c: d.config.withDefaults(), directory: "/registry/pods/",
		is: placement{Prefix: "/registry", Resource: "pods", Store: "default"}}
	if m.r, err = readRecord(ctx, own.mvcc); err != nil {
		d.Fatal(err)
	}
	if p, ok := m.r.places[m.directory]; ok {
		m.is = p
	}
	from := m.is.Store
	source, err := own.at(ctx, m.c, from)
	if err != nil {
		d.Fatal(err)
	}
	target, err := own.at(ctx, m.c, to)
	if err != nil {
		d.Fatal(err)
	}
	var head contract.Revision
	for _, step := range []func() error{
		func() error { return m.record(ctx, from, to, 0) },
		func() (err error) {
			if head, err = source.mvcc.Head(ctx); err == nil {
				_, err = m.copy(ctx, source.mvcc, target.mvcc, head)
			}
			return err
		},
		func() error { return m.record(ctx, to, from, head) },
		func() error { return removeAll(ctx, source.mvcc, m.directory, head) },
	}[:steps] {
		if err := step(); err != nil {
			d.Fatal(err)
		}
	}
}

// TestMoveLosesNothing: a store that has such objects of its own is not moved into, and is recorded
// as their place only if there are no others.
func TestMoveLosesNothing(t *testing.T) {
	x := withStores(t, dbtest.Open(t, dbtest.SQLite))
	tenant := x.config
	tenant.Store = "fast"
	for _, c := range []Config{x.config, tenant} {
		db, err := Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		create(t, pods(t, db), pod("a"))
		x.close(db)
	}
	_, err := MoveResource(t.Context(), x.config, "", podsOf, "fast")
	x.says(err, `both the store "default" and the store "fast" have some`)
	for _, store := range []string{"default", "fast"} {
		if n := x.count(store); n != 1 {
			t.Errorf("%s has %d pods", store, n)
		}
	}
	db := x.open("")
	remove(t, pods(t, db), "a")
	x.close(db)
	x.refused("fast", "objects of pods that it was not given",
		"rowkeeper stores move pods --to fast`")
	db = x.open("")
	head, err := db.mvcc.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	x.move("fast", 0)
	// What is there is never recorded as copies, which an interrupted move leaves to be deleted.
	w, err := db.mvcc.Watch(t.Context(), mvcc.WatchOptions{Key: placementKey, After: head})
	if err != nil {
		t.Fatal(err)
	}
	for store := ""; store != "fast"; {
		batch, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Events {
			r, err := parseRecord(e.Value)
			if err != nil || r.places["/registry/pods/"].Also != "" {
				t.Fatalf("the move has recorded %s, %v", e.Value, err)
			}
			store = r.places["/registry/pods/"].Store
		}
	}
	w.Close()
	x.close(db)
	db = x.open("fast")
	if n := len(list(t, pods(t, db), apistorage.ListOptions{}).Items); n != 1 {
		t.Errorf("there are %d pods", n)
	}
	_, err = MoveResource(t.Context(), x.config, "", podsOf, "unknown")
	x.says(err, `no store "unknown"`)
}

// write writes or deletes a key of the database's own store, as a server does that has not heard of
// a move.
func (d aDatabase) write(m contract.Mutation) {
	d.Helper()
	store := d.open("")
	defer d.close(store)
	if m.Expect = contract.Any; !m.Delete {
		m.Value = []byte(`{}`)
	}
	if _, err := store.mvcc.Commit(d.Context(), m); err != nil {
		d.Fatal(err)
	}
}

// TestMoveKeepsWhatIsNewer: what a server writes that has not heard of the move is not deleted when
// it was not copied.
func TestMoveKeepsWhatIsNewer(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		store := x.open("")
		create(t, pods(t, store), pod("a"))
		x.close(store)
		x.interrupt("fast", 3)
		x.write(contract.Mutation{Key: "/registry/pods/ns/late"})
		_, err := MoveResource(t.Context(), x.config, "", podsOf, "fast")
		x.says(err, "/registry/pods/ns/late was written after it was copied", "`rowkeeper etcd`")
		if n := x.count("fast"); n != 1 {
			t.Errorf("%d pods were copied", n)
		}
		x.refused("fast", "being moved")
		x.write(contract.Mutation{Key: "/registry/pods/ns/late", Delete: true})
		x.move("fast", 0)
		if here, there := x.count("default"), x.count("fast"); here != 0 || there != 1 {
			t.Errorf("there are %d pods where they were, and %d where they are", here, there)
		}
	})
}

// TestMoveKeepsTheLastCopy: if a store loses the objects while a move is interrupted, those in the
// other store are not deleted, though they are not valid.
func TestMoveKeepsTheLastCopy(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		for steps, lost := range map[int]string{2: "default", 3: "fast"} {
			x := withStores(t, d)
			store := x.open("")
			create(t, pods(t, store), pod("a"))
			x.close(store)
			x.interrupt("fast", steps)
			s, err := mvcc.Open(t.Context(), x.backend(lost), mvcc.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if err := removeAll(t.Context(), s, "/registry/pods/", 0); err != nil {
				t.Fatal(err)
			}
			for _, to := range []string{"default", "fast"} {
				_, err := MoveResource(t.Context(), x.config, "", podsOf, to)
				x.says(err, lost+`", in which they are recorded to be, has none of them`)
			}
			if here, there := x.count("default"), x.count("fast"); here+there != 1 {
				t.Errorf("after %d steps and a loss there are %d and %d pods", steps, here, there)
			}
			d = dbtest.Open(t, d.Kind)
		}
	})
}

// TestRecordIsChecked: a record that is not of this program's making is not followed.
func TestRecordIsChecked(t *testing.T) {
	for _, text := range []string{
		"-",
		`{"/registry/secrets/":{"prefix":"/registry","resource":"pods","store":"fast"}}`,
		`{"":{"prefix":"/registry","resource":"pods","store":"fast"}}`,
		`{"/registry/":{"prefix":"/","resource":"registry/","store":"fast"}}`,
		`{"/registry/pods/":{"prefix":"/registry","resource":"pods","store":"../fast"}}`,
		`{"/registry/pods/":{"prefix":"/registry","resource":"pods","store":""}}`,
		`{"/registry/pods/":{"prefix":"/registry","resource":"pods","store":"fast","also":"-"}}`,
	} {
		if r, err := parseRecord([]byte(text)); err == nil ||
			!strings.Contains(err.Error(), "cannot be read: restore a backup") {
			t.Errorf("%s is taken as %v, %v", text, r.places, err)
		}
	}
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

// ofOther has pods of the store "other" in another one.
func (d aDatabase) ofOther(store string) *Store {
	d.Helper()
	c := d.assigned(store)
	c.Store = "other"
	db, err := Open(d.Context(), c)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { d.close(db) })
	return db
}

// recordOf is what a database has recorded of pods, and its revision.
func (d aDatabase) recordOf(store *Store) (record, placement) {
	d.Helper()
	r, err := readRecord(d.Context(), store.mvcc)
	if err != nil {
		d.Fatal(err)
	}
	return r, r.places["/registry/pods/"]
}

// TestStoreForIsOfOneStore: two stores do not keep the objects of a resource in the same third one.
// Who came first is not disturbed, and who came later is told what to do.
func TestStoreForIsOfOneStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		taken := []string{`the store "fast" keeps the objects of pods of the store "default"`,
			"name another store", "rowkeeper stores move pods --to default`"}
		store := x.open("fast")
		s := pods(t, store)
		created := create(t, s, pod("a"))
		w := startWatch(t, s, apistorage.ListOptions{ResourceVersion: created.ResourceVersion})
		other := x.ofOther("fast")
		_, _, err := other.Resource(podConfig())
		x.says(err, taken...)
		if r, _ := x.recordOf(other); r.revision != 0 {
			t.Errorf("who is refused has recorded %+v", r)
		}
		b := podConfig()
		b.Prefix = "/b"
		create(t, open(t, other, b), pod("b"))
		x.close(other)
		other = x.ofOther("")
		create(t, pods(t, other), pod("own"))
		x.close(other)
		ofOther := x.config
		ofOther.Store = "other"
		move := func(to string) error {
			_, err := MoveResource(t.Context(), ofOther, "", podsOf, to)
			return err
		}
		x.says(move("fast"), taken...)
		if n := x.count("other"); n != 1 {
			t.Errorf("a move that was refused has left %d pods", n)
		}
		// A store is taken when the claim is about to be recorded.
		other = x.ofOther("")
		here := placement{Prefix: "/registry", Resource: "pods", Store: "other"}
		r, _ := x.recordOf(other)
		_, err = other.claim(t.Context(), r, "/registry/pods/", here, "fast")
		x.says(err, taken...)
		if _, p := x.recordOf(other); p != (placement{}) {
			t.Errorf("a claim that was refused has left %+v", p)
		}
		create(t, s, pod("c"))
		if got := brief(t, next(t, w)); got != "ADDED c " {
			t.Errorf("the watch has %s", got)
		}

		// When the first one has left, the second one may come, whatever the first one still says.
		x.close(store)
		x.move("default", 2)
		x.close(other)
		if err := move("fast"); err != nil {
			t.Error(err)
		}
		x.says(move("default"), `both the store "fast" and the store "default" have some`)
		_, err = MoveResource(t.Context(), x.config, "", podsOf, "fast")
		x.says(err, `the store "fast" keeps the objects of pods of the store "other"`,
			"rowkeeper stores move pods --to other --store other`")
		_, err = DropStore(t.Context(), ofOther)
		if err != nil {
			t.Error(err)
		}
		store = x.open("")
		remove(t, pods(t, store), "a")
		remove(t, pods(t, store), "c")
		x.close(store)
		// What the dropped store has left does not belong to it any more.
		x.refused("fast", "objects of pods that it was not given")
		x.move("fast", 0)
		store = x.open("fast")
		if n := len(list(t, pods(t, store), apistorage.ListOptions{}).Items); n != 1 {
			t.Errorf("there are %d pods", n)
		}
	})
}

// TestClaimOfStore: a claim keeps others from a store, and nobody from serving what was served
// before. Who claims goes on with it, even if it was left behind by another process.
func TestClaimOfStore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		runs := x.open("")
		s := pods(t, runs)
		other := x.ofOther("")
		here := placement{Prefix: "/registry", Resource: "pods", Store: "other", Claims: "fast"}
		claim := func() {
			t.Helper()
			r, _ := x.recordOf(other)
			if _, err := r.write(t.Context(), other.mvcc, "other", "/registry/pods/", here); err != nil {
				t.Fatal(err)
			}
		}
		claim()
		if _, err := NewRESTOptionsGetter(x.ofOther("fast"), RESTOptions{Codec: codec}); err != nil {
			t.Error(err)
		}
		pods(t, other)
		create(t, s, pod("a"))
		remove(t, s, "a")
		x.refused("fast", `the store "fast" keeps the objects of pods of the store "other"`,
			"rowkeeper stores move pods --to other --store other`")
		ofOther := x.config
		ofOther.Store = "other"
		if n, err := MoveResource(t.Context(), ofOther, "", podsOf, "other"); err != nil || n != 0 {
			t.Errorf("%d, %v", n, err)
		}
		if _, p := x.recordOf(other); p != (placement{}) {
			t.Errorf("after the claim was taken back, %+v is recorded", p)
		}
		claim()
		other = x.ofOther("fast")
		pods(t, other)
		if _, p := x.recordOf(other); p.Store != "fast" || p.Claims != "" {
			t.Errorf("%+v is recorded", p)
		}
		if err := runs.Ready(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestStoreForRace: of two stores that record the same other one at the same time, one does at
// most, and who is refused leaves nothing behind.
func TestStoreForRace(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		x := withStores(t, d)
		dbs := []*Store{x.open("fast"), x.ofOther("fast")}
		for round := range 10 {
			resource := fmt.Sprintf("kind%d", round)
			p := placement{Prefix: "/registry", Resource: resource, Store: "fast"}
			directory := contract.Key("/registry/" + resource + "/")
			var errs [2]error
			var wg sync.WaitGroup
			for i, store := range dbs {
				wg.Go(func() { _, errs[i] = store.record(t.Context(), directory, p) })
			}
			wg.Wait()
			for i, store := range dbs {
				r, err := readRecord(t.Context(), store.mvcc)
				if err != nil {
					t.Fatal(err)
				}
				_, recorded := r.places[directory]
				if taken := (*takenError)(nil); recorded != (errs[i] == nil) ||
					errs[i] != nil && !errors.As(errs[i], &taken) {
					t.Errorf("round %d: %+v is recorded, and the error is %v", round, r.places, errs[i])
				}
			}
			if errs[0] == nil && errs[1] == nil {
				t.Fatalf("round %d: both have recorded the same store", round)
			}
		}
	})
}

// TestRestoreKeepsStoreFor: a backup is not restored that would undo what is recorded. One that
// says the same is, and a server goes on with it.
func TestRestoreKeepsStoreFor(t *testing.T) {
	x := withStores(t, dbtest.Open(t, dbtest.SQLite))
	backup := func(store *Store) *bytes.Reader {
		t.Helper()
		var b bytes.Buffer
		if _, err := store.WriteBackup(t.Context(), &b, nil); err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(b.Bytes())
	}
	restore := func(store *Store, b *bytes.Reader) error {
		if _, err := b.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		_, _, err := store.RestoreBackup(t.Context(), b, RestoreOptions{Replace: true})
		return err
	}
	plain := x.open("")
	before := backup(plain)
	x.close(plain)
	store := x.open("fast")
	r := pods(t, store)
	create(t, r, pod("a"))
	after := backup(store)
	x.says(restore(store, before), "nothing was restored",
		`pods are in the store "fast", and the backup has them in "default"`,
		"rowkeeper stores move pods --to default`")
	if err := restore(store, after); err != nil {
		t.Error(err)
	}
	create(t, r, pod("b"))
	if n := len(list(t, r, apistorage.ListOptions{}).Items); n != 2 {
		t.Errorf("there are %d pods", n)
	}
	x.close(store)
	x.refused("", `kept in the store "fast"`)
	x.move("default", 2)
	store = x.open("")
	x.says(restore(store, after), "nothing was restored",
		`pods are in the store "default", and the backup has them in "fast"`,
		"rowkeeper stores move pods --to fast`")
	if err := restore(store, before); err != nil {
		t.Error(err)
	}
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
