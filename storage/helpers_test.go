package storage

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
	codec  = apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion)
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

// openDatabase opens a database of a kind, with settings of mvcc that the product does not offer.
func openDatabase(t testing.TB, d dbtest.DB, c mvcc.Config) *Store {
	t.Helper()
	return openDatabaseThrough(t, d, c, func(b contract.Backend) contract.Backend { return b })
}

// openDatabaseThrough opens a database through a backend of the test's own.
func openDatabaseThrough(t testing.TB, d dbtest.DB, c mvcc.Config,
	through func(contract.Backend) contract.Backend) *Store {
	t.Helper()
	opts := contract.DriverOptions{Logger: slog.New(slog.DiscardHandler), Timeout: time.Minute}
	if _, err := d.Driver.Migrate(t.Context(), d.URL, opts); err != nil {
		t.Fatal(err)
	}
	backend, err := contract.OpenBackend(t.Context(), d.Driver, d.URL, opts)
	if err != nil {
		t.Fatal(err)
	}
	c.Metrics = mvcc.NewMetrics()
	store, err := mvcc.Open(t.Context(), through(backend), c)
	if err != nil {
		t.Fatal(err)
	}
	config := Config{}.Database()
	db := newStore(database.New(store, c.Metrics, config), config.Logger, nil)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func memory(t testing.TB) *Store {
	t.Helper()
	return openDatabase(t, dbtest.Open(t, dbtest.Memory), mvcc.Config{})
}

func podConfig() ResourceConfig {
	return ResourceConfig{
		Codec:          codec,
		NewFunc:        func() runtime.Object { return &example.Pod{} },
		ResourcePrefix: "/pods",
		GroupResource:  schema.GroupResource{Resource: "pods"},
	}
}

func pods(t testing.TB, store *Store) *objectStore {
	t.Helper()
	return open(t, store, podConfig())
}

func open(t testing.TB, store *Store, c ResourceConfig) *objectStore {
	t.Helper()
	s, destroy, err := store.Resource(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	return s.(*objectStore)
}

func pod(name string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

func podKey(name string) string { return "/pods/ns/" + name }

func create(t testing.TB, s apistorage.Interface, p *example.Pod) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := s.Create(t.Context(), podKey(p.Name), p, out, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

// changing is an update of a pod in place.
func changing(change func(p *example.Pod) error) apistorage.UpdateFunc {
	return apistorage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		return obj, change(obj.(*example.Pod))
	})
}

func counting(p *example.Pod) error {
	p.Generation++
	return nil
}

// label sets the label "value" of a pod.
func label(ctx context.Context, s apistorage.Interface, name, value string) (*example.Pod, error) {
	out := &example.Pod{}
	err := s.GuaranteedUpdate(ctx, podKey(name), out, false, nil,
		changing(func(p *example.Pod) error {
			p.Labels = map[string]string{"value": value}
			return nil
		}), nil)
	return out, err
}

func remove(t testing.TB, s apistorage.Interface, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := s.Delete(t.Context(), podKey(name), out, nil, apistorage.ValidateAllObjectFunc, nil,
		apistorage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	return out
}

func list(t testing.TB, s apistorage.Interface, opts apistorage.ListOptions) *example.PodList {
	t.Helper()
	out, err := tryList(t.Context(), s, opts)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryList(ctx context.Context, s apistorage.Interface,
	opts apistorage.ListOptions) (*example.PodList, error) {
	opts.Recursive = true
	if opts.Predicate.Label == nil {
		limit, token := opts.Predicate.Limit, opts.Predicate.Continue
		opts.Predicate = apistorage.Everything
		opts.Predicate.Limit, opts.Predicate.Continue = limit, token
	}
	out := &example.PodList{}
	return out, s.GetList(ctx, "/pods", opts, out)
}

// everything selects all objects below a key, from a revision.
func everything(resourceVersion string) apistorage.ListOptions {
	return apistorage.ListOptions{ResourceVersion: resourceVersion,
		Predicate: apistorage.Everything, Recursive: true}
}

func page(limit int64, token string) apistorage.ListOptions {
	return apistorage.ListOptions{Predicate: apistorage.SelectionPredicate{Limit: limit,
		Continue: token}}
}

func startWatch(t testing.TB, s apistorage.Interface, opts apistorage.ListOptions) watch.Interface {
	t.Helper()
	opts.Recursive = true
	if opts.Predicate.Label == nil {
		bookmarks := opts.Predicate.AllowWatchBookmarks
		opts.Predicate = apistorage.Everything
		opts.Predicate.AllowWatchBookmarks = bookmarks
	}
	w, err := s.Watch(t.Context(), "/pods", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// next returns the watch's next event.
func next(t testing.TB, w watch.Interface) watch.Event {
	t.Helper()
	timer := time.NewTimer(wait.ForeverTestTimeout)
	defer timer.Stop()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch has ended")
		}
		return e
	case <-timer.C:
		t.Fatal("no event came")
	}
	panic("unreachable")
}

// ended waits until the watch's channel is closed.
func ended(t testing.TB, w watch.Interface) {
	t.Helper()
	timer := time.NewTimer(wait.ForeverTestTimeout)
	defer timer.Stop()
	select {
	case e, ok := <-w.ResultChan():
		if ok {
			t.Fatalf("an event came, where the watch should have ended: %s %v", e.Type, e.Object)
		}
	case <-timer.C:
		t.Fatal("the watch has not ended")
	}
}

// brief describes an event in a few characters.
func brief(t testing.TB, e watch.Event) string {
	t.Helper()
	switch obj := e.Object.(type) {
	case *example.Pod:
		if e.Type == watch.Bookmark {
			return fmt.Sprintf("BOOKMARK %s", obj.ResourceVersion)
		}
		return fmt.Sprintf("%s %s %s", e.Type, obj.Name, obj.Labels["value"])
	case *metav1.Status:
		return fmt.Sprintf("%s %d %s", e.Type, obj.Code, obj.Reason)
	}
	t.Fatalf("an event with a %T", e.Object)
	return ""
}

func revisionOf(t testing.TB, obj runtime.Object) uint64 {
	t.Helper()
	revision, err := apistorage.APIObjectVersioner{}.ObjectResourceVersion(obj)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func numbered(i int) string { return fmt.Sprintf("pod-%05d", i) }

func itoa[T ~int64 | ~uint64](n T) string { return strconv.FormatInt(int64(n), 10) }

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	limit, pause := wait.ForeverTestTimeout, time.Millisecond
	if _, ok := t.(*testing.B); ok { // it may have any number of objects, and is not to be disturbed
		limit, pause = time.Hour, 100*time.Millisecond
	}
	err := wait.PollUntilContextTimeout(t.Context(), pause, limit, true,
		func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}
