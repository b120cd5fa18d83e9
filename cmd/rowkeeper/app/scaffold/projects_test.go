package scaffold

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"sigs.k8s.io/yaml"
)

// TestProjects compiles a project of each variant, vets it and runs its tests on SQLite. The
// generated code in it is what the generators make of its types. The programs are given the
// arguments of their Deployment, and one project with two versions is given another kind.
func TestProjects(t *testing.T) {
	if testing.Short() {
		t.Skip("it links projects for minutes, so -short leaves it out")
	}
	source, err := Clone("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	project := func(t *testing.T, variant Variant, versions ...string) (dir string,
		run func(...string)) {
		t.Helper()
		p := pipelines
		p.Variant, p.Versions, p.Rowkeeper = variant, versions, source
		dir = p.write(t)
		if err := Tidy(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		// Who serves with the library does not require the program kube-apiserver. The tests of a
		// controller have a server with definitions.
		if mod := written(t, dir)["go.mod"]; variant != Controller &&
			strings.Contains(mod, "k8s.io/kubernetes ") {
			t.Errorf("the project's module is\n%s", mod)
		}
		return dir, func(args ...string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), "go", args...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "PWD="+dir, "GOWORK=off")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
	}
	t.Run("one version", func(t *testing.T) {
		_, run := project(t, Kinds, "v1")
		run("vet", "./...")
		run("test", "-vet=off", "-short", "./...")
	})
	t.Run("two versions and another kind", func(t *testing.T) {
		dir, run := project(t, Kinds, "v1alpha1", "v1")
		if _, err := AddKind(dir, "Task"); err != nil {
			t.Fatal(err)
		}
		run("mod", "tidy", "-diff")
		mark(t, dir)
		makes(t, dir, "generate")
		run("vet", "./...")
		run("test", "-vet=off", "-short", "./...")
		run("build", "-o", "program", ".")
		serves(t, filepath.Join(dir, "program"), dir)
	})
	// generated compares what is generated with what the generators make.
	generated := func(t *testing.T, dir string) {
		t.Helper()
		before := written(t, dir)
		if err := Generate(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		for name, text := range written(t, dir) {
			if before[name] != text {
				t.Errorf("the generators make something else of %s:\n%s", name,
					diff.Diff(before[name], text))
			}
		}
	}
	// another adds a kind, with all that is generated of it.
	another := func(t *testing.T, dir string, run func(...string)) {
		t.Helper()
		if _, err := AddKind(dir, "Task"); err != nil {
			t.Fatal(err)
		}
		if err := Generate(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		run("mod", "tidy", "-diff")
	}
	t.Run("registries by hand", func(t *testing.T) {
		dir, run := project(t, Registry, "v1alpha1", "v1")
		generated(t, dir)
		another(t, dir, run)
		use(t, dir, "apiserver", "")
		makes(t, dir, "generate")
		run("vet", "./...")
		run("test", "-vet=off", "-short", "./...")
		run("build", "-o", "program", ".")
		serves(t, filepath.Join(dir, "program"), dir)
	})
	t.Run("definition and controller", func(t *testing.T) {
		dir, run := project(t, Controller, "v1")
		generated(t, dir)
		another(t, dir, run)
		run("vet", "./...")
		run("test", "-vet=off", "-short", "./...")
	})
}

// makes calls a target of a project's Makefile.
func makes(t *testing.T, dir, target string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", target)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PWD="+dir, "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", target, err, out)
	}
}

// mark gives the types of a project markers, as docs/how-to/kinds.md tells, and a test of them.
func mark(t *testing.T, dir string) {
	t.Helper()
	change := func(name string, changes ...string) {
		t.Helper()
		name = filepath.Join(dir, filepath.FromSlash(name))
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(changes); i += 2 {
			if !strings.Contains(string(source), changes[i]) {
				t.Fatalf("%s has no %q", name, changes[i])
			}
		}
		text := strings.NewReplacer(changes...).Replace(string(source))
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	change("api/v1/doc.go", "// +groupName",
		"// +k8s:validation-gen=TypesWithField=TypeMeta\n// +groupName")
	types, err := os.ReadFile("testdata/pipeline.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"Pipeline", "Task"} {
		name := filepath.Join(dir, "api", "v1", strings.ToLower(kind)+".go")
		text := strings.ReplaceAll(string(types), "Pipeline", kind)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	change("api/api.go", "import \"github.com/rowkeeper/rowkeeper/pkg/kinds\"", `import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"

	"ci.example.com/my-api/api/v1"
)`, "\tKinds: ", "\tGenerated: runtime.SchemeBuilder{v1.RegisterValidations},\n\tKinds: ")
	use(t, dir, "api", strings.Repeat("x", 21))
}

// use gives a project a test that uses its clients: objects with a title that is wrong are refused.
func use(t *testing.T, dir, tests, wrong string) {
	t.Helper()
	if err := (Files{tests + "/client_test.go": `package ` + tests + `

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rowkeeper/rowkeeper/pkg/testkit"

	"ci.example.com/my-api/api/v1"
	"ci.example.com/my-api/client/clientset"
	"ci.example.com/my-api/client/informers/externalversions"
)

func TestClient(t *testing.T) {
	ctx, config := t.Context(), start(t, testkit.Memory).Config
	clients, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	task := &v1.Task{}
	task.Name, task.Spec.Title = "one", "` + wrong + `"
	_, err = clients.CiV1().Tasks("default").Create(ctx, task, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("a title that is wrong: %v", err)
	}
	task.Spec.Title = "One"
	_, err = clients.CiV1().Tasks("default").Create(ctx, task, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := clients.CiV1().Tasks("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(tasks.Items) != 1 {
		t.Errorf("the tasks are %v, %v", tasks, err)
	}
	pipelines, err := clients.CiV1alpha1().Pipelines("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(pipelines.Items) != 0 {
		t.Errorf("the pipelines are %v, %v", pipelines, err)
	}
	factory := externalversions.NewSharedInformerFactory(clients, 0)
	lister := factory.Ci().V1().Tasks().Lister()
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	if got, err := lister.Tasks("default").Get("one"); err != nil || got.Spec.Title != "One" {
		t.Errorf("the lister has %v, %v", got, err)
	}
}
`}).Write(dir); err != nil {
		t.Fatal(err)
	}
}

// serves gives a program the arguments of its Deployment. It knows them all, and complains about
// one thing only: what a pod mounts is not here.
func serves(t *testing.T, program, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "deploy", "base", "server", "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &deployment); err != nil {
		t.Fatal(err)
	}
	args := deployment.Spec.Template.Spec.Containers[0].Args
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err == nil || len(lines) != 1 || !strings.Contains(lines[0], "/etc/my-api/") ||
		!strings.Contains(lines[0], "no such file") {
		t.Errorf("the program with %v: %v\n%s", args, err, out)
	}
}
