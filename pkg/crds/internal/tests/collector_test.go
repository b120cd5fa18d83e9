package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned/typed/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/garbagecollector"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/collectortest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// A rollback brings back dependents in any order, with owners that the collector knows to be gone.
func TestRollback(t *testing.T) {
	for name, large := range map[string][]string{"in the graph": nil,
		"large": {"pipelines.ci.rowkeeper.dev#0", "pipelineruns.ci.rowkeeper.dev#0"}} {
		t.Run(name, func(t *testing.T) { testRollback(t, large) })
	}
}

func testRollback(t *testing.T, large []string) {
	s := exampletest.Start(t, testkit.Options{GarbageCollection: true,
		Storage: func(o *options.StorageOptions) { o.WatchCacheSizes = large }})
	client := civ1.NewForConfigOrDie(s.Config)
	pipelines, runs := client.Pipelines("default"), client.PipelineRuns("default")
	p, err := pipelines.Create(t.Context(), &v1.Pipeline{
		ObjectMeta: metav1.ObjectMeta{Name: "owner"},
		Spec: v1.PipelineSpec{Steps: []v1.Step{{Name: "s", Image: "i",
			Command: []string{"true"}}}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dependent := func(name string, uid types.UID) {
		t.Helper()
		_, err := runs.Create(t.Context(), &v1.PipelineRun{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "ci.rowkeeper.dev/v1", Kind: "Pipeline", Name: "owner", UID: uid}}},
			Spec: v1.PipelineRunSpec{PipelineName: "owner"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
			func(ctx context.Context) (bool, error) {
				_, err := runs.Get(ctx, name, metav1.GetOptions{})
				return apierrors.IsNotFound(err), nil
			})
		if err != nil {
			t.Fatalf("%s is still there: %v", name, err)
		}
	}
	dependent("dependent", p.UID)
	before := s.Snapshot()
	for range 3 {
		if err := pipelines.Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		gone("dependent")
		s.Rollback(before)
		dependent("canary", "nobody's")
		gone("canary") // by then the dependent was looked at
		if _, err := runs.Get(t.Context(), "dependent", metav1.GetOptions{}); err != nil {
			t.Fatalf("after the rollback: %v", err)
		}
	}
}

// All cases, which hack/e2e compares with upstream's collector: also with kinds that are too large
// for the graph.
func TestCases(t *testing.T) {
	for name, large := range map[string][]string{
		"in the graph":     nil,
		"large dependents": {"configmaps#0"},
		"large owners":     {"gadgets.gc.example.com#0", "globes.gc.example.com#0"},
		"all large": {"configmaps#0", "gadgets.gc.example.com#0", "globes.gc.example.com#0",
			"visitors.visits.example.com#0", "customresourcedefinitions.apiextensions.k8s.io#0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := crdstest.Start(t, testkit.Options{GarbageCollection: true,
				Storage: func(o *options.StorageOptions) { o.WatchCacheSizes = large }})
			collectortest.Run(t, s.Config, collectortest.Collector{LargeOwners: len(large) > 1})
		})
	}
}

// largeMaps is a server whose config maps are too large for the graph, without a collector.
func largeMaps(t *testing.T, large bool) *testkit.Server {
	t.Helper()
	return crdstest.Start(t, testkit.Options{Storage: func(o *options.StorageOptions) {
		o.EnableGarbageCollection = true
		if large {
			o.WatchCacheSizes = []string{"configmaps#0"}
		}
	}})
}

// collect runs a collector whose requests go through a wrapper, until the test ends.
func collect(t *testing.T, s *testkit.Server, wrap func(http.RoundTripper) http.RoundTripper) {
	t.Helper()
	config := rest.CopyConfig(s.Config)
	config.Wrap(wrap)
	c, err := garbagecollector.New(config, garbagecollector.Options{Database: s.Store})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
}

func ownedBy(name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: uid}}
}

