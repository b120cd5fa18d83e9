package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// TestMove: a control plane is stopped on etcd, its data is moved, and it is started on SQLite. Its
// store moves to another database while everything runs. Then comes the way back to etcd. Objects
// are the same, with their resourceVersions, tokens are good, nobody can go on from a
// resourceVersion of before, and the controllers go on.
func TestMove(t *testing.T) {
	const ns = "moved"
	dir := t.TempDir()
	program := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(*bin, name), args...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
		t.Logf("%s", out)
	}
	// move stops the control plane, and moves its data meanwhile.
	move := func(p *plane, how func()) {
		t.Helper()
		if err := p.StopKubernetes(); err != nil {
			t.Fatal(err)
		}
		how()
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}

	p := start(t, cluster.Config{Dir: dir, Database: cluster.Etcd})
	p.namespace(t, ns)
	p.createMany(t, ns, "m", 700)
	must[*appsv1.Deployment](t)(p.AppsV1().Deployments(ns).Create(t.Context(),
		deployment("web", 3), metav1.CreateOptions{}))
	p.pods(t, ns, "one", 3)
	must[*corev1.ServiceAccount](t)(p.CoreV1().ServiceAccounts(ns).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}))
	token := p.token(t, ns, "robot")
	state := func() (versions map[string]string, at string) {
		t.Helper()
		list := must[*corev1.ConfigMapList](t)(p.CoreV1().ConfigMaps(ns).List(t.Context(),
			metav1.ListOptions{}))
		versions = map[string]string{}
		for _, m := range list.Items {
			versions[m.Name] = m.ResourceVersion + " " + string(m.UID)
		}
		return versions, list.ResourceVersion
	}
	was, at := state()
	replicas := 3
	check := func() {
		t.Helper()
		is, now := state()
		if len(is) != len(was) {
			t.Errorf("there are %d objects, and were %d", len(is), len(was))
		}
		for name, version := range was {
			if is[name] != version {
				t.Errorf("%s is %s, and was %s", name, is[name], version)
			}
		}
		before, err := strconv.ParseInt(at, 10, 64)
		after, err2 := strconv.ParseInt(now, 10, 64)
		if err != nil || err2 != nil || after < before+1<<23 {
			t.Errorf("the resourceVersion is %s, and was %s", now, at)
		}
		_, err = p.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{ResourceVersion: at,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		if !apierrors.IsResourceExpired(err) {
			t.Errorf("a list at a resourceVersion of before: %v", err)
		}
		config := rest.AnonymousClientConfig(p.Admin)
		config.BearerToken = token
		// It may do nothing, and is known.
		_, err = kubernetes.NewForConfigOrDie(config).CoreV1().Pods(ns).List(t.Context(),
			metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("the token of before: %v, want forbidden", err)
		}
		replicas++
		must[*autoscalingv1.Scale](t)(p.AppsV1().Deployments(ns).UpdateScale(t.Context(), "web",
			&autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: ns},
				Spec: autoscalingv1.ScaleSpec{Replicas: int32(replicas)}}, metav1.UpdateOptions{}))
		p.pods(t, ns, "one", replicas)
		was, at = state()
	}

	names := newDirectory(t, dir, program)
	database := func(name string) []string {
		return []string{"--database=sqlite://" + filepath.Join(dir, name), "--store=kube"}
	}
	move(p, func() {
		program("rowkeeper", "stores", "create", "kube", database("db-1")[0])
		program("rowkeeper", append(database("db-1"), "etcd", "import", p.Stores()[0],
			"--cacert="+filepath.Join(dir, "pki", "etcd-ca.crt"),
			"--cert="+filepath.Join(dir, "pki", "etcd-client.crt"),
			"--key="+filepath.Join(dir, "pki", "etcd-client.key"))...)
		program("rowkeeper", append(names, "directory", "rebuild")...)
	})
	endpoint, stop := serveDirectory(t, names)
	p = start(t, cluster.Config{Dir: dir, Endpoint: endpoint})
	check()
	p.underWrites(t, ns, func() {
		program("rowkeeper", append(names, "stores", "move-to", "kube", "--to=db-2")...)
	})
	was, _ = state()
	check()

	snapshot, data := filepath.Join(dir, "snapshot.db"), filepath.Join(dir, "etcd")
	move(p, func() {
		stop()
		program("rowkeeper", append(database("db-2"), "etcd", "export", snapshot)...)
	})
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	program("etcdutl", "snapshot", "status", snapshot)
	program("etcdutl", "snapshot", "restore", snapshot, "--data-dir="+data)
	p = start(t, cluster.Config{Dir: dir, Database: cluster.Etcd})
	check()
	if err := p.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		_, err := p.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the namespace is still there: %w", err)
	})
}

