package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// manifest is a pipeline in YAML, with further lines for its metadata.
func manifest(name, command string, metadata ...string) string {
	extra := ""
	for _, line := range metadata {
		extra += "  " + line + "\n"
	}
	return fmt.Sprintf(`apiVersion: ci.rowkeeper.dev/v1
kind: Pipeline
metadata:
  name: %s
%sspec:
  image: golang:1.26
  parameters:
  - name: REVISION
    description: The commit to build.
  steps:
  - name: main
    command: [sh, -c, %q]
`, name, extra, command)
}

// jsonpath reads a field of a pipeline.
func (s *server) jsonpath(t testing.TB, name, path string) string {
	t.Helper()
	return s.ok(t, "", "get", "pipeline", name, "-o", "jsonpath={"+path+"}")
}

// All of kubectl's verbs, as a user would try them one after another.
func TestKubectlVerbs(t *testing.T) { anyDatabase(t, testKubectlVerbs) }

func testKubectlVerbs(t *testing.T, start func(string, ...string) *server) {
	s := start(t.TempDir())

	t.Run("create", func(t *testing.T) {
		has(t, s.ok(t, manifest("build", "make"), "create", "-f", "-"),
			"pipeline.ci.rowkeeper.dev/build created")
		s.refused(t, manifest("build", "make"), `pipelines.ci.rowkeeper.dev "build" already exists`,
			"create", "-f", "-")
		has(t,
			s.ok(t,
				"apiVersion: ci.rowkeeper.dev/v1\nkind: Pipeline\nmetadata: {generateName: gen-}\nspec: {steps: [{name: a, image: alpine:3, command: [ls]}]}", "create", "-f", "-"), "pipeline.ci.rowkeeper.dev/gen-")
		has(t, s.ok(t, manifest("elsewhere", "make"), "create", "-n", "team", "-f", "-"), "created")
		if got := s.jsonpath(t, "build", ".status.phase") + s.jsonpath(t, "build",
			".metadata.generation") + s.jsonpath(t, "build",
			".spec.maxParallelRuns"); got != "Pending11" {
			t.Errorf("phase, generation and maxParallelRuns are %s", got)
		}
	})

	t.Run("get", func(t *testing.T) {
		has(t, s.ok(t, "", "get", "pipelines"), "NAME", "PHASE", "STEPS", "ACTIVE", "MAX PARALLEL",
			"AGE", "build", "Pending")
		if out := s.ok(t, "", "get", "pl"); strings.Contains(out, "golang:1.26") ||
			strings.Contains(out, "elsewhere") {
			t.Errorf("the short list shows too much:\n%s", out)
		}
		has(t, s.ok(t, "", "get", "pl", "-o", "wide"), "IMAGE", "SUSPENDED", "golang:1.26")
		has(t, s.ok(t, "", "get", "pl", "-A"), "NAMESPACE", "team", "elsewhere", "default", "build")
		has(t, s.ok(t, "", "get", "ci", "-A"), "elsewhere")
		s.ok(t, "", "label", "pl", "build", "tier=gold")
		has(t, s.ok(t, "", "get", "pl", "-l", "tier=gold", "-o", "name"),
			"pipeline.ci.rowkeeper.dev/build")
		if out := s.ok(t, "", "get", "pl", "-l", "tier=silver", "-o", "name"); out != "" {
			t.Errorf("a selector that nothing matches finds %q", out)
		}
		if out := s.ok(t, "", "get", "pl", "--field-selector", "metadata.name=build", "-o",
			"name"); out != "pipeline.ci.rowkeeper.dev/build\n" {
			t.Errorf("the field selector finds %q", out)
		}
		s.refused(t, "", `field label "spec.nonsense" is not supported`, "get", "pl",
			"--field-selector", "spec.nonsense=x")
		s.refused(t, "", `pipelines.ci.rowkeeper.dev "missing" not found`, "get", "pl", "missing")
		has(t, s.ok(t, "", "get", "pl", "build", "-o", "yaml"), "apiVersion: ci.rowkeeper.dev/v1",
			"resourceVersion:")
	})

	t.Run("get -w", func(t *testing.T) {
		watch := s.kubectlBackground(t, "get", "pl", "-w", "-o", "name")
		watch.next(t, "pipeline.ci.rowkeeper.dev/build")
		s.ok(t, manifest("watched", "make"), "create", "-f", "-")
		watch.next(t, "pipeline.ci.rowkeeper.dev/watched")
		s.ok(t, "", "delete", "pl", "watched")
		watch.next(t, "pipeline.ci.rowkeeper.dev/watched")
	})

	t.Run("describe", func(t *testing.T) {
		has(t, s.ok(t, "", "describe", "pl", "build"), "Name:         build",
			"Labels:       tier=gold", "Max Parallel Runs:  1", "Phase:  Pending")
	})

	t.Run("explain", func(t *testing.T) {
		has(t, s.ok(t, "", "explain", "pipeline.spec.steps.command"), "FIELD: command <[]string>",
			"command is the program and its arguments.")
		has(t, s.ok(t, "", "explain", "pipeline", "--api-version=ci.rowkeeper.dev/v1alpha1",
			"--recursive"), "commands")
	})

	t.Run("api-resources", func(t *testing.T) {
		has(t, s.ok(t, "", "api-resources", "--api-group=ci.rowkeeper.dev", "-o", "wide"),
			"pipelines", "pl", "ci.rowkeeper.dev/v1",
			"create,delete,deletecollection,get,list,patch,update,watch")
		has(t, s.ok(t, "", "api-versions"), "ci.rowkeeper.dev/v1\nci.rowkeeper.dev/v1alpha1")
	})

	t.Run("apply", func(t *testing.T) {
		has(t, s.ok(t, manifest("applied", "one"), "apply", "-f", "-"), "applied created")
		has(t, s.ok(t, manifest("applied", "one"), "apply", "-f", "-"), "applied unchanged")
		has(t, s.ok(t, manifest("applied", "two"), "apply", "-f", "-"), "applied configured")
		if got := s.jsonpath(t, "applied", ".spec.steps[0].command[2]") + s.jsonpath(t, "applied",
			".metadata.generation"); got != "two2" {
			t.Errorf("command and generation after apply are %s", got)
		}
		has(t, s.ok(t, manifest("applied", "three"), "apply", "--dry-run=server", "-f", "-"),
			"configured (server dry run)")
		if got := s.jsonpath(t, "applied", ".spec.steps[0].command[2]"); got != "two" {
			t.Errorf("a dry run changed the command to %s", got)
		}
	})

	t.Run("diff", func(t *testing.T) {
		r := s.kubectl(t, manifest("applied", "three"), "diff", "-f", "-")
		if r.code != 1 {
			t.Errorf("kubectl diff exited with %d, want 1 for a difference: %s", r.code, r.stderr)
		}
		has(t, r.stdout, "-    - two", "+    - three")
		if r := s.kubectl(t, manifest("applied", "two"), "diff", "-f", "-"); r.code != 0 ||
			r.stdout != "" {
			t.Errorf("kubectl diff found a difference where there is none: %d %s", r.code, r.stdout)
		}
	})

	t.Run("apply --server-side", func(t *testing.T) {
		has(t, s.ok(t, manifest("ssa", "one"), "apply", "--server-side", "--field-manager=first",
			"-f", "-"), "ssa serverside-applied")
		// Two managers of one list, which is merged by the names of the steps.
		other := "apiVersion: ci.rowkeeper.dev/v1\nkind: Pipeline\nmetadata: {name: ssa}\nspec: {steps: [{name: extra, command: [ls]}]}"
		s.ok(t, other, "apply", "--server-side", "--field-manager=second", "-f", "-")
		if got := s.jsonpath(t, "ssa", ".spec.steps[*].name"); got != "main extra" {
			t.Errorf("the steps are %q", got)
		}
		s.refused(t, manifest("ssa", "two"), `conflict with "first"`, "apply", "--server-side",
			"--field-manager=second", "-f", "-")
		s.ok(t, manifest("ssa", "two"), "apply", "--server-side", "--field-manager=second",
			"--force-conflicts", "-f", "-")
		if got := s.jsonpath(t, "ssa", ".spec.steps[?(@.name=='main')].command[2]"); got != "two" {
			t.Errorf("the forced command is %q", got)
		}
		// A field that a manager no longer names, and nobody else has, goes.
		s.ok(t, manifest("ssa", "two"), "apply", "--server-side", "--field-manager=second", "-f",
			"-")
		if got := s.jsonpath(t, "ssa", ".spec.steps[*].name"); got != "main" {
			t.Errorf("the steps are %q", got)
		}
	})

	t.Run("edit", func(t *testing.T) {
		r := run(t, s.dir, "", append(s.kubectlEnv(),
			"KUBE_EDITOR=sed -i s/golang:1.26/golang:1.27/"), kubectlProgram, "edit", "pl", "build")
		if r.code != 0 || s.jsonpath(t, "build", ".spec.image") != "golang:1.27" {
			t.Errorf("edit: %d %s%s", r.code, r.stdout, r.stderr)
		}
	})

	t.Run("patch", func(t *testing.T) {
		s.ok(t, "", "patch", "pl", "build", "--type=merge", "-p", `{"spec":{"suspended":true}}`)
		s.ok(t, "", "patch", "pl", "build", "--type=json", "-p",
			`[{"op":"replace","path":"/spec/maxParallelRuns","value":7},{"op":"test","path":"/spec/suspended","value":true}]`)
		s.refused(t, "", "The request is invalid", "patch", "pl", "build", "--type=json", "-p",
			`[{"op":"test","path":"/spec/suspended","value":false}]`)
		// The strategic patch merges the list by the key of its elements.
		s.ok(t, "", "patch", "pl", "build", "--type=strategic", "-p",
			`{"spec":{"steps":[{"name":"more","command":["ls"]}]}}`)
		if got := s.jsonpath(t, "build", ".spec['suspended','maxParallelRuns']") + " " +
			s.jsonpath(t, "build", ".spec.steps[*].name"); got != "true 7 more main" {
			t.Errorf("after the patches: %s", got)
		}
	})

	t.Run("label and annotate", func(t *testing.T) {
		s.ok(t, "", "label", "pl", "build", "tier=silver", "--overwrite")
		s.refused(t, "", "already has a value", "label", "pl", "build", "tier=bronze")
		s.ok(t, "", "annotate", "pl", "build", "example.com/note=hello there")
		has(t, s.ok(t, "", "get", "pl", "-L", "tier"), "TIER", "silver")
		s.ok(t, "", "annotate", "pl", "build", "example.com/note-")
		if got := s.jsonpath(t, "build", ".metadata.annotations"); strings.Contains(got, "note") {
			t.Errorf("the annotation is still there: %s", got)
		}
	})

	t.Run("status and wait", func(t *testing.T) {
		wait := s.kubectlBackground(t, "wait", "pl/build", "--for=condition=Ready", "--timeout=60s")
		s.ok(t, "", "patch", "pl", "build", "--subresource=status", "--type=merge", "-p",
			`{"spec":{"image":"ignored:1"},"status":{"phase":"Ready","conditions":[{"type":"Ready","status":"True","reason":"Checked","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
		wait.next(t, "condition met")
		s.ok(t, "", "patch", "pl", "build", "--type=merge", "-p", `{"status":{"phase":"Failed"}}`)
		if got := s.jsonpath(t, "build", ".status.phase") + " " +
			s.jsonpath(t, "build", ".spec.image"); got != "Ready golang:1.27" {
			t.Errorf("spec and status overwrote each other: %s", got)
		}
		if got := s.ok(t, "", "get", "pl", "--field-selector", "status.phase=Ready", "-o",
			"name"); got != "pipeline.ci.rowkeeper.dev/build\n" {
			t.Errorf("the field selector finds %q", got)
		}
		s.refused(t, "", `Unsupported value: "Great"`, "patch", "pl", "build",
			"--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Great"}}`)
	})

	t.Run("replace", func(t *testing.T) {
		has(t, s.ok(t, manifest("applied", "replaced"), "replace", "-f", "-"), "replaced")
		stale := s.ok(t, "", "get", "pl", "applied", "-o", "yaml")
		s.ok(t, "", "label", "pl", "applied", "a=b")
		s.refused(t, stale, "the object has been modified; please apply your changes to the "+
			"latest version", "replace", "-f", "-")
		s.refused(t, manifest("missing", "x"), "not found", "replace", "-f", "-")
	})

	t.Run("get --raw with limit and continue", func(t *testing.T) {
		for i := range 7 {
			s.ok(t, manifest(fmt.Sprintf("page-%d", i), "x", "labels: {page: \"yes\"}"), "create",
				"-n", "pages", "-f", "-")
		}
		var names []string
		next := ""
		for page := 0; ; page++ {
			var list unstructured.UnstructuredList
			raw := s.ok(t, "", "get", "--raw",
				"/apis/ci.rowkeeper.dev/v1/namespaces/pages/pipelines?limit=3&continue="+next)
			if err := json.Unmarshal([]byte(raw), &list); err != nil {
				t.Fatal(err)
			}
			for _, item := range list.Items {
				names = append(names, item.GetName())
			}
			if page == 0 && (list.GetRemainingItemCount() == nil ||
				*list.GetRemainingItemCount() != 4) {
				t.Errorf("the first page says that %v items remain, want 4",
					list.GetRemainingItemCount())
			}
			if next = list.GetContinue(); next == "" {
				break
			}
		}
		if got := strings.Join(names,
			" "); got != "page-0 page-1 page-2 page-3 page-4 page-5 page-6" {
			t.Errorf("the pages have %s", got)
		}
		has(t, s.ok(t, "", "get", "pl", "-n", "pages", "--chunk-size=2", "-o", "name"), "page-6")
	})

	t.Run("delete", func(t *testing.T) {
		has(t, s.ok(t, "", "delete", "pl", "applied"),
			`pipeline.ci.rowkeeper.dev "applied" deleted`)
		s.refused(t, "", "not found", "delete", "pl", "applied")
		// No garbage collector runs, so that no way of deleting waits for one.
		for _, cascade := range []string{"background", "foreground", "orphan"} {
			s.ok(t, manifest("cascade", "x"), "create", "-f", "-")
			s.ok(t, "", "delete", "pl", "cascade", "--cascade="+cascade, "--timeout=30s")
		}
		s.ok(t, manifest("now", "x"), "create", "-f", "-")
		s.ok(t, "", "delete", "pl", "now", "--grace-period=0", "--force", "--timeout=30s")
		has(t, s.ok(t, "", "delete", "pl", "-n", "pages", "-l", "page=yes", "--timeout=30s"),
			"page-0", "page-6")
		s.ok(t, "", "delete", "pl", "--all", "-n", "team", "--timeout=30s")
		if out := s.ok(t, "", "get", "pl", "-n", "team", "-o", "name"); out != "" {
			t.Errorf("left over: %s", out)
		}
	})

	t.Run("finalizers", func(t *testing.T) {
		s.ok(t, manifest("held", "x", "finalizers: [example.com/hold]"), "create", "-f", "-")
		s.ok(t, "", "delete", "pl", "held", "--wait=false")
		if s.jsonpath(t, "held", ".metadata.deletionTimestamp") == "" {
			t.Error("no deletion timestamp")
		}
		gone := make(chan result)
		go func() { gone <- s.kubectl(t, "", "wait", "pl/held", "--for=delete", "--timeout=60s") }()
		s.ok(t, "", "patch", "pl", "held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		if r := <-gone; r.code != 0 {
			t.Errorf("kubectl wait --for=delete: %s", r.stderr)
		}
		s.refused(t, "", "not found", "get", "pl", "held")
	})

	t.Run("preconditions", func(t *testing.T) {
		s.ok(t, manifest("guarded", "x"), "create", "-f", "-")
		client := s.dynamic(t).Resource(pipelines).Namespace("default")
		wrong := types.UID("wrong")
		err := client.Delete(t.Context(), "guarded",
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
		if !apierrors.IsConflict(err) {
			t.Errorf("deleting another object than is there: %v, want a conflict", err)
		}
		old := "1"
		err = client.Delete(t.Context(), "guarded",
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}})
		if !apierrors.IsConflict(err) {
			t.Errorf("deleting an old version: %v, want a conflict", err)
		}
		right := types.UID(s.jsonpath(t, "guarded", ".metadata.uid"))
		if err := client.Delete(t.Context(), "guarded",
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &right}}); err != nil {
			t.Error(err)
		}
	})

	t.Run("files", func(t *testing.T) {
		dir := t.TempDir()
		for _, name := range []string{"one", "two"} {
			if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(manifest(name, "x")),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		has(t, s.ok(t, "", "apply", "-f", dir), "one created", "two created")
		has(t, s.ok(t, "", "delete", "-f", dir), "one", "two")
	})

	t.Run("warnings", func(t *testing.T) {
		r := s.kubectl(t,
			"apiVersion: ci.rowkeeper.dev/v1\nkind: Pipeline\nmetadata: {name: warned}\nspec: {image: alpine, steps: [{name: a, shell: ls}]}", "apply", "-f", "-")
		has(t, r.stderr, "Warning: spec.image: \"alpine\" names no fixed version",
			"Warning: spec.steps[0].shell: deprecated")
		if r.code != 0 {
			t.Errorf("a warning made kubectl exit with %d", r.code)
		}
	})
}

