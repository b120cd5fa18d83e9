package tests

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// boxes is a definition in two versions, between which a webhook converts: v1 has the size in one
// field, and v2 in two. clientConfig leads to the webhook.
func boxes(clientConfig string) string {
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boxes.store.example.com}
spec:
  group: store.example.com
  scope: Namespaced
  names: {plural: boxes, singular: box, kind: Box}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {%s}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: string}}}}}}
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {width: {type: string}, height: {type: string}}}}}}
`, clientConfig)
}

// convertBoxes answers a ConversionReview.
func convertBoxes(w http.ResponseWriter, r *http.Request) {
	var review struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Request    struct {
			UID               string           `json:"uid"`
			DesiredAPIVersion string           `json:"desiredAPIVersion"`
			Objects           []map[string]any `json:"objects"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, o := range review.Request.Objects {
		spec, _ := o["spec"].(map[string]any)
		if size, ok := spec["size"].(string); ok {
			width, height, _ := strings.Cut(size, "x")
			o["spec"] = map[string]any{"width": width, "height": height}
		} else if spec != nil {
			o["spec"] = map[string]any{"size": fmt.Sprint(spec["width"], "x", spec["height"])}
		}
		o["apiVersion"] = review.Request.DesiredAPIVersion
	}
	json.NewEncoder(w).Encode(map[string]any{ //nolint:errcheck // whoever asked has gone
		"apiVersion": review.APIVersion, "kind": review.Kind,
		"response": map[string]any{"uid": review.Request.UID,
			"convertedObjects": review.Request.Objects,
			"result":           map[string]any{"status": "Success"}},
	})
}

// A webhook converts between the versions. While it cannot be reached, what was stored is there,
// and can be read in the version in which it is stored.
func TestConversionWebhook(t *testing.T) { anyDatabase(t, testConversionWebhook) }

func testConversionWebhook(t *testing.T, start func(string, ...string) *server) {
	s := start(t.TempDir(), "--enable-crds")
	hook := httptest.NewTLSServer(http.HandlerFunc(convertBoxes))
	defer hook.Close()
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: hook.Certificate().Raw}))
	s.define(t, boxes(fmt.Sprintf("url: %q, caBundle: %s", hook.URL+"/convert", ca)), "boxes.store.example.com")

	s.ok(t, "apiVersion: store.example.com/v1\nkind: Box\nmetadata: {name: one}\nspec: {size: 3x4}",
		"create", "-f", "-")
	s.ok(t,
		"apiVersion: store.example.com/v2\nkind: Box\nmetadata: {name: two}\nspec: {width: '5', height: '6'}", "create", "-f", "-")
	const first, second = "boxes.v1.store.example.com", "boxes.v2.store.example.com"
	if got := s.ok(t, "", "get", second, "-o",
		"jsonpath={.items[*].spec}"); got != `{"height":"4","width":"3"} {"height":"6","width":"5"}` {
		t.Errorf("in the second version the boxes are %s", got)
	}
	if got := s.ok(t, "", "get", first, "-o",
		"jsonpath={.items[*].spec}"); got != `{"size":"3x4"} {"size":"5x6"}` {
		t.Errorf("in the first version the boxes are %s", got)
	}
	watch := s.kubectlBackground(t, "get", second, "-w", "-o",
		`jsonpath={.metadata.name}{" "}{.spec.width}{"\n"}`)
	watch.next(t, "two 5")
	s.ok(t, "", "patch", first, "two", "--type=merge", "-p", `{"spec":{"size":"7x6"}}`)
	watch.next(t, "two 7")

	hook.Close()
	const refusal = `conversion webhook for store.example.com/v`
	s.refused(t,
		"apiVersion: store.example.com/v2\nkind: Box\nmetadata: {name: three}\nspec: {width: '1', height: '1'}", refusal, "create", "-f", "-")
	s.refused(t, "", refusal+"1, Kind=Box failed", "get", second, "one")
	s.refused(t, "", "connect: connection refused", "patch", second, "two", "--type=merge", "-p",
		`{"spec":{"width":"9"}}`)
	if got := s.ok(t, "", "get", first, "-o",
		"jsonpath={.items[*].spec}"); got != `{"size":"3x4"} {"size":"7x6"}` {
		t.Errorf("the boxes are %s", got)
	}
	s.ok(t, "", "patch", first, "one", "--type=merge", "-p", `{"spec":{"size":"8x4"}}`)

	// Once it is back, at another address, everything is.
	again := httptest.NewTLSServer(http.HandlerFunc(convertBoxes))
	defer again.Close()
	s.ok(t, boxes(fmt.Sprintf("url: %q, caBundle: %s", again.URL+"/convert", ca)), "apply", "-f", "-")
	eventually(t, "the second version is served again", func() bool {
		return s.kubectl(t, "", "get", second, "-o",
			"jsonpath={.items[*].spec.width}").stdout == "8 7"
	})
}

// Wrong objects are refused with the words of kube-apiserver, and the objects that were there stay
// as they were.
func TestBadDefinitionsAndObjects(t *testing.T) { anyDatabase(t, testBadDefinitionsAndObjects) }

