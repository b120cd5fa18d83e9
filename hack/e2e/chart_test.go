package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// TestChart installs the chart with one replica on SQLite, uses it a little, upgrades the release,
// and removes it. The volume stays, since the objects are in it. The server makes its serving
// certificate by itself, also another one when the Secret is empty again.
func TestChart(t *testing.T) {
	dir := t.TempDir()
	values := []string{"--namespace", namespace, "--set", "sqlite.enabled=true"}
	const chart = "../../deploy/chart"
	i := &installation{rendered: parse(t, helm(t, append([]string{"template", "rowkeeper", chart},
		values...)...))}
	changed := filepath.Join(dir, "chart")
	copyChart(t, chart, changed)
	deployment := find[appsv1.Deployment](t, i.rendered, "Deployment", "rowkeeper")
	env.node.AddImage(deployment.Spec.Template.Spec.Containers[0].Image, env.image)
	i.balance(t)
	helm(t, append([]string{"install", "rowkeeper", changed, "--create-namespace"}, values...)...)
	i.waitAvailable(t)
	waitForReplicas(t, 1)
	t.Run("VerbsV1", testVerbs(pipelinesV1, pipeline))

	kubectl(t, "patch", "-n", namespace, "secret/rowkeeper-certificate", "--type", "merge", "-p",
		`{"data":null}`)

	ns := newNamespace(t)
	kept := create(t, ns, pipeline("kept"))
	helm(t, append([]string{"upgrade", "rowkeeper", changed, "--wait", "--timeout", "3m",
		"--set", "extraArgs={--v=1}"}, values...)...)
	i.waitAvailable(t)
	if data := kubectl(t, "get", "-n", namespace, "secret/rowkeeper-certificate", "-o",
		"jsonpath={.data}"); !strings.Contains(data, "tls.crt") {
		t.Errorf("after the upgrade the certificate's Secret has %q", data)
	}
	if args := kubectl(t, "get", "-n", namespace, "deployment/rowkeeper", "-o",
		"jsonpath={.spec.template.spec.containers[0].args}"); !strings.Contains(args, "--v=1") {
		t.Errorf("after the upgrade the server has the arguments %s", args)
	}
	if uid := kubectl(t, "get", "-n", ns, "pipelines/kept", "-o",
		"jsonpath={.metadata.uid}"); uid != string(kept.GetUID()) {
		t.Errorf("after the upgrade the object has the UID %s, not %s", uid, kept.GetUID())
	}
	kubectl(t, "delete", "-n", ns, "pipelines", "--all")

	helm(t, "uninstall", "rowkeeper", "--namespace", namespace)
	if volume := kubectl(t, "get", "-n", namespace, "pvc", "-o", "name"); strings.TrimSpace(
		volume) != "persistentvolumeclaim/rowkeeper" {
		t.Errorf("after the release the volumes are %q", volume)
	}
	kubectl(t, "delete", "--timeout=3m", "namespace", namespace)
	if err := env.node.EmptyVolume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := i.close(); err != nil {
		t.Fatal(err)
	}
	env.installation = nil
}

// copyChart copies the chart, but for the address of the Service, which is the balancer's here.
func copyChart(t *testing.T, chart, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// With what its links lead to.
	run(t, exec.Command("cp", "-rL", chart+"/.", dir))
	file := filepath.Join(dir, "templates", "cluster.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := string(text)
	for old, replacement := range map[string]string{
		`  selector: {{- include "rowkeeper.selector" . | nindent 4 }}
  ports:
  - name: https
    port: 443
    targetPort: https
`: "  type: ExternalName\n  externalName: localhost\n",
		"    namespace: {{ $.Release.Namespace }}\n    port: 443\n": fmt.Sprintf(
			"    namespace: {{ $.Release.Namespace }}\n    port: %d\n", env.balancer.Port()),
	} {
		if strings.Count(changed, old) != 1 {
			t.Fatalf("%s does not have once:\n%s", file, old)
		}
		changed = strings.Replace(changed, old, replacement, 1)
	}
	write(t, file, changed)
}

// helm runs Helm with the cluster's kubeconfig, and returns what it prints.
func helm(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(env.bin, "helm"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+env.Kubeconfig,
		"HELM_CACHE_HOME="+filepath.Join(env.dir, "helm"))
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm %q: %v", args, err)
	}
	return string(out)
}
