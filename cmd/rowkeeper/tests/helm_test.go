package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// helm is Helm with an environment of its own.
type helm struct {
	server  *server
	program string
	env     []string
}

// buildHelm builds Helm as the end-to-end tests do, so that it is compiled once for both.
func buildHelm(t *testing.T) (program string) {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds Helm, so -short leaves it out")
	}
	program, err := filepath.Abs("../../../bin/e2e/helm")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-C", "../../../hack/tools/helm", "-ldflags", "-s -w", "-o",
		program, "helm.sh/helm/v4/cmd/helm")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return program
}

// helm returns Helm with the rights of the administrator.
func (s *server) helm(program string) helm {
	return helm{s, program, append(s.kubectlEnv(), "HELM_CACHE_HOME="+filepath.Join(s.dir, "helm"))}
}

func (h helm) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := run(t, h.server.dir, "", h.env, h.program, args...)
	if r.code != 0 {
		t.Fatalf("helm %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// history returns the states of a release's revisions.
func (h helm) history(t *testing.T, release string, args ...string) string {
	t.Helper()
	var revisions []struct{ Status string }
	out := h.ok(t, append([]string{"history", release, "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &revisions); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	states := make([]string, len(revisions))
	for i, r := range revisions {
		states[i] = r.Status
	}
	return strings.Join(states, " ")
}

// chart makes a chart.
func chart(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["Chart.yaml"] = "apiVersion: v2\nname: plant\nversion: 0.1.0\n"
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// templated is a Pipeline whose image is a value of the chart.
var templated = strings.Replace(manifest("build", "make"), "golang:1.26", "{{ .Values.image }}", 1)

// TestHelm: a chart with a definition, an object of it, objects of the core API and one of a Go
// type is installed, upgraded, rolled back and uninstalled, and Helm finds its releases.
func TestHelm(t *testing.T) {
	program := buildHelm(t)
	s := start(t, t.TempDir(), "--enable-crds")
	h := s.helm(program)
	dir := chart(t, map[string]string{
		"values.yaml":       "image: golang:1.26\nreplicas: 1\n",
		"crds/widgets.yaml": widgets,
		"templates/objects.yaml": widget("wheel", "replicas: {{ .Values.replicas }}") + "---\n" +
			templated + `---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  image: {{ .Values.image }}
  served: {{ .Capabilities.APIVersions.Has "ci.rowkeeper.dev/v1/Pipeline" | quote }}
  namespace: {{ (lookup "v1" "Namespace" "" "default").metadata.name }}
---
apiVersion: v1
kind: Secret
metadata: {name: login}
stringData: {password: "{{ .Values.replicas }}"}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: before
  annotations: {helm.sh/hook: "pre-install,pre-upgrade"}
`,
	})
	const place = "--namespace=north"
	expect := func(image, replicas string) {
		t.Helper()
		for _, want := range []struct{ object, path, value string }{
			{"pl/build", ".spec.image", image}, {"wg/wheel", ".spec.replicas", replicas},
			{"cm/settings", ".data", `{"image":"` + image +
				`","namespace":"default","served":"true"}`},
		} {
			if got := s.ok(t, "", "get", want.object, place, "-o",
				"jsonpath={"+want.path+"}"); got != want.value {
				t.Errorf("%s of %s is %s, want %s", want.path, want.object, got, want.value)
			}
		}
	}

	h.ok(t, "install", "plant", dir, place, "--create-namespace", "--wait", "--timeout=2m")
	expect("golang:1.26", "1")
	has(t, s.ok(t, "", "get", "secrets,configmaps", place, "-o", "name"),
		"secret/sh.helm.release.v1.plant.v1", "secret/login", "configmap/before")
	h.ok(t, "upgrade", "plant", dir, place, "--set=image=golang:1.27,replicas=2", "--wait",
		"--timeout=2m")
	expect("golang:1.27", "2")
	// The rule of the definition refuses it.
	if r := run(t, s.dir, "", h.env, h.program, "upgrade", "plant", dir, place,
		"--set=replicas=-1"); r.code == 0 || !strings.Contains(r.stderr, "replicas") {
		t.Errorf("upgrade to an object that is not valid: exit code %d\n%s", r.code, r.stderr)
	}
	h.ok(t, "rollback", "plant", "1", place, "--wait", "--timeout=2m")
	expect("golang:1.26", "1")
	if got := h.history(t, "plant", place); got != "superseded superseded failed deployed" {
		t.Errorf("the revisions are %s", got)
	}
	has(t, h.ok(t, "list", "--all-namespaces"), "plant", "north", "deployed")
	h.ok(t, "uninstall", "plant", place, "--wait", "--timeout=2m")
	if got := s.ok(t, "", "get", "secrets,wg,pl", place, "-o", "name"); got != "" {
		t.Errorf("after the release was uninstalled there are %s", got)
	}
	s.ok(t, "", "get", "crd/widgets.factory.example.com") // Helm leaves definitions
}

// TestHelmWithoutSecrets: a server without the core API has no place for Helm's releases, and Helm
// says what is missing. It keeps them in PostgreSQL, in the server's database, or keeps none.
func TestHelmWithoutSecrets(t *testing.T) {
	program := buildHelm(t)
	onDatabase(t, "postgres", func(t *testing.T, start func(dir string, args ...string) *server) {
		s := start(t.TempDir())
		h := s.helm(program)
		dir := chart(t, map[string]string{"values.yaml": "image: golang:1.26\n",
			"templates/objects.yaml": templated})
		if r := run(t, s.dir, "", h.env, h.program, "install", "plant", dir); r.code == 0 ||
			!strings.Contains(r.stderr, "post secrets") {
			t.Errorf("install: exit code %d\n%s", r.code, r.stderr)
		}
		url, err := databaseServers["postgres"]()
		if err != nil {
			t.Fatal(err)
		}
		h.env = append(h.env, "HELM_DRIVER=sql", "HELM_DRIVER_SQL_CONNECTION_STRING="+url)
		h.ok(t, "install", "plant", dir)
		h.ok(t, "upgrade", "plant", dir, "--set=image=golang:1.27")
		if got := s.read(t, "pl/build", ".spec.image"); got != "golang:1.27" {
			t.Errorf("the image is %s", got)
		}
		h.ok(t, "rollback", "plant", "1")
		if got := s.read(t, "pl/build", ".spec.image"); got != "golang:1.26" {
			t.Errorf("the image is %s", got)
		}
		if got := h.history(t, "plant"); got != "superseded superseded deployed" {
			t.Errorf("the revisions are %s", got)
		}
		h.ok(t, "uninstall", "plant")
		s.refused(t, "", "not found", "get", "pl", "build")
		has(t, s.ok(t, h.ok(t, "template", "plant", dir), "apply", "-f", "-"), "build created")
	})
}
