package tests

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/remotecommand"
)

// startController runs the example of a controller against a server.
func (s *server) startController(t testing.TB) {
	t.Helper()
	var stderr output
	cmd := exec.Command(controllerProgram, "--kubeconfig", s.kubeconfig())
	cmd.Env = append(os.Environ(), s.kubectlEnv()...)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("the controller has ended by itself: %v", err)
		}
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("the controller: %v\n%s", err, stderr.String())
		}
	})
}

// A user's day with everything that the API has: two servers on one database, one of which is
// killed meanwhile, a controller, and kubectl. Each part by itself is tested elsewhere; here they
// work together.
func TestSession(t *testing.T) { eachDatabase(t, testSession) }

func testSession(t *testing.T, start func(string, ...string) *server) {
	dir := t.TempDir()
	cbor := "--feature-gates=CBORServingAndStorage=true"
	s := start(dir, cbor)
	replica := start(t.TempDir(), append(sameDatabase(s), cbor)...)
	replica.startController(t)

	// The resources that there are, and the version that clients take.
	has(t, s.ok(t, "", "api-versions"), "ci.rowkeeper.dev/v1\nci.rowkeeper.dev/v1alpha1\n")
	has(t, s.ok(t, "", "api-resources", "--categories=ci"), "pipelines ", "pl ", "pipelineruns ",
		"plr ", "pipelinepolicies ", "plp ")
	has(t, s.ok(t, "", "get", "--raw", "/apis/ci.rowkeeper.dev"),
		`"preferredVersion":{"groupVersion":"ci.rowkeeper.dev/v1"`)
	has(t, s.ok(t, "", "explain", "pipelinerun.spec.branch"), "VERSION:    v1\n",
		"branch is what the run is made for")

	// One pipeline, two versions; each watch sees it, through the other server.
	flat := replica.kubectlBackground(t, "get", "pipelines.v1alpha1.ci.rowkeeper.dev", "-w", "-o",
		`jsonpath={.metadata.name}{" "}{.spec.commands}{"\n"}`)
	nested := replica.kubectlBackground(t, "get", "pipelines.v1.ci.rowkeeper.dev", "-w", "-o",
		"name")
	build := `apiVersion: ci.rowkeeper.dev/v1
kind: Pipeline
metadata: {name: build, labels: {team: search}}
spec:
  image: golang:1.26
  suspended: true
  parameters: [{name: WHO, default: world, description: Whom to greet.}]
  steps: [{name: greet, command: [echo, hello, $WHO]}, {name: test, command: [go, test], timeoutSeconds: 60}]
`
	has(t, s.ok(t, build, "apply", "-f", "-"), "build created")
	flat.next(t, `build ["echo hello '$WHO'","go test"]`)
	nested.next(t, "pipeline.ci.rowkeeper.dev/build")
	s.ok(t, "", "patch", "pipelines.v1alpha1.ci.rowkeeper.dev", "build", "--type=json", "-p",
		`[{"op":"replace","path":"/spec/commands/1","value":"go vet"}]`)
	flat.next(t, `build ["echo hello '$WHO'","go vet"]`)
	if got := s.jsonpath(t, "build",
		".spec.steps[1]"); got != `{"command":["sh","-c","go vet"],"name":"test","timeoutSeconds":60}` {
		t.Errorf("the step is %s", got)
	}

	// The controller has seen each generation, and says so by the status, which it alone writes.
	s.ok(t, "", "wait", "pl/build", "--for=jsonpath={.status.observedGeneration}=2",
		"--timeout=60s")
	s.ok(t, "", "wait", "pl/build", "--for=jsonpath={.status.phase}=Suspended", "--timeout=60s")
	has(t, s.ok(t, "", "get", "pl", "-l", "team=search", "--field-selector",
		"status.phase=Suspended", "-o", "wide"), "SUSPENDED", "Suspended", "golang:1.26", "true")

	// Runs of it, by its subresource, wait as long as it is suspended. Their logs are followed, and
	// attached to, through both servers.
	var runs []string
	for _, branch := range []string{"main", "feature", "feature"} {
		r := s.post(t, v1Path+"pipelines/build/run",
			`{"apiVersion":"ci.rowkeeper.dev/v1","kind":"PipelineRunRequest","spec":{"branch":"`+
				branch+`"}}`)
		_, rest, _ := strings.Cut(r.stdout, `"name":"`)
		name, _, found := strings.Cut(rest, `"`)
		if !found {
			t.Fatalf("%s%s", r.stdout, r.stderr)
		}
		runs = append(runs, name)
	}
	has(t, s.ok(t, "", "get", "--raw", v1Path+"pipelines/build/runs?branch=feature&limit=1"),
		`"kind":"PipelineRunList"`, `"continue":"`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	here, there := s.followLog(t, ctx, runs[0], "follow=true"),
		replica.followLog(t, ctx, runs[1], "follow=true&step=greet")
	var live bytes.Buffer
	executor, err := remotecommand.NewWebSocketExecutor(s.config(t), http.MethodGet,
		s.config(t).Host+v1Path+"pipelineruns/"+runs[2]+"/attach?tailLines=9")
	if err != nil {
		t.Fatal(err)
	}
	attached := make(chan error, 1)
	go func() {
		attached <- executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &live})
	}()
	has(t, s.ok(t, "", "scale", "pl", "build", "--replicas=2"), "scaled")
	s.ok(t, "", "patch", "pl", "build", "--type=merge", "-p",
		`{"spec":{"suspended":false}}`)
	const log = "+ echo hello $WHO\nhello world\n+ go vet\n"
	expect(t, here, strings.Split(strings.TrimSpace(log), "\n")...)
	expectEnd(t, here)
	expect(t, there, "+ echo hello $WHO", "hello world")
	expectEnd(t, there)
	if err := <-attached; err != nil || live.String() != log {
		t.Errorf("attached, one gets %q, %v", live.String(), err)
	}
	for _, run := range runs {
		s.ok(t, "", "wait", "plr/"+run, "--for=condition=Succeeded", "--timeout=60s")
	}
	has(t, s.ok(t, "", "get", "plr", "--field-selector",
		"spec.branch=feature,status.phase=Succeeded"), runs[1], runs[2])
	if owner := s.ok(t, "", "get", "plr", runs[0], "-o",
		"jsonpath={.metadata.ownerReferences[0].uid}"); owner != s.jsonpath(t, "build",
		".metadata.uid") {
		t.Errorf("the run belongs to %q", owner)
	}

	// A policy is in force on both servers, whichever it was created through.
	s.ok(t,
		"apiVersion: ci.rowkeeper.dev/v1\nkind: PipelinePolicy\nmetadata: {name: pinned}\nspec: {bannedNames: ['tmp-*'], bannedImages: ['*:latest'], message: pin it}", "create", "-f", "-")
	for _, server := range []*server{s, replica} {
		refused := func() bool {
			return server.kubectl(t, manifest("tmp-x", "make"), "create", "--dry-run=server", "-f",
				"-").code != 0
		}
		eventually(t, "the policy is in force", refused)
		server.refused(t, "",
			`the image "golang:latest" is banned by the PipelinePolicy pinned: pin it`, "patch",
			"pl", "build", "--type=merge", "-p", `{"spec":{"image":"golang:latest"}}`)
	}

	// Bad input, warnings, and what may not change.
	s.refused(t, strings.Replace(build, "suspended", "suspenden", 1),
		`unknown field "spec.suspenden"`, "apply", "--validate=strict", "-f", "-")
	s.refused(t, strings.Replace(build, "name: test", "name: greet", 1),
		`spec.steps[1].name: Duplicate value: "greet"`, "replace", "-f", "-")
	s.refused(t, "", "spec.branch: Invalid value", "patch", "plr", runs[0], "--type=merge", "-p",
		`{"spec":{"branch":"other"}}`)
	has(t, s.kubectl(t, strings.Replace(build, "golang:1.26", "golang", 1), "apply",
		"--dry-run=server", "-f", "-").stderr,
		`Warning: spec.image: "golang" names no fixed version`)

	// All media types.
	for accept, want := range map[string]string{
		"application/json": `"kind":"PipelineRunList"`,
		"application/yaml": "kind: PipelineRunList",
		"application/cbor": "\xd9\xd9\xf7",
		"application/json;as=Table;g=meta.k8s.io;v=v1":                     `"name":"Pipeline","type":"string"`,
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1": `"kind":"PartialObjectMetadataList"`,
	} {
		if body := s.get(t, v1Path+"pipelineruns", accept); !strings.Contains(body, want) {
			t.Errorf("%s: %.200q, want %q", accept, body, want)
		}
	}

	// The server is killed. Its objects are there afterwards, whichever server is asked.
	before := replica.ok(t, "", "get", "ci", "-o", "name")
	s.signal(t, syscall.SIGKILL)
	s = start(dir, cbor)
	if after := s.ok(t, "", "get", "ci", "-o", "name"); after != before {
		t.Errorf("there are\n%sand before the crash there were\n%s", after, before)
	}
	if got := s.ok(t, "", "get", "--raw", v1Path+"pipelineruns/"+runs[0]+"/log"); got != log {
		t.Errorf("the log is %q", got)
	}
	r := run(t, dir, "", nil, rowkeeperProgram, "migrate", "objects")
	has(t, r.stdout, "pipelines.ci.rowkeeper.dev: 0 of 1 objects rewritten\n",
		"pipelineruns.ci.rowkeeper.dev: 0 of 3 objects rewritten\n")

	// The deletion of a run waits until the controller has deleted its log.
	s.ok(t, "", "delete", "plr", "--all", "--timeout=60s")
	if left := s.ok(t, "", "get", "plr,logchunks", "-o", "name"); left != "" {
		t.Errorf("left over are %s", left)
	}
	// Another finalizer than the controller's holds a run, which was not made by the subresource,
	// but is the pipeline's own all the same.
	s.ok(t,
		"apiVersion: ci.rowkeeper.dev/v1\nkind: PipelineRun\nmetadata: {name: slow, finalizers: [example.com/hold]}\nspec: {pipelineName: build, terminationGracePeriodSeconds: 90}", "create", "-f", "-")
	s.ok(t, "", "wait", "plr/slow", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
	s.ok(t, "", "delete", "plr", "slow", "--now", "--wait=false")
	has(t, s.ok(t, "", "get", "plr", "slow"), "Terminating")
	s.ok(t, "", "patch", "plr", "slow", "--type=json", "-p",
		`[{"op":"remove","path":"/metadata/finalizers"}]`)
	s.ok(t, "", "wait", "plr/slow", "--for=delete", "--timeout=60s")
	for _, kind := range []string{"pl", "plp"} {
		s.ok(t, "", "delete", kind, "--all", "--timeout=60s")
	}
	nested.next(t, "pipeline.ci.rowkeeper.dev/build")
	if left := fmt.Sprint(s.ok(t, "", "get", "ci,logchunks", "-A", "-o", "name"),
		replica.ok(t, "", "get", "ci,logchunks", "-A", "-o", "name")); left != "" {
		t.Errorf("left over are %s", left)
	}
}
