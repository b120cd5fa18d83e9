// Package kubernetes tests a Kubernetes control plane whose objects are in a database that
// "rowkeeper etcd" serves: SQLite, and each other one that can be had here. The same tests run on
// etcd, for comparison.
package kubernetes

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/database"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
)

var bin = flag.String("bin", "../../../bin/cluster", "directory of what hack/e2e/build.sh builds")

// plane is a control plane that runs.
type plane struct {
	*cluster.Cluster
	kubernetes.Interface
	dynamic dynamic.Interface
	// servers is how many processes serve the database.
	servers int
}

// start starts a control plane, which ends with the test.
func start(t *testing.T, config cluster.Config) *plane {
	t.Helper()
	var err error
	if config.Bin, err = filepath.Abs(*bin); err != nil {
		t.Fatal(err)
	}
	if config.Controllers == nil {
		config.Controllers = cluster.Controllers
	}
	began := time.Now()
	c, err := cluster.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %s", time.Since(began).Round(100*time.Millisecond))
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &plane{c, kubernetes.NewForConfigOrDie(c.Admin), dynamic.NewForConfigOrDie(c.Admin),
		max(config.Servers, 1)}
}

// onDatabase starts a server of a kind, unless the environment leaves the kind out.
func onDatabase(t *testing.T, kind string) cluster.Config {
	t.Helper()
	listed := func(variable string) bool {
		return slices.Contains(strings.Split(os.Getenv(variable), ","), kind)
	}
	if os.Getenv("ROWKEEPER_TEST_ONLY") != "" && !listed("ROWKEEPER_TEST_ONLY") {
		t.Skip("ROWKEEPER_TEST_ONLY leaves it out")
	}
	config, err := startDatabase(t, kind)
	if err != nil && !listed("ROWKEEPER_TEST_REQUIRE") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// onRequired starts a server of a kind that has to be there.
func onRequired(t *testing.T, kind string) cluster.Config {
	t.Helper()
	config, err := startDatabase(t, kind)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// startDatabase starts a server of a kind, which ends with the test.
func startDatabase(t *testing.T, kind string) (cluster.Config, error) {
	t.Helper()
	config := cluster.Config{Dir: t.TempDir()}
	switch kind {
	case "sqlite":
		return config, nil
	case cluster.Etcd:
		config.Database = cluster.Etcd
		return config, nil
	}
	db, err := database.Start(t.Context(), dbserver.Kind(kind))
	if err != nil {
		return config, err
	}
	t.Cleanup(func() {
		if err := db.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	// Two processes look like one etcd.
	config.Database, config.Servers = db.URL, 2
	return config, nil
}

// TestControlPlane: what a control plane does with its objects works on each database.
func TestControlPlane(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mariadb", "mysql", cluster.Etcd} {
		t.Run(kind, func(t *testing.T) {
			config := onDatabase(t, kind)
			p := start(t, config)
			t.Run("Workload", p.testWorkload)
			t.Run("Access", p.testAccess)
			t.Run("Definition", p.testDefinition)
			t.Run("History", p.testHistory)
			t.Run("Etcdctl", func(t *testing.T) { p.testEtcdctl(t, kind, config.Dir) })
			t.Run("Kill", p.testKill)
			t.Run("Namespace", p.testNamespace)
		})
	}
}

// eventually calls f until it returns no error.
func eventually(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 3*time.Minute, true,
		func(ctx context.Context) (bool, error) {
			last = f(ctx)
			return last == nil, nil
		})
	if err != nil {
		t.Fatalf("%v: %v", err, last)
	}
}

// must returns an answer that has to be one.
func must[T any](t *testing.T) func(T, error) T {
	return func(answer T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
}

// namespace makes a namespace, and waits for the object that a controller puts into each.
func (p *plane) namespace(t *testing.T, name string) {
	t.Helper()
	must[*corev1.Namespace](t)(p.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	eventually(t, func(ctx context.Context) error {
		_, err := p.CoreV1().ConfigMaps(name).Get(ctx, rootCA, metav1.GetOptions{})
		return err
	})
}

const rootCA = "kube-root-ca.crt"

// create makes an object of a manifest.
func (p *plane) create(t *testing.T, ns, manifest string) {
	t.Helper()
	var object unstructured.Unstructured
	if err := object.UnmarshalJSON([]byte(manifest)); err != nil {
		t.Fatal(err)
	}
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	must[*unstructured.Unstructured](t)(p.dynamic.Resource(resource).Namespace(ns).Create(
		t.Context(), &object, metav1.CreateOptions{}))
}

// token makes a token of a service account.
func (p *plane) token(t *testing.T, ns, name string) string {
	t.Helper()
	return must[*authenticationv1.TokenRequest](t)(p.CoreV1().ServiceAccounts(ns).CreateToken(
		t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})).Status.Token
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}}}}
}

