package garbagecollector

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

const (
	// component is the collector's name in events.
	component = "garbage-collector-controller"
	// workers is how many objects are worked on at a time. They wait for the database.
	workers = 20
)

// Options say how a collector works. The zero value of each means its default.
type Options struct {
	// Lock elects one of several replicas, see [NewLock]. Without one the collector works at once.
	Lock resourcelock.Interface
	// LeaseDuration is how long a replica that is gone keeps the lock. Default: 15 s.
	LeaseDuration time.Duration
	// Database finds the dependents of kinds that are too large for memory. Without one the graph
	// has the objects of all kinds.
	Database Database
}

// Collector collects garbage. See the package documentation.
type Collector struct {
	options   Options
	ignore    map[schema.GroupResource]bool
	metadata  metadata.Interface
	discovery discovery.DiscoveryInterface
	client    kubernetes.Interface // for events
}

// New makes a collector that works when it is run. The configuration is that of a client of the
// server which may do everything, such as the server's own LoopbackClientConfig.
func New(config *rest.Config, o Options) (*Collector, error) {
	if o.LeaseDuration == 0 {
		o.LeaseDuration = 15 * time.Second
	}
	config = rest.AddUserAgent(rest.CopyConfig(config), "garbage-collector")
	config.QPS = -1 // the workers are few
	c := &Collector{options: o, ignore: map[schema.GroupResource]bool{
		{Resource: "events"}: true, {Group: "events.k8s.io", Resource: "events"}: true}}
	var err error
	if c.metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("cannot make a client for the garbage collector: %w", err)
	}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("cannot make a client for the garbage collector: %w", err)
	}
	c.discovery = c.client.Discovery()
	return c, nil
}

// Run collects until the context ends, whenever this is the replica that is elected. It returns
// when nothing goes on any more.
func (c *Collector) Run(ctx context.Context) {
	if c.options.Lock == nil {
		c.collect(ctx)
		return
	}
	for ctx.Err() == nil {
		if err := c.lead(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "The garbage collector cannot be elected")
			return
		}
	}
}

// lead waits for the lock and collects as long as it has it.
func (c *Collector) lead(ctx context.Context) error {
	terms := make(chan context.Context)
	logger, election := klog.FromContext(ctx), klog.FromContext(ctx)
	if sink := logger.GetSink(); sink != nil { // nil discards
		election = logger.WithSink(electionLog{sink})
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: lockName, Lock: c.options.Lock, ReleaseOnCancel: true,
		LeaseDuration: c.options.LeaseDuration, RenewDeadline: c.options.LeaseDuration * 2 / 3,
		RetryPeriod: c.options.LeaseDuration / 3, // every renewal is a write
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) {
				select {
				case terms <- klog.NewContext(term, logger):
				case <-term.Done():
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		elector.Run(klog.NewContext(ctx, election))
	}()
	select {
	case term := <-terms:
		c.collect(term)
		<-over
	case <-over:
	}
	return nil
}

// collect collects until the context ends. All that it knows is new, so that what it has missed
// while another replica collected does not matter.
func (c *Collector) collect(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := newTerm(c)
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.client.CoreV1().Events("")})
	t.events = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
	var running sync.WaitGroup
	defer running.Wait()
	defer t.queue.ShutDown()
	defer t.owners.ShutDown()
	running.Go(func() { t.discover(ctx, &running) })
	if !t.filled(ctx) {
		return
	}
	for range workers {
		running.Go(func() {
			for t.next(ctx) {
			}
		})
	}
	for range recruiters {
		running.Go(func() {
			for t.nextOwner(ctx) {
			}
		})
	}
	<-ctx.Done()
}
