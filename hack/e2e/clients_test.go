package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlevent "sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// counter counts what a client library tells about each object.
type counter struct {
	mu     sync.Mutex
	counts map[string]map[string]int // kind of event, name of the object
}

func newCounter() *counter { return &counter{counts: map[string]map[string]int{}} }

func (c *counter) count(kind, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[kind] == nil {
		c.counts[kind] = map[string]int{}
	}
	c.counts[kind][name]++
}

// once fails unless there was one event of the kind for each of n objects.
func (c *counter) once(kind string, n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, times := range c.counts[kind] {
		if times != 1 {
			return fmt.Errorf("%s of %s was seen %d times", kind, name, times)
		}
	}
	if got := len(c.counts[kind]); got != n {
		return fmt.Errorf("%s was seen of %d objects, want %d", kind, got, n)
	}
	return nil
}

// testInformers makes, changes and deletes 1,000 objects under the eyes of an informer of client-go
// and of a manager of controller-runtime.
func testInformers(t *testing.T) {
	ns := newNamespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	seen := map[string]*counter{"a client-go informer": startInformer(t, ctx, ns),
		"a controller-runtime manager": startManager(t, ctx, ns, &running)}

	const n = 1000
	client := env.dynamic.Resource(pipelinesV1).Namespace(ns)
	name := func(i int) string { return fmt.Sprintf("p-%04d", i) }
	objects := make([]*unstructured.Unstructured, n)
	for _, phase := range []struct {
		kind string
		do   func(i int) error
	}{
		{"create", func(i int) (err error) {
			objects[i], err = client.Create(ctx, pipeline(name(i)), metav1.CreateOptions{})
			return err
		}},
		{"update", func(i int) (err error) {
			objects[i].SetLabels(map[string]string{"updated": "yes"})
			_, err = client.Update(ctx, objects[i], metav1.UpdateOptions{})
			return err
		}},
		{"delete", func(i int) error {
			return client.Delete(ctx, name(i), metav1.DeleteOptions{})
		}},
	} {
		if err := inParallel(n, 16, phase.do); err != nil {
			t.Fatalf("%s: %v", phase.kind, err)
		}
		for who, counter := range seen {
			eventually(t, time.Minute, func() error {
				if err := counter.once(phase.kind, n); err != nil {
					return fmt.Errorf("%s: %w", who, err)
				}
				return nil
			})
		}
	}
	// Nothing came twice later.
	for who, counter := range seen {
		for _, kind := range []string{"create", "update", "delete"} {
			if err := counter.once(kind, n); err != nil {
				t.Errorf("%s: %v", who, err)
			}
		}
	}
}

// inParallel calls f for 0 to n-1, some at a time.
func inParallel(n, workers int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += workers {
				errs[w] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func startInformer(t *testing.T, ctx context.Context, ns string) *counter {
	t.Helper()
	c := newCounter()
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(env.dynamic, 0, ns, nil)
	informer := factory.ForResource(pipelinesV1).Informer()
	name := func(object any) string { return object.(*unstructured.Unstructured).GetName() }
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { c.count("create", name(object)) },
		UpdateFunc: func(_, object any) { c.count("update", name(object)) },
		DeleteFunc: func(object any) { c.count("delete", name(object)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer does not synchronize")
	}
	return c
}

func startManager(t *testing.T, ctx context.Context, ns string, running *sync.WaitGroup) *counter {
	t.Helper()
	c := newCounter()
	ctrl.SetLogger(klog.Background())
	scheme := runtime.NewScheme()
	if err := civ1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	manager, err := ctrl.NewManager(env.Admin, ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: "0"},
		Cache:   crcache.Options{DefaultNamespaces: map[string]crcache.Config{ns: {}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	err = ctrl.NewControllerManagedBy(manager).Named("e2e").
		Watches(&civ1.Pipeline{}, handler.Funcs{
			CreateFunc: func(_ context.Context, e ctrlevent.CreateEvent, _ queue) {
				c.count("create", e.Object.GetName())
			},
			UpdateFunc: func(_ context.Context, e ctrlevent.UpdateEvent, _ queue) {
				c.count("update", e.ObjectNew.GetName())
			},
			DeleteFunc: func(_ context.Context, e ctrlevent.DeleteEvent, _ queue) {
				c.count("delete", e.Object.GetName())
			},
		}).
		Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() {
		if err := manager.Start(ctx); err != nil {
			t.Errorf("the manager ends: %v", err)
		}
	})
	if !manager.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the manager does not synchronize")
	}
	return c
}
