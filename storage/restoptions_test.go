package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func getter(t testing.TB, store *Store, o RESTOptions) *RESTOptionsGetter {
	t.Helper()
	if o.Codec == nil {
		o.Codec = codec
	}
	g, err := NewRESTOptionsGetter(store, o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// decorate makes the storage of pods as a registry does.
func decorate(t testing.TB, o generic.RESTOptions) (apistorage.Interface, func()) {
	t.Helper()
	return decorateWith(t, o, nil)
}

func decorateWith(t testing.TB, o generic.RESTOptions,
	triggers apistorage.IndexerFuncs) (apistorage.Interface, func()) {
	t.Helper()
	prefix := "/" + o.ResourcePrefix + "/"
	s, destroy, err := o.Decorator(o.StorageConfig, prefix,
		func(obj runtime.Object) (string, error) {
			return apistorage.NamespaceKeyFunc(prefix, obj)
		},
		func() runtime.Object {
			return &example.Pod{}
		}, func() runtime.Object { return &example.PodList{} },
		func(obj runtime.Object) (labels.Set, fields.Set, error) {
			p := obj.(*example.Pod)
			return p.Labels, fields.Set{"metadata.name": p.Name, "metadata.namespace": p.Namespace},
				nil
		}, triggers, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, destroy
}

func restOptions(t testing.TB, g generic.RESTOptionsGetter, r schema.GroupResource) generic.RESTOptions {
	t.Helper()
	o, err := g.GetRESTOptions(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// cachedPods returns the cached storage of a resource, once its cache is filled.
func cachedPods(t testing.TB, g *RESTOptionsGetter, r schema.GroupResource) apistorage.Interface {
	t.Helper()
	s, destroy := decorate(t, restOptions(t, g, r))
	t.Cleanup(destroy)
	eventually(t, "the watch cache to be filled", func() bool { return s.ReadinessCheck() == nil })
	return s
}

func TestRESTOptions(t *testing.T) {
	store := memory(t)
	cachedResource := schema.GroupResource{Group: "example.com", Resource: "pods"}
	plainResource := schema.GroupResource{Group: "example.com", Resource: "events"}
	g := getter(t, store, RESTOptions{WatchCacheDisabledFor: []schema.GroupResource{plainResource},
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 7, CountMetricPollPeriod: time.Minute, Prefix: "/mine"})
	o := restOptions(t, g, cachedResource)
	if o.ResourcePrefix != "example.com/pods" || o.StorageConfig.Prefix != "/mine" ||
		o.StorageConfig.GroupResource != cachedResource ||
		!o.EnableGarbageCollection || o.DeleteCollectionWorkers != 7 ||
		o.CountMetricPollPeriod != time.Minute {
		t.Errorf("got %+v of %+v", o, o.StorageConfig)
	}
	if again := restOptions(t, g, cachedResource); again.StorageConfig == o.StorageConfig {
		t.Error("two callers share a storage config")
	}
	s, destroy := decorate(t, o)
	if _, ok := s.(badRequests).Interface.(*cachedStore); !ok {
		t.Errorf("a cached resource has a %T", s)
	}
	destroy()
	destroy()
	s, destroy = decorate(t, restOptions(t, g, plainResource))
	if _, ok := s.(fromDatabase).Interface.(*objectStore); !ok {
		t.Errorf("a resource that is not cached has a %T", s)
	}
	destroy()
	destroy()
	s, destroy = decorate(t, restOptions(t, getter(t, store, RESTOptions{DisableWatchCache: true}),
		cachedResource))
	if _, ok := s.(fromDatabase).Interface.(*objectStore); !ok {
		t.Errorf("without a cache, a resource has a %T", s)
	}
	destroy()

	// The caller may exchange the codec.
	o = restOptions(t, g, plainResource)
	o.StorageConfig.Codec = brokenCodec{codec}
	s, destroy = decorate(t, o)
	defer destroy()
	err := s.Create(t.Context(), "/example.com/events/ns/a", pod("a"), &example.Pod{}, 0)
	if err == nil || !strings.Contains(err.Error(), "not an object") {
		t.Errorf("the exchanged codec is not used: %v", err)
	}

	for name, bad := range map[string]func() (*RESTOptionsGetter, error){
		"no database": func() (*RESTOptionsGetter, error) {
			return NewRESTOptionsGetter(nil, RESTOptions{Codec: codec})
		},
		"no codec": func() (*RESTOptionsGetter, error) {
			return NewRESTOptionsGetter(store, RESTOptions{})
		},
		"short window": func() (*RESTOptionsGetter, error) {
			return NewRESTOptionsGetter(store,
				RESTOptions{Codec: codec, EventsHistoryWindow: time.Second})
		},
	} {
		if _, err := bad(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// xorTransformer hides what is stored.
type xorTransformer struct{}

func (xorTransformer) TransformFromStorage(_ context.Context, data []byte,
	dataCtx value.Context) ([]byte, bool, error) {
	plain, found := bytes.CutPrefix(xor(data), dataCtx.AuthenticatedData())
	if !found {
		return nil, false, errors.New("the value is of another key")
	}
	return plain, false, nil
}

func (xorTransformer) TransformToStorage(_ context.Context, data []byte,
	dataCtx value.Context) ([]byte, error) {
	return xor(append(bytes.Clone(dataCtx.AuthenticatedData()), data...)), nil
}

func xor(data []byte) []byte {
	out := make([]byte, len(data))
	for i, b := range data {
		out[i] = b ^ 0xa5
	}
	return out
}

type transformers map[schema.GroupResource]value.Transformer

func (t transformers) TransformerForResource(r schema.GroupResource) value.Transformer {
	return t[r]
}

// TestLargeKinds: a resource without a watch cache refuses lists that would have too many objects,
// and lists them by pages or selected. Its watches get bookmarks if they allow them, as those of a
// watch cache do.
func TestLargeKinds(t *testing.T) {
	store := openDatabase(t, dbtest.Open(t, dbtest.Memory), mvcc.Config{ProgressInterval: time.Millisecond})
	resource := schema.GroupResource{Group: "example.com", Resource: "pods"}
	const most = 3
	opened := func(o RESTOptions) apistorage.Interface {
		o.DisableWatchCache = true
		s, destroy := decorate(t, restOptions(t, getter(t, store, o), resource))
		t.Cleanup(destroy)
		return s
	}
	s := opened(RESTOptions{MaxUnpagedList: most})
	list := func(s apistorage.Interface, version, selector string, limit int64) (int, error) {
		l, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		o := apistorage.ListOptions{Recursive: true, ResourceVersion: version,
			Predicate: apistorage.SelectionPredicate{Label: l, Field: fields.Everything(),
				GetAttrs: podAttributes, Limit: limit}}
		if version != "" {
			o.ResourceVersionMatch = metav1.ResourceVersionMatchExact
		}
		out := &example.PodList{}
		err = s.GetList(t.Context(), "/example.com/pods", o, out)
		return len(out.Items), err
	}
	var last string
	write := func(i int) {
		p, out := pod(fmt.Sprint("pod", i)), &example.Pod{}
		p.Labels = map[string]string{"odd": fmt.Sprint(i%2 == 1)}
		if err := s.Create(t.Context(), "/example.com/pods/ns/"+p.Name, p, out, 0); err != nil {
			t.Fatal(err)
		}
		last = out.ResourceVersion
	}
	for i := range 2 * firstRows {
		write(i)
		if i == most-1 {
			if n, err := list(s, "", "", 0); n != most || err != nil {
				t.Errorf("a list of %d objects: %d, %v", most, n, err)
			}
		}
		if i != most && i != 2*firstRows-1 {
			continue
		}
		for _, version := range []string{"", last} {
			if _, err := list(s, version, "", 0); !apierrors.IsRequestEntityTooLargeError(err) {
				t.Errorf("a list of %d objects at %q: %v", i+1, version, err)
			}
			if n, err := list(s, version, "", most+1); n != most+1 || err != nil {
				t.Errorf("a page at %q: %d, %v", version, n, err)
			}
		}
		if n, err := list(opened(RESTOptions{MaxUnpagedList: -1}), "", "", 0); n != i+1 || err != nil {
			t.Errorf("a list without a bound: %d, %v", n, err)
		}
		if n, err := list(opened(RESTOptions{}), "", "", 0); n != i+1 || err != nil {
			t.Errorf("a list with the usual bound: %d, %v", n, err)
		}
		if n, err := list(s, "", "odd=true,odd", 0); i == most && (n != 2 || err != nil) ||
			i > most && !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("a selected list of %d: %d, %v", i+1, n, err)
		}
	}

	watched := func(allow bool) watch.Interface {
		o := apistorage.ListOptions{Recursive: true, ResourceVersion: last,
			Predicate: apistorage.SelectionPredicate{Label: labels.Everything(),
				Field: fields.Everything(), GetAttrs: podAttributes, AllowWatchBookmarks: allow}}
		w, err := s.Watch(t.Context(), "/example.com/pods", o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	allowed, silent := watched(true), watched(false)
	other := podConfig()
	other.ResourcePrefix = "/others"
	created := &example.Pod{}
	if err := open(t, store, other).Create(t.Context(), "/others/other", pod("other"), created,
		0); err != nil {
		t.Fatal(err)
	}
	if got, want := brief(t, next(t, allowed)), "BOOKMARK "+created.ResourceVersion; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	write(-1)
	if got := brief(t, next(t, silent)); !strings.HasPrefix(got, "ADDED pod-1") {
		t.Errorf("a watch without bookmarks got %s", got)
	}
}

// TestEncryptionAtRest: a resource's transformer sees all values, with the whole key, and nothing
// of them is stored in clear.
func TestEncryptionAtRest(t *testing.T) {
	store := memory(t)
	secret := schema.GroupResource{Group: "example.com", Resource: "secrets"}
	g := getter(t, store, RESTOptions{Transformers: transformers{secret: xorTransformer{}}})
	s := cachedPods(t, g, secret)
	p := pod("hidden")
	p.Annotations = map[string]string{"password": "swordfish"}
	if err := s.Create(t.Context(), "/example.com/secrets/ns/hidden", p, nil, 0); err != nil {
		t.Fatal(err)
	}
	out := &example.PodList{}
	if err := s.GetList(t.Context(), "/example.com/secrets", everything(""), out); err != nil {
		t.Fatal(err)
	}
	if len(out.Items) != 1 || out.Items[0].Annotations["password"] != "swordfish" {
		t.Errorf("got %v", out.Items)
	}
	kv, _, err := database.Engine(store.db).Get(t.Context(), "/registry/example.com/secrets/ns/hidden")
	if err != nil || kv == nil {
		t.Fatalf("the key is not where it should be: %v", err)
	}
	if bytes.Contains(kv.Value, []byte("swordfish")) {
		t.Error("the password is stored in clear")
	}
	// A value that was copied to another key is rejected.
	if _, err := database.Engine(store.db).Commit(t.Context(),
		contract.Mutation{Key: "/registry/example.com/secrets/ns/copy", Value: kv.Value}); err != nil {
		t.Fatal(err)
	}
	if err := s.Get(t.Context(), "/example.com/secrets/ns/copy", apistorage.GetOptions{},
		&example.Pod{}); !apistorage.IsCorruptObject(err) {
		t.Errorf("the copy: %v", err)
	}
}

var groups atomic.Int64

// listRequests counts the lists that were read from the database for a resource.
func listRequests(t testing.TB, r schema.GroupResource) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "etcd_requests_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			l := map[string]string{}
			for _, pair := range m.GetLabel() {
				l[pair.GetName()] = pair.GetValue()
			}
			if l["operation"] == "list" && l["group"] == r.Group && l["resource"] == r.Resource {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// TestConsistentReadsFromCache writes through one process and lists through the watch cache of
// another: each list sees the write that was acknowledged before, and reads no object from the
// database.
func TestConsistentReadsFromCache(t *testing.T) {
	etcdmetrics.Register()
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		here, there := openDatabase(t, d, noTicks), openDatabase(t, d, noTicks)
		r := schema.GroupResource{Group: fmt.Sprintf("group-%d", groups.Add(1)), Resource: "pods"}
		s := cachedPods(t, getter(t, here, RESTOptions{}), r)
		writer, destroy := decorate(t,
			restOptions(t, getter(t, there, RESTOptions{DisableWatchCache: true}), r))
		defer destroy()
		prefix := "/" + r.Group + "/" + r.Resource
		before := listRequests(t, r)
		for i := range 30 {
			w := writer
			if i%2 == 0 {
				w = s
			}
			if err := w.Create(t.Context(), prefix+"/ns/"+numbered(i), pod(numbered(i)), nil,
				0); err != nil {
				t.Fatal(err)
			}
			out := &example.PodList{}
			if err := s.GetList(t.Context(), prefix, everything(""), out); err != nil {
				t.Fatal(err)
			}
			if len(out.Items) != i+1 {
				t.Fatalf("after %d writes, a list has %d objects", i+1, len(out.Items))
			}
		}
		if n := listRequests(t, r) - before; n != 0 {
			t.Errorf("%v lists were read from the database", n)
		}
	})
}

// TestCacheAfterFence: when the history changes, watch caches begin anew and their clients are
// told, instead of being served from the past.
func TestCacheAfterFence(t *testing.T) {
	store := memory(t)
	r := schema.GroupResource{Group: "example.com", Resource: "pods"}
	s := cachedPods(t, getter(t, store, RESTOptions{}), r)
	const prefix = "/example.com/pods"
	if err := s.Create(t.Context(), prefix+"/ns/a", pod("a"), nil, 0); err != nil {
		t.Fatal(err)
	}
	before := &example.PodList{}
	if err := s.GetList(t.Context(), prefix, everything(""), before); err != nil {
		t.Fatal(err)
	}
	from := everything(before.ResourceVersion)
	w, err := s.Watch(t.Context(), prefix, from)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	fenced, err := store.Fence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended(t, w) // so that its client asks again
	eventually(t, "a list of the new history", func() bool {
		after := &example.PodList{}
		if err := s.GetList(t.Context(), prefix, everything(""), after); err != nil {
			return false // the cache is being filled
		}
		if len(after.Items) != 1 {
			t.Fatalf("the list has %d objects", len(after.Items))
		}
		return revisionOf(t, &after.Items[0]) == revisionOf(t, &before.Items[0]) &&
			after.ResourceVersion == itoa(fenced)
	})
	eventually(t, "the cache to be filled", func() bool { return s.ReadinessCheck() == nil })
	if w, err = s.Watch(t.Context(), prefix, from); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if got := brief(t, next(t, w)); got != "ERROR 410 Expired" {
		t.Errorf("a watch from the old history gets %s", got)
	}
}

// TestCacheStopsWhileItIsFull: watch caches can be stopped while they have more events than they
// have passed on. Without [feed.Feed], each of them stops or hangs by chance.
func TestCacheStopsWhileItIsFull(t *testing.T) {
	const caches, pods = 8, 300 // a cache holds 100 events for its watches
	r := schema.GroupResource{Group: "example.com", Resource: "pods"}
	store := memory(t)
	goOn := make(chan struct{})
	// The cache looks at the trigger when it passes an event on.
	triggers := apistorage.IndexerFuncs{"metadata.name": func(obj runtime.Object) string {
		<-goOn
		return obj.(*example.Pod).Name
	}}
	var stopping, stopped sync.WaitGroup
	var s apistorage.Interface
	for range caches {
		var destroy func()
		s, destroy = decorateWith(t, restOptions(t, getter(t, store, RESTOptions{}), r), triggers)
		eventually(t, "the watch cache to be filled", func() bool {
			return s.ReadinessCheck() == nil
		})
		stopping.Add(1)
		stopped.Go(func() {
			stopping.Wait()
			destroy()
		})
	}
	for i := range pods {
		name := "pod-" + numbered(i)
		err := s.Create(t.Context(), "/example.com/pods/ns/"+name, pod(name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
	}
	stopping.Add(-caches)
	close(goOn)
	done := make(chan struct{})
	go func() {
		defer close(done)
		stopped.Wait()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("a cache does not stop")
	}
}

// TestNothingIsLeftBehind: closing releases everything.
func TestNothingIsLeftBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("server", func(t *testing.T) {
		store := memory(t)
		r := schema.GroupResource{Group: "example.com", Resource: "pods"}
		s := cachedPods(t, getter(t, store, RESTOptions{}), r)
		second, destroy := decorate(t,
			restOptions(t, getter(t, store, RESTOptions{DisableWatchCache: true}), r))
		for _, s := range []apistorage.Interface{s, second} {
			if _, err := s.Watch(t.Context(), "/example.com/pods", everything("1")); err != nil {
				t.Fatal(err)
			}
		}
		destroy()
		if len(store.decoders.byWays) != 1 {
			t.Errorf("%d decoders are kept", len(store.decoders.byWays))
		}
	})
	goleak.VerifyNone(t, before)
}
