package kinds_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/clustertest"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/kubectl"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// runsMain makes this test program the one of ExampleMain.
const runsMain = "KINDS_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runsMain) != "" {
		ExampleMain()
	}
	os.Exit(m.Run())
}

// program is one that runs.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	dir   string
	lines chan string // what it writes, until it ends
	all   strings.Builder
}

// command is the program of ExampleMain with arguments, in a directory.
func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), runsMain+"=1")
	return cmd
}

// run starts the program. It is killed at the end of the test, if it still runs.
func run(t *testing.T, dir string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: command(t, dir, args...), dir: dir, lines: make(chan string, 10_000)}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = writer, writer
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	go func() {
		defer close(p.lines)
		defer reader.Close()
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() { _, _ = p.cmd.Process.Kill(), p.cmd.Wait() })
	return p
}

// after returns the rest of the line that has the words.
func (p *program) after(words string) string {
	p.t.Helper()
	for line := range p.lines {
		fmt.Fprintln(&p.all, line)
		if _, rest, found := strings.Cut(line, words); found {
			return rest
		}
	}
	p.t.Fatalf("the program has ended without saying %q: %v\n%s", words, p.cmd.Wait(),
		p.all.String())
	return ""
}

// stop ends the program as an operator does, and wants it to end well.
func (p *program) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		p.t.Fatal(err)
	}
	for line := range p.lines {
		fmt.Fprintln(&p.all, line)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the program ended with %v\n%s", err, p.all.String())
	}
}

// TestProgram runs the program of ExampleMain, twice on one directory.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	serve := func() (*program, string) {
		p := run(t, dir, "serve", "--secure-port", "0", "--database-ready-timeout", "30s")
		return p, p.after("The kubeconfig is ")
	}
	p, kubeconfig := serve()
	if out, err := kubectl.Run(t, kubeconfig,
		`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"}, "spec": {"url": "https://go.dev"}}`,
		"create", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := command(t, dir, "serve").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "is in use by the server with process id") {
		t.Errorf("a second program on the directory: %v\n%s", err, out)
	}
	p.stop()
	p, kubeconfig = serve()
	if out, err := kubectl.Run(t, kubeconfig, "", "get", "bm"); err != nil ||
		!strings.Contains(out, "NAME AGE\ngo ") {
		t.Errorf("after a restart: %v\n%s", err, out)
	}
	collectsGarbage(t, kubeconfig)
	p.stop()
}

// collectsGarbage deletes the bookmark go, and wants another one to follow, whose owner it is.
func collectsGarbage(t *testing.T, kubeconfig string) {
	t.Helper()
	uid, err := kubectl.Run(t, kubeconfig, "", "get", "bm", "go", "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		t.Fatalf("%v\n%s", err, uid)
	}
	dependent := fmt.Sprintf(`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": `+
		`{"name": "dependent", "ownerReferences": [{"apiVersion": "example.com/v1", "kind": `+
		`"Bookmark", "name": "go", "uid": %q}]}, "spec": {"url": "https://go.dev"}}`, uid)
	for _, do := range []struct {
		stdin string
		args  []string
	}{{dependent, []string{"create", "-f", "-"}}, {"", []string{"delete", "bm", "go"}},
		{"", []string{"wait", "--for=delete", "--timeout=60s", "bm/dependent"}}} {
		if out, err := kubectl.Run(t, kubeconfig, do.stdin, do.args...); err != nil {
			t.Fatalf("kubectl %s: %v\n%s", do.args, err, out)
		}
	}
}

