package clients

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// rowkeeper is the program.
var rowkeeper string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "clients-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		rowkeeper = filepath.Join(dir, "rowkeeper")
		return m.Run()
	}())
}

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

// frontEnd is a server on a new SQLite file.
type frontEnd struct {
	*programs.Program
	t       *testing.T
	address string
}

func startFrontEnd(t *testing.T) *frontEnd {
	t.Helper()
	if _, err := os.Stat(rowkeeper); err != nil {
		out, err := exec.Command("go", "build", "-C", "../../..", "-o", rowkeeper,
			"./cmd/rowkeeper").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	f := &frontEnd{t: t, address: address(t), Program: &programs.Program{Dir: t.TempDir(),
		Signal: syscall.SIGTERM}}
	f.Command = []string{rowkeeper, "etcd", "--database",
		"sqlite://" + filepath.Join(f.Dir, "state.db"), "--listen-client-urls", "http://" + f.address}
	f.start()
	t.Cleanup(func() {
		if err := f.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the front end: %s", f.Log())
		}
	})
	return f
}

// start starts the server, and waits until it answers.
func (f *frontEnd) start() {
	f.t.Helper()
	err := f.Start()
	if err == nil {
		err = f.Await(f.t.Context(), func(ctx context.Context) error {
			return get(ctx, "http://"+f.address+"/readyz")
		})
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func address(t *testing.T) string {
	t.Helper()
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", port)
}

func get(ctx context.Context, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); answer.StatusCode != http.StatusOK || err != nil {
		return fmt.Errorf("%s: %s %w", url, answer.Status, err)
	}
	return nil
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
			host, port, _ := strings.Cut(startFrontEnd(t).address, ":")
			t.Log(run(t, python, "testdata/use_"+library+".py", host, port))
		})
	}
}

// TestEtcdctl: etcdctl 3.4 reads, writes, compares, watches, locks and tells of the server.
func TestEtcdctl(t *testing.T) {
	need(t, "etcd-client", "etcdctl", "version")
	if out := run(t, "etcdctl", "version"); !strings.Contains(out, "etcdctl version: 3.4.") {
		t.Skipf("etcdctl is not Debian's: %s", out)
	}
	f := startFrontEnd(t)
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
		args := append([]string{"--endpoints", f.address}, strings.Fields(step.args)...)
		if strings.HasPrefix(step.args, "watch") {
			args = append(args, "--", "sh", "-c", `printf '%s\n%s\n%s\n' "$ETCD_WATCH_EVENT_TYPE" `+
				`k v; kill $PPID`)
			cmd := exec.Command("etcdctl", args...)
			cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
			if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), "PUT\nk\nv") {
				t.Errorf("%s: %s", step.args, out)
			}
			continue
		}
		t.Setenv("ETCDCTL_API", "3")
		if out := run(t, "etcdctl", args...); !strings.Contains(out, step.want) {
			t.Errorf("%s: %s", step.args, out)
		}
	}
}
