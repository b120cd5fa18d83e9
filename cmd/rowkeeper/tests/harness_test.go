package tests

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

var (
	pipelines = civ1.SchemeGroupVersion.WithResource("pipelines")

	// The programs, built by TestMain below the module's bin, where go build leaves them alone if
	// they are up to date.
	rowkeeperProgram, kubectlProgram, controllerProgram string
)

func TestMain(m *testing.M) {
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	stopBrowser()
	for _, server := range stopDatabases {
		if err := server.Close(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

func build() error {
	root, err := filepath.Abs("../../..")
	if err != nil {
		return err
	}
	bin := filepath.Join(root, "bin", "e2e")
	rowkeeperProgram, kubectlProgram = filepath.Join(bin, "rowkeeper"), filepath.Join(bin, "kubectl")
	controllerProgram = filepath.Join(bin, "controller")
	for _, build := range []struct {
		workspace string // the program is in it, other modules are not
		args      []string
	}{
		{"off", []string{"-C", "pkg/example/controller", "-o", controllerProgram, "."}},
		{"", []string{"-o", rowkeeperProgram, "./cmd/rowkeeper"}},
		// Without a version, kubectl cannot tell whether it fits the server.
		{"off", []string{"-C", "hack/tools/kubectl", "-ldflags",
			"-X k8s.io/component-base/version.gitVersion=v1.37.2", "-o", kubectlProgram, "."}},
	} {
		cmd := exec.Command("go", append([]string{"build"}, build.args...)...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "GOWORK="+build.workspace)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	return nil
}

// patience is how long anything may take that a test waits for.
const patience = 5 * time.Minute

// eventually waits until ok, looking often.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// output collects what a program writes, and can be read meanwhile.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// server is a running rowkeeper.
type server struct {
	cmd    *exec.Cmd
	dir    string // its working directory, with .rowkeeper in it
	stdout output
	stderr output
	done   chan struct{} // closed when it has exited
}

// launch starts "rowkeeper serve --example" in a directory, on a free port, and leaves the example
// object out. It does not wait.
func launch(t testing.TB, dir string, args ...string) *server {
	t.Helper()
	// A server was here before.
	data := filepath.Join(dir, ".rowkeeper")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if f, err := os.OpenFile(filepath.Join(data, "kubeconfig"), os.O_CREATE, 0o600); err != nil {
		t.Fatal(err)
	} else if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return launchNew(t, dir, append([]string{"--example"}, args...)...)
}

// launchNew starts "rowkeeper serve" in a directory, on a free port. It does not wait.
func launchNew(t testing.TB, dir string, args ...string) *server {
	t.Helper()
	s := &server{dir: dir, done: make(chan struct{})}
	s.cmd = exec.Command(rowkeeperProgram, append([]string{"serve", "--secure-port=0"}, args...)...)
	s.cmd.Dir = dir
	s.cmd.Stdout, s.cmd.Stderr = &s.stdout, &s.stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.cmd.Wait() // its exit code is in ProcessState
		close(s.done)
	}()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		<-s.done
		if t.Failed() {
			t.Logf("the server wrote:\n%s%s", s.stdout.String(), s.stderr.String())
		}
	})
	return s
}

// start starts a server and waits until it serves.
func start(t testing.TB, dir string, args ...string) *server {
	t.Helper()
	return launch(t, dir, args...).announced(t)
}

// announced waits until the server serves.
func (s *server) announced(t testing.TB) *server {
	t.Helper()
	eventually(t, "the server announces itself", func() bool {
		select {
		case <-s.done:
			t.Fatalf("the server exited with %d:\n%s", s.cmd.ProcessState.ExitCode(),
				s.stderr.String())
		default:
		}
		return strings.Contains(s.stdout.String(), "Try: ")
	})
	return s
}

// exit waits for the server to end and returns its exit code.
func (s *server) exit(t testing.TB) int {
	t.Helper()
	select {
	case <-s.done:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatal("the server does not exit")
		return 0
	}
}

// signal sends a signal and returns the exit code.
func (s *server) signal(t testing.TB, signal syscall.Signal) int {
	t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	return s.exit(t)
}

func (s *server) kubeconfig() string { return filepath.Join(s.dir, ".rowkeeper", "kubeconfig") }

func (s *server) config(t testing.TB) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = -1, 0
	return config
}

func (s *server) dynamic(t testing.TB) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// result is what a program said.
type result struct {
	stdout, stderr string
	code           int
}

func run(t testing.TB, dir, stdin string, env []string, program string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %s: %v", program, strings.Join(args, " "), err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// kubectl runs kubectl as the administrator, with the server's directory as home.
func (s *server) kubectl(t testing.TB, stdin string, args ...string) result {
	t.Helper()
	return run(t, s.dir, stdin, s.kubectlEnv(), kubectlProgram, args...)
}

func (s *server) kubectlEnv() []string {
	return []string{"HOME=" + s.dir, "KUBECONFIG=" + s.kubeconfig()}
}

// ok runs kubectl, which has to succeed, and returns its output.
func (s *server) ok(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	r := s.kubectl(t, stdin, args...)
	if r.code != 0 {
		t.Fatalf("kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), r.code,
			r.stdout, r.stderr)
	}
	return r.stdout
}

// refused runs kubectl, which has to fail and say something.
func (s *server) refused(t testing.TB, stdin, want string, args ...string) {
	t.Helper()
	r := s.kubectl(t, stdin, args...)
	if r.code == 0 || !strings.Contains(r.stderr, want) {
		t.Errorf("kubectl %s: exit code %d, want a failure with %q:\n%s%s", strings.Join(args, " "),
			r.code, want, r.stdout, r.stderr)
	}
}

// has fails the test if a text lacks a part.
func has(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%.2000s", part, text)
		}
	}
}

// background is a kubectl that goes on, such as a watch.
type background struct {
	lines <-chan string
	stop  func()
}

// kubectlBackground starts kubectl and returns the lines that it prints, as it prints them.
func (s *server) kubectlBackground(t testing.TB, args ...string) background {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, kubectlProgram, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.kubectlEnv()...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 10000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(lines)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			lines <- in.Text()
		}
		io.Copy(io.Discard, stdout)
		cmd.Wait() // it is killed
	}()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return background{lines, stop}
}

// next waits for a line that has all the parts, and passes over others.
func (b background) next(t testing.TB, parts ...string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line, ok := <-b.lines:
			if !ok {
				t.Fatalf("the output ended before a line with %q", parts)
			}
			found := true
			for _, part := range parts {
				found = found && strings.Contains(line, part)
			}
			if found {
				return
			}
		case <-deadline:
			t.Fatalf("no line with %q", parts)
		}
	}
}

// get reads a path as the administrator, in a media type.
func (s *server) get(t testing.TB, path, accept string) string {
	t.Helper()
	config := s.config(t)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
