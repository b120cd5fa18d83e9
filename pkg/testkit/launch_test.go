package testkit_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// TestLaunch: a server without a test serves, goes back to a snapshot, and leaves nothing behind.
func TestLaunch(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	ctx, cancel := context.WithCancel(t.Context())
	server, err := testkit.Launch(ctx, exampletest.API, testkit.Options{GarbageCollection: true})
	if err != nil {
		t.Fatal(err)
	}
	cancel() // it bounds the start only
	ctx = t.Context()
	client := versioned.NewForConfigOrDie(server.Config).CiV1().Pipelines("default")
	spec := civ1.PipelineSpec{Image: "golang:1.26",
		Steps: []civ1.Step{{Name: "test", Command: []string{"make"}}}}
	before, err := server.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(ctx, &civ1.Pipeline{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := server.Rollback(ctx, before); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the rollback: %v", err)
	}
	if err := server.Rollback(ctx, testkit.Snapshot{}); err == nil {
		t.Error("it went back to the zero Snapshot")
	}
	if err := server.Advance(ctx, 0); err == nil {
		t.Error("a clock that is not its own was moved")
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := testkit.WriteKubeconfig(server.Config, path); err != nil {
		t.Fatal(err)
	}
	if config, err := clientcmd.BuildConfigFromFlags("", path); err != nil ||
		config.Host != server.Config.Host {
		t.Errorf("the kubeconfig: %v, %v", config, err)
	}
	for range 2 {
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) != 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

// TestLaunchFails: a server that cannot start is an error, and leaves nothing behind.
func TestLaunchFails(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, launch := range map[string]func() (*testkit.Instance, error){
		"no API": func() (*testkit.Instance, error) {
			return testkit.Launch(t.Context(), testkit.API{}, testkit.Options{})
		},
		"the context has ended": func() (*testkit.Instance, error) {
			return testkit.Launch(ended, exampletest.API, testkit.Options{})
		},
	} {
		if _, err := launch(); err == nil {
			t.Errorf("%s: it started", name)
		}
		if left, err := os.ReadDir(temporary); err != nil || len(left) != 0 {
			t.Errorf("%s: it left %v, %v", name, left, err)
		}
	}
}
