package keep

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestModules: all modules can be found, as by who requires this one, and the modules of Kubernetes
// belong to one release.
func TestModules(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Path}} {{.Version}}", "all")
	list.Env = append(os.Environ(), "GOWORK=off")
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", list, err, out)
	}
	versions := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		versions[path] = version
	}
	release, ok := strings.CutPrefix(versions["k8s.io/kubernetes"], "v1.")
	if !ok {
		t.Fatalf("k8s.io/kubernetes is not among the modules:\n%s", out)
	}
	published, err := os.ReadFile("keep.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for path, version := range versions {
		if !strings.HasPrefix(path, "k8s.io/") || path == "k8s.io/kubernetes" ||
			!strings.Contains(string(published), `"`+path+`/`) &&
				!strings.Contains(string(published), `"`+path+`"`) {
			continue
		}
		found++
		if version != "v0."+release {
			t.Errorf("%s is required at %s, and k8s.io/kubernetes at v1.%s", path, version, release)
		}
	}
	if imports := strings.Count(string(published), "\t_ \"") - 1; found != imports {
		t.Errorf("%d modules of %d packages were found", found, imports)
	}
}
