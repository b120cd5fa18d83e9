package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/rowkeeper/rowkeeper/hack/verify/readme"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/executable"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// flunders are the resource of upstream's sample server.
var flunders = schema.GroupVersionResource{
	Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders",
}

// extension is an extension API server that runs outside of the cluster.
type extension struct {
	// command is the program, and its flags besides the ones that say where it serves and for whom.
	command []string
	// resource is one of its resources, whose objects have the kind and, unless it is nil, the
	// spec.
	resource schema.GroupVersionResource
	kind     string
	spec     map[string]any
	// older are the other versions of the group.
	older []string
}

// startExtension runs the server behind APIServices until the test ends, and returns its process
// id. The server may do everything in the cluster: the rights that one needs are in deploy/.
func startExtension(t *testing.T, e extension) (pid int) {
	t.Helper()
	name := filepath.Base(e.command[0])
	ns := newNamespace(t)
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	serving, err := cluster.Sign(env.CA, pki.Server("api."+ns+".svc"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := cluster.Write(serving, dir, "serving"); err != nil {
		t.Fatal(err)
	}
	ca, _, err := env.CA.PEM()
	if err != nil {
		t.Fatal(err)
	}
	_, kubeconfig, err := env.User(name, "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	running, err := executable.Start(executable.Spec{
		Name: name, Env: os.Environ(), Dir: dir, Logs: env.Logs(),
		Command: append(slices.Clone(e.command),
			"--bind-address="+cluster.Host, fmt.Sprintf("--secure-port=%d", port),
			"--kubeconfig="+kubeconfig,
			"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
			"--tls-cert-file="+filepath.Join(dir, "serving.crt"),
			"--tls-private-key-file="+filepath.Join(dir, "serving.key")),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.Kill(); err != nil {
			t.Error(err)
		}
	})
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "api"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName,
			ExternalName: "localhost"},
	}
	_, err = env.client.CoreV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, version := range append([]string{e.resource.Version}, e.older...) {
		registered := version + "." + e.resource.Group
		apiService := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": registered},
			"spec": map[string]any{
				"group": e.resource.Group, "groupPriorityMinimum": int64(1000),
				"version": version, "versionPriority": int64(15 - i),
				"caBundle": base64.StdEncoding.EncodeToString(ca),
				"service":  map[string]any{"name": "api", "namespace": ns, "port": int64(port)},
			},
		}}
		services := env.dynamic.Resource(apiServices)
		if _, err := services.Create(t.Context(), apiService, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			// No namespace can be deleted while a group has no server.
			err := services.Delete(env.context, registered, metav1.DeleteOptions{})
			if err != nil {
				t.Error(err)
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := running.WaitFor(ctx, "available", func(ctx context.Context) error {
			return isServed(ctx, registered)
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	return running.Pid()
}

// in is the client for the resource in a namespace.
func (e extension) in(namespace string) dynamic.ResourceInterface {
	return env.dynamic.Resource(e.resource).Namespace(namespace)
}

// create creates an object, which may have owners.
func (e extension) create(
	t *testing.T, namespace, name string, owners ...metav1.OwnerReference,
) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": e.spec}}
	object.SetGroupVersionKind(e.resource.GroupVersion().WithKind(e.kind))
	object.SetName(name)
	object.SetOwnerReferences(owners)
	created, err := e.in(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// TestServers registers servers of all the ways in which the documents tell to write one, at the
// same time. The controllers of the cluster, which prefer protobuf, delete what these servers have.
func TestServers(t *testing.T) {
	database := func(name string) string {
		return "--database=sqlite:" + filepath.Join(t.TempDir(), name+".db")
	}
	v1 := func(group, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
	}
	bookmarks := extension{
		command:  []string{build(t, "first-kind", "bookmarks", nil), "serve", database("bookmarks")},
		resource: v1("example.com", "bookmarks"),
		kind:     "Bookmark",
		spec:     map[string]any{"url": "https://go.dev"},
	}
	library := extension{
		command: []string{
			build(t, "api-server", "library-server", inCluster(t)), database("books"),
		},
		resource: v1("library.example.com", "books"),
		kind:     "Book",
		spec:     map[string]any{"title": "The Go Programming Language"},
		older:    []string{"v1beta1"},
	}
	sample := extension{
		command:  []string{filepath.Join(env.bin, "sampleapiserver"), database("flunders")},
		resource: flunders,
		kind:     "Flunder",
		spec:     map[string]any{"reference": "a"},
		older:    []string{"v1beta1"},
	}
	builds := extension{
		command:  []string{serverProject(t, "my-api", "kinds", "Build"), "serve", database("builds")},
		resource: v1("builds.example.com", "builds"),
		kind:     "Build",
		spec:     map[string]any{"title": "Hello"},
		older:    []string{"v1alpha1"},
	}
	packages := extension{
		command: []string{
			serverProject(t, "my-registry", "registry", "Package"), "serve", database("packages"),
		},
		resource: v1("packages.example.com", "packages"),
		kind:     "Package",
		spec:     map[string]any{"title": "Hello"},
		older:    []string{"v1alpha1"},
	}
	servers := []extension{bookmarks, library, sample, builds, packages}
	for _, server := range servers {
		startExtension(t, server)
	}
	t.Run("NamespaceDeletion", func(t *testing.T) { testServersNamespace(t, servers) })
	t.Run("GarbageCollection", func(t *testing.T) { testServersGarbage(t, servers) })
}

// inCluster changes the tutorial's server of books so that it asks the cluster who its users are.
// As it is there, its only user is who knows a token, which a cluster's API server cannot tell it.
func inCluster(t *testing.T) func(*readme.Step) {
	t.Helper()
	main, err := os.ReadFile(filepath.Join("testdata", "library.go.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return func(step *readme.Step) {
		if step.File == "main.go" {
			step.Content = string(main)
		}
		// Those who follow the whole tutorial run its tests.
		step.Commands = slices.DeleteFunc(step.Commands, func(c readme.Command) bool {
			return strings.HasPrefix(c.Text, "go test ")
		})
	}
}

// build follows a tutorial until its program is built, with some steps changed.
func build(t *testing.T, tutorial, program string, change func(*readme.Step)) string {
	t.Helper()
	clone, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(clone, "docs", "tutorials", tutorial+".md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	walks, err := readme.Walks(string(page))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if len(walks) != 1 {
		t.Fatalf("%s has %d walks, want one", file, len(walks))
	}
	walk := walks[0].BeforeServe()
	if change != nil {
		for i := range walk.Steps {
			change(&walk.Steps[i])
		}
	}
	dir := t.TempDir()
	guide := readme.Guide{Clone: clone, Env: os.Environ(), Log: t.Logf}
	if err := guide.Follow(t.Context(), walk, dir); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return filepath.Join(dir, "walk", program)
}

// serverProject has rowkeeper init write a project of a server whose group is named after its kind,
// and builds its program. The cluster is shown the project's manifests, and accepts them all.
func serverProject(t *testing.T, name, variant, kind string) (program string) {
	t.Helper()
	dir := project(t, name, "--variant", variant, "--kind", kind, "--group",
		strings.ToLower(kind)+"s.example.com", "--versions", "v1alpha1,v1")
	program = filepath.Join(dir, name)
	build := exec.Command("go", "build", "-o", name, ".")
	build.Dir = dir
	run(t, build)

	deploy := filepath.Join(dir, "deploy")
	run(t, exec.Command(program, "certs", "--dir", filepath.Join(deploy, "components", "certs")))
	showManifests(t, name, filepath.Join(deploy, "base", "cluster", "namespace.yaml"),
		filepath.Join(deploy, "overlays", "sqlite"))
	return program
}

// project has rowkeeper init write a project, and returns its directory.
func project(t *testing.T, name string, flags ...string) (dir string) {
	t.Helper()
	clone, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), name)
	run(t, exec.Command(env.rowkeeper(),
		append([]string{"init", dir, "--replace", clone}, flags...)...))
	return dir
}

// showManifests shows the cluster the manifests of a project, which accepts them all. The project's
// namespace is there until the test ends.
func showManifests(t *testing.T, name, namespace, all string) {
	t.Helper()
	kubectl(t, "apply", "-f", namespace)
	t.Cleanup(func() {
		err := env.client.CoreV1().Namespaces().Delete(env.context, name+"-system",
			metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	kubectl(t, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", all)
}

// TestController runs the controller of a project with the rights that its manifests give it.
func TestController(t *testing.T) {
	dir := project(t, "my-controller", "--variant", "controller", "--kind", "Robot", "--group",
		"robots.example.com")
	build := exec.Command("go", "build", "-o", "my-controller", "./cmd")
	build.Dir = dir
	run(t, build)
	config := filepath.Join(dir, "config")
	showManifests(t, "my-controller", filepath.Join(config, "manager", "namespace.yaml"),
		filepath.Join(config, "default"))
	for _, part := range []string{"crd", "rbac"} {
		kubectl(t, "apply", "--server-side", "-k", filepath.Join(config, part))
		t.Cleanup(func() { // after the test's own context, which kubectl has
			run(t, exec.Command(filepath.Join(env.bin, "kubectl"), "--kubeconfig", env.Kubeconfig,
				"delete", "-k", filepath.Join(config, part)))
		})
	}
	kubectl(t, "wait", "--for=condition=Established", "--timeout=1m",
		"crd/robots.robots.example.com")

	_, kubeconfig, err := env.User("system:serviceaccount:my-controller-system:my-controller",
		"system:serviceaccounts", "system:serviceaccounts:my-controller-system")
	if err != nil {
		t.Fatal(err)
	}
	running, err := executable.Start(executable.Spec{
		Name: "my-controller", Env: os.Environ(), Dir: dir, Logs: env.Logs(),
		Command: []string{filepath.Join(dir, "my-controller"), "--kubeconfig=" + kubeconfig,
			"--health-probe-bind-address=0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, "apply", "-f", filepath.Join(config, "samples"))
	kubectl(t, "wait", "--for=condition=Ready", "--timeout=1m", "robot/hello")
	if out := kubectl(t, "get", "robot", "hello"); !strings.Contains(out, "Hello   True") {
		t.Errorf("kubectl shows\n%s", out)
	}
}

// testServersNamespace deletes a namespace that has objects of all servers.
func testServersNamespace(t *testing.T, servers []extension) {
	ns := newNamespace(t)
	for _, server := range servers {
		server.create(t, ns, "a")
		server.create(t, ns, "b")
	}
	err := env.client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespaceGone(t, ns)
	for _, server := range servers {
		list, err := server.in(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 0 {
			t.Errorf("the %s after their namespace is gone: %v, %v", server.resource.Resource, list,
				err)
		}
	}
}

// namespaceGone waits until a namespace that is being deleted is gone. If it stays, the error says
// what the controller says about that.
func namespaceGone(t *testing.T, name string) {
	t.Helper()
	eventually(t, 2*time.Minute, func() error {
		namespace, err := env.client.CoreV1().Namespaces().Get(t.Context(), name,
			metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("the namespace still exists: %v", namespace.Status.Conditions)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// testServersGarbage deletes owners, in the background and in the foreground. An owner belongs to
// one server, and its dependents to the next one and to the cluster. Then it deletes an owner of
// the cluster, whose dependents belong to the servers.
func testServersGarbage(t *testing.T, servers []extension) {
	ns := newNamespace(t)
	configs := env.client.CoreV1().ConfigMaps(ns)
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
	} {
		for i, server := range servers {
			name := strings.ToLower(string(policy)) + "-" + server.resource.Resource
			owner := server.create(t, ns, name)
			reference := metav1.OwnerReference{
				APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: name,
				UID:                owner.GetUID(),
				BlockOwnerDeletion: new(true),
			}
			servers[(i+1)%len(servers)].create(t, ns, name+"-child", reference)
			config := &corev1.ConfigMap{}
			config.Name, config.OwnerReferences = name+"-child", []metav1.OwnerReference{reference}
			if _, err := configs.Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			options := metav1.DeleteOptions{PropagationPolicy: &policy}
			if err := server.in(ns).Delete(t.Context(), name, options); err != nil {
				t.Fatal(err)
			}
		}
	}
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}
	owner, err := configs.Create(t.Context(), owner, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		server.create(t, ns, "of-a-config-map", metav1.OwnerReference{
			APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID,
		})
	}
	if err := configs.Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		// The collector looks for new kinds every 30 seconds.
		eventually(t, 2*time.Minute, func() error {
			list, err := server.in(ns).List(t.Context(), metav1.ListOptions{})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d %s are left, such as %s",
					len(list.Items), server.resource.Resource, list.Items[0].GetName())
			}
			return err
		})
	}
	eventually(t, time.Minute, func() error {
		list, err := configs.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, config := range list.Items {
			if len(config.OwnerReferences) > 0 {
				return fmt.Errorf("the dependent config map %s is left", config.Name)
			}
		}
		return nil
	})
}