// pods waits until the namespace has so many pods, of an image.
func (p *plane) pods(t *testing.T, ns, image string, want int) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		pods, err := p.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		n := 0
		for i := range pods.Items {
			if pods.Items[i].Spec.Containers[0].Image == image {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%d of %d pods have the image %s, want %d", n, len(pods.Items), image,
				want)
		}
		return nil
	})
}

// testWorkload: a deployment makes pods, replaces them, and takes them along when it goes.
func (p *plane) testWorkload(t *testing.T) {
	const ns = "workload"
	p.namespace(t, ns)
	deployments := p.AppsV1().Deployments(ns)
	must[*appsv1.Deployment](t)(deployments.Create(t.Context(), deployment("web", 3),
		metav1.CreateOptions{}))
	p.pods(t, ns, "one", 3)
	must[*appsv1.Deployment](t)(deployments.Patch(t.Context(), "web", types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"two"}]`),
		metav1.PatchOptions{}))
	// No pod ever becomes ready, so one of the new ones is made, and the old ones stay.
	p.pods(t, ns, "two", 1)
	foreground := metav1.DeletePropagationForeground
	if err := deployments.Delete(t.Context(), "web",
		metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		if _, err := deployments.Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the deployment is still there: %w", err)
		}
		return nil
	})
	if pods := must[*corev1.PodList](t)(p.CoreV1().Pods(ns).List(t.Context(),
		metav1.ListOptions{})); len(pods.Items) > 0 {
		t.Errorf("%d pods are left of a deployment that is gone", len(pods.Items))
	}
}

// testAccess: a service account may do what its role says.
func (p *plane) testAccess(t *testing.T) {
	const ns = "access"
	p.namespace(t, ns)
	for _, manifest := range []string{
		`{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}}`,
		`{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
		  "metadata": {"name": "reader"},
		  "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]}`,
		`{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
		  "metadata": {"name": "reader"},
		  "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
		  "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "access"}]}`,
	} {
		p.create(t, ns, manifest)
	}
	config := rest.AnonymousClientConfig(p.Admin)
	config.BearerToken = p.token(t, ns, "reader")
	client := kubernetes.NewForConfigOrDie(config)
	eventually(t, func(ctx context.Context) error {
		_, err := client.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
		return err // the authorizer hears of the role by a watch
	})
	if _, err := client.CoreV1().Secrets(ns).List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("secrets: %v, want forbidden", err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another namespace: %v, want forbidden", err)
	}
}

// testDefinition: objects of a definition come and go with it.
func (p *plane) testDefinition(t *testing.T) {
	p.create(t, "", `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
	  "metadata": {"name": "trees.example.com"},
	  "spec": {"group": "example.com", "scope": "Namespaced",
	    "names": {"kind": "Tree", "plural": "trees"},
	    "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
	      "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`)
	trees := p.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
		Resource: "trees"}).Namespace("default")
	tree := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1",
		"kind": "Tree", "metadata": map[string]any{"name": "oak"}, "height": int64(20)}}
	eventually(t, func(ctx context.Context) error {
		_, err := trees.Create(ctx, tree, metav1.CreateOptions{})
		return err
	})
	got := must[*unstructured.Unstructured](t)(trees.Get(t.Context(), "oak", metav1.GetOptions{}))
	if got.Object["height"] != int64(20) {
		t.Errorf("it is %v", got.Object)
	}
	definitions := p.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io",
		Version: "v1", Resource: "customresourcedefinitions"})
	if err := definitions.Delete(t.Context(), "trees.example.com",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		if _, err := definitions.Get(ctx, "trees.example.com",
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the definition is still there: %w", err)
		}
		return nil
	})
}

