package scaffold

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/testkit/process"
)

// commands make the project as its author would. The first kind with an image has to come first,
// since it writes the suite anew.
const commands = `
init --domain example.com --repo example.com/harbor
create api --plugins deploy-image/v1-alpha --group crew --kind Memcached --version v1 --image memcached
create api --group crew --version v1 --kind Captain --controller --resource
create webhook --group crew --version v1 --kind Captain --defaulting --programmatic-validation
create api --group crew --version v1 --kind Mate --controller --resource
create api --group crew --version v2 --kind Mate --controller=false --resource
create webhook --group crew --version v1 --kind Mate --conversion --spoke v2
create api --group crew --version v1 --kind Fleet --controller --resource --namespaced=false --ssa
create api --group apps --version v1 --kind Deployment --controller --resource=false
create webhook --group core --version v1 --kind Pod --defaulting
`

// suite is one of the project's.
type suite struct {
	dir  string
	args []string
	// specs has every spec. Of one that cannot pass here it has what its failure says.
	specs map[string]string
}

const (
	reconciles = " Controller When reconciling a resource should successfully reconcile the resource"

	noDeployment = `no matches for kind "Deployment" in version "apps/v1"`
	// noDeploy is what "make deploy" ends with, since there are no Deployments and no Services.
	noDeploy = "Failed to deploy the controller-manager"
	// afterNoDeploy is said of the specs that need what was to be deployed.
	afterNoDeploy = "an earlier spec in an ordered container failed"
)

var suites = map[string]suite{
	"controllers": {
		dir: "internal/controller",
		specs: map[string]string{
			"Captain" + reconciles: "",
			"Mate" + reconciles:    "",
			"Fleet" + reconciles:   "",
			// Its body is empty.
			"Deployment" + reconciles: "",
			"Memcached controller Memcached controller test " +
				"should successfully reconcile a custom resource for Memcached": noDeployment,
		},
	},
	"webhooks": {
		dir: "internal/webhook/v1",
		specs: map[string]string{ // ours: the scaffold has none
			"The API server asks the webhooks that default and validate": "",
			"The API server asks the webhook that converts":              "",
		},
	},
	// It runs the controller's image in a pod.
	"end to end": {
		dir:  "test/e2e",
		args: []string{"-tags=e2e"},
		specs: map[string]string{
			"Manager Manager should run successfully":                               noDeploy,
			"Manager Manager should ensure the metrics endpoint is serving metrics": afterNoDeploy,
			"Manager Manager should provisioned cert-manager":                       afterNoDeploy,
			"Manager Manager should have CA injection for mutating webhooks":        afterNoDeploy,
			"Manager Manager should have CA injection for validating webhooks":      afterNoDeploy,
			"Manager Manager should have CA injection for Mate conversion webhook":  afterNoDeploy,
		},
	},
}