func testBadDefinitionsAndObjects(t *testing.T, start func(string, ...string) *server) {
	s := start(t.TempDir(), "--enable-crds")
	s.define(t, widgets, "widgets.factory.example.com")
	s.ok(t, widget("one"), "create", "-f", "-")
	before := s.ok(t, "", "get", "wg", "one", "-o", "yaml")

	definition := func(name, group, kind, schema string) string {
		return fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %s.%s}, spec: {group: %s, scope: Namespaced, names: {plural: %s, kind: %s},
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: %s}}]}}`, name, group, group, name, kind, schema)
	}
	const anything = "{type: object}"
	for want, bad := range map[string]string{
		"openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields": definition("as", "example.com", "A",
			"{type: object, properties: {a: {}}}"),
		"protected groups must have approval annotation \"api-approved.kubernetes.io\"":      definition("as", "stolen.k8s.io", "A", anything),
		"the group ci.rowkeeper.dev belongs to the server itself: choose another spec.group": definition("pipelines", "ci.rowkeeper.dev", "Pipeline", anything),
		"estimated rule cost exceeds budget by factor of more than 100x": definition("as",
			"example.com", "A",
			"{type: object, properties: {l: {type: array, items: {type: string}, x-kubernetes-validations: [{rule: 'self.all(x, self.all(y, self.all(z, x == y || y == z)))'}]}}}"),
		"compilation failed: ERROR: <input>:1:5: undefined field 'nothing'": definition("as",
			"example.com", "A",
			"{type: object, x-kubernetes-validations: [{rule: self.nothing > 1}]}"),
		"must be spec.names.plural+\".\"+spec.group": strings.Replace(definition("as",
			"example.com", "A", anything), "name: as.example.com", "name: other.example.com", 1),
	} {
		s.refused(t, bad, want, "create", "-f", "-")
	}

	// Names that another definition has are not accepted, and that one goes on.
	s.ok(t, definition("others", "factory.example.com", "Widget", anything), "create", "-f", "-")
	eventually(t, "the conflict is told", func() bool {
		// A definition has no conditions at all for a moment, which a filter cannot be used on.
		conditions := s.read(t, "crd/others.factory.example.com", ".status.conditions")
		return strings.Contains(conditions, "is already in use")
	})
	s.refused(t, "", "the server doesn't have a resource type", "get", "others.factory.example.com")
	s.ok(t, "", "delete", "crd", "others.factory.example.com")

	// An object of 1.5 MB can be stored, if not applied by the client, which would put it into an
	// annotation; a greater one cannot.
	large := func(name string, size int) string {
		return widget(name, "note: "+strings.Repeat("x", size))
	}
	s.ok(t, large("large", 1_500_000), "create", "-f", "-")
	if got := len(s.read(t, "wg/large", ".spec.note")); got != 1_500_000 {
		t.Errorf("%d bytes came back", got)
	}
	s.refused(t, large("larger", 1<<20*3/2), "Request entity too large", "create", "-f", "-")
	s.refused(t, large("largest", 1<<20*3), "Request entity too large: limit is 3145728",
		"create", "-f", "-")
	s.refused(t, "", "not found", "get", "wg", "larger", "largest")

	// The new schema forbids what is stored: it is there nevertheless, and can be mended or
	// deleted.
	s.ok(t, strings.Replace(widgets, "enum: [red, green, blue]", "enum: [green, blue]", 2),
		"apply", "-f", "-")
	eventually(t, "the schema forbids red", func() bool {
		return s.kubectl(t, widget("red"), "create", "--dry-run=server", "-f", "-").code != 0
	})
	if after := s.ok(t, "", "get", "wg", "one", "-o", "yaml"); after != before {
		t.Errorf("the object has changed from\n%s to\n%s", before, after)
	}
	s.ok(t, "", "label", "wg", "one", "still=writable")
	s.refused(t, "", `spec.colour: Unsupported value: "pink": supported values: "green", "blue"`,
		"patch", "wg", "one", "--type=merge", "-p", `{"spec":{"colour":"pink"}}`)
	s.ok(t, "", "patch", "wg", "one", "--type=merge", "-p", `{"spec":{"colour":"blue"}}`)
	s.ok(t, "", "delete", "wg", "large")
}

// A kind that is defined by one server is served by the others.
func TestDefinitionsOnReplicas(t *testing.T) { eachDatabase(t, testDefinitionsOnReplicas) }

func testDefinitionsOnReplicas(t *testing.T, start func(string, ...string) *server) {
	one := start(t.TempDir(), "--enable-crds")
	two := start(t.TempDir(), append(sameDatabase(one), "--enable-crds")...)
	one.define(t, widgets, "widgets.factory.example.com")
	began := time.Now()
	const path = "/apis/factory.example.com/v1/widgets"
	var served, discovered time.Duration
	eventually(t, "the other server serves it", func() bool {
		if served == 0 && strings.Contains(two.get(t, path, "application/json"), "WidgetList") {
			served = time.Since(began)
		}
		if discovered == 0 && strings.Contains(two.get(t, "/apis",
			"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"), `"widgets"`) {
			discovered = time.Since(began)
		}
		return served > 0 && discovered > 0
	})
	t.Logf("after kubectl saw it established on one server, the other served it within %s, and "+
		"listed it in discovery within %s", served, discovered)
	two.ok(t, widget("there"), "create", "-f", "-")
	has(t, one.ok(t, "", "get", "wg", "-o", "name"), "/there\n")
	one.ok(t, "", "create", "ns", "team")
	two.ok(t, widget("late"), "create", "-n", "team", "-f", "-")
	two.ok(t, "", "delete", "ns", "team")
	one.refused(t, "", "not found", "get", "ns", "team")
	one.ok(t, "", "delete", "crd", "widgets.factory.example.com")
	eventually(t, "the other server has forgotten it", func() bool {
		return !strings.Contains(two.ok(t, "", "api-resources"), "widgets")
	})
}
