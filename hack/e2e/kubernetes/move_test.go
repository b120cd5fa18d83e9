package kubernetes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
)

// TestMove: a control plane is stopped on etcd, its data is moved, and it is started on SQLite;
// then the way back. Objects are the same, with their resourceVersions, tokens are good, nobody can
// go on from a resourceVersion of before, and the controllers go on.
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
	maps := func() (versions map[string]string, at string) {
		t.Helper()
		list := must[*corev1.ConfigMapList](t)(p.CoreV1().ConfigMaps(ns).List(t.Context(),
			metav1.ListOptions{}))
		versions = map[string]string{}
		for _, m := range list.Items {
			versions[m.Name] = m.ResourceVersion + " " + string(m.UID)
		}
		return versions, list.ResourceVersion
	}
	was, at := maps()
	replicas := 3
	check := func() {
		t.Helper()
		is, now := maps()
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
		was, at = maps()
	}

	database := "--database=sqlite://" + filepath.Join(dir, "state.db")
	move(p, func() {
		program("rowkeeper", "etcd", "import", p.Stores()[0], database,
			"--cacert="+filepath.Join(dir, "pki", "etcd-ca.crt"),
			"--cert="+filepath.Join(dir, "pki", "etcd-client.crt"),
			"--key="+filepath.Join(dir, "pki", "etcd-client.key"))
	})
	p = start(t, cluster.Config{Dir: dir})
	check()

	snapshot, data := filepath.Join(dir, "snapshot.db"), filepath.Join(dir, "etcd")
	move(p, func() { program("rowkeeper", "etcd", "export", snapshot, database) })
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
