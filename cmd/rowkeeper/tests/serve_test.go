package tests

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage"
)

// Only who asks for the example API has it, so a definition that has a name of its resources is
// found by that name. The commands that the server proposes can be pasted, in a directory of any
// name.
func TestWithoutExample(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "my api (1)")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := launchNew(t, dir, "--enable-crds").announced(t)
	has(t, s.stdout.String(), "serves https://127.0.0.1:", "from sqlite://",
		"The kubeconfig is "+dir+"/.rowkeeper/kubeconfig\n")
	_, try, _ := strings.Cut(s.stdout.String(), "\nTry: kubectl ")
	r := run(t, dir, "", nil, "sh", "-c", kubectlProgram+" "+try)
	if r.code != 0 || strings.Contains(r.stdout, "rowkeeper.dev") {
		t.Errorf("%s: exit code %d\n%s%s", try, r.code, r.stdout, r.stderr)
	}
	has(t, r.stdout, "customresourcedefinitions", "namespaces")
	s.define(t, strings.NewReplacer("widgets", "pipelines", "widget", "pipeline", "Widget",
		"Pipeline").Replace(widgets), "pipelines.factory.example.com")
	if r := s.kubectl(t, "", "get", "pipelines"); r.code != 0 ||
		!strings.Contains(r.stderr, "No resources found") {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	s.ok(t, strings.Replace(widget("mine"), "Widget", "Pipeline", 1), "create", "-f", "-")
	has(t, s.ok(t, "", "get", "pipelines"), "mine")
	if log := s.stderr.String(); log != "" {
		t.Errorf("it logs without a reason:\n%s", log)
	}
	s.signal(t, syscall.SIGTERM)

	other := filepath.Join(t.TempDir(), "o.db")
	s = launchNew(t, t.TempDir(), "--example", "--database=sqlite://"+other).announced(t)
	if r := s.kubectl(t, "", "get", "pipelines", "-A"); !strings.Contains(r.stderr,
		"No resources found") {
		t.Errorf("a database that was named has what nobody asked for: %s%s", r.stdout, r.stderr)
	}
	s.stopsQuietly(t)
}

func TestServeExample(t *testing.T) {
	dir := t.TempDir()
	s := launchNew(t, dir, "--example").announced(t)
	has(t, s.stdout.String(), "serves https://127.0.0.1:", "from sqlite://"+dir+
		"/.rowkeeper/state.db", "The kubeconfig is "+dir+"/.rowkeeper/kubeconfig",
		"Try: kubectl --kubeconfig "+dir+"/.rowkeeper/kubeconfig get pipelines -A")
	if log := s.stderr.String(); log != "" {
		t.Errorf("it logs without a reason:\n%s", log)
	}
	info, err := os.Stat(s.kubeconfig())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig: %v %v, want mode 0600", info, err)
	}
	info, err = os.Stat(filepath.Join(dir, ".rowkeeper"))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v %v, want mode 0700", info, err)
	}
	before, err := os.ReadFile(filepath.Join(dir, ".rowkeeper", "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	s.stopsQuietly(t)
	start(t, dir)
	after, err := os.ReadFile(filepath.Join(dir, ".rowkeeper", "pki", "ca.crt"))
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the authority was made again: %v", err)
	}
}

// stopsQuietly interrupts a server, which says that it has stopped, and has logged nothing.
func (s *server) stopsQuietly(t *testing.T) {
	t.Helper()
	if code := s.signal(t, syscall.SIGINT); code != 0 {
		t.Errorf("the server exited with %d", code)
	}
	if out := s.stdout.String(); !strings.HasSuffix(out, "\nstopped\n") {
		t.Errorf("the server ends with:\n%s", out)
	}
	if log := s.stderr.String(); log != "" {
		t.Errorf("it logs without a reason:\n%s", log)
	}
}

// A server with definitions has nothing to log either when one is deleted, and when it stops.
func TestQuietDefinitions(t *testing.T) {
	s := start(t, t.TempDir(), "--enable-crds")
	for range 2 {
		s.define(t, boxes("url: 'https://127.0.0.1:9/'"), "boxes.store.example.com")
		s.ok(t, "apiVersion: store.example.com/v1\nkind: Box\nmetadata: {name: one}",
			"create", "-f", "-")
		s.ok(t, "", "delete", "crd", "boxes.store.example.com")
	}
	s.stopsQuietly(t)
}

