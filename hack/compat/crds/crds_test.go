package crds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"

	// These keep the modules required of which the definitions are read.
	_ "github.com/cert-manager/cert-manager/pkg/apis/certmanager"
	_ "github.com/prometheus-operator/prometheus-operator/pkg/versionutil"
	_ "sigs.k8s.io/gateway-api/pkg/consts"
)

// projects are where the definitions are, by module.
var projects = map[string]string{
	"github.com/cert-manager/cert-manager":               "deploy/crds",
	"sigs.k8s.io/gateway-api":                            "config/crd/standard",
	"github.com/prometheus-operator/prometheus-operator": "example/prometheus-operator-crd",
}

// definitions reads those of a module.
func definitions(t testing.TB, module string) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		module).Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), projects[module],
		"*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents := utilyaml.NewYAMLReader(newReader(content))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			d := &apiextensionsv1.CustomResourceDefinition{}
			if err := yaml.Unmarshal(document, d); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if d.Kind == "CustomResourceDefinition" {
				d.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
				all = append(all, d)
			}
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no definitions in %s", module, projects[module])
	}
	return all
}

func eventually(t testing.TB, what string, ok wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 250*time.Millisecond, 5*time.Minute, true,
		ok); err != nil {
		t.Fatalf("waited in vain: %s: %v", what, err)
	}
}

// install creates definitions and waits until all are established.
func install(t testing.TB, config *rest.Config, all []*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	client := apiextensions.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	for _, d := range all {
		if _, err := client.Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: %v", d.Name, err)
		}
	}
	established(t, config, len(all))
}

// established waits until at least so many definitions are established.
func established(t testing.TB, config *rest.Config, n int) {
	t.Helper()
	client := apiextensions.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	eventually(t, fmt.Sprintf("%d definitions are established", n),
		func(ctx context.Context) (bool, error) {
			list, err := client.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				return false, err
			}
			count := 0
			for _, d := range list.Items {
				for _, c := range d.Status.Conditions {
					if c.Type == apiextensionsv1.Established &&
						c.Status == apiextensionsv1.ConditionTrue {
						count++
					}
					if c.Type == apiextensionsv1.NamesAccepted &&
						c.Status == apiextensionsv1.ConditionFalse ||
						c.Type == apiextensionsv1.NonStructuralSchema &&
							c.Status == apiextensionsv1.ConditionTrue {
						return false, fmt.Errorf("%s: %s", d.Name, c.Message)
					}
				}
			}
			return count >= n, nil
		})
}

// use says how a project's objects behave.
type use struct {
	object string
	// defaults are values of fields that the object lacks, by path.
	defaults map[string]any
	// bad is what makes the object invalid, and refusal the message.
	bad     func(*unstructured.Unstructured)
	refusal string
}

var uses = map[string][]use{
	"github.com/cert-manager/cert-manager": {{
		object: `
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: web, namespace: default}
spec: {secretName: web-tls, dnsNames: [web.example.com], issuerRef: {name: ca}}`,
		bad: func(o *unstructured.Unstructured) {
			set[any](unstructured.SetNestedField, o.Object, "Sometimes", "spec", "privateKey",
				"rotationPolicy")
		},
		refusal: `spec.privateKey.rotationPolicy: Unsupported value: "Sometimes": supported values: "Never", "Always"`,
	}, {
		object: `
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: ca}
spec: {selfSigned: {}}`,
		bad: func(o *unstructured.Unstructured) {
			unstructured.RemoveNestedField(o.Object, "spec")
		},
		refusal: "spec: Required value",
	}},
	"sigs.k8s.io/gateway-api": {{
		object: `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec: {gatewayClassName: any, listeners: [{name: http, port: 80, protocol: HTTP}]}`,
		defaults: map[string]any{"spec.listeners.0.allowedRoutes.namespaces.from": "Same"},
		bad: func(o *unstructured.Unstructured) {
			set(unstructured.SetNestedSlice, o.Object, []any{map[string]any{
				"name": "tls", "port": int64(443), "protocol": "HTTP",
				"tls": map[string]any{"certificateRefs": []any{map[string]any{"name": "web-tls"}}},
			}}, "spec", "listeners")
		},
		refusal: "tls must not be specified for protocols",
	}, {
		object: `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: default}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}`,
		defaults: map[string]any{
			"spec.parentRefs.0.group": "gateway.networking.k8s.io",
			"spec.parentRefs.0.kind":  "Gateway", "spec.rules.0.matches.0.path.type": "PathPrefix",
			"spec.rules.0.backendRefs.0.weight": int64(1),
		},
		bad: func(o *unstructured.Unstructured) {
			set(unstructured.SetNestedSlice, o.Object,
				[]any{map[string]any{"backendRefs": []any{map[string]any{"name": "web"}}}},
				"spec", "rules")
		},
		refusal: "Must have port for Service reference",
	}},
	"github.com/prometheus-operator/prometheus-operator": {{
		object: `
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: main, namespace: default}
spec: {replicas: 2}`,
		defaults: map[string]any{"spec.scrapeInterval": "30s", "spec.evaluationInterval": "30s",
			"spec.portName": "web"},
		bad: func(o *unstructured.Unstructured) {
			set[any](unstructured.SetNestedField, o.Object, "often", "spec", "scrapeInterval")
		},
		refusal: `spec.scrapeInterval: Invalid value: "often": spec.scrapeInterval in body should match`,
	}, {
		object: `
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: web, namespace: default}
spec: {selector: {matchLabels: {app: web}}, endpoints: [{port: metrics}]}`,
		bad: func(o *unstructured.Unstructured) {
			unstructured.RemoveNestedField(o.Object, "spec", "selector")
		},
		refusal: "spec.selector: Required value",
	}},
}

