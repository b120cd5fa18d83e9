package kubernetes

import (
	"bufio"
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
)

// testEtcdctl: etcd's own program for the command line does the same as on etcd. Commands about
// etcd's files, members and users are refused, and the error says what to do instead.
func (p *plane) testEtcdctl(t *testing.T, kind, dir string) {
	pki := filepath.Join(dir, "pki", "etcd-")
	command := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), filepath.Join(*bin, "etcdctl"), append(args,
			"--endpoints="+p.Stores()[0], "--cacert="+pki+"ca.crt", "--cert="+pki+"client.crt",
			"--key="+pki+"client.key")...)
	}
	run := func(input string, args ...string) string {
		t.Helper()
		cmd := command(args...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("etcdctl %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	says := func(want, input string, args ...string) {
		t.Helper()
		if out := run(input, args...); out != want {
			t.Errorf("etcdctl %q says %q, want %q", args, out, want)
		}
	}
	has := func(want string, args ...string) []string {
		t.Helper()
		out := run("", args...)
		found := regexp.MustCompile(want).FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("etcdctl %q says %q, which does not match %s", args, out, want)
		}
		return found
	}

	has("is healthy", "endpoint", "health")
	var status []struct {
		Status struct {
			Header struct {
				Revision int64 `json:"revision"`
			} `json:"header"`
			DBSize int64 `json:"dbSize"`
		}
	}
	if err := json.Unmarshal([]byte(run("", "endpoint", "status", "-w", "json")),
		&status); err != nil || len(status) != 1 || status[0].Status.DBSize == 0 {
		t.Fatalf("endpoint status: %+v, %v", status, err)
	}
	revision := status[0].Status.Header.Revision
	says("", "", "alarm", "list")
	has("started", "member", "list")

	watching := command("watch", "ctl/", "--prefix", "--rev", strconv.FormatInt(revision+1, 10))
	events := must[io.ReadCloser](t)(watching.StdoutPipe())
	if err := watching.Start(); err != nil {
		t.Fatal(err)
	}
	says("OK\n", "", "put", "ctl/a", "1")
	says("1\n", "", "get", "ctl/a", "--print-value-only")
	says("SUCCESS\n\nOK\n\nctl/a\n2\n", "mod(\"ctl/a\") > \"0\"\n\nput ctl/a 2\nget ctl/a\n\n\n", "txn")
	says("FAILURE\n\nctl/a\n2\n", "value(\"ctl/a\") = \"1\"\n\nput ctl/a 3\n\nget ctl/a\n\n", "txn")

	lease := has(`^lease ([0-9a-f]+) granted with TTL\(600s\)`, "lease", "grant", "600")[1]
	says("OK\n", "", "put", "ctl/b", "x", "--lease="+lease)
	has(`attached keys\(\[ctl/b\]\)`, "lease", "timetolive", lease, "--keys")
	has(lease, "lease", "list")
	has(`keepalived with TTL\(600\)`, "lease", "keep-alive", "--once", lease)
	says("ctl/a\n\nctl/b\n\n", "", "get", "ctl/", "--prefix", "--keys-only")
	says("lease "+lease+" revoked\n", "", "lease", "revoke", lease)
	says("", "", "get", "ctl/b")
	says("held\n", "", "lock", "ctl/lock", "echo", "held")
	says("1\n", "", "del", "ctl/a")

	want := []string{"PUT", "ctl/a", "1", "PUT", "ctl/a", "2", "PUT", "ctl/b", "x", "DELETE", "ctl/b", ""}
	lines := bufio.NewScanner(events)
	for i, line := range want {
		if !lines.Scan() || lines.Text() != line {
			t.Errorf("line %d of the watch is %q, want %q: %v", i, lines.Text(), line, lines.Err())
			break
		}
	}
	if err := watching.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = watching.Wait() // it was killed

	says("compacted revision "+strconv.FormatInt(revision, 10)+"\n", "", "compaction",
		strconv.FormatInt(revision, 10))
	if out, err := command("get", "ctl/a", "--rev", "1").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "required revision has been compacted") {
		t.Errorf("a revision that was compacted: %s, %v", out, err)
	}
	if kind == cluster.Etcd {
		return
	}
	// The database gives back its space by itself.
	if out, err := command("defrag").CombinedOutput(); err != nil {
		t.Errorf("etcdctl defrag: %s, %v", out, err)
	}
	for instead, args := range map[string][]string{
		"rowkeeper etcd export": {"snapshot", "save", filepath.Join(t.TempDir(), "s.db")},
		"rowkeeper etcd":        {"member", "add", "b", "--peer-urls=http://127.0.0.1:1"},
		"give clients certif":   {"user", "list"},
	} {
		if out, err := command(args...).CombinedOutput(); err == nil ||
			!strings.Contains(string(out), instead) {
			t.Errorf("etcdctl %q says %s, %v, and nothing of %q", args, out, err, instead)
		}
	}
}
