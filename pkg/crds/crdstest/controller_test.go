package crdstest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// seen counts the events of each object.
type seen struct {
	mu                         sync.Mutex
	added, updated, deleted    map[string]int
	addedN, updatedN, deletedN int
}

func (s *seen) count(into map[string]int, n *int, obj any) string {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	key, _ := cache.MetaNamespaceKeyFunc(obj)
	s.mu.Lock()
	defer s.mu.Unlock()
	into[key]++
	*n++
	return key
}

// The pattern of upstream's sample-controller, an informer with a lister and a work queue, sees
// each of 1,000 creations, updates and deletions once, and its workers have in the end worked on
// the newest state of every object.
func TestController(t *testing.T) {
	const objects, workers = 1000, 4
	s := crdstest.Start(t, testkit.Options{})
	define(t, s, "example.com")
	client := dynamic.NewForConfigOrDie(s.Config).Resource(gadgets)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	events := &seen{added: map[string]int{}, updated: map[string]int{}, deleted: map[string]int{}}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	factory := dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(s.Config),
		0)
	informer := factory.ForResource(gadgets)
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { queue.Add(events.count(events.added, &events.addedN, obj)) },
		UpdateFunc: func(_, obj any) {
			queue.Add(events.count(events.updated, &events.updatedN, obj))
		},
		DeleteFunc: func(obj any) {
			queue.Add(events.count(events.deleted, &events.deletedN, obj))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	// The workers write down what the lister says.
	var mu sync.Mutex
	worked := map[string]string{}
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for {
				key, quit := queue.Get()
				if quit {
					return
				}
				namespace, name, _ := cache.SplitMetaNamespaceKey(key)
				state := "deleted"
				if obj, err := informer.Lister().ByNamespace(namespace).Get(name); err == nil {
					state, _, _ = unstructured.NestedString(obj.(*unstructured.Unstructured).Object,
						"spec", "state")
				}
				mu.Lock()
				worked[key] = state
				mu.Unlock()
				queue.Forget(key)
				queue.Done(key)
			}
		})
	}
	defer running.Wait()
	defer queue.ShutDown()

	began := time.Now()
	all := func(do func(name string) error) {
		t.Helper()
		var group sync.WaitGroup
		work := make(chan int)
		errs := make(chan error, objects)
		for range 8 {
			group.Go(func() {
				for i := range work {
					errs <- do(fmt.Sprintf("gadget-%04d", i))
				}
			})
		}
		for i := range objects {
			work <- i
		}
		close(work)
		group.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	reached := func(what string, n *int, state string) {
		t.Helper()
		eventually(t, what, func(context.Context) (bool, error) {
			events.mu.Lock()
			defer events.mu.Unlock()
			return *n >= objects, nil
		})
		eventually(t, what+": all worked on", func(context.Context) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, s := range worked {
				if s != state {
					return false, nil
				}
			}
			return len(worked) == objects, nil
		})
	}
	in := client.Namespace("default")
	all(func(name string) error {
		g := gadget(name)
		g.Object["spec"] = map[string]any{"state": "created"}
		_, err := in.Create(ctx, g, metav1.CreateOptions{})
		return err
	})
	reached("the creations are seen", &events.addedN, "created")
	all(func(name string) error {
		g, err := in.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		g.Object["spec"] = map[string]any{"state": "updated"}
		_, err = in.Update(ctx, g, metav1.UpdateOptions{})
		return err
	})
	reached("the updates are seen", &events.updatedN, "updated")
	all(func(name string) error { return in.Delete(ctx, name, metav1.DeleteOptions{}) })
	reached("the deletions are seen", &events.deletedN, "deleted")
	t.Logf("3,000 writes and everything that follows took %s", time.Since(began))

	// After an event of another object, which comes after all of these, nothing is seen twice.
	if _, err := in.Create(ctx, gadget("last"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last object is seen", func(context.Context) (bool, error) {
		events.mu.Lock()
		defer events.mu.Unlock()
		return events.added["default/last"] == 1, nil
	})
	events.mu.Lock()
	defer events.mu.Unlock()
	delete(events.added, "default/last")
	for what, counts := range map[string]map[string]int{"created": events.added,
		"updated": events.updated, "deleted": events.deleted} {
		if len(counts) != objects {
			t.Errorf("%d objects were seen to be %s", len(counts), what)
		}
		for name, n := range counts {
			if n != 1 {
				t.Errorf("%s was seen to be %s %d times", name, what, n)
			}
		}
	}
}
