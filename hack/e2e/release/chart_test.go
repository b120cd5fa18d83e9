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
		"prometheus": {"sqlite", []string{"prometheus", "certs"},
			map[string]any{"certificates": given, "prometheus": true,
				"sqlite": map[string]any{"enabled": true}}},
		"prometheus and own certificate": {"sqlite", []string{"prometheus", "own-certificate"},
			map[string]any{"prometheus": true, "sqlite": map[string]any{"enabled": true}}},
		"etcd": {"etcd", nil, map[string]any{"etcd": map[string]any{"enabled": true,
			"secret": "rowkeeper-etcd"},
			"database": map[string]any{"url": url, "password": "secret", "port": 5432}}},
	} {
		t.Run(name, func(t *testing.T) {
			overlay := edited(t, c.overlay, c.components,
				url+"?password_file=/etc/rowkeeper/database/password")
			want := objects(t, run(t, "kubectl", "kustomize", overlay))
			got := chart(t, c.values)
			if monitor := want["ServiceMonitor/rowkeeper"]; monitor != nil {
				endpoint := under(monitor, "spec")["endpoints"].([]any)[0].(map[string]any)
				secret := under(endpoint, "tlsConfig", "ca", "secret")["name"]
				if want[fmt.Sprintf("Secret/%v", secret)] == nil {
					t.Errorf("Prometheus is told the Secret %v, which nobody makes", secret)
				}
			}
			// A chart leaves the namespace to those who install it.
			delete(want, "Namespace/rowkeeper-system")
			if secret := want["Secret/rowkeeper-etcd"]; name == "etcd" {
				// and the certificates of etcd's API, which lie in the overlay's directory.
				if data := under(secret, "data"); len(data) != 3 {
					t.Errorf("the Secret of the certificates is\n%s", text(t, secret))
				}
				delete(want, "Secret/rowkeeper-etcd")
			}
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

// edited is a copy of an overlay with these components in place of its own, and with the files that
// users add.
func edited(t *testing.T, overlay string, components []string, url string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "deploy")
	if err := os.CopyFS(dir, os.DirFS("../../../deploy")); err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(dir, "overlays", overlay)
	for path, content := range map[string]string{
		filepath.Join(overlay, "database", "url"):            url,
		filepath.Join(overlay, "database", "password"):       "secret",
		filepath.Join(overlay, "certs", "ca.crt"):            "authority",
		filepath.Join(overlay, "certs", "tls.crt"):           "certificate",
		filepath.Join(overlay, "certs", "tls.key"):           "key",
		filepath.Join(dir, "components", "certs", "ca.crt"):  "authority",
		filepath.Join(dir, "components", "certs", "tls.crt"): "certificate",
		filepath.Join(dir, "components", "certs", "tls.key"): "key",
		filepath.Join(overlay, "kustomization.yaml"):         with(t, overlay, components),
	} {
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			continue // SQLite has no directory database, and only etcd has certs
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}

// chart is what the chart makes of these values.
func chart(t *testing.T, values map[string]any) map[string]map[string]any {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(text(t, values)), 0o644); err != nil {
		t.Fatal(err)
	}
	return objects(t, run(t, "helm", "template", "rowkeeper", "../../../deploy/chart",
		"--namespace", "rowkeeper-system", "--values", file))
}

// TestPrometheusAfterCertificate: components in the order in which Prometheus would be told a
// Secret that does not exist are refused.
func TestPrometheusAfterCertificate(t *testing.T) {
	out, err := exec.Command(program(t, "kubectl"), "kustomize", edited(t, "sqlite",
		[]string{"own-certificate", "prometheus"}, "")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/spec/template/spec/volumes/0/name") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestChartBackup: the pods that write backups are the server's for nobody, so the Service sends
// them no requests, and the disruption budget does not count them. They may connect to the database
// and to nothing else.
func TestChartBackup(t *testing.T) {
	got := chart(t, map[string]any{"backup": map[string]any{"enabled": true,
		"drill": map[string]any{"enabled": true}}, "prometheus": true,
		"database": map[string]any{"url": "postgres://db/x", "port": 5433}})
	if drill := under(got["CronJob/rowkeeper-drill"], "spec", "jobTemplate", "spec", "template",
		"metadata", "labels"); !reflect.DeepEqual(drill, under(got["CronJob/rowkeeper-backup"], "spec",
		"jobTemplate", "spec", "template", "metadata", "labels")) {
		t.Errorf("the labels of the pods of drills are %v", drill)
	}
	pod := under(got["CronJob/rowkeeper-backup"], "spec", "jobTemplate", "spec", "template",
		"metadata", "labels")
	if len(pod) == 0 {
		t.Fatal("the pods have no labels")
	}
	selects := map[string]bool{}
	for id, o := range got {
		kind, _, _ := strings.Cut(id, "/")
		var selector map[string]any
		switch kind {
		case "Service":
			selector = under(o, "spec", "selector")
		case "Deployment", "PodDisruptionBudget":
			selector = under(o, "spec", "selector", "matchLabels")
		case "NetworkPolicy":
			selector = under(o, "spec", "podSelector", "matchLabels")
		default:
			continue
		}
		selects[id] = true
		for key, value := range selector {
			selects[id] = selects[id] && pod[key] == value
		}
	}
	want := map[string]bool{"Service/rowkeeper": false, "Deployment/rowkeeper": false,
		"PodDisruptionBudget/rowkeeper": false, "NetworkPolicy/rowkeeper": false,
		"NetworkPolicy/rowkeeper-database": false, "NetworkPolicy/rowkeeper-backup": true}
	if !maps.Equal(selects, want) {
		t.Errorf("these select the pods: %v, want %v", selects, want)
	}
	server := under(got["NetworkPolicy/rowkeeper"], "spec")["egress"].([]any)
	database := under(got["NetworkPolicy/rowkeeper-database"], "spec")["egress"].([]any)
	policy := under(got["NetworkPolicy/rowkeeper-backup"], "spec")
	if !reflect.DeepEqual(policy["egress"], []any{server[0], database[0]}) ||
		!reflect.DeepEqual(policy["policyTypes"], []any{"Ingress", "Egress"}) ||
		policy["ingress"] != nil {
		t.Errorf("the policy of the backup's pods is\n%s", text(t, policy))
	}
}

// TestChartBackupArguments: what the containers of backups and drills are told, and that a backup
// is complete before rclone copies it.
func TestChartBackupArguments(t *testing.T) {
	type values = map[string]any
	arguments := func(o map[string]any, list string) (args []string) {
		containers, _ := under(o, "spec", "jobTemplate", "spec", "template", "spec")[list].([]any)
		for _, c := range containers {
			for _, a := range c.(map[string]any)["args"].([]any) {
				args = append(args, fmt.Sprint(a))
			}
		}
		return args
	}
	const url = "--database-file=/etc/rowkeeper/database/url"
	for _, tc := range []struct {
		backup, etcd         values
		first, backed, drill []string
	}{
		{values{}, nil, nil, []string{"backup", url, "--keep=14", "/backup"}, nil},
		{values{"keep": 3, "drill": values{"enabled": true, "maxAge": "2h"}},
			values{"enabled": true, "secret": "s"}, nil, []string{"backup", url, "--keep=3", "/backup"},
			[]string{"drill", url, "--max-age=2h", "/backup"}},
		{values{"rclone": values{"destination": "objects:backups", "secret": "s"}}, nil,
			[]string{"backup", url, "--keep=14", "/backup"},
			[]string{"copy", "/backup", "objects:backups", "--include=*.backup"}, nil},
	} {
		tc.backup["enabled"] = true
		all := values{"backup": tc.backup, "database": values{"url": "postgres://db/x"}}
		if tc.etcd != nil {
			all["etcd"] = tc.etcd
		}
		got := chart(t, all)
		job := got["CronJob/rowkeeper-backup"]
		if first, backed := arguments(job, "initContainers"), arguments(job, "containers"); !slices.Equal(
			first, tc.first) || !slices.Equal(backed, tc.backed) {
			t.Errorf("%v: first %q, then %q", tc.backup, first, backed)
		}
		if drill := arguments(got["CronJob/rowkeeper-drill"], "containers"); !slices.Equal(drill, tc.drill) {
			t.Errorf("%v: drills are told %q, want %q", tc.backup, drill, tc.drill)
		}
	}
}

// TestChartEtcdStores: each store has its server name, and the names of its clients.
func TestChartEtcdStores(t *testing.T) {
	got := chart(t, map[string]any{"database": map[string]any{"url": "postgres://db/x"},
		"etcd": map[string]any{"enabled": true, "secret": "s", "stores": []any{
			map[string]any{"name": "a", "serverName": "a.example"},
			map[string]any{"name": "b", "serverName": "b.example", "clientNames": []any{"x", "y"}}}}})
	container := under(got["Deployment/rowkeeper"], "spec", "template",
		"spec")["containers"].([]any)[0].(map[string]any)
	args := fmt.Sprint(container["args"])
	if want := "--store-server-name=a=a.example --store-server-name=b=b.example " +
		"--store-client-name=b=x --store-client-name=b=y]"; !strings.HasSuffix(args, want) {
		t.Errorf("the arguments are %s, want %s at the end", args, want)
	}
}

// TestChartNetworkPolicy: kubelets are not reached, and no address but those that the values name.
func TestChartNetworkPolicy(t *testing.T) {
	values := map[string]any{"database": map[string]any{"url": "postgres://db/x"}}
	addresses := func() map[string][]any {
		to := map[string][]any{}
		for id, o := range chart(t, values) {
			if !strings.HasPrefix(id, "NetworkPolicy/") {
				continue
			}
			for _, rule := range under(o, "spec")["egress"].([]any) {
				for _, port := range rule.(map[string]any)["ports"].([]any) {
					key := fmt.Sprint(port.(map[string]any)["port"])
					to[key] = append(to[key], rule.(map[string]any)["to"])
				}
			}
		}
		return to
	}
	everywhere := any(nil)
	cidr := func(s string) any {
		return []any{map[string]any{"ipBlock": map[string]any{"cidr": s}}}
	}
	pods := any([]any{map[string]any{"namespaceSelector": map[string]any{}}})
	for _, step := range []struct {
		values map[string]any
		want   map[string][]any
	}{
		{map[string]any{}, map[string][]any{"443": {everywhere, pods}, "6443": {everywhere}, "8443": {pods},
			"9443": {pods}, "10250": {pods}, "5432": {everywhere}}},
		{map[string]any{"apiServer": []any{"10.0.0.1/32"}, "database": []any{"fd00::5/128"},
			"egress": []any{map[string]any{"to": cidr("10.0.0.9/32"),
				"ports": []any{map[string]any{"port": 4443}}}}},
			map[string][]any{"443": {cidr("10.0.0.1/32"), pods}, "6443": {cidr("10.0.0.1/32")},
				"8443": {pods}, "9443": {pods}, "10250": {pods}, "5432": {cidr("fd00::5/128")},
				"4443": {cidr("10.0.0.9/32")}}},
		{map[string]any{"enabled": false}, map[string][]any{}},
	} {
		values["networkPolicy"] = step.values
		got := addresses()
		delete(got, "53")
		if !reflect.DeepEqual(got, step.want) {
			t.Errorf("with %v the server may connect to\n%v, want\n%v", step.values, got, step.want)
		}
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
		"etcd without certificates": {[]string{"etcd.enabled=true", "database.url=postgres://db/x"},
			"by etcd.secret"},
		"etcd on SQLite": {[]string{"etcd.enabled=true", "etcd.secret=s", "sqlite.enabled=true"},
			"etcd.enabled needs a database server"},
		"etcd for Prometheus": {[]string{"etcd.enabled=true", "etcd.secret=s", "prometheus=true",
			"database.url=postgres://db/x"}, "scrape the port 2381"},
		"etcd with a certificate": {[]string{"etcd.enabled=true", "etcd.secret=s",
			"certificates.certManager=true", "database.url=postgres://db/x"}, "from etcd.secret"},
		"rclone without a Secret": {[]string{"backup.enabled=true", "backup.rclone.destination=a:b",
			"database.url=postgres://db/x"}, "backup.rclone.secret"},
		"no backup is kept": {[]string{"backup.enabled=true", "backup.keep=0",
			"database.url=postgres://db/x"}, "backup/keep"},
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
				"database.url=postgres://db/x,backup.drill.enabled=true,"+
				"backup.rclone.destination=a:b,backup.rclone.secret=s")
	}
	run(t, "helm", "lint", "--strict", "../../../deploy/chart", "--set", "etcd.enabled=true,"+
		"etcd.secret=s,backup.enabled=true,database.url=postgres://db/x")
}

// TestChartOwnCertificate: by default the server makes its certificate, and may change what it
// needs for that and no more.
func TestChartOwnCertificate(t *testing.T) {
	got := chart(t, map[string]any{"sqlite": map[string]any{"enabled": true}})
	deployment := text(t, got["Deployment/rowkeeper"])
	if !strings.Contains(deployment, "- --service=rowkeeper-system/rowkeeper\n") ||
		strings.Contains(deployment, "serving") {
		t.Errorf("the Deployment is\n%s", deployment)
	}
	if secret := got["Secret/rowkeeper-serving"]; secret != nil {
		t.Errorf("the chart makes the Secret\n%s", text(t, secret))
	}
	if secret := got["Secret/rowkeeper-certificate"]; secret == nil || secret["data"] != nil ||
		secret["type"] != nil {
		t.Errorf("the Secret of the certificate is\n%s", text(t, secret))
	}
	if rules := got["Role/rowkeeper"]["rules"]; !reflect.DeepEqual(rules, []any{
		map[string]any{"apiGroups": []any{""}, "resources": []any{"secrets"},
			"resourceNames": []any{"rowkeeper-certificate"}, "verbs": []any{"get", "update"}},
	}) {
		t.Errorf("the rules for Secrets are\n%s", text(t, rules))
	}
	want := []any{
		map[string]any{"apiGroups": []any{"apiregistration.k8s.io"},
			"resources": []any{"apiservices"}, "verbs": []any{"list"}},
		map[string]any{"apiGroups": []any{"apiregistration.k8s.io"},
			"resources": []any{"apiservices"}, "resourceNames": []any{"v1.ci.rowkeeper.dev",
				"v1alpha1.ci.rowkeeper.dev"},
			"verbs": []any{"patch"}},
	}
	rules, _ := got["ClusterRole/rowkeeper"]["rules"].([]any)
	if n := len(want); len(rules) < n || !reflect.DeepEqual(rules[len(rules)-n:], want) {
		t.Errorf("the rules of the ClusterRole are\n%s", text(t, rules))
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
