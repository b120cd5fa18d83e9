package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/balancer"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/executable"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// TestPostgres installs two replicas on PostgreSQL, tries everything with them, and removes them.
func TestPostgres(t *testing.T) {
	i := install(t, "postgres")
	fmt.Printf("PostgreSQL %s (%s): from the start of the first process to Available %s\n",
		i.database.Version, i.database.Source, startTime(t).Round(time.Millisecond))
	waitForReplicas(t, 2)
	for _, test := range []struct {
		name string
		f    func(*testing.T)
	}{
		{"Manifests", testManifests},
		{"Instructions", testInstructions},
		{"Discovery", testDiscovery},
		{"VerbsV1", testVerbs(pipelinesV1, pipeline)},
		{"VerbsV1alpha1", testVerbs(pipelinesV1alpha1, pipelineV1alpha1)},
		{"Versions", testVersions},
		{"Subresources", testSubresources},
		{"Upstream", testUpstream},
		{"Access", testAccess},
		{"Metrics", testMetrics},
		{"MissingNamespace", testMissingNamespace},
		{"NamespaceDeletion", testNamespaceDeletion},
		{"GarbageCollection", testGarbageCollection},
		{"Audit", testAudit},
		{"Webhooks", testWebhooks},
		{"Policy", testPolicy},
		{"Priority", testPriority},
		{"Informers", testInformers},
		{"CertificateRotation", testCertificateRotation},
		{"PasswordRotation", testPasswordRotation},
		{"RollingRestart", testRollingRestart},
		{"Eviction", testEviction},
		{"Kill", testKill},
		{"DatabaseRestart", testDatabaseRestart},
		{"ClusterAway", testClusterAway},
		// The last, since it leaves thousands of objects behind.
		{"Throughput", testThroughput},
		// It looks back.
		{"LeastPrivilege", testLeastPrivilege},
	} {
		t.Run(test.name, test.f)
	}
	i.uninstall(t)
}

// TestMySQL installs two replicas on MySQL, uses them a little, and removes them.
func TestMySQL(t *testing.T) {
	i := install(t, "mysql")
	fmt.Printf("MySQL %s (%s): from the start of the first process to Available %s\n",
		i.database.Version, i.database.Source, startTime(t).Round(time.Millisecond))
	waitForReplicas(t, 2)
	t.Run("VerbsV1", testVerbs(pipelinesV1, pipeline))
	t.Run("VerbsV1alpha1", testVerbs(pipelinesV1alpha1, pipelineV1alpha1))
	t.Run("Kill", testKill)
	// Without its pods the namespace is removed sooner.
	kubectl(t, "scale", "-n", namespace, "deployment/rowkeeper", "--replicas=0")
	kubectl(t, "wait", "-n", namespace, "pod", "--all", "--for=delete", "--timeout=2m")
	i.uninstall(t)
}

// TestSQLite installs one replica on SQLite, and looks whether it keeps what it has over a restart
// and a crash.
func TestSQLite(t *testing.T) {
	i := install(t, "sqlite")
	fmt.Printf("SQLite: from the start of the process to Available %s\n",
		startTime(t).Round(time.Millisecond))
	waitForReplicas(t, 1)
	t.Run("VerbsV1", testVerbs(pipelinesV1, pipeline))
	t.Run("VerbsV1alpha1", testVerbs(pipelinesV1alpha1, pipelineV1alpha1))
	t.Run("Restart", func(t *testing.T) {
		l := startLoad(t)
		// A server that has just started has no events from before. Where there is no other,
		// watchers are told so.
		l.relist = true
		l.progress(100)
		kubectl(t, "rollout", "restart", "-n", namespace, "deployment/rowkeeper")
		kubectl(t, "rollout", "status", "-n", namespace, "deployment/rowkeeper", "--timeout=3m")
		l.progress(100)
		running := env.node.Process(i.pods(t)[0].UID)
		if err := running.Kill(); err != nil {
			t.Fatal(err)
		}
		l.progress(100)
		l.finish()
	})
	// It goes with the cluster.
}

