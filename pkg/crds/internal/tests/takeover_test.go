package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/garbagecollector"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/databases"
)

// mortal is a collector that is cut off after some writes, as if its process had been killed.
type mortal struct {
	writes, left atomic.Int64
	died         chan struct{}
	once         sync.Once
}

var errDead = errors.New("the process was killed")

// wrap refuses everything after the last write.
func (m *mortal) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodDelete || r.Method == http.MethodPatch {
			if m.writes.Add(1); m.left.Add(-1) < 0 {
				m.once.Do(func() { close(m.died) })
			}
		}
		select {
		case <-m.died:
			return nil, errDead
		default:
			return next.RoundTrip(r)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// mortalLock is not released by one that has died.
type mortalLock struct {
	resourcelock.Interface
	*mortal
}

func (l mortalLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	select {
	case <-l.died:
		return errDead
	default:
		return l.Interface.Update(ctx, r)
	}
}

// run runs a collector until the test ends.
func (m *mortal) run(t *testing.T, s *testkit.Server, stored *options.StorageOptions,
	identity string, writes int64) {
	t.Helper()
	m.died = make(chan struct{})
	m.left.Store(writes)
	lock, release, err := garbagecollector.NewLock(stored, &genericapiserver.Config{}, s.Store,
		identity)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(s.Config)
	config.Wrap(m.wrap)
	c, err := garbagecollector.New(config, garbagecollector.Options{Lock: mortalLock{lock, m},
		LeaseDuration: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		release()
	})
}

// The replica that collects dies in the middle. Another one takes over: nothing is left that has to
// go, and nothing goes that has to stay.
func TestTakeover(t *testing.T) {
	databases.Each(t, testTakeover)
}

func testTakeover(t *testing.T, db testkit.Database) {
	const prefix, each, until = "/takeover", 60, 100
	var stored *options.StorageOptions
	o := testkit.Options{Database: db, Prefix: prefix, Storage: func(o *options.StorageOptions) {
		o.EnableGarbageCollection = true
		stored = o
	}}
	one, two := crdstest.Start(t, o), crdstest.Start(t, o)
	config := rest.CopyConfig(two.Config)
	config.QPS = -1
	configMaps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	create := func(name string, owners ...metav1.OwnerReference) metav1.OwnerReference {
		c, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: owners}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		blocks := true
		return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: c.UID,
			BlockOwnerDeletion: &blocks}
	}
	stays, background := create("stays"), create("background")
	foreground, orphan := create("foreground"), create("orphan")
	var creations errgroup.Group
	creations.SetLimit(8)
	for i := range each {
		for name, owners := range map[string][]metav1.OwnerReference{
			"of-stays": {stays}, "of-background": {background}, "of-foreground": {foreground},
			"of-orphan": {orphan}, "of-two": {background, stays},
		} {
			creations.Go(func() error {
				create(fmt.Sprintf("%s-%d", name, i), owners...)
				return nil
			})
		}
	}
	_ = creations.Wait()

	first, second := &mortal{}, &mortal{}
	first.run(t, one, stored, "first", until)
	for _, owner := range []struct {
		metav1.OwnerReference
		policy metav1.DeletionPropagation
	}{{background, metav1.DeletePropagationBackground},
		{foreground, metav1.DeletePropagationForeground},
		{orphan, metav1.DeletePropagationOrphan}} {
		if err := configMaps.Delete(t.Context(), owner.Name,
			metav1.DeleteOptions{PropagationPolicy: &owner.policy}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-first.died:
	case <-time.After(time.Minute):
		t.Fatal("the first collector does not work")
	}
	second.run(t, two, stored, "second", 1<<30)

	want := map[string]int{"stays of ": 1, "of-stays of stays": each, "of-orphan of ": each,
		"of-two of stays": each}
	var got map[string]int
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			list, err := configMaps.List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			got = map[string]int{}
			for _, c := range list.Items {
				owners := []string{}
				for _, ref := range c.OwnerReferences {
					owners = append(owners, ref.Name)
				}
				name := strings.TrimRight(c.Name, "-0123456789")
				got[name+" of "+strings.Join(owners, ",")]++
			}
			return maps.Equal(got, want), nil
		})
	if err != nil {
		t.Fatalf("%v: there is %v, want %v", err, got, want)
	}
	if first.writes.Load() < until || second.writes.Load() == 0 {
		t.Errorf("the first collector made %d writes, the second %d", first.writes.Load(),
			second.writes.Load())
	}
}