// TestScaffold: the specs of a project that kubebuilder has just made pass on rowkeeper, without a
// change, but for specs that need built-in kinds, which are named here. The project's definitions,
// roles and webhooks are installed by its Makefile.
func TestScaffold(t *testing.T) {
	if os.Getenv("ROWKEEPER_TEST_SCAFFOLD") == "" {
		t.Skip("it compiles for minutes; ROWKEEPER_TEST_SCAFFOLD=1 runs it")
	}
	programs := t.TempDir()
	run(t, ".", "go", "build", "-o", programs, "sigs.k8s.io/kubebuilder/v4")
	// The program is in the workspace. This module is not.
	run(t, "../../..", "env", "GOWORK=", "go", "build", "-o", programs, "./cmd/rowkeeper")
	run(t, "../../tools/kubectl", "go", "build", "-o", filepath.Join(programs, "kubectl"), ".")
	t.Setenv("PATH", programs+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("KUBECACHEDIR", t.TempDir()) // kubectl's

	project := filepath.Join(t.TempDir(), "harbor")
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.TrimSpace(commands)) {
		args := strings.Fields(line)
		if args[0] == "create" {
			args = append(args, "--make=false")
		}
		run(t, project, "kubebuilder", args...)
	}
	specs, err := os.ReadFile("testdata/webhook_specs_test.go")
	if err == nil {
		err = os.WriteFile(filepath.Join(project, "internal/webhook/v1/specs_test.go"), specs, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, project, "make", "manifests", "generate", "kustomize")

	for name, s := range suites {
		t.Run(name, func(t *testing.T) { s.judge(t, project) })
	}
	t.Run("deploy", func(t *testing.T) { deploy(t, project) })
}

// judge runs a suite on a server of its own.
func (s suite) judge(t *testing.T, project string) {
	server := process.Start(t, process.Options{})
	file := filepath.Join(t.TempDir(), "report.json")
	args := slices.Concat([]string{"test", "./" + s.dir, "-count=1"}, s.args,
		[]string{"-ginkgo.json-report=" + file})
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = project
	cmd.Env = append(os.Environ(), "KUBECONFIG="+server.Kubeconfig, "USE_EXISTING_CLUSTER=true",
		// There is no image to be built, and no cluster of kind's to load it into.
		"CONTAINER_TOOL=true", "KIND=true", "CERT_MANAGER_INSTALL_SKIP=true")
	// It fails if a spec does. The report says which.
	out, _ := cmd.CombinedOutput()
	var report []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			Failure                 struct{ Message string }
		}
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil || len(report) != 1 {
		t.Fatalf("the suite has no report: %v\n%s", err, out)
	}
	passed, seen := 0, map[string]bool{}
	for _, r := range report[0].SpecReports {
		name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
		if r.LeafNodeType != "It" {
			if r.State != "passed" {
				t.Errorf("%s has %s: %s", r.LeafNodeType, r.State, r.Failure.Message)
			}
			continue
		}
		seen[name] = true
		reason, known := s.specs[name]
		switch {
		case !known:
			t.Errorf("nothing is known about the spec %q, which has %s", name, r.State)
		case reason == "" && r.State != "passed":
			t.Errorf("%s: %s: %s", name, r.State, r.Failure.Message)
		case reason != "" && r.State == "passed":
			t.Errorf("%s passes, and is said to fail: %s", name, reason)
		case reason != "" && !strings.Contains(r.Failure.Message, reason):
			t.Errorf("%s fails for another reason than %s: %s", name, reason, r.Failure.Message)
		}
		if r.State == "passed" {
			passed++
		}
	}
	for name := range s.specs {
		if !seen[name] {
			t.Errorf("the suite does not have the spec %q", name)
		}
	}
	t.Logf("%d of %d specs pass", passed, len(seen))
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// deploy installs what "make deploy" does. All of it is served, but for the kinds that have to do
// with pods, and those of cert-manager, whose definitions are not the project's.
func deploy(t *testing.T, project string) {
	server := process.Start(t, process.Options{})
	cmd := exec.CommandContext(t.Context(), "make", "deploy", "IMG=example.com/harbor:v0.0.1")
	cmd.Dir = project
	cmd.Env = append(os.Environ(), "KUBECONFIG="+server.Kubeconfig)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("there were Deployments:\n%s", out)
	}
	var missing []string
	for _, found := range regexp.MustCompile(`no matches for kind "(\w+)" in version "(\S+)"`).
		FindAllStringSubmatch(string(out), -1) {
		missing = append(missing, found[2]+" "+found[1])
	}
	slices.Sort(missing)
	missing = slices.Compact(missing)
	want := []string{"apps/v1 Deployment", "cert-manager.io/v1 Certificate",
		"cert-manager.io/v1 Issuer", "v1 Service"}
	if !slices.Equal(missing, want) {
		t.Errorf("the kinds %q are missing, want %q:\n%s", missing, want, out)
	}
	created := strings.Count(string(out), " created\n")
	if errors := strings.Count(string(out), "rror"); created < 20 || errors > 1 { // that of make
		t.Errorf("%d objects were created, and %d lines tell of errors:\n%s", created, errors, out)
	}
	t.Logf("%d objects were created", created)
}

// run runs a command, which has to succeed.
func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
