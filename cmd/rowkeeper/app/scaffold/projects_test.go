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

// TestProjects compiles a project of each variant, vets it and runs its tests on SQLite. What is
// generated in it is what the generators make of its types. The programs are given the arguments of
// their Deployment, and one project with two versions is given another kind.
func TestProjects(t *testing.T) {
	if testing.Short() {
		t.Skip("it links projects, for minutes")
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
		run("vet", "./...")
		run("test", "-vet=off", "-short", "./...")
		run("build", "-o", "program", ".")
		serves(t, filepath.Join(dir, "program"), dir)
	})
	// generated compares what is generated with what the generators make.
	generated := func(t *testing.T, dir string, run func(...string)) {
		t.Helper()
		before := written(t, dir)
		run("generate", "./...")
		for name, text := range written(t, dir) {
			if before[name] != text {
				t.Errorf("the generators make something else of %s:\n%s", name,
					diff.Diff(before[name], text))
			}
		}
	}
	t.Run("registries by hand", func(t *testing.T) {
		dir, run := project(t, Registry, "v1alpha1", "v1")
		generated(t, dir, run)
		run("vet", "./...")
		run("test", "-vet=off", "-short", "./...")
		run("build", "-o", "program", ".")
		serves(t, filepath.Join(dir, "program"), dir)
	})
	t.Run("definition and controller", func(t *testing.T) {
		dir, run := project(t, Controller, "v1")
		generated(t, dir, run)
		run("vet", "./...")
		run("test", "-vet=off", "-short", "./...")
	})
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
