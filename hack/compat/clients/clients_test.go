package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/compat/internal/frontend"
)

// need skips a test without a program of a package.
func need(t *testing.T, debian string, has ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds the program, and takes its time")
	}
	out, err := exec.Command(has[0], has[1:]...).CombinedOutput()
	if err == nil {
		return
	}
	text := fmt.Sprintf("the client is not installed: apt-get install %s (%v %s)", debian, err, out)
	if os.Getenv("ROWKEEPER_TEST_CLIENTS") == "require" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// run runs a client, which has a minute.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// python is the one that Debian's packages are for.
const python = "/usr/bin/python3"

// TestPython: the libraries read, write, compare, watch, lock and keep leases alive, one by the
// gateway and the other by gRPC.
func TestPython(t *testing.T) {
	for _, library := range []string{"etcd3gw", "etcd3"} {
		t.Run(library, func(t *testing.T) {
			need(t, "python3-"+library, python, "-c", "import "+library)
			host, port, _ := strings.Cut(frontend.Start(t).Address, ":")
			t.Log(run(t, python, "testdata/use_"+library+".py", host, port))
		})
	}
}

// TestEtcdctl: etcdctl reads, writes, compares, watches, locks and tells of the server. Version 3.4
// is Debian's, and 3.7 that of the module of etcd's tests.
func TestEtcdctl(t *testing.T) {
	t.Run("3.4", func(t *testing.T) {
		need(t, "etcd-client", "etcdctl", "version")
		if out := run(t, "etcdctl", "version"); !strings.Contains(out, "etcdctl version: 3.4.") {
			t.Skipf("etcdctl is not Debian's: %s", out)
		}
		useEtcdctl(t, "etcdctl")
	})
	t.Run("3.7", func(t *testing.T) {
		if testing.Short() {
			t.Skip("it builds two programs")
		}
		program, err := filepath.Abs("../../../bin/compat/clients/etcdctl")
		if err != nil {
			t.Fatal(err)
		}
		run(t, "go", "build", "-C", "../etcdtests", "-o", program, "go.etcd.io/etcd/etcdctl/v3")
		if out := run(t, program, "version"); !strings.Contains(out, "etcdctl version: 3.7.") {
			t.Errorf("which etcdctl is it? %s", out)
		}
		useEtcdctl(t, program)
	})
}

func useEtcdctl(t *testing.T, program string) {
	t.Helper()
	f := frontend.Start(t)
	t.Setenv("ETCDCTL_API", "3")
	for _, step := range []struct{ args, want string }{
		{"put k v", "OK"},
		{"get k", "k\nv"},
		{"put k w --prev-kv", "OK\nk\nv"},
		{"get k --rev 2 --print-value-only", "v"},
		{"watch k --rev 2", "PUT\nk\nv"},
		{"del k --prev-kv", "1\nk\nw"},
		{"lease grant 60", "granted with TTL(60s)"},
		{"lock l echo locked", "locked"},
		{"member list", "started, rowkeeper"},
		{"endpoint health", "is healthy"},
		{"endpoint status", "3.7."},
		{"defrag", "Finished defragmenting"},
		{"compaction 3", "compacted revision 3"},
	} {
		args := append([]string{"--endpoints", f.Address}, strings.Fields(step.args)...)
		if strings.HasPrefix(step.args, "watch") {
			args = append(args, "--", "sh", "-c", `printf '%s\n%s\n%s\n' "$ETCD_WATCH_EVENT_TYPE" `+
				`k v; kill $PPID`)
			if out, _ := exec.Command(program, args...).CombinedOutput(); !strings.Contains(string(out),
				"PUT\nk\nv") {
				t.Errorf("%s: %s", step.args, out)
			}
			continue
		}
		if out := run(t, program, args...); !strings.Contains(out, step.want) {
			t.Errorf("%s: %s", step.args, out)
		}
	}
}

// npmEnv lets a test install packages from npm's registry.
const npmEnv = "ROWKEEPER_TEST_NPM"

// TestJavaScript: the library etcd3 reads, writes, compares, watches, locks, elects, and keeps
// leases alive.
func TestJavaScript(t *testing.T) {
	if os.Getenv(npmEnv) == "" {
		t.Skipf("it installs packages from npm's registry: set %s", npmEnv)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/javascript")); err != nil {
		t.Fatal(err)
	}
	run(t, "npm", "--prefix", dir, "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	t.Log(run(t, "node", filepath.Join(dir, "use_etcd3.js"), "http://"+frontend.Start(t).Address))
}
