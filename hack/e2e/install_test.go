package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/node"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
)

const (
	namespace = "rowkeeper-system"
	// group is the API group that Rowkeeper serves.
	group = "ci.rowkeeper.dev"
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1",
	Resource: "apiservices"}

// installation is Rowkeeper in the cluster.
type installation struct {
	// dir is a copy of deploy/, overlay the directory in it that is applied.
	dir, overlay string
	database     *database.Database
	// rendered are the manifests of the overlay as they are without the address of the balancer.
	rendered []*unstructured.Unstructured
	// edits are the contents of the files that the installation chapter tells to edit, by their
	// names in deploy/.
	edits map[string]string
	// available is when the last APIService was available for the first time.
	available time.Time
	stop      func()
}

// install gives the commands of the README's installation chapter, with an overlay on top that is
// only about the address of the Service. It ends when all APIServices are available.
func install(t *testing.T, overlay string) *installation {
	t.Helper()
	i := &installation{dir: filepath.Join(t.TempDir(), "deploy"), edits: map[string]string{}}
	if err := os.CopyFS(i.dir, os.DirFS("../../deploy")); err != nil {
		t.Fatal(err)
	}
	// Objects that somebody else has made there are none of the test's business.
	for _, left := range []string{"components/certs/*.crt", "components/certs/*.key",
		"overlays/*/database/password", "overlays/etcd/certs/*"} {
		files, err := filepath.Glob(filepath.Join(i.dir, left))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	if overlay != "sqlite" {
		i.startDatabase(t, overlay)
	}
	i.rendered = render(t, i.rehearsal(t, overlay))
	// As if the image had been pushed under the name that the deployment has for it.
	env.node.AddImage(find[appsv1.Deployment](t, i.rendered, "Deployment",
		"rowkeeper").Spec.Template.Spec.Containers[0].Image, env.image)
	i.overlay = filepath.Join(i.dir, "overlays", "e2e")
	write(t, filepath.Join(i.overlay, "kustomization.yaml"), onBalancer(overlay))

	i.balance(t)
	i.follow(t, overlay)
	return i
}

// onBalancer is an overlay on top of another one, in which requests go to the balancer.
func onBalancer(overlay string) string {
	return fmt.Sprintf(`
resources: [../%s]
patches:
- target: {kind: Service}
  patch: |-
    - {op: replace, path: /spec, value: {type: ExternalName, externalName: localhost}}
- target: {kind: APIService}
  patch: |-
    - {op: replace, path: /spec/service/port, value: %d}
`, overlay, env.balancer.Port())
}

// balance makes this the present installation: the balancer leads to its replicas.
func (i *installation) balance(t *testing.T) {
	t.Helper()
	i.stop = balance(t, find[corev1.Service](t, i.rendered, "Service", "rowkeeper"))
	env.installation = i
}

// balance has the balancer lead to the pods of a Service, until stop is called.
func balance(t *testing.T, service *corev1.Service) (stop func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	err := node.Follow(ctx, env.client, service, func(backends ...string) {
		env.balancer.Set(backends...)
		// Kube-apiserver looks again whether an APIService is available when the endpoints of its
		// Service change, or the Service, of which this one has only the latter. Without it, it
		// looks after a while.
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"e2e.rowkeeper.dev/endpoints":%q}}}`,
			strings.Join(backends, " "))
		_, _ = env.client.CoreV1().Services(service.Namespace).Patch(ctx, service.Name,
			types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	})
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

// rehearsal is a second copy of the overlay, which has the files already that the chapter makes, so
// that it can be rendered before.
func (i *installation) rehearsal(t *testing.T, overlay string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deploy")
	if err := os.CopyFS(dir, os.DirFS(i.dir)); err != nil {
		t.Fatal(err)
	}
	for file, content := range i.edits {
		write(t, filepath.Join(dir, file), content)
	}
	run(t, exec.Command(env.rowkeeper(), "certs", "--dir",
		filepath.Join(dir, "components", "certs")))
	return filepath.Join(dir, "overlays", overlay)
}

// The database's user, who may do nothing but with his own database.
const databaseUser = "e2e"

// startDatabase starts a server, and says the URL and the password of a user of it where the
// overlay has them.
func (i *installation) startDatabase(t *testing.T, kind string) {
	t.Helper()
	var err error
	if i.database, err = database.Start(t.Context(), dbserver.Kind(kind)); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(i.database.URL)
	if err != nil {
		t.Fatal(err)
	}
	const password = "the first password"
	name := strings.TrimPrefix(u.Path, "/")
	statements := map[string][]string{
		"postgres": {"CREATE ROLE " + databaseUser + " LOGIN PASSWORD '" + password + "'",
			"ALTER DATABASE " + name + " OWNER TO " + databaseUser},
		"mysql": {"CREATE USER " + databaseUser + " IDENTIFIED BY '" + password + "'",
			"GRANT ALL ON " + name + ".* TO " + databaseUser},
	}
	for _, statement := range statements[kind] {
		if err := i.database.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	u.User = url.User(databaseUser)
	u.RawQuery = strings.TrimPrefix(u.RawQuery+"&password_file=/etc/rowkeeper/database/password",
		"&")
	dir := filepath.Join("overlays", kind, "database")
	i.edits[filepath.Join(dir, "url")] = u.String() + "\n"
	i.edits[filepath.Join(dir, "password")] = password + "\n"
}

// renewCertificates makes the serving certificate, or a new one.
func (i *installation) renewCertificates(t *testing.T) {
	t.Helper()
	run(t, exec.Command(env.rowkeeper(), "certs", "--renew", "--dir",
		filepath.Join(i.dir, "components", "certs")))
}

// waitAvailable waits until all APIServices of the installation are available and served.
func (i *installation) waitAvailable(t *testing.T) {
	t.Helper()
	for _, name := range i.apiServices() {
		eventually(t, 3*time.Minute, func() error {
			if err := env.node.Errors(); err != nil {
				t.Fatal(err)
			}
			return isServed(t.Context(), name)
		})
	}
	if i.available.IsZero() {
		i.available = time.Now()
	}
}

// apiServices are the names of the installation's APIServices.
func (i *installation) apiServices() []string {
	var names []string
	for _, object := range i.rendered {
		if object.GetKind() == "APIService" {
			names = append(names, object.GetName())
		}
	}
	return names
}

// available reads the condition of an APIService.
func available(ctx context.Context, name string) (status, message string, err error) {
	service, err := env.dynamic.Resource(apiServices).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	conditions, _, err := unstructured.NestedSlice(service.Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == "Available" {
			return c["status"].(string), c["message"].(string), nil
		}
	}
	return "", "it has no condition yet", err
}

// isServed tells whether requests for an APIService get through. That it is available is not
// enough: the aggregator's proxy hears of the condition a little later than whoever reads it.
func isServed(ctx context.Context, name string) error {
	status, message, err := available(ctx, name)
	if err == nil && status != "True" {
		err = fmt.Errorf("APIService %s is not available: %s", name, message)
	}
	if err != nil {
		return err
	}
	version, group, _ := strings.Cut(name, ".")
	return env.client.Discovery().RESTClient().Get().AbsPath("/apis", group, version).Do(ctx).
		Error()
}

// pods are the running pods of the installation, which are not about to end.
func (i *installation) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	deployment := find[appsv1.Deployment](t, i.rendered, "Deployment", "rowkeeper")
	list, err := env.client.CoreV1().Pods(namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: labels.SelectorFromSet(deployment.Spec.Selector.MatchLabels).String()})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil
	})
}

// uninstall removes everything again, which ends when the namespace is gone. That takes most of a
// minute, in which nothing happens: the controller for namespaces looks for pods only after half of
// their grace period again.
func (i *installation) uninstall(t *testing.T) {
	t.Helper()
	kubectl(t, "delete", "--wait", "--timeout=3m", "-k", i.overlay)
	if err := i.close(); err != nil {
		t.Fatal(err)
	}
	env.installation = nil
}

func (i *installation) close() error {
	i.stop()
	if i.database == nil {
		return nil
	}
	return i.database.Close(context.Background())
}

// find returns one of the manifests as its type.
func find[T any](t *testing.T, manifests []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	for _, m := range manifests {
		if m.GetKind() == kind && m.GetName() == name {
			typed := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m.Object,
				typed); err != nil {
				t.Fatal(err)
			}
			return typed
		}
	}
	t.Fatalf("the manifests have no %s %s", kind, name)
	return nil
}

// render builds an overlay.
func render(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	return parse(t, kubectl(t, "kustomize", dir))
}

// parse reads manifests.
func parse(t *testing.T, text string) (manifests []*unstructured.Unstructured) {
	t.Helper()
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		if object.Object != nil {
			manifests = append(manifests, object)
		}
	}
	return manifests
}

// kubectl runs kubectl as the administrator, and returns what it prints.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryKubectl(t, "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kubectlInput is the same with something on standard input.
func kubectlInput(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := tryKubectl(t, input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tryKubectl is the same, and returns the error, with what kubectl says about it.
func tryKubectl(t *testing.T, input string, args ...string) (string, error) {
	t.Helper()
	return kubectlIn(t, "", input, args...)
}

// kubectlIn is the same in a directory.
func kubectlIn(t *testing.T, dir, input string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(env.bin, "kubectl"),
		append([]string{"--kubeconfig", env.Kubeconfig, "--cache-dir",
			filepath.Join(env.dir, "kubectl-cache")}, args...)...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(input)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return out.String(), nil
}

func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
		os.WriteFile(file, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// eventually repeats something every 50 ms until it succeeds, and fails the test with its last
// error if it does not in time.
func eventually(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("after %s: %v", limit, err)
		}
	}
}
