// Package container tests the container image with a Docker engine: by itself on a volume, and on
// PostgreSQL.
package container

import (
	"bytes"
	"context"
	"crypto/rand"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // this machine may have none either

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/database"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

var binFlag = flag.String("bin", "../../../bin", "directory of what make e2e builds: the "+
	"programs in cluster/, the image in image/")

// image is the name under which the engine has the image, and missing why there is no engine.
var image, missing string

func TestMain(m *testing.M) {
	flag.Parse()
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		missing = fmt.Sprintf("there is no Docker engine, which hack/testbed/docker.sh would "+
			"start: %v: %s", err, out)
		if slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"), ","), "docker") {
			fmt.Fprintln(os.Stderr, "container:", missing)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	file := filepath.Join(*binFlag, "image", "rowkeeper-linux-"+runtime.GOARCH+".tar")
	out, err := exec.Command("docker", "load", "-i", file).CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr,
			"container: docker load -i %s: %v: %s; make image builds the image\n", file, err, out)
		os.Exit(1)
	}
	image = strings.TrimSpace(strings.TrimPrefix(string(out), "Loaded image:"))
	os.Exit(m.Run())
}

// needEngine skips a test where there is no engine. ROWKEEPER_TEST_REQUIRE=docker makes that a
// failure.
func needEngine(t *testing.T) {
	t.Helper()
	if missing != "" {
		t.Skip(missing)
	}
}

// TestPrograms looks at the programs that the image is made of: each is for its processor, and
// needs no library. make e2e builds the one for this machine's processor, make release builds all.
func TestPrograms(t *testing.T) {
	built, err := filepath.Glob(filepath.Join(*binFlag, "image", "linux-*", "rowkeeper"))
	if err != nil {
		t.Fatal(err)
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	own := false
	for _, name := range built {
		arch := strings.TrimPrefix(filepath.Base(filepath.Dir(name)), "linux-")
		own = own || arch == runtime.GOARCH
		program, err := elf.Open(name)
		if err != nil {
			t.Error(err)
			continue
		}
		defer program.Close()
		if program.Machine != machines[arch] {
			t.Errorf("the program for %s is for %s", arch, program.Machine)
		}
		for _, segment := range program.Progs {
			if segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC {
				t.Errorf("the program for %s is linked dynamically", arch)
			}
		}
	}
	if !own {
		t.Errorf("of %v none is for this machine; make image builds it", built)
	}
}

func TestImage(t *testing.T) {
	needEngine(t)
	var inspected []struct {
		OS, Architecture string
		Config           struct {
			User   string
			Labels map[string]string
		}
		RootFS struct{ Layers []string }
	}
	if err := json.Unmarshal([]byte(docker(t, "image", "inspect", image)), &inspected); err != nil {
		t.Fatal(err)
	}
	i := inspected[0]
	if i.OS != "linux" || i.Architecture != runtime.GOARCH || i.Config.User != "65532:65532" ||
		len(i.RootFS.Layers) != 1 {
		t.Errorf("the image is %+v", i)
	}
	_, tag, _ := strings.Cut(image, ":")
	version := i.Config.Labels["org.opencontainers.image.version"]
	// Where the sources are in no repository, nobody knows the commit.
	known := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD").Run() == nil
	if strings.ReplaceAll(version, "+", "-") != tag ||
		known != (i.Config.Labels["org.opencontainers.image.revision"] != "") {
		t.Errorf("the labels of %s are %v", image, i.Config.Labels)
	}
	if out := docker(t, "run", "--rm", image, "version"); !strings.Contains(out, version) {
		t.Errorf("the program is of version %q, the image of version %s", out, version)
	}
}

// TestSQLite keeps the database in a volume, over a crash and an orderly stop.
func TestSQLite(t *testing.T) {
	needEngine(t)
	name := "rowkeeper-" + strings.ToLower(rand.Text())
	docker(t, "volume", "create", name)
	t.Cleanup(func() { cleanup(t, "volume", "rm", name) })
	docker(t, "run", "-d", "--name", name, "--read-only", "--cap-drop=ALL",
		"--security-opt=no-new-privileges", "-v", name+":/var/lib/rowkeeper", "-p",
		"127.0.0.1::8443", "-e", "TZ=Asia/Kolkata", image, "serve", "--example",
		"--bind-address=0.0.0.0", "-v=1")
	remove(t, name)
	session(t, name, func() string {
		return "https://" + strings.TrimSpace(docker(t, "port", name, "8443"))
	})
	testTimeZone(t, name)
}

// testTimeZone looks whether the times in the log are those of the time zone that the environment
// names, of which the image has no file.
func testTimeZone(t *testing.T, name string) {
	t.Helper()
	zone, err := time.LoadLocation("Asia/Kolkata")
	if err != nil {
		t.Fatal(err)
	}
	log, err := exec.Command("docker", "logs", name).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if !strings.HasPrefix(line, "I") || len(line) < 14 {
			continue
		}
		at, err := time.ParseInLocation("20060102 15:04:05",
			time.Now().In(zone).Format("2006")+line[1:14], zone)
		if err == nil {
			if off := time.Since(at).Abs(); off > time.Hour {
				t.Errorf("the log says %q, which is %s off in %s", line[:14],
					off.Round(time.Minute), zone)
			}
			return
		}
	}
	t.Errorf("the log has no line with a time:\n%s", log)
}

