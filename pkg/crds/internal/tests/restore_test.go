package tests

import (
	"context"
	"io"
	"net/http"
	"strings"
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
	"github.com/rowkeeper/rowkeeper/pkg/garbagecollector"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// dam holds back what a watch of ConfigMaps tells.
type dam struct {
	mu     sync.RWMutex
	closed bool
	open   chan struct{}
}

func (d *dam) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed, d.open = true, make(chan struct{})
}

func (d *dam) lift() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		d.closed = false
		close(d.open)
	}
}

func (d *dam) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil && strings.HasSuffix(r.URL.Path, "/configmaps") &&
			r.URL.Query().Get("watch") != "" {
			answer.Body = &dammed{answer.Body, d}
		}
		return answer, err
	})
}

type dammed struct {
	io.ReadCloser
	dam *dam
}

// Read delivers what has come when the dam is open.
func (b *dammed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.dam.mu.RLock()
	closed, open := b.dam.closed, b.dam.open
	b.dam.mu.RUnlock()
	if closed {
		<-open
	}
	return n, err
}

// A restore beside a collector brings back an owner, with its UID, and a dependent. The collector
// hears of the dependent first. It neither deletes it nor takes its reference away, in whatever way
// the owner was deleted before.
func TestRestoreBesideCollector(t *testing.T) {
	for name, policy := range map[string]metav1.DeletionPropagation{
		"background": metav1.DeletePropagationBackground,
		"orphan":     metav1.DeletePropagationOrphan,
		"foreground, and the owner is still there": metav1.DeletePropagationForeground,
		"orphan, and the owner is still there":     "held",
	} {
		t.Run(name, func(t *testing.T) {
			s := crdstest.Start(t, testkit.Options{Storage: func(o *options.StorageOptions) {
				o.EnableGarbageCollection = true
			}})
			core := kubernetes.NewForConfigOrDie(s.Config).CoreV1()
			maps, secrets := core.ConfigMaps("default"), core.Secrets("default")
			owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}
			if policy == "held" {
				owner.Finalizers = []string{"example.com/wait"}
			}
			owner, err := maps.Create(t.Context(), owner, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			create := func(name string, uid types.UID, finalizers ...string) {
				t.Helper()
				yes := true
				_, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
					Name: name, Finalizers: finalizers, OwnerReferences: []metav1.OwnerReference{{
						APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: uid,
						BlockOwnerDeletion: &yes}}}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
			until := func(what, name string, is func(*corev1.Secret, error) bool) {
				t.Helper()
				if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond,
					time.Minute, true, func(ctx context.Context) (bool, error) {
						return is(secrets.Get(ctx, name, metav1.GetOptions{})), nil
					}); err != nil {
					t.Fatalf("waited in vain until %s: %v", what, err)
				}
			}
			gone := func(_ *corev1.Secret, err error) bool { return apierrors.IsNotFound(err) }
			create("dependent", owner.UID)
			if policy == metav1.DeletePropagationForeground {
				create("blocker", owner.UID, "example.com/wait")
			}

			held := &dam{}
			config := rest.CopyConfig(s.Config)
			config.Wrap(held.wrap)
			c, err := garbagecollector.New(config, garbagecollector.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { c.Run(ctx) })
			defer running.Wait()
			defer held.lift()
			defer cancel()

			before := s.Snapshot()
			if policy == "held" {
				policy = metav1.DeletePropagationOrphan
			}
			if err := maps.Delete(t.Context(), "owner",
				metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			if policy == metav1.DeletePropagationOrphan {
				until("the reference is gone", "dependent", func(s *corev1.Secret, err error) bool {
					return err == nil && len(s.OwnerReferences) == 0
				})
				if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond,
					time.Minute, true, func(ctx context.Context) (bool, error) {
						o, err := maps.Get(ctx, "owner", metav1.GetOptions{})
						return apierrors.IsNotFound(err) || err == nil && len(o.Finalizers) == 1 &&
							o.Finalizers[0] == "example.com/wait", nil
					}); err != nil {
					t.Fatalf("the owner waits in vain: %v", err)
				}
			} else {
				until("the dependent is gone", "dependent", gone)
			}
			create("canary", "nobody's")
			until("the collector has seen all that", "canary", gone)
			// The ConfigMaps are seen when one with an absent owner is gone.
			if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Name: "canary", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1",
					Kind: "ConfigMap", Name: "owner", UID: "nobody's"}}}},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute,
				true, func(ctx context.Context) (bool, error) {
					_, err := maps.Get(ctx, "canary", metav1.GetOptions{})
					return apierrors.IsNotFound(err), nil
				}); err != nil {
				t.Fatal(err)
			}

			held.close()
			s.Rollback(before)
			create("another-canary", "nobody's")
			until("the restored dependent was looked at", "another-canary", gone)
			now, err := secrets.Get(t.Context(), "dependent", metav1.GetOptions{})
			if err != nil {
				t.Fatalf("the restored dependent: %v", err)
			}
			if len(now.OwnerReferences) != 1 || now.DeletionTimestamp != nil {
				t.Errorf("the restored dependent has %v, and is deleted at %v",
					now.OwnerReferences, now.DeletionTimestamp)
			}
		})
	}
}