// startTime is how long it took from the start of the first process until all APIServices were
// available. The largest part of it is the second between two startup probes.
func startTime(t *testing.T) time.Duration {
	t.Helper()
	var first time.Time
	for _, pod := range env.installation.pods(t) {
		if began := env.node.Started(pod.UID); first.IsZero() || began.Before(first) {
			first = began
		}
	}
	return env.installation.available.Sub(first)
}

// definitions are the modules whose CustomResourceDefinitions the components need, where in them
// they are, and the modules' checksums, as go.sum would have them if a program could need such
// files.
var definitions = []struct{ module, path, sum string }{
	{"github.com/cert-manager/cert-manager@v1.21.2", "deploy/crds",
		"h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="},
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0",
		"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
		"h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="},
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0",
		"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
		"h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="},
}

// testManifests lets the API server check all overlays and components strictly.
func testManifests(t *testing.T) {
	for _, d := range definitions {
		cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", d.module)
		cmd.Env = append(os.Environ(), "GONOSUMDB=*")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go mod download %s: %v: %s", d.module, err, out)
		}
		var downloaded struct{ Dir, Sum string }
		if err := json.Unmarshal(out, &downloaded); err != nil {
			t.Fatal(err)
		}
		if downloaded.Sum != d.sum {
			t.Fatalf("%s has the checksum %s, want %s", d.module, downloaded.Sum, d.sum)
		}
		kubectl(t, "apply", "--server-side", "-f", filepath.Join(downloaded.Dir, d.path))
	}
	eventually(t, time.Minute, func() error {
		out, err := tryKubectl(t, "", "wait", "--for=condition=Established", "--timeout=30s",
			"crd", "--all")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	dir := env.installation.dir
	// PostgreSQL's is there.
	write(t, filepath.Join(dir, "overlays", "mysql", "database", "password"), "secret")
	for _, file := range []string{"database/password", "certs/tls.crt", "certs/tls.key", "certs/ca.crt"} {
		write(t, filepath.Join(dir, "overlays", "etcd", filepath.FromSlash(file)), "secret")
	}
	for _, overlay := range []string{"postgres", "mysql", "sqlite", "external", "etcd"} {
		t.Run(overlay, func(t *testing.T) {
			dryRun(t, filepath.Join(dir, "overlays", overlay))
			if overlay != "external" && overlay != "etcd" {
				checkServer(t, render(t, filepath.Join(dir, "overlays", overlay)))
			}
		})
	}
	// These are the offers of the comments in the overlays.
	for name, replace := range map[string][2]string{
		"cert-manager": {"- ../../components/certs # or own-certificate, or cert-manager",
			"- ../../components/cert-manager"},
		"prometheus": {"# - ../../components/prometheus", "- ../../components/prometheus"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, "overlays", "sqlite", "kustomization.yaml")
			original, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(string(original), replace[0], replace[1], 1)
			if changed == string(original) {
				t.Fatalf("%s has no line %q", file, replace[0])
			}
			write(t, file, changed)
			defer write(t, file, string(original))
			dryRun(t, filepath.Dir(file))
		})
	}
	t.Run("examples", func(t *testing.T) {
		kubectl(t, "apply", "--dry-run=server", "--validate=strict", "-f",
			filepath.Join(dir, "examples"))
	})
}

func dryRun(t *testing.T, overlay string) {
	t.Helper()
	out := kubectl(t, "apply", "--dry-run=server", "--validate=strict", "-k", overlay)
	want := len(render(t, overlay))
	if got := strings.Count(out, "(server dry run)\n"); got != want {
		t.Errorf("%d of %d manifests were accepted:\n%s", got, want, out)
	}
	// Nothing in them asks the cluster not to look at certificates.
	if rendered := kubectl(t, "kustomize", overlay); strings.Contains(rendered,
		"insecureSkipTLSVerify") {
		t.Error("the manifests mention insecureSkipTLSVerify")
	}
}

