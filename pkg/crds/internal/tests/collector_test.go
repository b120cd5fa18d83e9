package tests

import (
	"context"
	"net/http"
	"path"
	"sync"
	"testing"
	"time"

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
	s := exampletest.Start(t, testkit.Options{GarbageCollection: true})
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

// All cases, which hack/e2e compares with upstream's collector.
func TestCases(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{GarbageCollection: true})
	collectortest.Run(t, s.Config, false)
}

// An object that changes between the decision to delete it and the deletion stays if it has an
// owner by then, and goes if something else has changed.
func TestChangedMeanwhile(t *testing.T) {
	for name, stays := range map[string]bool{"owner": true, "label": false} {
		t.Run(name, func(t *testing.T) {
			s := crdstest.Start(t, testkit.Options{Storage: func(o *options.StorageOptions) {
				o.EnableGarbageCollection = true
			}})
			maps := kubernetes.NewForConfigOrDie(s.Config).CoreV1().ConfigMaps("default")
			create := func(name string, owner types.UID) *corev1.ConfigMap {
				c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
				if owner != "" {
					c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1",
						Kind: "ConfigMap", Name: "owner", UID: owner}}
				}
				c, err := maps.Create(t.Context(), c, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			owner, dependent := create("owner", ""), create("dependent", "nobody's")
			config := rest.CopyConfig(s.Config)
			var once sync.Once
			changed := make(chan struct{})
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
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
			c, err := garbagecollector.New(config, garbagecollector.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { c.Run(ctx) })
			defer running.Wait()
			defer cancel()
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