// TestMissedDeletions: a watch of a large kind ends, and can tell no more which owners have gone
// meanwhile. Their dependents go, of large kinds and of others.
func TestMissedDeletions(t *testing.T) {
	s := largeMaps(t, true)
	client := kubernetes.NewForConfigOrDie(s.Config)
	maps, leases := client.CoreV1().ConfigMaps("default"), client.CoordinationV1().Leases("default")
	create := func(name string, owners []metav1.OwnerReference) *corev1.ConfigMap {
		t.Helper()
		c, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name,
			OwnerReferences: owners}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	owner := create("owner", nil)
	var (
		mu     sync.Mutex
		opened []io.Closer
		cut    bool
	)
	deleted := make(chan struct{})
	watching := make(chan struct{}, 10)
	collect(t, s, func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if path.Base(r.URL.Path) != "configmaps" || r.URL.Query().Get("watch") == "" {
				return next.RoundTrip(r)
			}
			mu.Lock()
			missed := cut
			mu.Unlock()
			if missed {
				<-deleted
				mu.Lock()
				cut = false
				mu.Unlock()
				status := apierrors.NewResourceExpired("it was long ago").Status()
				body, err := json.Marshal(status)
				return &http.Response{StatusCode: int(status.Code), Request: r,
					Header: http.Header{"Content-Type": {"application/json"}},
					Body:   io.NopCloser(bytes.NewReader(body))}, err
			}
			resp, err := next.RoundTrip(r)
			if err == nil {
				mu.Lock()
				opened = append(opened, resp.Body)
				mu.Unlock()
				watching <- struct{}{}
			}
			return resp, err
		})
	})
	<-watching
	gone := func(name string) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
			func(ctx context.Context) (bool, error) {
				_, err := maps.Get(ctx, name, metav1.GetOptions{})
				_, leaseErr := leases.Get(ctx, name, metav1.GetOptions{})
				return apierrors.IsNotFound(err) && apierrors.IsNotFound(leaseErr), nil
			}); err != nil {
			t.Fatalf("%s is still there: %v", name, err)
		}
	}
	create("dependent", ownedBy("owner", owner.UID))
	if _, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: "dependent", OwnerReferences: ownedBy("owner", owner.UID)}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create("canary", ownedBy("nobody", "nobody's"))
	gone("canary") // by then the dependents were looked at, too

	mu.Lock()
	cut = true
	for _, body := range opened {
		body.Close()
	}
	mu.Unlock()
	if err := maps.Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	close(deleted)
	gone("dependent")
}

// An object that changes between the decision to delete it and the deletion stays if it has an
// owner by then, and goes if something else has changed.
func TestChangedMeanwhile(t *testing.T) {
	for name, test := range map[string]struct{ stays, large bool }{
		"owner": {true, false}, "owner, large": {true, true}, "label": {false, false},
		"label, large": {false, true}} {
		t.Run(name, func(t *testing.T) {
			s, stays := largeMaps(t, test.large), test.stays
			maps := kubernetes.NewForConfigOrDie(s.Config).CoreV1().ConfigMaps("default")
			create := func(name string, owner types.UID) *corev1.ConfigMap {
				c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
				if owner != "" {
					c.OwnerReferences = ownedBy("owner", owner)
				}
				c, err := maps.Create(t.Context(), c, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			owner, dependent := create("owner", ""), create("dependent", "nobody's")
			var once sync.Once
			changed := make(chan struct{})
			collect(t, s, func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodDelete && path.Base(r.URL.Path) == "dependent" {
						once.Do(func() {
							defer close(changed)
							if stays {
								dependent.OwnerReferences[0].UID = owner.UID
							} else {
								dependent.Labels = map[string]string{"a": "b"}
							}
							if _, err := maps.Update(r.Context(), dependent,
								metav1.UpdateOptions{}); err != nil {
								t.Error(err)
							}
						})
					}
					return next.RoundTrip(r)
				})
			})
			gone := func(name string) error {
				return wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute,
					true, func(ctx context.Context) (bool, error) {
						_, err := maps.Get(ctx, name, metav1.GetOptions{})
						return apierrors.IsNotFound(err), nil
					})
			}
			if !stays {
				if err := gone("dependent"); err != nil {
					t.Fatalf("it is still there: %v", err)
				}
				return
			}
			<-changed
			create("canary", "nobody's")
			if err := gone("canary"); err != nil {
				t.Fatal(err)
			}
			if _, err := maps.Get(t.Context(), "dependent", metav1.GetOptions{}); err != nil {
				t.Fatalf("it was deleted, and has an owner: %v", err)
			}
		})
	}
}