// newDirectory makes two databases and a directory, and returns the flags that name it.
func newDirectory(t *testing.T, dir string, program func(name string, args ...string)) []string {
	t.Helper()
	file := filepath.Join(dir, "databases")
	lines := fmt.Sprintf("db-1 sqlite://%[1]s/db-1\ndb-2 sqlite://%[1]s/db-2\n", dir)
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	names := []string{"--directory=sqlite://" + filepath.Join(dir, "control"), "--databases-file=" + file}
	program("rowkeeper", append(names, "directory", "migrate")...)
	return slices.Clip(names)
}

// serveDirectory serves the store "kube" by etcd's API, wherever it is, until it is told to stop.
func serveDirectory(t *testing.T, names []string) (endpoint string, stop func()) {
	t.Helper()
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	endpoint = fmt.Sprint("http://127.0.0.1:", port)
	var output bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(*bin, "rowkeeper"),
		append(names, "etcd", "--listen-store=kube="+endpoint)...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return endpoint, func() {
		t.Helper()
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
			t.Fatalf("%v: %s", err, output.String())
		}
	}
}

// underWrites does something while a client creates objects and an informer watches them. All that
// was acknowledged is there in the end, the informer has it, and saw no resourceVersion go back.
func (p *plane) underWrites(t *testing.T, ns string, do func()) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	factory := informers.NewSharedInformerFactoryWithOptions(p, 0, informers.WithNamespace(ns))
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(from, to any) {
		was, is := from.(*corev1.ConfigMap).ResourceVersion, to.(*corev1.ConfigMap).ResourceVersion
		a, errA := strconv.ParseInt(was, 10, 64)
		b, errB := strconv.ParseInt(is, 10, 64)
		if errA != nil || errB != nil || b < a {
			t.Errorf("the informer sees %s after %s", is, was)
		}
	}}); err != nil {
		t.Error(err)
	}
	factory.Start(ctx.Done())
	defer func() { end(); factory.Shutdown() }()
	factory.WaitForCacheSync(ctx.Done())
	writing, cancel := context.WithCancel(ctx)
	defer cancel()
	var written []string
	wrote, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; writing.Err() == nil; i++ {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("during-", i)}}
			if _, err := p.CoreV1().ConfigMaps(ns).Create(writing, m, metav1.CreateOptions{}); err != nil {
				continue // its outcome may be unknown
			}
			written = append(written, m.Name)
			select {
			case wrote <- struct{}{}:
			default:
			}
		}
	}()
	<-wrote
	do()
	for range 3 { // the one that was there may be of before
		<-wrote
	}
	cancel()
	<-done
	list := must[*corev1.ConfigMapList](t)(p.CoreV1().ConfigMaps(ns).List(t.Context(),
		metav1.ListOptions{}))
	is := map[string]string{}
	for _, m := range list.Items {
		is[m.Name] = m.ResourceVersion
	}
	for _, name := range written {
		if is[name] == "" {
			t.Errorf("%s was acknowledged, and is not there", name)
		}
	}
	eventually(t, func(context.Context) error {
		seen := map[string]string{}
		for _, m := range informer.GetStore().List() {
			m := m.(*corev1.ConfigMap)
			seen[m.Name] = m.ResourceVersion
		}
		if !maps.Equal(is, seen) {
			return fmt.Errorf("the informer has %d objects, and there are %d", len(seen), len(is))
		}
		return nil
	})
	t.Logf("%d objects were written meanwhile", len(written))
}
