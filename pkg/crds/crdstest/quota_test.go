package crdstest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// unlimited is a client that is as fast as the server.
func unlimited(s *testkit.Server) kubernetes.Interface {
	config := rest.CopyConfig(s.Config)
	config.QPS = -1
	return kubernetes.NewForConfigOrDie(config)
}

// newQuota creates a quota of the given numbers in the namespace default, and waits until it is in
// force.
func newQuota(t *testing.T, s *testkit.Server, name string, hard map[corev1.ResourceName]string) {
	t.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for name, n := range hard {
		q.Spec.Hard[name] = resource.MustParse(n)
	}
	if _, err := unlimited(s).CoreV1().ResourceQuotas("default").Create(t.Context(), q,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the quota is in force", func(ctx context.Context) (bool, error) {
		q, err := unlimited(s).CoreV1().ResourceQuotas("default").Get(ctx, name,
			metav1.GetOptions{})
		return err == nil && len(q.Status.Hard) == len(hard), err
	})
}

// used waits until a quota in the namespace default says what it should.
func used(t *testing.T, s *testkit.Server, name, want string) {
	t.Helper()
	is := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s says %s", name, is)
		}
	}()
	eventually(t, name+" says that "+want+" is used", func(ctx context.Context) (bool, error) {
		q, err := unlimited(s).CoreV1().ResourceQuotas("default").Get(ctx, name,
			metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		is = ""
		for _, name := range strings.Fields(want) {
			name, _, _ := strings.Cut(name, "=")
			if n, ok := q.Status.Used[corev1.ResourceName(name)]; ok {
				is += " " + name + "=" + n.String()
			}
		}
		is = strings.TrimSpace(is)
		return is == want, nil
	})
}

func newConfigMap(ctx context.Context, client kubernetes.Interface) (*corev1.ConfigMap, error) {
	return client.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "one-"}},
		metav1.CreateOptions{})
}