// testHistory: a list in pages shows one revision, and a watch from there has every change after it
// once.
func (p *plane) testHistory(t *testing.T) {
	const ns, n, changes = "history", 300, 50
	p.namespace(t, ns)
	maps := p.CoreV1().ConfigMaps(ns)
	p.createMany(t, ns, "m", n)
	first := must[*corev1.ConfigMapList](t)(maps.List(t.Context(), metav1.ListOptions{Limit: 50}))
	w := must[watch.Interface](t)(maps.Watch(t.Context(),
		metav1.ListOptions{ResourceVersion: first.ResourceVersion}))
	defer w.Stop()
	for i := range changes {
		name := "m-" + strconv.Itoa(i)
		if i%2 == 0 {
			if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		must[*corev1.ConfigMap](t)(maps.Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{}))
	}
	found, page := len(first.Items), first
	for page.Continue != "" {
		page = must[*corev1.ConfigMapList](t)(maps.List(t.Context(), metav1.ListOptions{Limit: 50,
			Continue: page.Continue}))
		if page.ResourceVersion != first.ResourceVersion {
			t.Errorf("a page is of revision %s, the first one of %s", page.ResourceVersion,
				first.ResourceVersion)
		}
		found += len(page.Items)
	}
	if found != n+1 { // with rootCA
		t.Errorf("the pages have %d objects, want %d", found, n+1)
	}
	for i := range changes {
		want := watch.Modified
		if i%2 == 0 {
			want = watch.Deleted
		}
		e, ok := <-w.ResultChan()
		object, isMap := e.Object.(*corev1.ConfigMap)
		if !ok || !isMap || e.Type != want || object.Name != "m-"+strconv.Itoa(i) {
			t.Fatalf("event %d is %v, want %s of m-%d", i, e, want, i)
		}
	}
}

// testKill: the processes that serve the database are killed one after the other under load, and
// started again. Acknowledged writes are there.
func (p *plane) testKill(t *testing.T) {
	const ns = "kill"
	p.namespace(t, ns)
	maps := p.CoreV1().ConfigMaps(ns)
	var written []string
	write := func(n int) {
		t.Helper()
		for end := len(written) + n; len(written) < end; {
			name := "m-" + strconv.Itoa(len(written))
			eventually(t, func(ctx context.Context) error {
				_, err := maps.Create(ctx, configMap(name), metav1.CreateOptions{})
				if apierrors.IsAlreadyExists(err) {
					return nil // an answer was lost
				}
				return err
			})
			written = append(written, name)
		}
	}
	for i := range p.servers {
		write(20)
		if err := p.RestartStore(i); err != nil {
			t.Fatal(err)
		}
		write(20)
	}
	list := must[*corev1.ConfigMapList](t)(maps.List(t.Context(), metav1.ListOptions{}))
	var found []string
	for _, m := range list.Items {
		if m.Name != rootCA {
			found = append(found, m.Name)
		}
	}
	slices.Sort(written)
	if !slices.Equal(found, written) {
		t.Errorf("there is %v, want %v", found, written)
	}
}

// testNamespace: a namespace takes along what is in it.
func (p *plane) testNamespace(t *testing.T) {
	const ns = "doomed"
	p.namespace(t, ns)
	p.createMany(t, ns, "m", 100)
	if err := p.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		if _, err := p.CoreV1().Namespaces().Get(ctx, ns,
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace is still there: %w", err)
		}
		return nil
	})
	list := must[*corev1.ConfigMapList](t)(p.CoreV1().ConfigMaps(ns).List(t.Context(),
		metav1.ListOptions{}))
	if len(list.Items) > 0 {
		t.Errorf("%d objects are left in a namespace that is gone", len(list.Items))
	}
}

func (p *plane) createMany(t *testing.T, ns, name string, n int) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			_, err := p.CoreV1().ConfigMaps(ns).Create(t.Context(),
				configMap(name+"-"+strconv.Itoa(i)), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}
