// Package versions compares the versions that the modules of this repository require.
package versions

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// different are the modules that have another Kubernetes, with the reason.
var different = map[string]string{
	"hack/bench/peers/kine":            "kine is measured as its authors build it",
	"hack/compat/controllers":          "other people's controllers are built as their authors do",
	"hack/compat/controllers/programs": "the same",
	"hack/compat/otherversions":        "it is there for controllers that are older",
	"hack/compat/scaffold":             "kubebuilder is built as its authors do",
}

// alone are the modules that may link other versions than the program, with the reason.
var alone = map[string]string{
	"hack/compat/backends": "it is compiled each night, with other people's programs",
}

// module is a part of what "go mod edit -json" prints.
type module struct {
	dir     string
	Require []struct{ Path, Version string }
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
}

// required are the versions that a module requires, with those that replace them.
func (m module) required() map[string]string {
	versions := map[string]string{}
	for _, r := range m.Require {
		versions[r.Path] = r.Version
	}
	for _, r := range m.Replace {
		if _, ok := versions[r.Old.Path]; ok && r.Old.Path == r.New.Path {
			versions[r.Old.Path] = r.New.Version
		}
	}
	return versions
}

// modules reads all go.mod files.
func modules(t *testing.T, root string) []module {
	t.Helper()
	var all []module
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == filepath.Join(root, "bin") || d.Name() == "node_modules" ||
			strings.HasPrefix(d.Name(), ".") && path != root):
			return filepath.SkipDir
		case d.Name() != "go.mod":
			return nil
		}
		out, err := run(t, root, "go", "mod", "edit", "-json", path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		m := module{dir: filepath.ToSlash(dir)}
		all = append(all, m)
		return json.Unmarshal(out, &all[len(all)-1])
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// run runs a command in the workspace.
func run(t *testing.T, dir, name string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "GOWORK="), os.Stderr
	return cmd.Output()
}

var staging = regexp.MustCompile(`^(k8s\.io/[a-z-]+ v0\.[1-9]\d*\.|k8s\.io/kubernetes v1\.)`)

// All modules have one version of Kubernetes: "make kubernetes" raises them together.
func TestKubernetes(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	all := modules(t, root)
	var version string
	for _, m := range all {
		if m.dir == "." {
			version = m.required()["k8s.io/apiserver"]
		}
	}
	minor, ok := strings.CutPrefix(version, "v0.")
	if !ok {
		t.Fatalf("the library requires k8s.io/apiserver %q", version)
	}
	for _, m := range all {
		differs := false
		for path, has := range m.required() {
			if !staging.MatchString(path+" "+has) || has == version ||
				path == "k8s.io/kubernetes" && has == "v1."+minor {
				continue
			}
			if differs = true; different[m.dir] == "" {
				t.Errorf("%s requires %s %s, and the library is at %s: make kubernetes "+
					"VERSION=v1.%s raises all together", m.dir, path, has, version, minor)
			}
		}
		if !differs && different[m.dir] != "" {
			t.Errorf("%s has the version of the others, and is named as different", m.dir)
		}
	}
}

// Go compiles a package once if everything that it is compiled with has one version. So modules
// beside the program require what the program links in the program's version: else CI compiles most
// of Kubernetes once more for them.
func TestCompiledOnce(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	out, err := run(t, root, "go", "list", "-deps", "-f",
		"{{with .Module}}{{.Path}} {{.Version}}{{end}}", "./cmd/rowkeeper")
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]string{}
	for line := range bytes.Lines(out) {
		if path, version, ok := strings.Cut(strings.TrimSpace(string(line)), " "); ok {
			linked[path] = version
		}
	}
	if linked["k8s.io/apiserver"] == "" {
		t.Fatalf("the program links\n%s", out)
	}
	for _, m := range modules(t, root) {
		versions := m.required()
		if versions["k8s.io/apimachinery"] == "" {
			continue
		}
		differs := false
		for path, version := range linked {
			if strings.HasPrefix(path, "github.com/rowkeeper/") {
				continue
			}
			if has := versions[path]; has != "" && has != version {
				if differs = true; different[m.dir]+alone[m.dir] == "" {
					t.Errorf("%s requires %s %s, and the program links %s: \"go get\" it there, "+
						"or replace it", m.dir, path, has, version)
				}
			}
		}
		if !differs && alone[m.dir] != "" {
			t.Errorf("%s has the versions of the program, and is named as alone", m.dir)
		}
	}
}
