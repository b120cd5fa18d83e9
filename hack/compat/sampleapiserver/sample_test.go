package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/sample-apiserver/pkg/apis/wardle/v1alpha1"
	"k8s.io/sample-apiserver/pkg/generated/clientset/versioned"
	"k8s.io/sample-apiserver/pkg/generated/informers/externalversions"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/clustertest"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/databases"
)

// The programs, built by TestMain below the repository's bin.
var sampleProgram, kubectlProgram string

func TestMain(m *testing.M) {
	bin, err := filepath.Abs("../../../bin/compat")
	if err != nil {
		panic(err)
	}
	sampleProgram, kubectlProgram = filepath.Join(bin, "sampleapiserver"),
		filepath.Join(bin, "kubectl")
	for _, args := range [][]string{
		{"build", "-o", sampleProgram, "."},
		{"build", "-C", "../../tools/kubectl", "-ldflags",
			"-X k8s.io/component-base/version.gitVersion=v1.37.2", "-o", kubectlProgram, "."},
	} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go %s: %v\n%s", strings.Join(args, " "), err, out)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// patience bounds everything that a test waits for.
const patience = 2 * time.Minute

// start runs the program, as upstream's documentation does, and returns an administrator's
// kubeconfig.
func start(t *testing.T, databaseURL string) (kubeconfig string) {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	authority, _, err := pki.EnsureAuthority(file("ca.crt"), file("ca.key"), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []pki.Certificate{
		{CertFile: file("serving.crt"), KeyFile: file("serving.key"),
			Template: pki.Server("127.0.0.1")},
		{CertFile: file("admin.crt"), KeyFile: file("admin.key"), Template: pki.Client("admin")},
	} {
		if _, err := authority.Ensure(c); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, cluster clientcmdapi.Cluster, user clientcmdapi.AuthInfo) string {
		config := clientcmdapi.NewConfig()
		config.Clusters["test"], config.AuthInfos["test"] = &cluster, &user
		config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test",
			Namespace: "default"}
		config.CurrentContext = "test"
		if err := clientcmd.WriteToFile(*config, file(name)); err != nil {
			t.Fatal(err)
		}
		return file(name)
	}
	cluster := clustertest.New(t).Kubeconfig
	port := freePort(t)
	admin := write("admin", clientcmdapi.Cluster{Server: "https://127.0.0.1:" + port,
		CertificateAuthority: file("ca.crt")},
		clientcmdapi.AuthInfo{ClientCertificate: file("admin.crt"), ClientKey: file("admin.key")})

	cmd := exec.Command(sampleProgram, "--database", databaseURL, "--secure-port", port,
		"--bind-address", "127.0.0.1", "--kubeconfig", cluster, "--authentication-kubeconfig",
		cluster, "--authorization-kubeconfig", cluster,
		"--authentication-skip-lookup", "--client-ca-file", file("ca.crt"),
		"--enable-priority-and-fairness=false",
		"--tls-cert-file", file("serving.crt"), "--tls-private-key-file", file("serving.key"))
	var output strings.Builder
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var copied sync.WaitGroup
	copied.Go(func() { io.Copy(&output, bufio.NewReader(stderr)) })
	exited := make(chan error, 1)
	go func() { copied.Wait(); exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // an ended process is seen below
		select {
		case err := <-exited:
			if err != nil {
				t.Errorf("the server ended with %v", err)
			}
		case <-time.After(patience):
			cmd.Process.Kill()
			t.Error("the server did not end")
			t.Log(<-exited)
		}
		if t.Failed() {
			t.Logf("the server's log:\n%s", output.String())
		}
	})
	client := versioned.NewForConfigOrDie(config(t, admin))
	poll(t, "the server to be ready", func(ctx context.Context) bool {
		_, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil
	})
	return admin
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

func config(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func poll(t *testing.T, what string, done func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) {
			return done(ctx), nil
		})
	if err != nil {
		t.Fatalf("waited in vain for %s: %v", what, err)
	}
}

func TestSampleServer(t *testing.T) {
	for _, kind := range databases.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			kubeconfig := start(t, databases.New(t, kind).URL)
			kubectl := func(stdin string, args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), kubectlProgram, args...)
				cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+t.TempDir())
				cmd.Stdin = strings.NewReader(stdin)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			must := func(stdin string, args ...string) string {
				t.Helper()
				out, err := kubectl(stdin, args...)
				if err != nil {
					t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
				}
				return out
			}

			// An informer follows all that kubectl does.
			client := versioned.NewForConfigOrDie(config(t, kubeconfig))
			factory := externalversions.NewSharedInformerFactory(client, 0)
			flunders := factory.Wardle().V1alpha1().Flunders()
			informer := flunders.Informer()
			ctx, cancel := context.WithCancel(t.Context())
			factory.Start(ctx.Done())
			t.Cleanup(func() { cancel(); factory.Shutdown() })
			if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				t.Fatal("the informer has no list")
			}
			follows := func(what string, ok func(*v1alpha1.Flunder, error) bool) {
				t.Helper()
				poll(t, "the informer to see that it is "+what, func(context.Context) bool {
					return ok(flunders.Lister().Flunders("default").Get("a"))
				})
			}

			const fischer = `{"apiVersion": "wardle.example.com/v1alpha1", "kind": "Fischer", "metadata": {"name": "strict"}, "disallowedFlunders": ["banned"]}`
			const flunder = `{"apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder", "metadata": {"name": "%s", "labels": {"n": "%d"}}, "spec": {"reference": "b", "referenceType": "Flunder"}}`
			must(fischer, "apply", "-f", "-")
			must(fmt.Sprintf(flunder, "a", 1), "apply", "-f", "-")
			follows("created", func(f *v1alpha1.Flunder, err error) bool {
				return err == nil && f.Labels["n"] == "1"
			})
			must(fmt.Sprintf(flunder, "a", 2), "apply", "--server-side", "--force-conflicts", "-f",
				"-")
			follows("changed", func(f *v1alpha1.Flunder, err error) bool {
				return err == nil && f.Labels["n"] == "2"
			})

			// The other version is the same object, converted.
			if out := must("", "get", "flunders.v1beta1.wardle.example.com", "a", "-o",
				"jsonpath={.spec.flunderReference}"); out != "b" {
				t.Errorf("in v1beta1 the reference is %q, want b", out)
			}
			// The admission plugin knows the fischers by an informer of its own.
			poll(t, "the admission plugin", func(ctx context.Context) bool {
				_, err := client.WardleV1alpha1().Flunders("default").Create(ctx,
					&v1alpha1.Flunder{ObjectMeta: metav1.ObjectMeta{Name: "banned"}},
					metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				return err != nil && strings.Contains(err.Error(), "this name may not be used")
			})
			// kube-controller-manager prefers protobuf, in which flunders cannot be encoded.
			list,
				err := client.RESTClient().Get().AbsPath("/apis/wardle.example.com/v1alpha1/flunders").
				SetHeader("Accept",
					"application/vnd.kubernetes.protobuf,application/json").DoRaw(t.Context())
			if err != nil || !strings.Contains(string(list), `"name":"a"`) {
				t.Errorf("a list for a client that prefers protobuf: %v: %s", err, list)
			}
			must("", "delete", "flunder", "a")
			follows("deleted", func(_ *v1alpha1.Flunder, err error) bool { return err != nil })
			if out := must("", "get", "fischers"); !strings.Contains(out, "strict") {
				t.Errorf("the fischers are:\n%s", out)
			}
		})
	}
}