// TestCommands takes the program's objects into another database, by its own commands.
func TestCommands(t *testing.T) {
	dir := t.TempDir()
	first := []string{"--database", "sqlite://" + filepath.Join(dir, "first.db")}
	second := []string{"--database", "sqlite://" + filepath.Join(dir, "second.db")}
	serve := func(database []string) (*program, string) {
		p := run(t, dir, append([]string{"serve", "--secure-port", "0"}, database...)...)
		return p, p.after("The kubeconfig is ")
	}
	do := func(args, database []string, want string) {
		t.Helper()
		if out, err := command(t, dir, append(args, database...)...).CombinedOutput(); err != nil ||
			!strings.Contains(string(out), want) {
			t.Errorf("bookmarks %s: %v\n%s\nwant %q", args, err, out, want)
		}
	}
	p, kubeconfig := serve(first)
	if out, err := kubectl.Run(t, kubeconfig, `{"apiVersion": "example.com/v1", "kind": "Bookmark", `+
		`"metadata": {"name": "go"}, "spec": {"url": "https://go.dev"}}`,
		"create", "-n", "default", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	do([]string{"backup", "all.backup"}, first, "backed up ")
	p.stop()
	do([]string{"restore", "all.backup"}, second, "restored ")
	do([]string{"stores", "list"}, second, "default\n")
	do([]string{"fence"}, second, "the history goes on at revision ")
	do([]string{"migrate", "status"}, second, "00001")
	do([]string{"certs", "--dir", "certs"}, nil, "certificate for bookmarks.bookmarks-system.svc")
	do([]string{"version"}, nil, "bookmarks ")
	p, kubeconfig = serve(second)
	defer p.stop()
	for args, want := range map[string]string{
		"get bm go -n default":      "NAME AGE\ngo ",
		"explain bookmark.spec.url": "string",
		"api-resources -o name":     "bookmarks.example.com",
	} {
		if out, err := kubectl.Run(t, kubeconfig, "", strings.Fields(args)...); err != nil ||
			!strings.Contains(out, want) {
			t.Errorf("kubectl %s: %v\n%s", args, err, out)
		}
	}
	do([]string{"migrate", "objects", "--kubeconfig", kubeconfig}, nil,
		"bookmarks.example.com: 0 of 1 objects rewritten")
}

// TestBadFlags shows that each is one sentence for whoever starts the program.
func TestBadFlags(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	certificate(t, dir)
	inCluster := "--database memory: --secure-port 0 --tls-cert-file tls.crt " +
		"--tls-private-key-file tls.key "
	for args, want := range map[string]string{
		"--nope":                "unknown flag: --nope",
		"--enable-crds":         "unknown flag: --enable-crds", // kinds.Main gives none
		"more":                  `unexpected argument "more"`,
		"--data-dir=":           "--data-dir must name a directory",
		"--data-dir kubeconfig": "cannot create the data directory: mkdir ",
		"--database mongodb://x": "no driver for database URLs that begin " +
			"with mongodb:",
		"--tls-cert-file tls.crt": "--tls-cert-file and " +
			"--tls-private-key-file need each other",
		"--authorization-always-allow-paths=/x": "--authorization-always-allow-paths is " +
			"only for aggregated servers: give --aggregated or --kubeconfig, too",
		"--aggregated --database memory:": "an aggregated server needs " +
			"--tls-cert-file and --tls-private-key-file",
		inCluster + "--aggregated --data-dir x": "--data-dir is only for servers that are " +
			"not aggregated",
		inCluster + "--aggregated": "this is not a pod of a cluster: give " +
			"--kubeconfig, or leave --aggregated out",
		inCluster + "--kubeconfig missing":            "missing: no such file or directory",
		inCluster + "--kubeconfig kubeconfig":         "error loading config file \"kubeconfig\"",
		"--kubeconfig kubeconfig " + inCluster + "-x": "unknown shorthand flag: 'x'",
	} {
		t.Run(args, func(t *testing.T) {
			out, err := command(t, dir, append([]string{"serve"}, strings.Fields(args)...)...).CombinedOutput()
			var sentences []string
			for line := range strings.Lines(string(out)) {
				if sentence, ok := strings.CutPrefix(line, "bookmarks: "); ok {
					sentences = append(sentences, sentence)
				}
			}
			if err == nil || len(sentences) != 1 || !strings.Contains(sentences[0], want) {
				t.Errorf("the program ends with %v and says\n%s\nwant %q", err, out, want)
			}
		})
	}
}

// certificate writes a serving certificate for this machine, tls.crt and tls.key, and its
// authority, ca.crt.
func certificate(t *testing.T, dir string) {
	t.Helper()
	authority, _, err := pki.EnsureAuthority(filepath.Join(dir, "ca.crt"),
		filepath.Join(dir, "ca.key"), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.Issue(pki.Certificate{
		CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"),
		Template: pki.Server("127.0.0.1"),
	}); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, dir, name string) string {
	t.Helper()
	c, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(c)
}

// caller sends requests to the program of a directory, at the address that it has named.
type caller struct {
	t       *testing.T
	address string
	client  *http.Client
}

func newCaller(t *testing.T, dir, address string, certificates ...tls.Certificate) *caller {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(content(t, dir, "ca.crt")))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
		Certificates: certificates}}
	t.Cleanup(transport.CloseIdleConnections)
	return &caller{t, "https://" + address, &http.Client{Transport: transport}}
}

// do returns the answer's code and body.
func (c *caller) do(method, path, body string, headers ...string) (int, string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.address+path,
		strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := c.client.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.StatusCode, string(content)
}

// well waits until the program answers that it is well.
func (c *caller) well(path string) {
	c.t.Helper()
	tick, deadline := time.NewTicker(20*time.Millisecond), time.NewTimer(2*time.Minute)
	defer tick.Stop()
	defer deadline.Stop()
	for {
		code, body := c.do(http.MethodGet, path+"?verbose", "")
		if code == http.StatusOK {
			return
		}
		select {
		case <-deadline.C:
			c.t.Fatalf("%s does not become well: %s", path, body)
		case <-tick.C:
		}
	}
}

