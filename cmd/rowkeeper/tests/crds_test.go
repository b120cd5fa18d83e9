package tests

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage"
)

// widgets is a definition with everything that definitions can have but a conversion webhook.
const widgets = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.factory.example.com}
spec:
  group: factory.example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList, shortNames: [wg], categories: [machines]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    selectableFields: [{jsonPath: .spec.colour}]
    additionalPrinterColumns:
    - {name: Colour, type: string, jsonPath: .spec.colour}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    - {name: Note, type: string, jsonPath: .spec.note, priority: 1}
    schema: &schema
      openAPIV3Schema:
        type: object
        description: A Widget is what the factory makes.
        required: [spec]
        properties:
          spec:
            type: object
            required: [colour]
            x-kubernetes-validations:
            - {rule: "self.minimum <= self.replicas", message: replicas must not be below the minimum}
            properties:
              colour: {type: string, enum: [red, green, blue], description: The colour that it is painted in.}
              replicas: {type: integer, default: 1, maximum: 1000}
              minimum: {type: integer, default: 0}
              serial: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, message: serial is immutable}]}
              note: {type: string}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, weight: {type: integer, default: 10}}
          status:
            type: object
            properties: {replicas: {type: integer}, selector: {type: string}, phase: {type: string}}
  - name: v1beta1
    served: true
    storage: false
    deprecated: true
    deprecationWarning: use v1
    subresources: {status: {}}
    selectableFields: [{jsonPath: .spec.colour}]
    schema: *schema
