// Package release tests what users get: the module as "go install" takes it from a module proxy,
// and a project that needs nothing but that.
package release

import (
	"bufio"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const (
	path    = "github.com/rowkeeper/rowkeeper"
	version = "v0.1.0"
)

// TestInstall goes the way of a new user, who has nothing but the release: it installs the program
// from a module proxy that is made of files, writes a project with it, runs the project's tests,
// and builds its image where Docker is. No clone is named. Then the project serves objects. It is
// given a second version, as its README tells, serves the objects in both, and is rolled back.
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
		"--versions", "v1")
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
	if err := exec.Command("docker", "info").Run(); err != nil {
		if slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"), ","), "docker") {
			t.Fatalf("there is no Docker engine, which is required: %v", err)
		}
		t.Logf("the project's image is not built, since there is no Docker engine: %v", err)
	} else {
		const image = "e2e-install:" + version // an image my-api may be there
		in(project, "make", "image", "IMAGE="+image)
		defer in(project, "docker", "image", "rm", image)
		in(project, "docker", "run", "--rm", image, "version")
	}

	kubectl := func(args ...string) string {
		t.Helper()
		return in(project, program(t, "kubectl"), append([]string{"--kubeconfig",
			filepath.Join(project, ".my-api", "kubeconfig")}, args...)...)
	}
	title := func(resource, name, want string) {
		t.Helper()
		if got := kubectl("get", resource, name, "-o", "jsonpath={.spec.title}"); got != want {
			t.Errorf("the title of %s %s is %q, want %q", resource, name, got, want)
		}
	}
	stop := serve(t, project, env)
	kubectl("apply", "-f", "examples")
	title("pipelines", "hello", "Hello")
	stop()

	// The types of the second version are those that init writes for one.
	in(dir, "rowkeeper", "init", filepath.Join("other", "my-api"), "--group", "ci.example.com",
		"--kind", "Pipeline", "--versions", "v1,v2alpha1")
	if err := os.CopyFS(filepath.Join(project, "api", "v2alpha1"),
		os.DirFS(filepath.Join(dir, "other", "my-api", "api", "v2alpha1"))); err != nil {
		t.Fatal(err)
	}
	first := map[string]string{} // what is put back
	change := func(name, old, text string) {
		t.Helper()
		name = filepath.Join(project, name)
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := first[name]; !ok {
			first[name] = string(source)
		}
		changed := strings.Replace(string(source), old, text, 1)
		if changed == string(source) {
			t.Fatalf("%s has no %s", name, old)
		}
		if err := os.WriteFile(name, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	change("api/api.go", `{"v1"}`, `{"v1", "v2alpha1"}`)
	change("api/pipeline.go", "kinds.Kind[v1.Pipeline]{\n", `kinds.Kind[v1.Pipeline]{
	Versions: []kinds.Version[v1.Pipeline]{
		kinds.Converted("v2alpha1", v2alpha1.PipelineToV1, v2alpha1.PipelineFromV1),
	},
`)
	change("api/pipeline.go", "/api/v1\"\n", "/api/v1\"\n\t\"ci.example.com/my-api/api/v2alpha1\"\n")
	stop = serve(t, project, env)
	const newer = "pipelines.v2alpha1.ci.example.com"
	title("pipelines", "hello", "Hello")
	title(newer, "hello", "Hello")
	kubectl("create", "-f", filepath.Join(dir, "other", "my-api", "examples",
		"pipeline-v2alpha1.yaml"))
	kubectl("patch", newer, "hello", "--type", "merge", "-p",
		`{"spec":{"ownerTeam":"another","title":"Changed"}}`)
	stop()

	for name, source := range first {
		if err := os.WriteFile(name, []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stop = serve(t, project, env)
	title("pipelines", "hello", "Changed")
	title("pipelines", "hello-v2alpha1", "Hello")
	if team := kubectl("get", "pipelines", "hello", "-o",
		"jsonpath={.spec.owner.team}"); team != "another" {
		t.Errorf("after the rollback, the team is %q", team)
	}
	kubectl("patch", "pipelines", "hello-v2alpha1", "--type", "merge", "-p",
		`{"spec":{"title":"Mine"}}`)
	title("pipelines", "hello-v2alpha1", "Mine")
	stop()
}

// serve serves a project by make run, and returns when it serves. The function that it returns does
// what Ctrl-C does.
func serve(t *testing.T, project string, env []string) (stop func()) {
	t.Helper()
	cmd := exec.Command("make", "run", "PORT=0")
	cmd.Dir, cmd.Env = project, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	serves, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer reader.Close()
		lines, found := bufio.NewScanner(reader), false
		for lines.Scan() {
			t.Log(lines.Text())
			if !found && strings.HasPrefix(lines.Text(), "my-api serves https://") {
				found = true
				close(serves)
			}
		}
	}()
	interrupt := sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // it may have ended
		<-ended
		_ = cmd.Wait() // make says that it was interrupted
	})
	t.Cleanup(interrupt)
	select {
	case <-serves:
	case <-ended:
		t.Fatal("make run has ended")
	}
	return interrupt
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
// that the module needs, since the module was built here. A project has generators, too.
func downloaded(t *testing.T) string {
	t.Helper()
	generators := exec.Command("go", "mod", "download")
	generators.Dir = "../../codegen/generators"
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
