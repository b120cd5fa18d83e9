// Package released makes the world of a user who has nothing but a release: a module proxy of files
// has Rowkeeper's modules, and no clone is named.
package released

import (
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const (
	// Path and Version are those of the library in the proxy. Its other modules have the same
	// version.
	Path    = "github.com/rowkeeper/rowkeeper"
	Version = "v0.1.0"
	// Program is what "go install" takes.
	Program = Path + "/cmd/rowkeeper@" + Version
)

// Env is the environment of a user of the release that a clone would make. All that Go downloads
// and installs is below a directory.
//
// The downloads were compared with the checksums of the clone, so nobody is asked for them. Paths
// are trimmed as in the image's build, so that most of it is in Go's cache.
func Env(t *testing.T, clone, below string) []string {
	t.Helper()
	clone, err := filepath.Abs(clone)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(below, "bin")
	return append(os.Environ(),
		"GOPROXY="+fileURL(proxy(t, clone))+","+fileURL(downloaded(t, clone)),
		"GOMODCACHE="+filepath.Join(below, "modules"), "GOBIN="+bin, "GONOSUMDB=*",
		"GOFLAGS=-modcacherw -trimpath", "GOWORK=off", "CGO_ENABLED=0",
		"PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// proxy makes a module proxy of files that has the modules of a release, and returns its directory.
func proxy(t *testing.T, clone string) string {
	t.Helper()
	// Build results, and what git keeps, do not belong to the module.
	source := t.TempDir()
	copied := exec.Command("sh", "-c", `tar -C "$1" --exclude=./bin --exclude=./.git `+
		`--exclude=./.rowkeeper -cf - . | tar -C "$2" -xf -`, "sh", clone, source)
	if out, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	// The program and the definitions name the release that they are of.
	for _, nested := range []string{"/cmd/rowkeeper", "/pkg/crds"} {
		edit := exec.Command("go", "mod", "edit", "-require", Path+"@"+Version)
		if nested == "/cmd/rowkeeper" {
			edit.Args = append(edit.Args, "-require", Path+"/pkg/crds@"+Version)
		}
		edit.Dir = filepath.Join(source, nested)
		if out, err := edit.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, nested := range []string{"", "/cmd/rowkeeper", "/pkg/crds", "/pkg/testkit/containers",
		"/pkg/testkit/process"} {
		publish(t, dir, Path+nested, filepath.Join(source, nested))
	}
	return dir
}

// publish adds a module to a proxy.
func publish(t *testing.T, proxy, path, source string) {
	t.Helper()
	versions := filepath.Join(proxy, path, "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		t.Fatal(err)
	}
	archive, err := os.Create(filepath.Join(versions, Version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	if err := zip.CreateFromDir(archive, module.Version{Path: path, Version: Version},
		source); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := json.Marshal(map[string]any{"Version": Version, "Time": time.Now().UTC()})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"list": []byte(Version + "\n"),
		Version + ".mod": mod, Version + ".info": info} {
		if err := os.WriteFile(filepath.Join(versions, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// downloaded is the directory of what Go has downloaded, which has the form of a proxy. It has all
// that the module needs, since the module was built here. A project has generators, too.
func downloaded(t *testing.T, clone string) string {
	t.Helper()
	generators := exec.Command("go", "mod", "download")
	generators.Dir = filepath.Join(clone, "hack", "codegen", "generators")
	if out, err := generators.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command("go", "env", "GOMODCACHE")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "cache", "download")
}

func fileURL(dir string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String()
}