`

// widget is a Widget in YAML, with further lines for its spec.
func widget(name string, spec ...string) string {
	text := "apiVersion: factory.example.com/v1\nkind: Widget\nmetadata: {name: " + name +
		"}\nspec:\n  colour: red\n"
	for _, line := range spec {
		text += "  " + line + "\n"
	}
	return text
}

// define applies a definition and waits until its objects are served.
func (s *server) define(t testing.TB, definition, name string) {
	t.Helper()
	s.ok(t, definition, "apply", "-f", "-")
	s.established(t, "crd/"+name)
}

// established waits until a definition, which kubectl finds by the arguments, is served. "kubectl
// wait" fails on one that has no conditions yet, as in a cluster.
func (s *server) established(t testing.TB, which ...string) {
	t.Helper()
	eventually(t, strings.Join(which, " ")+" is established", func() bool {
		conditions := s.ok(t, "", append([]string{"get", "-o", "jsonpath={.status.conditions}"},
			which...)...)
		return strings.Contains(conditions, `"status":"True","type":"Established"`)
	})
}

// read reads a field of an object.
func (s *server) read(t testing.TB, object, path string) string {
	t.Helper()
	return s.ok(t, "", "get", object, "-o", "jsonpath={"+path+"}")
}

// storedWidgets are the objects in the namespace default as the database has them.
func (s *server) storedWidgets(t *testing.T) map[string]string {
	t.Helper()
	database, prefix := "sqlite://"+s.dir+"/.rowkeeper/state.db", storage.DefaultPrefix
	for _, arg := range s.cmd.Args {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "--database":
			database = value
		case "--storage-prefix":
			prefix = value
		}
	}
	versions := map[string]string{}
	live, _ := storedValues(t, database, prefix+"/factory.example.com/widgets/default")
	for _, value := range live {
		var o struct {
			APIVersion string                `json:"apiVersion"`
			Metadata   struct{ Name string } `json:"metadata"`
		}
		if err := json.Unmarshal(value, &o); err != nil {
			t.Fatal(err)
		}
		versions[o.Metadata.Name] = o.APIVersion
	}
	return versions
}

// Everything that a definition says, as a user sees it.
func TestCustomResources(t *testing.T) { anyDatabase(t, testCustomResources) }

func testCustomResources(t *testing.T, start func(string, ...string) *server) {
	s := start(t.TempDir(), "--enable-crds")
	s.define(t, widgets, "widgets.factory.example.com")

	t.Run("one server", func(t *testing.T) {
		has(t, s.ok(t, "", "api-resources"), "wg", "factory.example.com/v1", "ci.rowkeeper.dev/v1",
			"namespaces", "customresourcedefinitions")
		has(t, s.ok(t, "", "api-versions"), "factory.example.com/v1\n",
			"factory.example.com/v1beta1\n", "ci.rowkeeper.dev/v1\n", "apiextensions.k8s.io/v1\n",
			"coordination.k8s.io/v1\n")
		for path, parts := range map[string][]string{
			"/apis": {`"name":"factory.example.com"`,
				`"name":"ci.rowkeeper.dev"`, `"name":"apiextensions.k8s.io"`},
			"/apis/factory.example.com":    {`"preferredVersion":{"groupVersion":"factory.example.com/v1"`},
			"/apis/factory.example.com/v1": {`"widgets/scale"`},
			"/apis/ci.rowkeeper.dev/v1":    {`"pipelines/scale"`},
			"/openapi/v2": {"com.example.factory.v1.Widget",
				"dev.rowkeeper.ci.v1.Pipeline", "io.k8s.api.core.v1.Namespace",
				"CustomResourceDefinition"},
			"/openapi/v3": {"apis/factory.example.com/v1",
				"apis/ci.rowkeeper.dev/v1", "api/v1", "apis/apiextensions.k8s.io/v1"},
		} {
			eventually(t, path+" is published", func() bool {
				text := strings.ReplaceAll(s.get(t, path, "application/json"), `": `, `":`)
				for _, part := range parts {
					if !strings.Contains(text, part) {
						return false
					}
				}
				return true
			})
		}
		has(t, s.ok(t, "", "explain", "widgets.spec.colour"), "The colour that it is painted in.",
			"ENUM:", "green")
		has(t, s.ok(t, "", "explain", "pipelines.spec"), "maxParallelRuns")
		has(t, s.ok(t, "", "explain", "namespaces.status"), "phase")
		has(t, s.ok(t, "", "explain", "crd.spec"), "versions")
	})

	t.Run("schema", func(t *testing.T) {
		s.ok(t, widget("one", "parts: [{name: wheel}]"), "apply", "-f", "-")
		if got := s.read(t, "wg/one",
			".spec"); got != `{"colour":"red","minimum":0,"parts":[{"name":"wheel","weight":10}],"replicas":1}` {
			t.Errorf("with defaults the spec is %s", got)
		}
		s.refused(t, widget("two", "size: 3"), `unknown field "spec.size"`, "apply", "-f", "-")
		s.ok(t, widget("two", "size: 3"), "apply", "--validate=ignore", "-f", "-")
		if got := s.read(t, "wg/two", ".spec.size"); got != "" {
			t.Errorf("a field that is not in the schema is kept: %s", got)
		}
		s.refused(t, strings.Replace(widget("bad"), "red", "pink", 1),
			`spec.colour: Unsupported value: "pink": supported values: "red", "green", "blue"`,
			"apply", "-f", "-")
		s.refused(t, widget("bad", "minimum: 5"), "spec: Invalid value: replicas must not be "+
			"below the minimum", "apply", "-f", "-")
		s.refused(t, "apiVersion: factory.example.com/v1\nkind: Widget\nmetadata: {name: bad}",
			"spec: Required value", "apply", "-f", "-")
		s.ok(t, widget("serial", "serial: a1"), "apply", "-f", "-")
		s.refused(t, "", "serial is immutable", "patch", "wg", "serial", "--type=merge", "-p",
			`{"spec":{"serial":"b2"}}`)
	})

	t.Run("subresources", func(t *testing.T) {
		s.ok(t, "", "patch", "wg", "one", "--type=merge", "-p", `{"status":{"phase":"Wrong"}}`)
		if got := s.read(t, "wg/one", ".status"); got != "" {
			t.Errorf("the status was changed with the rest: %s", got)
		}
		s.ok(t, "", "patch", "wg", "one", "--subresource=status", "--type=merge", "-p",
			`{"status":{"phase":"Ready","replicas":1,"selector":"app=one"},"spec":{"colour":"blue"}}`)
		if got := s.read(t, "wg/one", ".status.phase") + s.read(t, "wg/one",
			".spec.colour"); got != "Readyred" {
			t.Errorf("phase and colour are %s", got)
		}
		if got := s.read(t, "wg/one", ".metadata.generation"); got != "1" {
			t.Errorf("a status has changed the generation: %s", got)
		}
		s.ok(t, "", "scale", "wg/one", "--current-replicas=1", "--replicas=4")
		has(t, s.ok(t, "", "get", "wg", "one", "--subresource=scale", "-o", "json"),
			`"kind": "Scale"`, `"selector": "app=one"`)
		if got := s.read(t, "wg/one", ".spec.replicas") + s.read(t, "wg/one",
			".metadata.generation"); got != "42" {
			t.Errorf("replicas and generation are %s", got)
		}
		s.refused(t, "", "spec.replicas: Invalid value: 2000", "scale", "wg/one", "--replicas=2000")
	})

	t.Run("lists", func(t *testing.T) {
		out := s.ok(t, "", "get", "wg")
		has(t, out, "COLOUR", "REPLICAS", "one", "red", "4")
		if strings.Contains(out, "NOTE") {
			t.Errorf("a column with a priority is shown:\n%s", out)
		}
		has(t, s.ok(t, "", "get", "machines", "-o", "wide"), "NOTE", "one")
		s.ok(t, "", "patch", "wg", "two", "--type=merge", "-p", `{"spec":{"colour":"green"}}`)
		if got := s.ok(t, "", "get", "wg", "-o", "name", "--field-selector",
			"spec.colour=green"); got != "widget.factory.example.com/two\n" {
			t.Errorf("the green ones are %q", got)
		}
		s.refused(t, "", `field label not supported: spec.note`, "get", "wg", "--field-selector",
			"spec.note=x")
		watch := s.kubectlBackground(t, "get", "wg", "-w", "-o", "name")
		s.ok(t, widget("seen"), "create", "-f", "-")
		watch.next(t, "widget.factory.example.com/seen")
	})

	t.Run("server-side apply", func(t *testing.T) {
		s.ok(t, widget("ssa", "parts: [{name: a}]"), "apply", "--server-side", "--field-manager=x",
			"-f", "-")
		s.ok(t, widget("ssa", "parts: [{name: b}]"), "apply", "--server-side", "--field-manager=y",
			"-f", "-")
		if got := s.read(t, "wg/ssa", ".spec.parts[*].name"); got != "a b" {
			t.Errorf("the parts are %s", got)
		}
		s.refused(t, strings.Replace(widget("ssa"), "red", "blue", 1),
			`conflict with "x": .spec.colour`, "apply", "--server-side", "--field-manager=y", "-f",
			"-")
	})

	t.Run("versions", func(t *testing.T) {
		r := s.kubectl(t, "", "get", "widgets.v1beta1.factory.example.com", "one", "-o", "yaml")
		has(t, r.stdout, "apiVersion: factory.example.com/v1beta1\n")
		has(t, r.stderr, "Warning: use v1")

		// The version that is stored changes; what was stored before is still there, and is stored
		// anew when it is written.
		swapped := strings.Replace(strings.Replace(widgets, "storage: true", "storage: later", 1),
			"storage: false", "storage: true", 1)
		s.ok(t, strings.Replace(swapped, "storage: later", "storage: false", 1), "apply", "-f", "-")
		const stored = "customresourcedefinition/widgets.factory.example.com"
		if got := s.read(t, stored, ".status.storedVersions"); got != `["v1","v1beta1"]` {
			t.Errorf("stored versions are %s", got)
		}
		for i := 0; s.storedWidgets(t)["one"] != "factory.example.com/v1beta1"; i++ {
			if i == 100 {
				t.Fatal("an object is not stored in the new version when it is written")
			}
			s.ok(t, "", "label", "wg", "one", fmt.Sprint("moved=", i), "--overwrite")
		}
		if all := s.storedWidgets(t); all["two"] != "factory.example.com/v1" {
			t.Errorf("what was not written is stored in %s", all["two"])
		}
		if got := s.read(t, "wg/one", ".spec.replicas") + s.read(t, "wg/one",
			".status.phase") + s.read(t, "wg/one",
			".apiVersion"); got != "4Readyfactory.example.com/v1" {
			t.Errorf("replicas, phase and version are %s", got)
		}
		s.refused(t, "", "must have exactly one version marked as storage version", "patch", stored,
			"--type=json", "-p",
			`[{"op":"replace","path":"/spec/versions/1/storage","value":false}]`)
		s.ok(t, widgets, "apply", "-f", "-")
		has(t, s.ok(t, "", "get", "wg", "-o", "name"), "/one\n", "/two\n", "/seen\n")
	})

	t.Run("ratcheting", func(t *testing.T) {
		stricter := strings.Replace(widgets, "note: {type: string}",
			"note: {type: string, maxLength: 3, x-kubernetes-validations: [{rule: \"self != 'nay'\", message: say yes}]}", 1)
		s.ok(t, "", "patch", "wg", "two", "--type=merge", "-p", `{"spec":{"note":"much too long"}}`)
		s.ok(t, widget("nay", "note: nay"), "create", "-f", "-")
		s.ok(t, stricter, "apply", "-f", "-")
		eventually(t, "the stricter schema holds", func() bool {
			return strings.Contains(s.kubectl(t, widget("new", "note: also too long"), "create",
				"--dry-run=server", "-f", "-").stderr, "Too long: may not be more than 3")
		})
		// Objects that were stored before stay readable, and other fields can be changed.
		for _, name := range []string{"two", "nay"} {
			s.ok(t, "", "patch", "wg", name, "--type=merge", "-p", `{"spec":{"replicas":7}}`)
			if got := s.read(t, "wg/"+name, ".spec.replicas"); got != "7" {
				t.Errorf("replicas are %s", got)
			}
		}
		s.refused(t, "", "spec.note: Too long", "patch", "wg", "two", "--type=merge", "-p",
			`{"spec":{"note":"other"}}`)
		s.refused(t, widget("other", "note: nay"), "say yes", "create", "-f", "-")
	})

	t.Run("deletion", func(t *testing.T) {
		s.ok(t, "", "patch", "wg", "seen", "--type=merge", "-p",
			`{"metadata":{"finalizers":["example.com/wait"]}}`)
		s.ok(t, "", "delete", "crd", "widgets.factory.example.com", "--wait=false")
		eventually(t, "all objects without finalizers are gone", func() bool {
			return s.ok(t, "", "get", "wg", "-o", "name") == "widget.factory.example.com/seen\n"
		})
		s.refused(t, widget("late"), "create not allowed while custom resource definition is "+
			"terminating", "create", "-f", "-")
		s.ok(t, "", "patch", "wg", "seen", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		s.ok(t, "", "wait", "--for=delete", "crd/widgets.factory.example.com", "--timeout=60s")
		if left := s.storedWidgets(t); len(left) > 0 {
			t.Errorf("the database still has %v", left)
		}
		eventually(t, "the resource is gone", func() bool {
			return !strings.Contains(s.ok(t, "", "api-resources"), "factory.example.com")
		})
		eventually(t, "the group is gone", func() bool {
			return !strings.Contains(s.get(t, "/apis", "application/json"), "factory.example.com")
		})
		s.define(t, widgets, "widgets.factory.example.com")
		if got := s.ok(t, "", "get", "wg", "-A", "-o", "name"); got != "" {
			t.Errorf("objects came back: %s", got)
		}
	})
}

// Namespaces and what is in them.
func TestNamespaces(t *testing.T) { anyDatabase(t, testNamespaces) }

func testNamespaces(t *testing.T, start func(string, ...string) *server) {
	s := start(t.TempDir(), "--enable-crds")
	s.define(t, widgets, "widgets.factory.example.com")
	has(t, s.ok(t, "", "get", "ns"), "default", "kube-system", "Active")
	s.refused(t, "", `namespaces "default" is forbidden: this namespace may not be deleted`,
		"delete", "ns", "default")
	for _, object := range []string{manifest("build", "make"), widget("one"),
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}"} {
		s.refused(t, object, `namespaces "missing" not found`, "create", "-n", "missing", "-f", "-")
	}

	s.ok(t, "", "create", "ns", "team")
	if got := s.read(t, "ns/team", ".metadata.labels") + s.read(t, "ns/team",
		".spec.finalizers"); got != `{"kubernetes.io/metadata.name":"team"}["kubernetes"]` {
		t.Errorf("labels and finalizers are %s", got)
	}
	s.refused(t, "", `namespaces "team" already exists`, "create", "ns", "team")
	s.refused(t, "", "a lowercase RFC 1123 label", "create", "ns", "Team_1")
	for _, object := range []string{manifest("build", "make"), widget("one"), widget("two")} {
		s.ok(t, object, "create", "-n", "team", "-f", "-")
	}
	s.ok(t, "", "create", "configmap", "c", "-n", "team", "--from-literal=a=b")
	s.ok(t, "", "create", "secret", "generic", "s", "-n", "team", "--from-literal=a=b")
	s.ok(t, "", "create", "serviceaccount", "robot", "-n", "team")
	has(t, s.ok(t, "", "get", "cm,secret,sa", "-n", "team"), "configmap/c", "secret/s", "Opaque",
		"serviceaccount/robot")

	// Something in it waits: the namespace says so, nothing can be created, and it stays.
	s.ok(t, "", "patch", "wg", "two", "-n", "team", "--type=merge", "-p",
		`{"metadata":{"finalizers":["example.com/wait"]}}`)
	s.ok(t, widget("stays"), "create", "-f", "-")
	s.ok(t, "", "delete", "ns", "team", "--wait=false")
	eventually(t, "the namespace says what is left", func() bool {
		return strings.Contains(s.read(t, "ns/team", ".status"),
			"Some resources are remaining: widgets.factory.example.com has 1 resource instances")
	})
	has(t, s.ok(t, "", "get", "ns", "team"), "Terminating")
	s.refused(t, widget("late"), "unable to create new content in namespace team because it is "+
		"being terminated", "create", "-n", "team", "-f", "-")
	if got := s.ok(t, "", "get", "pl,wg,cm,secret,sa", "-n", "team", "-o",
		"name"); got != "widget.factory.example.com/two\n" {
		t.Errorf("left are: %s", got)
	}
	s.ok(t, "", "patch", "wg", "two", "-n", "team", "--type=merge", "-p",
		`{"metadata":{"finalizers":null}}`)
	s.ok(t, "", "wait", "--for=delete", "ns/team", "--timeout=60s")
	has(t, s.ok(t, "", "get", "wg", "-A"), "stays")

	s.ok(t, "", "create", "ns", "team")
	if got := s.ok(t, "", "get", "pl,wg,cm,secret,sa", "-n", "team", "-o", "name"); got != "" &&
		got != "serviceaccount/default\n" { // each namespace gets it
		t.Errorf("objects came back: %s", got)
	}
	s.ok(t, "", "delete", "ns", "team")
	s.refused(t, "", "not found", "get", "ns", "team")
}
