package beside

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/database"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/collectortest"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
)

var many = flag.Int("dependents", 0, "how many dependents TestMany has; 0 skips it")

// Upstream's collector passes the same cases as ours, but those in which it waits for ever.
func TestUpstream(t *testing.T) {
	collectortest.Run(t, startCluster(t, "").Admin, collectortest.Collector{Upstream: true})
}

// objects are ConfigMaps in the namespace default.
type objects struct {
	*testing.T
	typedcorev1.ConfigMapInterface
}

func newObjects(t *testing.T, config *rest.Config) objects {
	config = rest.CopyConfig(config)
	config.QPS = -1
	return objects{t, kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")}
}

func (o objects) create(name string, owners ...*corev1.ConfigMap) *corev1.ConfigMap {
	o.Helper()
	c, err := o.put(name, owners...)
	if err != nil {
		o.Fatal(err)
	}
	return c
}

func (o objects) put(name string, owners ...*corev1.ConfigMap) (*corev1.ConfigMap, error) {
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	blocks := true
	for _, owner := range owners {
		c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{APIVersion: "v1",
			Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: &blocks})
	}
	return o.Create(o.Context(), c, metav1.CreateOptions{})
}

func (o objects) createMany(name string, n int, owners ...*corev1.ConfigMap) {
	o.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			_, err := o.put(fmt.Sprintf("%s-%d", name, i), owners...)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		o.Fatal(err)
	}
}

func (o objects) delete(c *corev1.ConfigMap, policy metav1.DeletionPropagation) {
	o.Helper()
	if err := o.Delete(o.Context(), c.Name,
		metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		o.Fatal(err)
	}
}

// count returns how many objects there are by name and owners.
func (o objects) count() map[string]int {
	o.Helper()
	list, err := o.List(o.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		o.Fatal(err)
	}
	counts := map[string]int{}
	for _, c := range list.Items {
		name := strings.TrimRight(c.Name, "-0123456789")
		for _, owner := range c.OwnerReferences {
			name += " of " + owner.Name
		}
		counts[name]++
	}
	delete(counts, "kube-root-ca.crt")
	return counts
}

// await waits until all objects are those.
func (o objects) await(want map[string]int) {
	o.Helper()
	var got map[string]int
	err := wait.PollUntilContextTimeout(o.Context(), 50*time.Millisecond, 5*time.Minute, true,
		func(context.Context) (bool, error) {
			got = o.count()
			return fmt.Sprint(got) == fmt.Sprint(want), nil
		})
	if err != nil {
		o.Fatalf("%v: there is %v, want %v", err, got, want)
	}
}

// collects waits until the collector works.
func (o objects) collects() {
	o.Helper()
	never := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "never", UID: "never"}}
	o.create("canary", never)
	o.await(map[string]int{})
}

// TestMany measures how long the dependents of one owner take to go, and the processor time of the
// server and the collector. It checks nothing that the cases and TestKilledCollector do not.
func TestMany(t *testing.T) {
	if *many == 0 {
		t.Skip("it measures, if the flag -dependents says how many")
	}
	program := build(t)
	for _, server := range []struct {
		name  string
		start func(t *testing.T) (*rest.Config, func() (time.Duration, error))
	}{
		{"Rowkeeper", func(t *testing.T) (*rest.Config, func() (time.Duration, error)) {
			p, config := serve(t, program, "rowkeeper")
			return config, p.CPUSoFar
		}},
		{"upstream", func(t *testing.T) (*rest.Config, func() (time.Duration, error)) {
			c := startCluster(t, cluster.Etcd)
			return c.Admin, c.CPUSoFar
		}},
	} {
		for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground,
			metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
			t.Run(server.name+"/"+strings.ToLower(string(policy)), func(t *testing.T) {
				config, cpu := server.start(t)
				o := newObjects(t, config)
				o.collects()
				owner := o.create("owner")
				o.createMany("dependent", *many, owner)
				before, err := cpu()
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]int{}
				if policy == metav1.DeletePropagationOrphan {
					want["dependent"] = *many
				}
				begin := time.Now()
				o.delete(owner, policy)
				o.awaitMany(want)
				took := time.Since(begin)
				after, err := cpu()
				if err != nil {
					t.Fatal(err)
				}
				o.await(want)
				t.Logf("%d dependents: %s, %s of processor time", *many,
					took.Round(10*time.Millisecond), (after - before).Round(10*time.Millisecond))
			})
		}
	}
}

// awaitMany waits until the owner is gone and the dependents are that many, in a way that takes
// little of the server's time.
func (o objects) awaitMany(want map[string]int) {
	o.Helper()
	err := wait.PollUntilContextTimeout(o.Context(), 100*time.Millisecond, 10*time.Minute, true,
		func(ctx context.Context) (bool, error) {
			if _, err := o.Get(ctx, "owner", metav1.GetOptions{}); err == nil {
				return false, nil
			}
			for _, name := range []string{"0", strconv.Itoa(*many / 2), strconv.Itoa(*many - 1)} {
				_, err := o.Get(ctx, "dependent-"+name, metav1.GetOptions{})
				if len(want) == 0 && err == nil {
					return false, nil
				}
			}
			if len(want) > 0 {
				return true, nil // the owner goes last
			}
			list, err := o.List(ctx, metav1.ListOptions{Limit: 2})
			return err == nil && len(list.Items) < 2, err // kube-root-ca.crt stays
		})
	if err != nil {
		o.Fatal(err)
	}
}

// The replica that collects is killed in the middle. The other one takes over: nothing is left that
// has to go, and nothing goes that has to stay. The replicas know each other by their API alone, so
// one database shows it.
func TestKilledCollector(t *testing.T) {
	const each = 1000
	program := build(t)
	db, err := database.Start(t.Context(), dbserver.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	first, config := serve(t, program, "first", "--database="+db.URL)
	newObjects(t, config).collects()
	_, config = serve(t, program, "second", "--database="+db.URL)
	o := newObjects(t, config)
	background, foreground := o.create("background"), o.create("foreground")
	orphan, stays := o.create("orphan"), o.create("stays")
	o.createMany("of-background", each, background)
	o.createMany("of-foreground", each, foreground)
	o.createMany("of-orphan", each, orphan)
	o.createMany("of-two", each, background, stays)
	o.delete(background, metav1.DeletePropagationBackground)
	o.delete(foreground, metav1.DeletePropagationForeground)
	o.delete(orphan, metav1.DeletePropagationOrphan)
	var left int
	for left = 4 * each; left > 2*each+each/2; {
		left = 0
		for name, n := range o.count() {
			if name != "of-orphan" && name != "of-two of stays" {
				left += n
			}
		}
	}
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	o.await(map[string]int{"stays": 1, "of-orphan": each, "of-two of stays": each})
	t.Logf("%d were left when the collector was killed, and done %s later", left,
		time.Since(killed).Round(time.Second))
}
