package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	coreinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	v1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	"k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/databases"
)

// kubectlProgram is built by TestMain below the repository's bin.
var kubectlProgram string

func TestMain(m *testing.M) {
	var err error
	if kubectlProgram, err = filepath.Abs("../../../bin/compat/kubectl"); err != nil {
		panic(err)
	}
	build := exec.Command("go", "build", "-C", "../../tools/kubectl", "-ldflags",
		"-X k8s.io/component-base/version.gitVersion=v1.37.2", "-o", kubectlProgram, ".")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v: %v\n%s", build.Args, err, out)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// api is the aggregator as the test kit starts it. The cluster's Services, which its APIServices
// may name, are none.
func api(t *testing.T) testkit.API {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "proxy.crt"), filepath.Join(dir, "proxy.key")
	authority, _, err := pki.EnsureAuthority(filepath.Join(dir, "ca.crt"),
		filepath.Join(dir, "ca.key"), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authority.Ensure(pki.Certificate{CertFile: certFile, KeyFile: keyFile,
		Template: pki.Client("proxy")}); err != nil {
		t.Fatal(err)
	}
	return testkit.API{
		Scheme:  aggregatorscheme.Scheme,
		Codecs:  aggregatorscheme.Codecs,
		OpenAPI: openapi.GetOpenAPIDefinitions,
		New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer,
			error) {
			c.MergedResourceConfig = apiserver.DefaultAPIResourceConfigSource()
			c.SharedInformerFactory = coreinformers.NewSharedInformerFactory(fake.NewClientset(), 0)
			aggregator, err := newAggregator(c, certFile, keyFile)
			if err != nil {
				return nil, err
			}
			// The kit prepares what it runs. One thing is left out: the aggregator merges the
			// OpenAPI documents of the servers behind it.
			return aggregator.GenericAPIServer, nil
		},
	}
}

func TestAggregator(t *testing.T) { databases.Each(t, testAggregator) }

func testAggregator(t *testing.T, db testkit.Database) {
	s := testkit.Start(t, api(t), testkit.Options{Database: db})
	client := clientset.NewForConfigOrDie(s.Config)
	factory := externalversions.NewSharedInformerFactory(client, 0)
	services := factory.Apiregistration().V1().APIServices()
	informer := services.Informer()
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer has no list")
	}
	poll := func(what string, done func(context.Context) bool) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 2*time.Minute, true,
			func(ctx context.Context) (bool, error) {
				return done(ctx), nil
			})
		if err != nil {
			t.Fatalf("waited in vain for %s: %v", what, err)
		}
	}
	kubeconfig := s.Kubeconfig(s.Config)
	kubectl := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), kubectlProgram, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+t.TempDir())
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}

	// A group that the aggregator serves itself is always available; the availability controller
	// says so by the status subresource.
	kubectl(`{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.example.com"},
		"spec": {"group": "example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}}`, "apply", "--validate=false", "-f", "-")
	poll("the informer", func(context.Context) bool {
		got, err := services.Lister().Get("v1.example.com")
		return err == nil && got.Spec.Group == "example.com"
	})
	poll("the availability controller", func(ctx context.Context) bool {
		got, err := client.ApiregistrationV1().APIServices().Get(ctx, "v1.example.com",
			metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, c := range got.Status.Conditions {
			if c.Type == v1.Available && c.Status == v1.ConditionTrue {
				return true
			}
		}
		return false
	})
	if out := kubectl("", "get", "apiservices"); !strings.Contains(out, "v1.example.com") {
		t.Errorf("kubectl get apiservices:\n%s", out)
	}
	kubectl("", "delete", "apiservice", "v1.example.com")
	poll("the informer to see the deletion", func(context.Context) bool {
		_, err := services.Lister().Get("v1.example.com")
		return err != nil
	})
}