// The example is made once: on the first start of a data directory, and not again when it was
// deleted.
func TestExample(t *testing.T) {
	dir := t.TempDir()
	s := launchNew(t, dir, "--example", "-v=1").announced(t)
	has(t, s.kubectl(t, "", "get", "pipelines").stdout, "hello")
	has(t, s.stderr.String(), "Serving securely")
	if r := s.kubectl(t, "", "delete", "pipeline", "hello"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	s.signal(t, syscall.SIGINT)
	s = launchNew(t, dir, "--example").announced(t)
	if r := s.kubectl(t, "", "get", "pipelines", "-A"); !strings.Contains(r.stderr,
		"No resources found") {
		t.Errorf("the example is there again: %s%s", r.stdout, r.stderr)
	}
}

// A server that serves definitions and is told to stop before it knows them stops as any other
// does.
func TestStopWhileStarting(t *testing.T) {
	for range 3 {
		s := launch(t, t.TempDir(), "--enable-crds", "-v=2")
		eventually(t, "the server listens", func() bool {
			return strings.Contains(s.stderr.String(), "Serving securely")
		})
		if code := s.signal(t, syscall.SIGTERM); code != 0 {
			t.Errorf("the exit code is %d", code)
		}
		for line := range strings.Lines(s.stderr.String()) {
			if strings.HasPrefix(line, "F") {
				t.Errorf("the log has: %s", line)
			}
		}
	}
}

func TestHealthAndVersion(t *testing.T) {
	s := start(t, t.TempDir())
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		eventually(t, path, func() bool {
			return s.kubectl(t, "", "get", "--raw", path).stdout == "ok"
		})
	}
	has(t, s.ok(t, "", "get", "--raw", "/readyz?verbose"), "[+]storage ok", "[+]policies ok")
	if strings.Contains(s.ok(t, "", "get", "--raw", "/livez?verbose"), "[+]storage ok") {
		t.Error("a server whose database is away would be restarted")
	}
	has(t, s.ok(t, "", "get", "--raw", "/metrics"), "rowkeeper_head_revision ",
		"apiserver_storage_size_bytes{", "apiserver_request_total{",
		`apiserver_resource_objects{group="ci.rowkeeper.dev",resource="pipelines"}`)
	has(t, s.ok(t, "", "version"), "Server Version: v1.37.2+rowkeeper.")
	if r := s.kubectl(t, "", "version"); r.stderr != "" {
		t.Errorf("kubectl does not like the version: %s", r.stderr)
	}
	r := run(t, s.dir, "", nil, rowkeeperProgram, "version")
	if r.code != 0 || !strings.HasPrefix(r.stdout, "rowkeeper ") ||
		strings.Count(r.stdout, "\n") != 1 {
		t.Errorf("rowkeeper version: %d %s", r.code, r.stdout)
	}
	var info map[string]string
	if err := json.Unmarshal([]byte(run(t, s.dir, "", nil, rowkeeperProgram, "version", "-o",
		"json").stdout), &info); err != nil || info["kubernetes"] != "v1.37.2" {
		t.Errorf("rowkeeper version -o json: %v %v", info, err)
	}
	has(t, run(t, s.dir, "", nil, rowkeeperProgram, "version", "-o", "yaml").stdout,
		"kubernetes: v1.37.2\n")

	for path, want := range map[string]string{
		"/apis":                                `"preferredVersion":{"groupVersion":"ci.rowkeeper.dev/v1"`,
		"/apis/ci.rowkeeper.dev/v1":            `"shortNames":["pl"]`,
		"/openapi/v2":                          `"dev.rowkeeper.ci.v1.Pipeline"`,
		"/openapi/v3":                          `"apis/ci.rowkeeper.dev/v1"`,
		"/openapi/v3/apis/ci.rowkeeper.dev/v1": `"dev.rowkeeper.ci.v1.PipelineSpec"`,
	} {
		has(t, s.ok(t, "", "get", "--raw", path), want)
	}
}

func TestMediaTypes(t *testing.T) {
	s := start(t, t.TempDir(), "--feature-gates=CBORServingAndStorage=true")
	s.ok(t, manifest("one", "make"), "create", "-f", "-")
	for accept, want := range map[string]string{
		"application/json": `"kind":"PipelineList"`,
		"application/cbor": "\xd9\xd9\xf7",
		"application/yaml": "kind: PipelineList",
		// The types have no code for protobuf, other than those of their metadata.
		"application/vnd.kubernetes.protobuf, application/json":                               `"kind":"PipelineList"`,
		"application/json;as=Table;g=meta.k8s.io;v=v1":                                        `"kind":"Table"`,
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1":                    `"kind":"PartialObjectMetadataList"`,
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1": "k8s\x00",
	} {
		if body := s.get(t, v1Path+"pipelines", accept); !strings.Contains(body, want) {
			t.Errorf("%s: %.200q, want %q", accept, body, want)
		}
	}
}

func TestAuditAndEncryption(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	log := filepath.Join(dir, "audit.log")
	s := start(t, dir,
		"--audit-log-path="+log,
		"--audit-policy-file="+write("policy.yaml",
			"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, resources: [{group: ci.rowkeeper.dev}]}, {level: None}]\n"),
		"--encryption-provider-config="+
			write("encryption.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [pipelines.ci.rowkeeper.dev]
  providers: [{secretbox: {keys: [{name: first, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}]
`))
	s.ok(t, manifest("secret", "make confidential"), "create", "-f", "-")
	has(t, s.ok(t, "", "get", "pl", "secret", "-o", "yaml"), "make confidential")
	live, _ := storedValues(t, "sqlite://"+filepath.Join(dir, ".rowkeeper", "state.db"),
		storage.DefaultPrefix)
	if len(live) != 1 {
		t.Errorf("%d objects are stored", len(live))
	}
	for _, value := range live {
		if !bytes.HasPrefix(value, []byte("k8s:enc:secretbox:v1:first:")) ||
			bytes.Contains(value, []byte("confidential")) {
			t.Errorf("stored is %.60q", value)
		}
	}
	events, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	has(t, string(events), `"verb":"create","user":{"username":"admin"`,
		`"objectRef":{"resource":"pipelines","namespace":"default","name":"secret"`)
}

func TestLogging(t *testing.T) {
	s := start(t, t.TempDir(), "--logging-format=json", "-v=4")
	s.ok(t, "", "get", "pl")
	if code := s.signal(t, syscall.SIGTERM); code != 0 {
		t.Errorf("the server exited with %d", code)
	}
	requests := false
	for line := range strings.Lines(s.stderr.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("not JSON: %s", line)
		}
		requests = requests || entry["msg"] == "HTTP"
	}
	if !requests {
		t.Error("-v=4 does not log requests")
	}
}