// A quota bounds the objects of a kind, by each of its names, and is corrected when some are gone,
// in whatever way. Kinds that are not there have no objects.
func TestQuota(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	client := unlimited(s).CoreV1()
	newQuota(t, s, "all", map[corev1.ResourceName]string{"configmaps": "2", "count/secrets": "1",
		"count/leases.coordination.k8s.io": "0", "pods": "3", "requests.cpu": "1", "services": "4",
		"count/gadgets.example.com": "1", "count/resourcequotas": "2", "count/events": "5",
		"count/deployments.apps": "1"})
	used(t, s, "all", "configmaps=0 count/secrets=0 count/leases.coordination.k8s.io=0 pods=0 "+
		"requests.cpu=0 services=0 count/gadgets.example.com=0 count/resourcequotas=1 "+
		"count/deployments.apps=0")
	for range 2 {
		if _, err := newConfigMap(t.Context(), unlimited(s)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := newConfigMap(t.Context(), unlimited(s))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(),
		"exceeded quota: all, requested: configmaps=1, used: configmaps=2, limited: configmaps=2") {
		t.Errorf("the third: %v", err)
	}
	if _, err := client.ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "third"}},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsForbidden(err) {
		t.Errorf("the third, which is only tried: %v", err)
	}
	list, err := client.ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.ConfigMaps("default").Delete(t.Context(), list.Items[0].Name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, s, "all", "configmaps=1")
	if err := client.ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, s, "all", "configmaps=0")

	// A definition's objects are counted at once. One that the server refuses is counted for a
	// moment only.
	define(t, s, "example.com")
	objects := dynamic.NewForConfigOrDie(s.Config).Resource(gadgets).Namespace("default")
	if _, err := objects.Create(t.Context(), gadget("one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Create(t.Context(), gadget("two"),
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the second gadget: %v", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	if _, err := client.Secrets("default").Create(t.Context(), secret,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	newQuota(t, s, "wider", map[corev1.ResourceName]string{"configmaps": "5"})
	for range 2 {
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "same"}}
		if _, err := client.ConfigMaps("default").Create(t.Context(), configMap,
			metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	used(t, s, "all", "count/secrets=0 configmaps=1 count/gadgets.example.com=1 "+
		"count/resourcequotas=2")
	used(t, s, "wider", "configmaps=1")

	// What is in force can be changed, and a status that somebody else writes does not stay.
	q, err := client.ResourceQuotas("default").Get(t.Context(), "wider", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	q.Status.Used["configmaps"] = resource.MustParse("4")
	if _, err = client.ResourceQuotas("default").UpdateStatus(t.Context(), q,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, s, "wider", "configmaps=1")
	// Nobody gets past a quota by it either, nor by a correction that comes between the admission
	// of an object and its commit.
	if _, err := newConfigMap(t.Context(), unlimited(s)); err != nil {
		t.Fatal(err)
	}
	used(t, s, "all", "configmaps=2")
	if q, err = client.ResourceQuotas("default").Get(t.Context(), "all",
		metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	q.Status.Used["configmaps"] = resource.MustParse("0")
	if _, err := client.ResourceQuotas("default").UpdateStatus(t.Context(), q,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := newConfigMap(t.Context(), unlimited(s)); !apierrors.IsForbidden(err) {
		t.Errorf("the third: %v", err)
	}
	used(t, s, "all", "configmaps=2")
	// It limits nothing when it is gone.
	if err := client.ResourceQuotas("default").Delete(t.Context(), "all",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the objects are free", func(ctx context.Context) (bool, error) {
		_, err := objects.Create(ctx, gadget("two"), metav1.CreateOptions{})
		return err == nil, nil
	})
}

// Two servers that admit at the same time never acknowledge more objects than a quota allows,
// while others are deleted and the quota is corrected by both. It is right in the end.
func TestQuotaOfReplicas(t *testing.T) {
	o := testkit.Options{Prefix: "/shared", Database: testkit.Database{URL: "sqlite://" +
		t.TempDir() + "/state.db", Driver: sqlite.Driver}}
	const hard, workers, enough = 10, 8, 50
	servers := []*testkit.Server{crdstest.Start(t, o), crdstest.Start(t, o)}
	newQuota(t, servers[0], "both", map[corev1.ResourceName]string{"count/configmaps": "10"})
	var mu sync.Mutex
	there := map[string]bool{} // what was acknowledged, and was not asked to be deleted
	var created, refused atomic.Int32
	var all errgroup.Group
	for i := range workers {
		client := unlimited(servers[i%2])
		all.Go(func() error {
			for created.Load() < enough {
				m, err := newConfigMap(t.Context(), client)
				if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota") {
					refused.Add(1)
				} else if err != nil {
					return err
				}
				gone := ""
				mu.Lock()
				if err == nil {
					created.Add(1)
					there[m.Name] = true
					if len(there) > hard {
						t.Errorf("%d objects are acknowledged", len(there))
					}
				} else if len(there) > hard/2 {
					for gone = range there {
						break
					}
					delete(there, gone)
				}
				mu.Unlock()
				if gone == "" {
					continue
				}
				if err := client.CoreV1().ConfigMaps("default").Delete(t.Context(), gone,
					metav1.DeleteOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	list, err := unlimited(servers[1]).CoreV1().ConfigMaps("default").List(t.Context(),
		metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != len(there) || len(there) == 0 {
		t.Errorf("there are %d objects, and %d were acknowledged", len(list.Items), len(there))
	}
	used(t, servers[0], "both", fmt.Sprintf("count/configmaps=%d", len(list.Items)))
	t.Logf("%d were created, and %d refused", created.Load(), refused.Load())

	// What is free is given away once, whichever server is asked.
	for i := range hard {
		_, err := newConfigMap(t.Context(), unlimited(servers[i%2]))
		if fits := len(list.Items)+i < hard; fits != (err == nil) {
			t.Errorf("with %d objects: %v", len(list.Items)+i, err)
		}
	}
}

// A rollback brings a quota and its objects back, and the quota says what there is.
func TestQuotaAfterRollback(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	client := unlimited(s).CoreV1()
	newQuota(t, s, "one", map[corev1.ResourceName]string{"configmaps": "3"})
	for range 2 {
		if _, err := newConfigMap(t.Context(), unlimited(s)); err != nil {
			t.Fatal(err)
		}
	}
	used(t, s, "one", "configmaps=2")
	before := s.Snapshot()
	for range 2 {
		if err := client.ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{},
			metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		used(t, s, "one", "configmaps=0")
		s.Rollback(before)
		used(t, s, "one", "configmaps=2")
		if _, err := newConfigMap(t.Context(), unlimited(s)); err != nil {
			t.Error(err)
		}
		if _, err := newConfigMap(t.Context(), unlimited(s)); !apierrors.IsForbidden(err) {
			t.Errorf("the fourth: %v", err)
		}
	}
}
