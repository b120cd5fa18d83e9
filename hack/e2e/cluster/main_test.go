package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

var bin = flag.String("bin", "../../../bin/cluster", "directory of what hack/e2e/build.sh builds")

// session is one run of the program.
type session struct {
	t    *testing.T
	stop context.CancelFunc
	done chan error
	said *bytes.Buffer
	// kubeconfig is the one that it names.
	kubeconfig string
}

func start(t *testing.T, dir string, port int) *session {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	s := &session{t: t, stop: stop, done: make(chan error, 1), said: &bytes.Buffer{}}
	out, in := io.Pipe()
	go func() {
		s.done <- run(ctx, []string{"-bin", *bin, "-dir", dir, "-port", strconv.Itoa(port)}, in)
		in.Close()
	}()
	// All that it says before it waits, and no more than it says.
	for !strings.HasSuffix(s.said.String(), "same objects.\n") {
		if _, err := io.CopyN(s.said, out, 1); err != nil {
			t.Fatalf("it ended (%v) after %s", <-s.done, s.said)
		}
	}
	go io.Copy(io.Discard, out)
	_, after, _ := strings.Cut(s.said.String(), "KUBECONFIG=")
	s.kubeconfig, _, _ = strings.Cut(after, "\n")
	t.Cleanup(func() { s.end() })
	return s
}

// end stops it as Ctrl-C does. It may be called again.
func (s *session) end() {
	s.t.Helper()
	if s.stop == nil {
		return
	}
	s.stop()
	s.stop = nil
	if err := <-s.done; err != nil {
		s.t.Errorf("it did not end well: %v", err)
	}
}

func (s *session) try(args ...string) (string, error) {
	cmd := exec.CommandContext(s.t.Context(), filepath.Join(*bin, "kubectl"),
		append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *session) kubectl(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// await calls kubectl until it answers as wanted.
func (s *session) await(want string, args ...string) {
	s.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(2 * time.Minute); ; {
		out, err := s.try(args...)
		if err == nil && strings.TrimSpace(out) == want {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			s.t.Fatalf("kubectl %s: %v: %s, want %s", strings.Join(args, " "), err, out, want)
		}
	}
}

// TestCluster starts the program, uses it as a person would, stops it as Ctrl-C does, and starts it
// again: objects, service account tokens, rights and the kubeconfig are what they were, and the
// controllers go on.
func TestCluster(t *testing.T) {
	dir := t.TempDir()
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, dir, port)
	t.Logf("it says:\n%s", s.said)
	s.kubectl("create", "deployment", "web", "--image=nginx", "--replicas=3")
	s.await("3", "get", "deployment", "web", "-o", "jsonpath={.status.replicas}")
	s.kubectl("create", "job", "once", "--image=busybox")
	s.await("1", "get", "job", "once", "-o", "jsonpath={.status.active}")
	// A service account may read what its role says, and nothing else.
	s.kubectl("create", "serviceaccount", "reader")
	s.kubectl("create", "role", "pods", "--verb=list", "--resource=pods")
	s.kubectl("create", "rolebinding", "pods", "--role=pods", "--serviceaccount=default:reader")
	token := strings.TrimSpace(s.kubectl("create", "token", "reader", "--duration=24h"))
	bearer := func(what string) (string, error) {
		return s.try("--kubeconfig=/dev/null", fmt.Sprintf("--server=https://127.0.0.1:%d", port),
			"--certificate-authority="+filepath.Join(dir, "pki", "ca.crt"), "--token="+token, "get", what)
	}
	before := func() string {
		return s.kubectl("get", "deployments,replicasets,jobs,pods", "-o",
			`jsonpath={range .items[*]}{.metadata.uid} {end}`)
	}
	check := func() {
		t.Helper()
		if out, err := bearer("pods"); err != nil {
			t.Errorf("the token's pods: %v: %s", err, out)
		}
		if out, err := bearer("secrets"); err == nil || !strings.Contains(out, "forbidden") {
			t.Errorf("the token's secrets: %v: %s", err, out)
		}
	}
	check()
	uids := before()
	s.end()

	again := start(t, dir, port)
	if again.kubeconfig != s.kubeconfig {
		t.Errorf("the kubeconfig is %s, and was %s", again.kubeconfig, s.kubeconfig)
	}
	s = again
	if after := before(); after != uids {
		t.Errorf("after the restart there is %s, and was %s", after, uids)
	}
	check()
	s.kubectl("scale", "deployment", "web", "--replicas=5")
	s.await("5", "get", "deployment", "web", "-o", "jsonpath={.status.replicas}")
	// The garbage collector works: what an owner leaves goes.
	s.kubectl("delete", "deployment,job", "--all", "--wait=false")
	s.await("", "get", "replicasets,pods", "-o", "name")
	if out, err := s.try("get", "--raw", "/readyz"); err != nil || out != "ok" {
		t.Errorf("%v: %s", err, out)
	}

	// A second one on the same port is refused, in one sentence.
	err = run(t.Context(), []string{"-bin", *bin, "-dir", t.TempDir(), "-port",
		strconv.Itoa(port)}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("port %d cannot be had", port)) {
		t.Errorf("a second control plane on the port: %v", err)
	}
	var version struct{ ServerVersion struct{ GitVersion string } }
	if err := json.Unmarshal([]byte(s.kubectl("version", "-o", "json")), &version); err != nil ||
		!strings.Contains(s.said.String(), version.ServerVersion.GitVersion) {
		t.Errorf("it serves %+v, and says %s: %v", version, s.said, err)
	}
}
