// Package controlplane is for tests of what needs a whole Kubernetes control plane: controllers
// that own Deployments, Jobs and Roles, for which envtest has no controllers. It runs upstream's
// own kube-apiserver and kube-controller-manager, so ReplicaSets and Pods appear, roles give
// rights, service accounts have tokens, namespaces end, and what an owner leaves is collected.
// Package storage/etcd keeps the objects.
//
//	func TestOperator(t *testing.T) {
//		plane := controlplane.Start(t, controlplane.Options{})
//		client := kubernetes.NewForConfigOrDie(plane.Config)
//		…
//	}
//
// Programs without a test at hand, such as TestMain or a suite of Ginkgo, call [Launch], which
// returns an error, and [ControlPlane.Stop].
//
// The objects are in SQLite, or any other database, which this process serves by etcd's API: there
// is no etcd. There are no nodes, so pods stay pending. A control plane starts in some seconds, and
// several run side by side.
//
// # The programs
//
// kube-apiserver and kube-controller-manager, and kube-scheduler with [Options.Scheduler], are
// programs of this machine: those of a release of Kubernetes, or what
//
//	hack/e2e/build.sh kube-apiserver kube-controller-manager kube-scheduler
//
// builds in bin/cluster of a clone of Rowkeeper. [ProgramsEnv] names their directory.
//
// Tests of definitions and webhooks alone need no programs: see package crds/crdstest.
package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/pkg/support/standalone"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// ProgramsEnv is the environment variable that names the directory of Kubernetes's programs.
const ProgramsEnv = "ROWKEEPER_KUBERNETES"

// Options are what a test may want otherwise. The zero value of each means its default.
type Options struct {
	// Programs is the directory of Kubernetes's programs. Default: the one that [ProgramsEnv]
	// names, or else those of PATH.
	Programs string
	// Database has the objects, and nothing else; what is in it stays there. Default: a SQLite file
	// in Dir.
	Database testkit.Database
	// Dir is the directory for certificates, logs and the SQLite file. A control plane that is
	// started there again goes on with the same objects. Default: a new one, which Stop removes.
	Dir string
	// Scheduler runs kube-scheduler, too, for tests that make nodes.
	Scheduler bool
	// Controllers are the controllers that kube-controller-manager runs, by the names of its flag
	// --controllers. Default: all that it runs by default.
	Controllers []string
	// APIServerFlags are further flags of kube-apiserver, such as --feature-gates=….
	APIServerFlags []string
}

// ControlPlane is a control plane that runs.
type ControlPlane struct {
	// Config is the configuration of a client that may do everything. It may be changed and copied,
	// as each client needs it.
	Config *rest.Config
	// Kubeconfig is a file with the same, for kubectl and other programs.
	Kubeconfig string

	cluster *cluster.Cluster
	release []func() error
	stop    sync.Once
}

// Start starts a control plane, waits until pods can be created in the namespace default, and stops
// it when the test ends. It fails the test if that is not possible.
func Start(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	c, err := Launch(t.Context(), o)
	if err != nil {
		t.Fatalf("cannot start the control plane: %v", err)
	}
	t.Cleanup(func() {
		t.Helper()
		if err := c.Stop(); err != nil {
			t.Errorf("cannot stop the control plane: %v", err)
		}
	})
	return c
}

// Launch starts a control plane, and waits until pods can be created in the namespace default. It
// is for programs without a test at hand, which stop the control plane by [ControlPlane.Stop]; the
// context bounds the start only.
func Launch(ctx context.Context, o Options) (*ControlPlane, error) {
	c := &ControlPlane{}
	if err := c.start(ctx, o); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *ControlPlane) start(ctx context.Context, o Options) error {
	// The names of tests are too long for a socket.
	temporary, err := os.MkdirTemp("", "rowkeeper-")
	if err != nil {
		return err
	}
	c.atStop(func() error { return os.RemoveAll(temporary) })
	dir, err := standalone.OpenDir(cmp.Or(o.Dir, temporary))
	if err != nil {
		return err
	}
	c.atStop(dir.Close)
	endpoint, err := c.serve(ctx, o.Database, dir.Path("state.db"), filepath.Join(temporary, "etcd"))
	if err != nil {
		return err
	}
	config := cluster.Config{Bin: cmp.Or(o.Programs, os.Getenv(ProgramsEnv)), Dir: dir.Path(),
		Endpoint: endpoint, Controllers: o.Controllers, NoScheduler: !o.Scheduler,
		APIServerFlags: o.APIServerFlags}
	c.cluster, err = cluster.Start(ctx, config)
	var missing *exec.Error
	if errors.As(err, &missing) {
		return fmt.Errorf("%w; name its directory by Options.Programs or the environment variable %s",
			err, ProgramsEnv)
	}
	if err != nil {
		return err
	}
	c.Config, c.Kubeconfig = c.cluster.Admin, c.cluster.Kubeconfig
	return nil
}

// serve serves a database, by default a SQLite file, by etcd's API on a socket, and returns its
// URL.
func (c *ControlPlane) serve(ctx context.Context, database testkit.Database, file,
	socket string) (endpoint string, err error) {
	switch {
	case database.URL == "":
		// Nothing has to outlive a power failure.
		database = testkit.Database{URL: (&url.URL{Scheme: "sqlite", Path: filepath.ToSlash(file),
			RawQuery: "synchronous=OFF"}).String(), Driver: sqlite.Driver}
	case database.Driver == nil:
		return "", errors.New("a database needs its driver: set Options.Database.Driver")
	}
	// Only kube-apiserver compacts.
	store, err := etcd.Open(ctx, etcd.Config{URL: database.URL,
		Drivers: []etcd.Driver{database.Driver}, Migrate: true,
		Logger:     slog.New(logr.ToSlogHandler(klog.Background())),
		Compaction: etcd.CompactionPolicy{Window: -1}})
	if err != nil {
		return "", err
	}
	c.atStop(store.Close)
	l, err := net.Listen("unix", socket)
	if err != nil {
		return "", err
	}
	endpoint = "unix://" + socket
	server := etcd.New(etcd.Opened(store), etcd.ServerConfig{ClientURLs: []string{endpoint}})
	calls := grpc.NewServer(server.Options()...)
	server.Register(calls)
	served := make(chan error, 1)
	go func() { served <- calls.Serve(l) }()
	c.atStop(func() error {
		calls.Stop()
		return <-served
	})
	return endpoint, nil
}

func (c *ControlPlane) atStop(f func() error) { c.release = append(c.release, f) }

// ConfigFor issues a certificate for a user, and returns it as a client's configuration. Roles say
// what the user may do.
func (c *ControlPlane) ConfigFor(user string, groups ...string) (*rest.Config, error) {
	config, _, err := c.cluster.User(user, groups...)
	return config, err
}

// Logs is the directory of the logs of Kubernetes's programs.
func (c *ControlPlane) Logs() string { return c.cluster.Logs() }

// Stop ends the control plane at once. It is an error if one of its programs had ended by itself.
// After the first time it does nothing.
func (c *ControlPlane) Stop() (err error) {
	c.stop.Do(func() {
		var errs []error
		if c.cluster != nil {
			errs = append(errs, c.cluster.Died(), c.cluster.Close())
		}
		for i := len(c.release) - 1; i >= 0; i-- {
			errs = append(errs, c.release[i]())
		}
		err = errors.Join(errs...)
	})
	return err
}
