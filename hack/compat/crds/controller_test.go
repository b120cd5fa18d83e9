package crds

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"github.com/cert-manager/cert-manager/pkg/client/clientset/versioned"
	"github.com/cert-manager/cert-manager/pkg/client/informers/externalversions"
	listers "github.com/cert-manager/cert-manager/pkg/client/listers/certmanager/v1"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// controller has the form of upstream's sample-controller: the informer's handler queues names, and
// workers read the objects of these names from the lister.
type controller struct {
	lister listers.CertificateLister
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]

	mu     sync.Mutex
	events map[string]map[cache.ObjectName]int // how often the handler was called, by what for
	states map[cache.ObjectName]string         // what a worker has read last
}

func newController(lister listers.CertificateLister) *controller {
	return &controller{
		lister: lister,
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
		events: map[string]map[cache.ObjectName]int{"created": {}, "updated": {}, "deleted": {}},
		states: map[cache.ObjectName]string{},
	}
}

func (c *controller) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.saw("created", obj) },
		UpdateFunc: func(_, obj any) { c.saw("updated", obj) },
		DeleteFunc: func(obj any) { c.saw("deleted", obj) },
	}
}

func (c *controller) saw(what string, obj any) {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		panic(err) // it is no object
	}
	c.mu.Lock()
	c.events[what][name]++
	c.mu.Unlock()
	c.queue.Add(name)
}

// work takes names from the queue until it is shut down.
func (c *controller) work() {
	for {
		name, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		if err := c.reconcile(name); err != nil {
			c.queue.AddRateLimited(name)
		} else {
			c.queue.Forget(name)
		}
		c.queue.Done(name)
	}
}

// reconcile writes down the state of an object, which is its common name.
func (c *controller) reconcile(name cache.ObjectName) error {
	state := "deleted"
	certificate, err := c.lister.Certificates(name.Namespace).Get(name.Name)
	if err == nil {
		state = certificate.Spec.CommonName
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states[name] = state
	return nil
}

// all says whether the workers have worked on n objects, and have found all of them in a state.
func (c *controller) all(n int, state string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, is := range c.states {
		if is != state {
			return false
		}
	}
	return len(c.states) == n
}

// A controller with a project's own generated clientset, informers and listers sees each of 1,000
// creations, updates and deletions of its resource once, and has in the end worked on the newest
// state of every object.
func TestController(t *testing.T) {
	const objects, workers, writers = 1000, 4, 8
	s := crdstest.Start(t, testkit.Options{})
	install(t, s.Config, definitions(t, "github.com/cert-manager/cert-manager"))
	ctx, cancel := context.WithCancel(t.Context())
	client := versioned.NewForConfigOrDie(s.Config)
	factory := externalversions.NewSharedInformerFactory(client, 0)
	informer := factory.Certmanager().V1().Certificates()
	c := newController(informer.Lister())
	if _, err := informer.Informer().AddEventHandler(c.handler()); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer func() {
		cancel()
		factory.Shutdown()
		c.queue.ShutDown()
		running.Wait()
	}()
	factory.StartWithContext(ctx)
	if err := factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		t.Fatal(err)
	}
	for range workers {
		running.Go(c.work)
	}

	certificates := client.CertmanagerV1().Certificates("default")
	began := time.Now()
	for _, step := range []struct {
		state string
		write func(name string) error
	}{
		{"created", func(name string) error {
			_, err := certificates.Create(ctx, certificate(name, "created"), metav1.CreateOptions{})
			return err
		}},
		{"updated", func(name string) error {
			held, err := c.lister.Certificates("default").Get(name)
			if err != nil {
				return err
			}
			changed := held.DeepCopy()
			changed.Spec.CommonName = "updated"
			_, err = certificates.Update(ctx, changed, metav1.UpdateOptions{})
			return err
		}},
		{"deleted", func(name string) error {
			return certificates.Delete(ctx, name, metav1.DeleteOptions{})
		}},
	} {
		var group errgroup.Group
		group.SetLimit(writers)
		for i := range objects {
			group.Go(func() error { return step.write(fmt.Sprintf("web-%04d", i)) })
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the workers have found all to be "+step.state,
			func(context.Context) (bool, error) {
				return c.all(objects, step.state), nil
			})
	}
	t.Logf("%d writes and everything that follows took %s", 3*objects,
		time.Since(began).Round(time.Millisecond))

	// The handler is called in the order of the writes: after the call for this one, none can
	// follow for those before.
	if _, err := certificates.Create(ctx, certificate("last", "created"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	last := cache.NewObjectName("default", "last")
	eventually(t, "the last one is seen", func(context.Context) (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.events["created"][last] > 0, nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.events["created"], last)
	for what, names := range c.events {
		if len(names) != objects {
			t.Errorf("%d objects were seen to be %s, want %d", len(names), what, objects)
		}
		for name, n := range names {
			if n != 1 {
				t.Errorf("%s was seen to be %s %d times", name, what, n)
			}
		}
	}
}

func certificate(name, commonName string) *certmanagerv1.Certificate {
	return &certmanagerv1.Certificate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certmanagerv1.CertificateSpec{SecretName: name, CommonName: commonName,
			IssuerRef: cmmetav1.IssuerReference{Name: "ca"}},
	}
}
