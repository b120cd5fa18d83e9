package release

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestChart: with the values that mean the same, the chart makes the same objects as each overlay.
// So the reasons that deploy/ gives are those of the chart, too, and neither is forgotten when the
// other is changed.
func TestChart(t *testing.T) {
	const url = "postgres://rowkeeper@db:5432/rowkeeper"
	const withPassword = url + "?password_file=/etc/rowkeeper/database/password"
	given := map[string]any{"ca": "authority", "cert": "certificate", "key": "key"}
	for name, c := range map[string]struct {
		overlay string
		// components are put in the place of what the overlay has.
		components []string
		values     map[string]any
	}{
		"postgres": {"postgres", []string{"certs"}, map[string]any{"certificates": given,
			"database": map[string]any{"url": url, "password": "secret", "port": 5432}}},
		"mysql": {"mysql", []string{"certs"}, map[string]any{"certificates": given,
			"database": map[string]any{"url": url, "password": "secret", "port": 3306}}},
		"sqlite": {"sqlite", []string{"certs"}, map[string]any{"certificates": given,
			"sqlite": map[string]any{"enabled": true}}},
		"own certificate": {"sqlite", []string{"own-certificate"},
			map[string]any{"sqlite": map[string]any{"enabled": true}}},
		"own certificate on postgres": {"postgres", []string{"own-certificate"},
			map[string]any{"database": map[string]any{"url": url, "password": "secret", "port": 5432}}},
		"cert-manager": {"sqlite", []string{"cert-manager"},
			map[string]any{"certificates": map[string]any{"certManager": true},
				"sqlite": map[string]any{"enabled": true}}},
		"prometheus": {"sqlite", []string{"certs", "prometheus"},
			map[string]any{"certificates": given, "prometheus": true,
				"sqlite": map[string]any{"enabled": true}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "deploy")
			if err := os.CopyFS(dir, os.DirFS("../../../deploy")); err != nil {
				t.Fatal(err)
			}
			overlay := filepath.Join(dir, "overlays", c.overlay)
			for path, content := range map[string]string{
				filepath.Join(overlay, "database", "url"):            withPassword,
				filepath.Join(overlay, "database", "password"):       "secret",
				filepath.Join(dir, "components", "certs", "ca.crt"):  "authority",
				filepath.Join(dir, "components", "certs", "tls.crt"): "certificate",
				filepath.Join(dir, "components", "certs", "tls.key"): "key",
				filepath.Join(overlay, "kustomization.yaml"):         with(t, overlay, c.components),
				filepath.Join(dir, "values.yaml"):                    text(t, c.values),
			} {
				if _, err := os.Stat(filepath.Dir(path)); err != nil {
					continue // SQLite has no directory database
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want := objects(t, run(t, "kubectl", "kustomize", overlay))
			got := objects(t, run(t, "helm", "template", "rowkeeper", filepath.Join(dir, "chart"),
				"--namespace", "rowkeeper-system", "--values", filepath.Join(dir, "values.yaml")))
			// A chart leaves the namespace to those who install it.
			delete(want, "Namespace/rowkeeper-system")
			for _, id := range slices.Sorted(maps.Keys(want)) {
				if !reflect.DeepEqual(got[id], want[id]) {
					t.Errorf("the chart makes\n%s\nand the overlay\n%s", text(t, got[id]),
						text(t, want[id]))
				}
				delete(got, id)
			}
			for id := range got {
				t.Errorf("only the chart makes %s", id)
			}
		})
	}
}

// TestChartRefuses: values that cannot work are refused by one sentence.
func TestChartRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		values []string
		want   string
	}{
		"half a certificate": {[]string{"sqlite.enabled=true", "certificates.ca=x"},
			"the serving certificate is not complete"},
		"no database": {[]string{"certificates.certManager=true"}, "name the database"},
		"two databases": {[]string{"certificates.certManager=true", "sqlite.enabled=true",
			"database.url=postgres://db/x"}, "exclude each other"},
		"two certificates": {[]string{"certificates.certManager=true", "certificates.ca=x",
			"sqlite.enabled=true"}, "exclude each other"},
		"backup of SQLite": {[]string{"certificates.certManager=true", "sqlite.enabled=true",
			"backup.enabled=true"}, "backup.enabled needs a database server"},
		"unknown value": {[]string{"certificates.certManager=true", "sqlite.enabled=true",
			"replica=3"}, "replica"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"template", "rowkeeper", "../../../deploy/chart"}
			for _, v := range c.values {
				args = append(args, "--set", v)
			}
			out, err := exec.Command(program(t, "helm"), args...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestChartLint: the chart passes the linter of Helm, also with all that it can make.
func TestChartLint(t *testing.T) {
	for _, certManager := range []string{"true", "false"} {
		run(t, "helm", "lint", "--strict", "../../../deploy/chart", "--set",
			"certificates.certManager="+certManager+",prometheus=true,backup.enabled=true,"+
				"database.url=postgres://db/x")
	}
}

// TestChartOwnCertificate: by default the server makes its certificate, and may change what it
// needs for that and no more.
func TestChartOwnCertificate(t *testing.T) {
	got := objects(t, run(t, "helm", "template", "rowkeeper", "../../../deploy/chart", "--namespace",
		"rowkeeper-system", "--set", "sqlite.enabled=true"))
	deployment := text(t, got["Deployment/rowkeeper"])
	if !strings.Contains(deployment, "- --service=rowkeeper-system/rowkeeper\n") ||
		strings.Contains(deployment, "serving") {
		t.Errorf("the Deployment is\n%s", deployment)
	}
	if secret := got["Secret/rowkeeper-serving"]; secret != nil {
		t.Errorf("the chart makes the Secret\n%s", text(t, secret))
	}
	for id, want := range map[string]any{
		"Role/rowkeeper": []any{
			map[string]any{"apiGroups": []any{""}, "resources": []any{"secrets"},
				"verbs": []any{"create"}},
			map[string]any{"apiGroups": []any{""}, "resources": []any{"secrets"},
				"resourceNames": []any{"rowkeeper-certificate"}, "verbs": []any{"get", "update"}},
		},
		"ClusterRole/rowkeeper": []any{
			map[string]any{"apiGroups": []any{"apiregistration.k8s.io"},
				"resources": []any{"apiservices"}, "verbs": []any{"list"}},
			map[string]any{"apiGroups": []any{"apiregistration.k8s.io"},
				"resources": []any{"apiservices"}, "resourceNames": []any{"v1.ci.rowkeeper.dev",
					"v1alpha1.ci.rowkeeper.dev"},
				"verbs": []any{"patch"}},
		},
	} {
		rules, _ := got[id]["rules"].([]any)
		if n := len(want.([]any)); len(rules) < n || !reflect.DeepEqual(rules[len(rules)-n:], want) {
			t.Errorf("the rules of %s are\n%s", id, text(t, got[id]))
		}
	}
}

// with is the kustomization of an overlay with these components only.
func with(t *testing.T, overlay string, components []string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(overlay, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var k map[string]any
	if err := yaml.Unmarshal(content, &k); err != nil {
		t.Fatal(err)
	}
	for i, c := range components {
		components[i] = "../../components/" + c
	}
	k["components"] = components
	return text(t, k)
}

// hashed are the names that kustomize gives to what it generates.
var hashed = regexp.MustCompile(`\b(rowkeeper-(?:audit|database))-[a-z0-9]{10}\b`)

// objects parses manifests, and leaves out what the two tools do differently on purpose: labels,
// names with hashes in place of checksums, and the format of the policy.
func objects(t *testing.T, manifests string) map[string]map[string]any {
	t.Helper()
	found := map[string]map[string]any{}
	for document := range strings.SplitSeq("\n"+hashed.ReplaceAllString(manifests, "$1"),
		"\n---\n") {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		if o == nil {
			continue
		}
		meta := o["metadata"].(map[string]any)
		forget(meta, "labels", "app.kubernetes.io/name", "app.kubernetes.io/managed-by",
			"helm.sh/chart")
		forget(meta, "annotations", "helm.sh/resource-policy")
		if template := under(o, "spec", "template", "metadata"); template != nil {
			forget(template, "annotations", "checksum/config")
		}
		if data := under(o, "data"); data["policy.yaml"] != nil {
			var policy any
			if err := yaml.Unmarshal([]byte(data["policy.yaml"].(string)), &policy); err != nil {
				t.Fatal(err)
			}
			data["policy.yaml"] = policy
		}
		found[fmt.Sprintf("%v/%v", o["kind"], meta["name"])] = o
	}
	return found
}

// forget removes labels or annotations, and their map if it is empty then.
func forget(meta map[string]any, what string, keys ...string) {
	of := under(meta, what)
	for _, key := range keys {
		delete(of, key)
	}
	if len(of) == 0 {
		delete(meta, what)
	}
}

func under(o map[string]any, path ...string) map[string]any {
	for _, p := range path {
		o, _ = o[p].(map[string]any)
	}
	return o
}

func text(t *testing.T, o any) string {
	t.Helper()
	out, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// program is one that hack/e2e/build.sh has built.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../../bin/cluster", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program(t, name), args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}