// inCluster are the flags of a program in a cluster.
func inCluster(c *clustertest.Cluster) []string {
	return []string{
		"serve", "-v", "1", "--kubeconfig", c.Kubeconfig, "--database", "memory:", "--secure-port", "0",
		"--tls-cert-file", "tls.crt", "--tls-private-key-file", "tls.key",
	}
}

// TestAggregated runs the program as a part of a cluster, which comes after it: until then the
// program says what it waits for, and lets nobody in. Afterwards the cluster says who its users are
// and what they may do.
func TestAggregated(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir)
	c := clustertest.New(t)
	c.Leave()
	p := run(t, dir, inCluster(c)...)
	address := p.after("Serving securely on ")
	anybody := newCaller(t, dir, address)
	anybody.well("/livez")
	if code, body := anybody.do(http.MethodGet, "/readyz?verbose", ""); code == http.StatusOK ||
		!strings.Contains(body, "[-]authority-front-proxy failed") {
		t.Errorf("without its cluster the program is ready, or does not say what is missing: %d: %s", code, body)
	}
	const path, one = "/apis/example.com/v1/namespaces/default/bookmarks",
		`{"apiVersion": "example.com/v1", "kind": "Bookmark", "metadata": {"name": "go"}, "spec": {"url": "https://go.dev"}}`
	if code, body := anybody.do(http.MethodGet, path, "", "Authorization",
		"Bearer good"); code != http.StatusUnauthorized {
		t.Errorf("without the cluster a token is answered by %d: %s", code, body)
	}
	c.Return()
	anybody.well("/readyz")

	proxy := newCaller(t, dir, address,
		clustertest.Sign(t, c.Proxies, pki.Client(clustertest.FrontProxy)))
	for i, step := range []struct {
		by                 *caller
		method, path, body string
		headers            []string
		code               int
		want               string
	}{
		{anybody, http.MethodGet, path, "", nil, 401, "Unauthorized"},
		{anybody, http.MethodGet, path, "", []string{"Authorization", "Bearer wrong"}, 401,
			"Unauthorized"},
		// Only the front proxy may name a user.
		{anybody, http.MethodGet, path, "", []string{"X-Remote-User", "robot"}, 401,
			"Unauthorized"},
		{anybody, http.MethodGet, path, "", []string{"Authorization", "Bearer weak"}, 403,
			`User \"nobody\" cannot list resource \"bookmarks\"`},
		{anybody, http.MethodGet, path, "", []string{"Authorization", "Bearer good"}, 200,
			`"kind":"BookmarkList"`},
		{proxy, http.MethodGet, path, "", []string{"X-Remote-User", "nobody"}, 403, "cannot list"},
		{proxy, http.MethodPost, path, one, []string{"X-Remote-User", "robot"}, 201, `"name":"go"`},
		{proxy, http.MethodPost, strings.Replace(path, "default", "missing", 1), one,
			[]string{"X-Remote-User", "robot"}, 404, `"reason":"NotFound"`},
		{proxy, http.MethodGet, "/apis/example.com/v1", "", []string{"X-Remote-User", "robot"}, 200,
			`"name":"bookmarks"`},
		{anybody, http.MethodGet, path + "/go", "", []string{"Authorization", "Bearer good"}, 200,
			`"url":"https://go.dev"`},
	} {
		if code, body := step.by.do(step.method, step.path, step.body,
			step.headers...); code != step.code || !strings.Contains(body, step.want) {
			t.Errorf("step %d: %s %s answers %d, want %d and %s:\n%s", i, step.method, step.path,
				code, step.code, step.want, body)
		}
	}
	p.stop()
}

// TestBadProgram makes commands that cannot run.
func TestBadProgram(t *testing.T) {
	api, err := kinds.New(example)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		drivers []storage.Driver
		want    string
	}{
		{"", []storage.Driver{sqlite.Driver}, `the program cannot be named ""`},
		{"a/b", []storage.Driver{sqlite.Driver}, `the program cannot be named "a/b"`},
		{"..", []storage.Driver{sqlite.Driver}, `the program cannot be named ".."`},
		{"bookmarks", nil, "the program has no database to store in: give kinds.Main drivers, " +
			"such as sqlite.Driver"},
	} {
		cmd := api.Command(tc.name, tc.drivers...)
		cmd.SetArgs([]string{"serve", "--data-dir", t.TempDir()})
		if err := cmd.ExecuteContext(t.Context()); err == nil ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("the program %q with %d drivers ends with %v, want %q", tc.name,
				len(tc.drivers), err, tc.want)
		}
	}
}
