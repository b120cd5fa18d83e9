package tests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

const v1Path = "/apis/ci.rowkeeper.dev/v1/namespaces/default/"

// post creates something by path, as the subresources want it that kubectl has no verb for.
func (s *server) post(t testing.TB, path, body string) result {
	t.Helper()
	return s.kubectl(t, body, "create", "--raw", path, "-f", "-")
}

// newRun makes a run of a pipeline by its subresource.
func (s *server) newRun(t testing.TB, pipeline, branch string) *unstructured.Unstructured {
	t.Helper()
	r := s.post(t, v1Path+"pipelines/"+pipeline+"/run", fmt.Sprintf(
		`{"apiVersion":"ci.rowkeeper.dev/v1","kind":"PipelineRunRequest","spec":{"branch":%q,"parameters":[{"name":"REVISION","value":"abc"}]}}`, branch))
	var run unstructured.Unstructured
	if err := json.Unmarshal([]byte(r.stdout), &run); err != nil {
		t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	return &run
}

// phase writes the phase of a run, as its controller would.
func (s *server) phase(t testing.TB, run, phase string) {
	t.Helper()
	s.ok(t, "", "patch", "plr", run, "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"`+phase+`"}}`)
}

// writeLog stores a piece of a run's log, as its controller would.
func (s *server) writeLog(t testing.TB, run *unstructured.Unstructured, sequence int, step string,
	lines ...string) {
	t.Helper()
	text, err := json.Marshal(lines)
	if err != nil {
		t.Fatal(err)
	}
	s.ok(t,
		fmt.Sprintf("apiVersion: ci.rowkeeper.dev/v1\nkind: LogChunk\nmetadata: {name: %s-%d}\nspec: {runName: %s, runUID: %s, sequence: %d, step: %s, lines: %s}\n",
			run.GetName(), sequence, run.GetName(), run.GetUID(), sequence, step, text),
		"create", "-f",
		"-")
}

func TestRuns(t *testing.T) { anyDatabase(t, testRuns) }

func testRuns(t *testing.T, start func(string, ...string) *server) {
	s := start(t.TempDir())
	s.ok(t, manifest("build", "make"), "create", "-f", "-")

	t.Run("run", func(t *testing.T) {
		run := s.newRun(t, "build", "main")
		if run.GetKind() != "PipelineRun" || !strings.HasPrefix(run.GetName(), "build-") ||
			run.GetLabels()["ci.rowkeeper.dev/pipeline"] != "build" {
			t.Errorf("the answer is %v", run)
		}
		owners := run.GetOwnerReferences()
		if len(owners) != 1 || owners[0].Kind != "Pipeline" ||
			string(owners[0].UID) != s.jsonpath(t, "build", ".metadata.uid") {
			t.Errorf("the run belongs to %v", owners)
		}
		for body, want := range map[string]string{
			`{}`: "the pipeline's parameter REVISION has no default",
			`{"parameters":[{"name":"REVISION"},{"name":"OTHER"}]}`: `Unsupported value: "OTHER"`,
			`{"branch":"` + strings.Repeat("x", 257) +
				`","parameters":[{"name":"REVISION"}]}`: "spec.branch: Too long",
			`{"parameters":[{"name":"REVISION","value":"a"},{"name":"REVISION","value":"b"}]}`: "spec.parameters[1]: Duplicate value",
			`{"parameters":[{"name":"REVISION","value":"` + strings.Repeat("x", 65537) +
				`"}]}`: "spec.parameters[0].value: Too long",
		} {
			r := s.post(t, v1Path+"pipelines/build/run",
				`{"apiVersion":"ci.rowkeeper.dev/v1","kind":"PipelineRunRequest","spec":`+body+`}`)
			if r.code == 0 || !strings.Contains(r.stderr, want) {
				t.Errorf("a request with %.60s: %d %s, want %q", body, r.code, r.stderr, want)
			}
		}
		if r := s.post(t, v1Path+"pipelines/missing/run",
			`{"apiVersion":"ci.rowkeeper.dev/v1","kind":"PipelineRunRequest"}`); !strings.Contains(r.stderr, `pipelines.ci.rowkeeper.dev "missing" not found`) {
			t.Errorf("a run of no pipeline: %s", r.stderr)
		}
		s.refused(t, "", "MethodNotAllowed", "get", "--raw", v1Path+"pipelines/build/run")
	})

	t.Run("runs", func(t *testing.T) {
		s.ok(t, manifest("other", "make"), "create", "-f", "-")
		s.newRun(t, "other", "main")
		for range 3 {
			s.newRun(t, "build", "feature")
		}
		list := func(query string) unstructured.UnstructuredList {
			t.Helper()
			var l unstructured.UnstructuredList
			if err := json.Unmarshal([]byte(s.ok(t, "", "get", "--raw", v1Path+
				"pipelines/build/runs"+query)), &l); err != nil {
				t.Fatal(err)
			}
			return l
		}
		if l := list(""); len(l.Items) != 4 {
			t.Errorf("%d runs of the pipeline, want 4", len(l.Items))
		}
		first := list("?branch=feature&limit=2")
		second := list("?branch=feature&limit=2&continue=" + url.QueryEscape(first.GetContinue()))
		if len(first.Items) != 2 || len(second.Items) != 1 || second.GetContinue() != "" ||
			second.Items[0].GetName() == first.Items[0].GetName() {
			t.Errorf("the pages have %d and %d runs", len(first.Items), len(second.Items))
		}
		has(t, s.ok(t, "", "get", "plr", "--field-selector",
			"spec.branch=feature,spec.pipelineName=build", "-o", "wide"), "PIPELINE", "DURATION",
			"BRANCH", "feature")
		s.refused(t, "", "not found", "get", "--raw", v1Path+"pipelines/missing/runs")
	})

	t.Run("immutable", func(t *testing.T) {
		run := s.newRun(t, "build", "main").GetName()
		s.refused(t, "", "spec.branch: Invalid value", "patch", "plr", run, "--type=merge", "-p",
			`{"spec":{"branch":"other"}}`)
		s.refused(t, "", "field is immutable", "patch", "plr", run, "--type=merge", "-p",
			`{"spec":{"pipelineName":"other"}}`)
		s.ok(t, "", "patch", "plr", run, "--type=merge", "-p", `{"spec":{"cancelled":true}}`)
		s.refused(t, "", "a run that was cancelled stays cancelled", "patch", "plr", run,
			"--type=merge", "-p", `{"spec":{"cancelled":false}}`)
		s.phase(t, run, "Cancelled")
		s.refused(t, "", "a run that has ended as Cancelled stays so", "patch", "plr", run,
			"--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Running"}}`)
	})

	t.Run("graceful deletion", func(t *testing.T) {
		field := func(run, path string) string {
			return s.ok(t, "", "get", "plr", run, "-o", "jsonpath={"+path+"}")
		}
		pending := s.newRun(t, "build", "main").GetName()
		// nothing runs that would have to end
		s.ok(t, "", "delete", "plr", pending, "--timeout=60s")

		run := s.newRun(t, "build", "main").GetName()
		s.phase(t, run, "Running")
		s.ok(t, "", "delete", "plr", run, "--wait=false")
		if got := field(run, ".metadata.deletionGracePeriodSeconds"); got != "30" {
			t.Errorf("the grace period is %s, want that of the spec", got)
		}
		s.ok(t, "", "delete", "plr", run, "--wait=false", "--grace-period=60")
		if got := field(run, ".metadata.deletionGracePeriodSeconds"); got != "30" {
			t.Errorf("a longer grace period made it %s", got)
		}
		s.ok(t, "", "delete", "plr", run, "--wait=false", "--now")
		if got := field(run, ".metadata.deletionGracePeriodSeconds"); got != "1" {
			t.Errorf("--now made the grace period %s", got)
		}
		has(t, s.ok(t, "", "get", "plr", run), "Terminating")
		// A controller does this when the step has ended, or a user who does not want to wait.
		s.ok(t, "", "delete", "plr", run, "--grace-period=0", "--force", "--timeout=60s")
		s.refused(t, "", "not found", "get", "plr", run)

		held := s.newRun(t, "build", "main").GetName()
		s.ok(t, "", "patch", "plr", held, "--type=merge", "-p",
			`{"metadata":{"finalizers":["example.com/hold"]}}`)
		s.ok(t, "", "delete", "plr", held, "--grace-period=0", "--force", "--wait=false")
		if field(held, ".metadata.deletionTimestamp") == "" {
			t.Error("the finalizer does not hold the run")
		}
		s.ok(t, "", "patch", "plr", held, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		s.refused(t, "", "not found", "get", "plr", held)
	})

	t.Run("scale", func(t *testing.T) {
		has(t, s.ok(t, "", "scale", "pl", "build", "--replicas=5"), "scaled")
		if got := s.jsonpath(t, "build", ".spec.maxParallelRuns"); got != "5" {
			t.Errorf("maxParallelRuns is %s", got)
		}
		s.refused(t, "", "Expected replicas to be 1, was 5", "scale", "pl", "build", "--replicas=2",
			"--current-replicas=1")
		s.refused(t, "", "spec.replicas: Invalid value: -1", "patch", "pl", "build",
			"--subresource=scale", "--type=merge", "-p", `{"spec":{"replicas":-1}}`)
		s.ok(t, "", "patch", "pl", "build", "--subresource=status", "--type=merge", "-p",
			`{"status":{"activeRuns":2}}`)
		has(t, s.ok(t, "", "get", "--raw", v1Path+"pipelines/build/scale"),
			`"kind":"Scale","apiVersion":"autoscaling/v1"`, `"spec":{"replicas":5}`,
			`"status":{"replicas":2,"selector":"ci.rowkeeper.dev/pipeline=build"}`)
		has(t, s.ok(t, "", "get", "--raw", strings.Replace(v1Path, "/v1/", "/v1alpha1/", 1)+
			"pipelines/build/scale"), `"spec":{"replicas":5}`)
		// The manager of the replicas of the scale manages the field of the spec.
		s.ok(t,
			`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"build","namespace":"default"},"spec":{"replicas":6}}`, "replace", "--raw", v1Path+"pipelines/build/scale", "-f", "-")
		s.refused(t,
			"apiVersion: ci.rowkeeper.dev/v1\nkind: Pipeline\nmetadata: {name: build}\nspec: {maxParallelRuns: 9}", ".spec.maxParallelRuns", "apply", "--server-side", "--field-manager=mine", "-f", "-")
	})
}

// followLog reads a run's log as it is written.
func (s *server) followLog(t testing.TB, ctx context.Context, run, query string) <-chan string {
	t.Helper()
	config := s.config(t)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+v1Path+
		"pipelineruns/"+run+"/log?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request) //nolint:bodyclose // closed by whoever reads its lines, below
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/plain" {
		t.Fatalf("%s %v", response.Status, response.Header)
	}
	lines := make(chan string, 1000)
	go func() {
		defer response.Body.Close()
		defer close(lines)
		in := bufio.NewScanner(response.Body)
		for in.Scan() {
			lines <- in.Text()
		}
		if err := in.Err(); err != nil {
			lines <- "cut: " + err.Error()
		}
	}()
	return lines
}

func expect(t testing.TB, lines <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got, ok := <-lines; !ok || got != w {
			t.Fatalf("got %q (the log goes on: %v), want %q", got, ok, w)
		}
	}
}

func expectEnd(t testing.TB, lines <-chan string) {
	t.Helper()
	if got, ok := <-lines; ok {
		t.Fatalf("got %q, want the end", got)
	}
}

// A run's log is put together from what is stored. It is followed as it is written, through another
// server on the same database, and through a restart.
func TestLogAndAttach(t *testing.T) { eachDatabase(t, testLogAndAttach) }

func testLogAndAttach(t *testing.T, start func(string, ...string) *server) {
	dir := t.TempDir()
	s := start(dir)
	replica := start(t.TempDir(), sameDatabase(s)...)
	s.ok(t, manifest("build", "make"), "create", "-f", "-")
	run := s.newRun(t, "build", "main")
	name := run.GetName()
	s.phase(t, name, "Running")
	get := func(query string) string {
		return s.ok(t, "", "get", "--raw", v1Path+"pipelineruns/"+name+"/log?"+query)
	}
	if got := get(""); got != "" {
		t.Errorf("the log of a run that has written nothing is %q", got)
	}
	s.writeLog(t, run, 0, "test", "one", "two")
	s.writeLog(t, run, 1, "build", "three")
	for query, want := range map[string]string{
		"":                      "one\ntwo\nthree\n",
		"step=build":            "three\n",
		"tailLines=1":           "three\n",
		"tailLines=2&step=test": "one\ntwo\n",
		"tailLines=9":           "one\ntwo\nthree\n",
		"skipLines=1":           "two\nthree\n",
		"skipLines=9":           "",
	} {
		if got := get(query); got != want {
			t.Errorf("the log with %q is %q, want %q", query, got, want)
		}
	}
	s.refused(t, "", "skipLines and tailLines must not be negative", "get", "--raw", v1Path+
		"pipelineruns/"+name+"/log?skipLines=-1")
	s.refused(t, "", "exclude each other", "get", "--raw", v1Path+"pipelineruns/"+name+
		"/log?skipLines=1&tailLines=1")
	s.refused(t, "", "not found", "get", "--raw", v1Path+"pipelineruns/missing/log")
	s.refused(t, "", "needs a connection that is upgraded to WebSocket", "get", "--raw", v1Path+
		"pipelineruns/"+name+"/attach")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	here := s.followLog(t, ctx, name, "follow=true")
	there := replica.followLog(t, ctx, name, "follow=true&skipLines=2")
	expect(t, here, "one", "two", "three")
	expect(t, there, "three")

	// Attached, one gets only what is written from then on. Another piece shows when that is.
	attached, writer := newLines()
	executor, err := remotecommand.NewWebSocketExecutor(s.config(t), http.MethodGet,
		s.config(t).Host+v1Path+"pipelineruns/"+name+"/attach")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: writer})
	}()
	sequence := 2
	var begun string
	eventually(t, "the connection is attached", func() bool {
		s.writeLog(t, run, sequence, "build", fmt.Sprintf("line %d", sequence))
		sequence++
		select {
		case begun = <-attached:
			return true
		default:
			return false
		}
	})
	if begun == "one" || begun == "two" || begun == "three" {
		t.Errorf("attached, one gets the line %q from before", begun)
	}
	for n := 2; n < sequence; n++ {
		expect(t, here, fmt.Sprintf("line %d", n))
		expect(t, there, fmt.Sprintf("line %d", n))
	}

	// Stopping the server does not take the log for complete. Afterwards it goes on where it was.
	if code := s.signal(t, syscall.SIGTERM); code != 0 {
		t.Errorf("the server with followers exited with %d", code)
	}
	if line := <-here; !strings.HasPrefix(line, "cut: ") {
		t.Errorf("the end of the log from the server that stopped is %q, want an error", line)
	}
	if err := <-done; err == nil {
		t.Error("the attached connection ended as if the run had")
	}
	s = start(dir)
	here = s.followLog(t, ctx, name, fmt.Sprintf("follow=true&skipLines=%d", sequence+1))
	s.writeLog(t, run, sequence, "build", "last")
	expect(t, here, "last")
	expect(t, there, "last")
	s.phase(t, name, "Succeeded")
	expectEnd(t, here)
	expectEnd(t, there)

	// Attached to a run that has ended, one gets the end, and what was before if one asks.
	var all bytes.Buffer
	executor, err = remotecommand.NewWebSocketExecutor(s.config(t), http.MethodGet,
		s.config(t).Host+v1Path+"pipelineruns/"+name+"/attach?tailLines=1")
	if err != nil {
		t.Fatal(err)
	}
	if err := executor.StreamWithContext(ctx,
		remotecommand.StreamOptions{Stdout: &all}); err != nil || all.String() != "last\n" {
		t.Errorf("attached to an ended run: %q %v", all.String(), err)
	}
}

// newLines returns a writer and the lines that are written to it.
func newLines() (<-chan string, *lineWriter) {
	w := &lineWriter{lines: make(chan string, 1000)}
	return w.lines, w
}

type lineWriter struct {
	lines chan string
	rest  []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, found := bytes.Cut(w.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		w.lines <- string(line)
		w.rest = rest
	}
}