// TestPostgres keeps it in PostgreSQL, with the password in a file.
func TestPostgres(t *testing.T) {
	needEngine(t)
	db, err := database.Start(t.Context(), dbserver.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	u.User = url.User(u.User.Username())
	u.RawQuery += "&password_file=/run/password"
	file := filepath.Join(t.TempDir(), "password")
	if err := errors.Join(os.WriteFile(file, []byte(password+"\n"), 0o644),
		os.Chmod(filepath.Dir(file), 0o755)); err != nil {
		t.Fatal(err)
	}
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	name := "rowkeeper-" + strings.ToLower(rand.Text())
	// The network of this machine, where the database is.
	docker(t, "run", "-d", "--name", name, "--network=host", "--cap-drop=ALL",
		"--security-opt=no-new-privileges", "-v", file+":/run/password:ro", image, "serve", "--example",
		fmt.Sprintf("--secure-port=%d", port), "--database="+u.String())
	remove(t, name)
	session(t, name, func() string { return fmt.Sprintf("https://127.0.0.1:%d", port) })
}

// session uses a server in a container, kills it and stops it, and looks whether it has kept
// everything.
func session(t *testing.T, name string, server func() string) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	kubectl := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(*binFlag, "cluster", "kubectl"),
			append([]string{"--kubeconfig", kubeconfig, "--server", server()}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return string(out), err
	}
	ready := func() {
		t.Helper()
		eventually(t, func() error {
			if out, err := exec.Command("docker", "cp",
				name+":/var/lib/rowkeeper/.rowkeeper/kubeconfig",
				kubeconfig).CombinedOutput(); err != nil {
				return fmt.Errorf("copy the kubeconfig: %w: %s", err, out)
			}
			_, err := kubectl("get", "--raw", "/readyz")
			return err
		})
	}
	must := func(want string, args ...string) {
		t.Helper()
		out, err := kubectl(args...)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out, want) {
			t.Errorf("kubectl %s prints %q, want %q", strings.Join(args, " "), out, want)
		}
	}
	ready()
	must("pipeline.ci.rowkeeper.dev/hello ", "apply", "-f", "../../../deploy/examples/hello.yaml")
	docker(t, "kill", name)
	docker(t, "start", name)
	ready()
	must("hello unchanged", "apply", "-f", "../../../deploy/examples/hello.yaml")
	docker(t, "stop", "--time=60", name)
	if code := strings.TrimSpace(docker(t, "inspect", "--format={{.State.ExitCode}}",
		name)); code != "0" {
		t.Errorf("the server exits with %s after SIGTERM", code)
	}
	docker(t, "start", name)
	ready()
	must("pipeline.ci.rowkeeper.dev/hello", "get", "pipelines", "-o", "name")
}

// docker runs the engine's client, and returns what it prints.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "docker", args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, stderr.String())
	}
	return out.String()
}

// remove removes a container at the end, and shows its log if the test has failed.
func remove(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			if out, err := exec.Command("docker", "logs", "--tail=25",
				name).CombinedOutput(); err == nil {
				t.Logf("the container's log ends:\n%s", out)
			}
		}
		cleanup(t, "rm", "-f", name)
	})
}

func cleanup(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
		t.Errorf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// eventually repeats something until it succeeds, and fails the test with its last error if it does
// not in time.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal(err)
		}
	}
}
