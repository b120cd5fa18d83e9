package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// kustomization makes objects of all kinds of origin: a namespace of the core API, a definition
// with an object of its kind, a generated ConfigMap, and a Pipeline, which is a Go type.
var kustomization = map[string]string{
	"kustomization.yaml": `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: plant
namePrefix: north-
labels: [{pairs: {site: north}}]
resources: [namespace.yaml, definition.yaml, widget.yaml, pipeline.yaml]
configMapGenerator: [{name: settings, literals: [speed=slow]}]
patches:
- target: {kind: Pipeline}
  patch: |
    - {op: add, path: /spec/maxParallelRuns, value: 2}
`,
	"namespace.yaml":  "apiVersion: v1\nkind: Namespace\nmetadata: {name: plant}\n",
	"definition.yaml": widgets,
	"widget.yaml":     widget("wheel", "replicas: 3"),
	"pipeline.yaml":   manifest("build", "make"),
}

// A kustomization is applied, applied again, changed and deleted as in a cluster.
func TestKustomize(t *testing.T) {
	s := start(t, t.TempDir(), "--enable-crds")
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range kustomization {
		write(name, content)
	}

	// kubectl looks for the kinds before it creates the definition of one: it applies all other
	// objects, and the rest when it is called again.
	s.refused(t, "", `no matches for kind "Widget"`, "apply", "-k", dir)
	s.established(t, "-f", filepath.Join(dir, "definition.yaml"))
	out := s.ok(t, "", "apply", "-k", dir)
	has(t, out, "namespace/plant unchanged", "widget.factory.example.com/north-wheel created",
		"pipeline.ci.rowkeeper.dev/north-build unchanged", "configmap/north-settings-")
	for _, line := range strings.Split(strings.TrimSpace(s.ok(t, "", "apply", "-k", dir)), "\n") {
		if !strings.HasSuffix(line, " unchanged") {
			t.Errorf("applied again without a change: %s", line)
		}
	}
	s.ok(t, "", "diff", "-k", dir)
	read := func(object, path string) string {
		t.Helper()
		return s.ok(t, "", "get", object, "-n", "plant", "-o", "jsonpath={"+path+"}")
	}
	if got := read("wg/north-wheel", ".spec.replicas") + read("pipeline/north-build",
		".spec.maxParallelRuns"); got != "32" {
		t.Errorf("replicas and parallel runs are %s", got)
	}
	if got := s.ok(t, "", "get", "ns,crd,cm,wg,pl", "-A", "-l", "site=north", "-o",
		"jsonpath={.items[*].kind}"); got != "Namespace CustomResourceDefinition ConfigMap "+
		"Widget Pipeline" {
		t.Errorf("with the label are %s", got)
	}

	// Another value gives the generated ConfigMap another name.
	write("kustomization.yaml", strings.Replace(kustomization["kustomization.yaml"], "speed=slow",
		"speed=fast", 1))
	has(t, s.ok(t, "", "apply", "-k", dir), "created", "widget.factory.example.com/north-wheel "+
		"unchanged")
	if got := s.ok(t, "", "get", "cm", "-n", "plant", "-l", "site=north", "-o",
		"jsonpath={.items[*].data.speed}"); got != "fast slow" && got != "slow fast" {
		t.Errorf("the settings are %s", got)
	}

	// Objects in the namespace may go with it before kubectl comes to them.
	s.ok(t, "", "delete", "-k", dir, "--ignore-not-found")
	s.refused(t, "", `namespaces "plant" not found`, "get", "ns", "plant")
	s.refused(t, "", "not found", "get", "crd", "widgets.factory.example.com")
	if got := s.ok(t, "", "get", "cm,pl", "-A", "-l", "site=north", "-o", "name"); got != "" {
		t.Errorf("left are %s", got)
	}
	eventually(t, "the definition's group is gone", func() bool {
		return !strings.Contains(s.ok(t, "", "api-versions"), "factory.example.com")
	})
}
