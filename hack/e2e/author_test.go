package e2e

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/node"
	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/released"
	"github.com/rowkeeper/rowkeeper/hack/verify/readme"
)

// TestAuthor goes the way of authors into the cluster, with a project of each variant: image and
// deployment are made by the project's Makefile. Docker builds the image, which the node takes from
// it.
func TestAuthor(t *testing.T) {
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		if slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"), ","), "docker") {
			t.Fatalf("%v: %s", err, out)
		}
		t.Skipf("there is no Docker engine, which hack/testbed/docker.sh would start: %v", err)
	}
	t.Run("Tutorial", testTutorial)
	t.Run("Registry", testMakefileOfRegistry)
	t.Run("Controller", testMakefileOfController)
}

// testTutorial follows the tutorial about projects to its end, as a user who has nothing but a
// release: the program and the modules come from a module proxy of files, the chart from its
// package, and there is no clone. The project is tested and served on the laptop. Then it goes into
// the cluster, where a second program takes over the objects of the first, which comes back. Last,
// the chart installs it.
func testTutorial(t *testing.T) {
	page, err := os.ReadFile("../../docs/tutorials/project.md")
	if err != nil {
		t.Fatal(err)
	}
	walks, err := readme.Walks(string(page))
	if err != nil || len(walks) != 2 {
		t.Fatalf("the tutorial has the walks %v, %v", walks, err)
	}
	const name = "e2e-tutorial" // an image my-api may be there
	dir, user := t.TempDir(), t.TempDir()
	toCluster := readme.Step{Commands: []readme.Command{{Text: "export KUBECONFIG=" + env.Kubeconfig}}}
	overlay := readme.Step{File: "deploy/overlays/e2e/kustomization.yaml",
		Content: onBalancer("sqlite")}
	at := slices.IndexFunc(walks[1].Steps, func(s readme.Step) bool {
		return len(s.Commands) > 0 && strings.HasPrefix(s.Commands[0].Text, "helm install ")
	})
	if at < 0 {
		t.Fatal("the tutorial does not install the chart")
	}
	walk := walks[0]
	walk.Steps = slices.Concat(walk.Steps, []readme.Step{toCluster, overlay}, walks[1].Steps[:at],
		[]readme.Step{emptyVolume()}, walks[1].Steps[at:])
	chart := filepath.Join(user, "chart")
	copyChart(t, packagedChart(t), chart)
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	defer serveProject(t, name, filepath.Join(dir, "walk", name))()
	guide := readme.Guide{Clone: filepath.Join(user, "no-clone"), Log: t.Logf,
		Env: append(released.Env(t, "../..", user), authorEnv(filepath.Join(user, "bin"))...),
		Replace: map[string]string{"my-api": name, "make deploy": "make deploy OVERLAY=e2e",
			"deploy/overlays/sqlite": "deploy/overlays/e2e", "8443": port,
			"make -C ../rowkeeper build":   "go install " + released.Program,
			"../../rowkeeper/deploy/chart": chart}}
	if err := guide.Follow(t.Context(), walk, dir); err != nil {
		t.Fatal(err)
	}
}

// packagedChart unpacks the package of the chart that a release has, and returns its directory.
func packagedChart(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	helm(t, "package", "../../deploy/chart", "--version", "0.1.0", "--destination", dir)
	run(t, exec.Command("tar", "-C", dir, "-xzf", filepath.Join(dir, "rowkeeper-0.1.0.tgz")))
	return filepath.Join(dir, "rowkeeper")
}

// freePort is a port that nobody has.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// emptyVolume is what an administrator does with the node's volume before the next one claims it,
// as a command in the midst of a walk.
func emptyVolume() readme.Step {
	return readme.Step{Commands: []readme.Command{
		{Text: "rm -r " + filepath.Join(env.dir, "pods", "claims")},
		{Text: "kubectl patch persistentvolume " + node.Name +
			` --type json -p '[{"op":"remove","path":"/spec/claimRef"}]'`},
	}}
}

// testMakefileOfRegistry installs a project with registries by hand, as its README tells.
func testMakefileOfRegistry(t *testing.T) {
	const name = "e2e-registry"
	dir := project(t, name, "--variant", "registry", "--kind", "Package", "--group",
		"packages.example.com", "--versions", "v1alpha1,v1")
	write(t, filepath.Join(dir, "deploy", "overlays", "e2e", "kustomization.yaml"),
		onBalancer("sqlite"))
	defer serveProject(t, name, dir)()
	makes(t, dir, "image")
	makes(t, dir, "deploy", "OVERLAY=e2e")
	kubectl(t, "apply", "-f", filepath.Join(dir, "examples"))
	if out := kubectl(t, "get", "packages", "-A"); strings.Count(out, "Hello") != 2 {
		t.Errorf("kubectl shows\n%s", out)
	}
}

// testMakefileOfController installs a controller, as its README tells.
func testMakefileOfController(t *testing.T) {
	const name = "e2e-controller"
	dir := project(t, name, "--variant", "controller", "--kind", "Robot", "--group",
		"robots.example.com")
	defer removeProject(t, name, filepath.Join(dir, "config", "default"))
	makes(t, dir, "image")
	makes(t, dir, "deploy")
	kubectl(t, "apply", "-f", filepath.Join(dir, "config", "samples"))
	kubectl(t, "wait", "--for=condition=Ready", "--timeout=1m", "robot/hello")
}

// authorEnv is what the environment of an author who is the cluster's administrator has besides.
// Programs are looked for in the directories first.
func authorEnv(path ...string) []string {
	path = append(path, env.bin, os.Getenv("PATH"))
	return []string{"KUBECONFIG=" + env.Kubeconfig,
		"KUBECACHEDIR=" + filepath.Join(env.dir, "kubectl-cache"),
		"HELM_CACHE_HOME=" + filepath.Join(env.dir, "helm"),
		"PATH=" + strings.Join(path, string(os.PathListSeparator))}
}

// makes calls a target of a project's Makefile.
func makes(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), authorEnv()...)
	run(t, cmd)
}

// serveProject has the balancer lead to the pods of a project in a directory. The function that it
// returns removes the project from the cluster.
func serveProject(t *testing.T, name, dir string) (remove func()) {
	t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name + "-system", Name: name}}
	service.Spec.Selector = map[string]string{"app.kubernetes.io/name": name}
	service.Spec.Ports = []corev1.ServicePort{{TargetPort: intstr.FromString("https")}}
	stop := balance(t, service)
	return func() {
		t.Helper()
		removeProject(t, name, filepath.Join(dir, "deploy", "overlays", "e2e"))
		stop()
		if err := env.node.EmptyVolume(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// removeProject removes a project from the cluster, and its images from the engine.
func removeProject(t *testing.T, name, manifests string) {
	t.Helper()
	// Without its pods the namespace is removed sooner. A tutorial may have removed some of this.
	kubectl(t, "delete", "-n", name+"-system", "deployment/"+name, "--ignore-not-found")
	kubectl(t, "wait", "-n", name+"-system", "pod", "--all", "--for=delete", "--timeout=2m")
	kubectl(t, "delete", "--ignore-not-found", "--wait", "--timeout=3m", "-k", manifests)
	images, err := exec.CommandContext(t.Context(), "docker", "images", "--quiet", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	run(t, exec.CommandContext(t.Context(), "docker",
		append([]string{"image", "rm", "--force"}, strings.Fields(string(images))...)...))
}
