// Package release tests what users get: the module as "go install" takes it from a module proxy,
// and a project that needs nothing but that.
package release

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
	path    = "github.com/rowkeeper/rowkeeper"
	version = "v0.1.0"
)

// TestInstall installs the program from a module proxy that is made of files, writes a project with
// it, and runs the project's tests. No clone is named.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	// What was downloaded was compared with the checksums of this clone, so nobody is asked for
	// them. Paths are trimmed as in the image's build, so that most of it is in Go's cache.
	env := append(os.Environ(), "GOPROXY="+fileURL(proxy(t))+","+fileURL(downloaded(t)),
		"GOMODCACHE="+filepath.Join(dir, "modules"), "GOBIN="+bin, "GONOSUMDB=*",
		"GOFLAGS=-modcacherw -trimpath", "GOWORK=off", "CGO_ENABLED=0",
		"PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	in := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, env
		if cmd.Err != nil { // the lookup was done with this process's PATH
			cmd.Path, cmd.Err = filepath.Join(bin, name), nil
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	in(dir, "go", "install", path+"/cmd/rowkeeper@"+version)
	if out := in(dir, "rowkeeper", "version"); !strings.HasPrefix(out, "rowkeeper "+version+" ") {
		t.Errorf("rowkeeper version says %s", out)
	}
	in(dir, "rowkeeper", "init", "my-api", "--group", "ci.example.com", "--kind", "Pipeline",
		"--versions", "v1alpha1,v1")
	project := filepath.Join(dir, "my-api")
	mod, err := os.ReadFile(filepath.Join(project, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), path+" "+version) || strings.Contains(string(mod), "replace") {
		t.Errorf("the project's module is %s", mod)
	}
	in(project, "go", "mod", "tidy")
	// PostgreSQL's image would come from a registry.
	in(project, "go", "test", "-skip", "/PostgreSQL", "./...")
}

// proxy makes a module proxy of files that has the modules of a release, and returns its directory.
func proxy(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	// What was built, and what git keeps, is not of the module.
	source := t.TempDir()
	copied := exec.Command("sh", "-c", `tar -C "$1" --exclude=./bin --exclude=./.git `+
		`--exclude=./.rowkeeper -cf - . | tar -C "$2" -xf -`, "sh", root, source)
	if out, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	for _, nested := range []string{"", "/pkg/testkit/containers", "/pkg/testkit/process"} {
		publish(t, dir, path+nested, filepath.Join(source, nested))
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
	archive, err := os.Create(filepath.Join(versions, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	if err := zip.CreateFromDir(archive, module.Version{Path: path, Version: version},
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
	info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Now().UTC()})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"list": []byte(version + "\n"),
		version + ".mod": mod, version + ".info": info} {
		if err := os.WriteFile(filepath.Join(versions, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// downloaded is the directory of what Go has downloaded, which has the form of a proxy. It has all
// that the module needs, since the module was built here.
func downloaded(t *testing.T) string {
	t.Helper()
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
