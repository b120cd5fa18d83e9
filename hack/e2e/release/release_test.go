// Package release tests what users get: the module as "go install" takes it from a module proxy,
// and a project that needs nothing but that.
package release

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/released"
)

// TestInstall goes the way of a new user, who has nothing but the release: it installs the program
// from a module proxy that is made of files, writes a project with it, runs the project's tests,
// and builds its image where Docker is. No clone is named. Then the project serves objects. It is
// given a second version, as its README tells, serves the objects in both, and is rolled back.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	env := released.Env(t, "../../..", dir)
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
	in(dir, "go", "install", released.Program)
	if out := in(dir, "rowkeeper", "version"); !strings.HasPrefix(out, "rowkeeper "+released.Version+" ") {
		t.Errorf("rowkeeper version says %s", out)
	}
	in(dir, "rowkeeper", "init", "my-api", "--group", "ci.example.com", "--kind", "Pipeline",
		"--versions", "v1")
	project := filepath.Join(dir, "my-api")
	mod, err := os.ReadFile(filepath.Join(project, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), released.Path+" "+released.Version) || strings.Contains(string(mod), "replace") {
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
		const image = "e2e-install:" + released.Version // an image my-api may be there
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

	// The types of the second version are the ones that init writes for one.
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