// checkServer looks in an overlay's manifests for what the cluster's API server would not miss, and
// this machine neither: it has other ways than a kubelet and kube-proxy. That no pod runs as root
// or with privileges is enforced by the label of the namespace.
func checkServer(t *testing.T, manifests []*unstructured.Unstructured) {
	t.Helper()
	deployment := find[appsv1.Deployment](t, manifests, "Deployment", "rowkeeper")
	spec := deployment.Spec.Template.Spec
	c := spec.Containers[0]
	for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe,
		"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		want := "/livez"
		if name == "readiness" {
			want = "/readyz"
		}
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != want {
			t.Errorf("the %s probe is %v, want one of %s", name, probe, want)
		}
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() ||
		c.Resources.Limits.Memory().IsZero() {
		t.Errorf("the resources are %v", c.Resources)
	}
	if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil ||
		!*s.ReadOnlyRootFilesystem {
		t.Error("the root file system can be written to")
	}
	pod := labels.Set(deployment.Spec.Template.Labels)
	selectors := map[string]*metav1.LabelSelector{
		"the NetworkPolicy": &find[networkingv1.NetworkPolicy](t, manifests, "NetworkPolicy",
			"rowkeeper").Spec.PodSelector,
		"the Service": {MatchLabels: find[corev1.Service](t, manifests, "Service",
			"rowkeeper").Spec.Selector},
	}
	if *deployment.Spec.Replicas > 1 {
		selectors["the PodDisruptionBudget"] = find[policyv1.PodDisruptionBudget](t, manifests,
			"PodDisruptionBudget", "rowkeeper").Spec.Selector
		for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
			i := slices.IndexFunc(spec.TopologySpreadConstraints,
				func(c corev1.TopologySpreadConstraint) bool {
					return c.TopologyKey == key
				})
			if i < 0 {
				t.Errorf("the replicas are not spread by %s", key)
				continue
			}
			selectors["the spread by "+key] = spec.TopologySpreadConstraints[i].LabelSelector
		}
	}
	for what, selector := range selectors {
		if s, err := metav1.LabelSelectorAsSelector(selector); err != nil || s.Empty() ||
			!s.Matches(pod) {
			t.Errorf("%s is for other pods than the Deployment's: %v, %v", what, selector, err)
		}
	}
}

// testCertificateRotation renews the serving certificate, then the authority too, under load and
// without a restart.
func testCertificateRotation(t *testing.T) {
	i := env.installation
	pods := i.pods(t)
	l := startLoad(t)
	l.progress(50)
	certs := filepath.Join(i.dir, "components", "certs")
	for _, what := range []string{"serving certificate", "authority"} {
		before := servingCertificate(t, pods[0])
		if what == "authority" {
			// As if it had become old: a new one is made, and both are trusted.
			for _, file := range []string{"ca.crt", "ca.key"} {
				if err := os.Rename(filepath.Join(certs, file),
					filepath.Join(certs, "old-"+file)); err != nil {
					t.Fatal(err)
				}
			}
			i.renewCertificates(t)
			bundle := ""
			for _, file := range []string{"ca.crt", "old-ca.crt"} {
				content, err := os.ReadFile(filepath.Join(certs, file))
				if err != nil {
					t.Fatal(err)
				}
				bundle += string(content)
			}
			write(t, filepath.Join(certs, "ca.crt"), bundle)
		} else {
			i.renewCertificates(t)
		}
		kubectl(t, "apply", "--server-side", "-k", i.overlay)
		for _, pod := range pods {
			eventually(t, 2*time.Minute, func() error {
				if servingCertificate(t, pod).SerialNumber.Cmp(before.SerialNumber) == 0 {
					return fmt.Errorf("%s still has the old certificate", pod.Name)
				}
				return nil
			})
		}
		l.progress(50)
		i.waitAvailable(t)
	}
	l.finish()
	for _, pod := range i.pods(t) {
		if restarts := restartsOf(pods,
			pod); restarts != pod.Status.ContainerStatuses[0].RestartCount {
			t.Errorf("the replica %s was started again", pod.Name)
		}
	}
}