// The definitions of each project are established, and their objects are held, defaulted, validated
// and listed.
func TestProjects(t *testing.T) {
	for module := range projects {
		t.Run(module, func(t *testing.T) {
			s := crdstest.Start(t, testkit.Options{})
			all := definitions(t, module)
			began := time.Now()
			install(t, s.Config, all)
			t.Logf("%d definitions were established after %s", len(all),
				time.Since(began).Round(time.Millisecond))
			for _, u := range uses[module] {
				t.Run(u.kind(t), func(t *testing.T) { u.test(t, s.Config) })
			}
		})
	}
}

func (u use) decode(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(u.object), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func (u use) kind(t *testing.T) string { return u.decode(t).GetKind() }

func (u use) test(t *testing.T, config *rest.Config) {
	o := u.decode(t)
	client := resource(t, config, o)
	created, err := client.Create(t.Context(), o,
		metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range u.defaults {
		if got := at(created.Object, strings.Split(path, ".")); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	unknown := u.decode(t)
	unknown.SetName("unknown")
	set[any](unstructured.SetNestedField, unknown.Object, "x", "spec", "noSuchField")
	if _, err := client.Create(t.Context(), unknown,
		metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err == nil ||
		!strings.Contains(err.Error(), `unknown field "spec.noSuchField"`) {
		t.Errorf("an unknown field: %v", err)
	}
	pruned, err := client.Create(t.Context(), unknown, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, kept, _ := unstructured.NestedString(pruned.Object, "spec", "noSuchField"); kept {
		t.Error("an unknown field is kept")
	}
	bad := u.decode(t)
	bad.SetName("bad")
	u.bad(bad)
	if _, err := client.Create(t.Context(), bad,
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), u.refusal) {
		t.Errorf("got %v, want %s", err, u.refusal)
	}
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Errorf("%d objects are listed: %v", len(list.Items), err)
	}
}

// resource is where an object is.
func resource(t *testing.T, config *rest.Config,
	o *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	kind := o.GroupVersionKind()
	var mapping *meta.RESTMapping
	eventually(t, "the kind is discovered", func(context.Context) (bool, error) {
		groups,
			err := restmapper.GetAPIGroupResources(apiextensions.NewForConfigOrDie(config).Discovery())
		if err != nil {
			return false, err
		}
		mapping, err = restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(kind.GroupKind(),
			kind.Version)
		return err == nil, nil
	})
	client := dynamic.NewForConfigOrDie(config).Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return client.Namespace(o.GetNamespace())
	}
	return client
}

// at returns the value at a path, in which numbers are places in lists.
func at(value any, path []string) any {
	for _, step := range path {
		switch v := value.(type) {
		case map[string]any:
			value = v[step]
		case []any:
			var i int
			if _, err := fmt.Sscan(step, &i); err != nil || i >= len(v) {
				return nil
			}
			value = v[i]
		default:
			return nil
		}
	}
	return value
}

// set sets a field of an object of ours, whose form is known.
func set[T any](to func(map[string]any, T, ...string) error, object map[string]any, value T,
	path ...string) {
	if err := to(object, value, path...); err != nil {
		panic(err)
	}
}