// One object in two versions, and watches that see writes made in the other one.
func TestTwoVersions(t *testing.T) { anyDatabase(t, testTwoVersions) }

func testTwoVersions(t *testing.T, start func(string, ...string) *server) {
	s := start(t.TempDir())
	watch := s.kubectlBackground(t, "get", "pipelines.v1alpha1.ci.rowkeeper.dev", "-w", "-o",
		`jsonpath={.metadata.name}{" "}{.spec.commands}{"\n"}`)
	s.ok(t, manifest("two", "go test"), "create", "-f", "-")
	watch.next(t, `two ["go test"]`)
	has(t, s.ok(t, "", "get", "pipelines.v1.ci.rowkeeper.dev", "two", "-o", "yaml"),
		"apiVersion: ci.rowkeeper.dev/v1\n", "name: main")
	flat := s.ok(t, "", "get", "pipelines.v1alpha1.ci.rowkeeper.dev", "two", "-o", "yaml")
	has(t, flat, "apiVersion: ci.rowkeeper.dev/v1alpha1\n", "commands:\n  - go test\n",
		"parameters:\n    REVISION: \"\"")

	// Written back in the older version, it loses nothing.
	s.ok(t, strings.Replace(flat, "- go test", "- go vet", 1), "replace", "-f", "-")
	watch.next(t, `two ["go vet"]`)
	if got := s.jsonpath(t, "two",
		".spec.steps[0]"); got != `{"command":["sh","-c","go vet"],"name":"main"}` {
		t.Errorf("the step is %s", got)
	}
	if got := s.jsonpath(t, "two",
		".spec.parameters[0].description"); got != "The commit to build." {
		t.Errorf("the description is %q", got)
	}
	if got := s.jsonpath(t, "two", ".metadata.annotations"); got != "" {
		t.Errorf("the annotation of the other version is seen: %s", got)
	}
	// The preferred version is the one that kubectl takes.
	has(t, s.ok(t, "", "get", "pl", "two", "-o", "yaml"), "apiVersion: ci.rowkeeper.dev/v1\n")
}