// servingCertificate is the one that a replica shows on a new connection.
func servingCertificate(t *testing.T, pod corev1.Pod) *x509.Certificate {
	t.Helper()
	conn, err := tls.Dial("tcp", net.JoinHostPort(pod.Status.PodIP, "8443"),
		&tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

// testClusterAway starts a server, as the overlay "external" describes it, with the service
// account's rights, while the cluster's API server cannot be reached, and lets it be reached later.
func testClusterAway(t *testing.T) {
	dir := t.TempDir()
	door, err := balancer.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { door.Close() })
	token, err := env.client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(),
		"rowkeeper", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(env.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Clusters[cluster.Name].Server = fmt.Sprintf("https://localhost:%d", door.Port())
	config.AuthInfos = map[string]*api.AuthInfo{"rowkeeper": {Token: token.Status.Token}}
	config.Contexts[cluster.Name].AuthInfo = "rowkeeper"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	certs := filepath.Join(env.installation.dir, "components", "certs")
	server, err := executable.Start(executable.Spec{
		Name: "outside", Env: os.Environ(), Dir: dir, Logs: env.Logs(),
		Command: []string{
			env.rowkeeper(), "serve", "--kubeconfig", kubeconfig, "--database", "memory:",
			fmt.Sprintf("--secure-port=%d", port),
			"--tls-cert-file", filepath.Join(certs, "tls.crt"), "--tls-private-key-file",
			filepath.Join(certs, "tls.key"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	direct := env.direct(t, env.proxyCertificate(t), "admin", "system:masters")
	direct.Host = fmt.Sprintf("https://localhost:%d", port)
	anonymous := env.direct(t, nil, "")
	anonymous.Host = direct.Host
	list := func() error {
		_, err := clientOf(t, direct).Resource(pipelinesV1).Namespace("default").List(t.Context(),
			metav1.ListOptions{})
		return err
	}
	eventually(t, time.Minute, func() error {
		conn, err := net.Dial("tcp", fmt.Sprintf("localhost:%d", port))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	// The hook that starts the informers may still be on its way, and then none is late.
	eventually(t, time.Minute, func() error {
		code, body := get(t, anonymous, "/readyz?verbose")
		if code != 500 || !strings.Contains(body, "[-]authority-front-proxy") ||
			!strings.Contains(body, "[-]informer-sync failed") {
			return fmt.Errorf("while the cluster cannot be reached, /readyz answers %d: %s",
				code, body)
		}
		return nil
	})
	if code, body := get(t, anonymous, "/livez"); code != 200 {
		t.Errorf("while the cluster cannot be reached, /livez answers %d: %s", code, body)
	}
	expect(t, "the front proxy, before the server knows its authority", list(),
		metav1.StatusReasonUnauthorized)
	door.Set(fmt.Sprintf("localhost:%d", env.Port))
	began := time.Now()
	eventually(t, 2*time.Minute, func() error {
		if code, body := get(t, anonymous, "/readyz?verbose"); code != 200 {
			return fmt.Errorf("after the cluster can be reached, /readyz answers %d: %s",
				code, body)
		}
		return nil
	})
	t.Logf("ready %s after the cluster could be reached", time.Since(began).Round(time.Millisecond))
	if err := list(); err != nil {
		t.Errorf("the front proxy, after the server knows its authority: %v", err)
	}
}

// testPasswordRotation changes the password of the database's user, and the Secret, under load and
// without a restart.
func testPasswordRotation(t *testing.T) {
	i := env.installation
	pods := i.pods(t)
	l := startLoad(t)
	l.progress(50)
	const password = "another password"
	if err := i.database.Exec(t.Context(),
		"ALTER ROLE "+databaseUser+" PASSWORD '"+password+"'"); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(i.dir, "overlays", "postgres", "database", "password"), password)
	kubectl(t, "apply", "--server-side", "-k", i.overlay)
	for _, pod := range pods {
		eventually(t, time.Minute, func() error {
			mounted, err := os.ReadFile(filepath.Join(env.dir, "pods", string(pod.UID), "root",
				"etc", "rowkeeper", "database", "password"))
			if err == nil && string(mounted) != password {
				err = fmt.Errorf("%s still has the old password", pod.Name)
			}
			return err
		})
	}
	// New connections need the new one.
	if err := i.database.Exec(t.Context(), "SELECT pg_terminate_backend(pid) "+
		"FROM pg_stat_activity WHERE usename = '"+databaseUser+"'"); err != nil {
		t.Fatal(err)
	}
	l.progress(100)
	waitForReplicas(t, 2)
	l.finish()
	for _, pod := range i.pods(t) {
		if restarts := restartsOf(pods,
			pod); restarts != pod.Status.ContainerStatuses[0].RestartCount {
			t.Errorf("the replica %s was started again", pod.Name)
		}
	}
}
