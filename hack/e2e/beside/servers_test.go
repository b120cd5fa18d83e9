// Package beside compares servers that need no cluster with upstream's. Tests that run on our
// server elsewhere run here on kube-apiserver with kube-controller-manager: the cases of
// pkg/garbagecollector and of pkg/support/test/rolestest. Time, CPU, random roles, and what
// admission answers are compared, too.
package beside

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/executable"
)

var bin = flag.String("bin", "../../../bin/cluster",
	"directory of what hack/e2e/build.sh builds")

func programs(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(*bin)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// startCluster starts a control plane on a database, SQLite by default, perhaps with more
// controllers.
func startCluster(t *testing.T, on string, controllers ...string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Config{Bin: programs(t), Dir: t.TempDir(),
		Database: on, Controllers: append(controllers, cluster.Controllers...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// build builds our program.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "rowkeeper")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/rowkeeper")
	cmd.Dir, cmd.Env = "../../..", append(os.Environ(), "GOWORK=") // it is in the workspace
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// serve runs our program with definitions, and waits until it is ready.
func serve(t *testing.T, program, name string, args ...string) (*executable.Process, *rest.Config) {
	t.Helper()
	dir := t.TempDir()
	p, err := executable.Start(executable.Spec{Name: name, Dir: dir, Logs: dir, Env: os.Environ(),
		Command: append([]string{program, "serve", "--enable-crds", "--secure-port=0",
			"--data-dir=" + dir, "--v=1"}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the log of %s ends:\n%s", name, p.Tail())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var config *rest.Config
	err = p.WaitFor(ctx, "ready", func(ctx context.Context) error {
		config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, config
}
