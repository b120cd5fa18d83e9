package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/balancer"
	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/node"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/cluster"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
)

var (
	binFlag = flag.String("bin", "../../bin", "directory of what make e2e builds: the programs "+
		"in cluster/, the image in image/")
	workFlag = flag.String("work", "", "directory for logs and data, which then are kept; a "+
		"temporary one by default")
	throughputFlag = flag.Bool("throughput", false, "measure requests through the front door, too")
)

// env is what all tests share: a cluster with a node, and the way to it.
var env *environment

type environment struct {
	*cluster.Cluster
	// context is for what is done after a test's own context has ended.
	context context.Context
	// bin is the directory of the programs, dir that of all files.
	bin, dir string
	// database is the control plane's, if it is on a server.
	database *database.Database
	node     *node.Node
	image    *node.Image
	balancer *balancer.Balancer
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	// installation is the present one.
	installation *installation
}

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	bin, err := filepath.Abs(*binFlag)
	if err != nil {
		return 1, err
	}
	dir := *workFlag
	if dir == "" {
		if dir, err = os.MkdirTemp("", "rowkeeper-e2e-"); err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return 1, err
	}
	// Containers have other users, who must get through to their directories.
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
		return 1, err
	}
	env, err = start(context.Background(), bin, dir)
	if err != nil {
		return 1, err
	}
	code = m.Run()
	return code, env.close()
}

func start(ctx context.Context, bin, dir string) (*environment, error) {
	begin := time.Now()
	e := &environment{context: ctx, bin: filepath.Join(bin, "cluster"), dir: dir}
	var err error
	if e.image, err = node.LoadImage(filepath.Join(bin, "image", "rowkeeper-linux-"+runtime.GOARCH+
		".tar"), filepath.Join(dir, "image")); err != nil {
		return nil, fmt.Errorf("load the image, which make image builds: %w", err)
	}
	if err := e.startCluster(ctx); err != nil {
		return nil, errors.Join(err, e.close())
	}
	if e.client, err = kubernetes.NewForConfig(e.Admin); err != nil {
		return nil, errors.Join(err, e.close())
	}
	if e.dynamic, err = dynamic.NewForConfig(e.Admin); err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.node, err = node.Start(ctx, node.Config{
		Client: e.client,
		Env: []string{"KUBERNETES_SERVICE_HOST=" + cluster.Host,
			fmt.Sprintf("KUBERNETES_SERVICE_PORT=%d", e.Port)},
		Dir:  filepath.Join(dir, "pods"),
		Logs: e.Logs(),
	})
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	if e.balancer, err = balancer.New(); err != nil {
		return nil, errors.Join(err, e.close())
	}
	fmt.Printf("the control plane runs after %s\n", time.Since(begin).Round(time.Millisecond))
	return e, nil
}

// databaseEnv names where kube-apiserver keeps its objects: sqlite, which is the default, postgres,
// mariadb or mysql, which "rowkeeper etcd" serves, or etcd.
const databaseEnv = "ROWKEEPER_E2E_DATABASE"

func (e *environment) startCluster(ctx context.Context) (err error) {
	config := cluster.Config{Bin: e.bin, Dir: filepath.Join(e.dir, "cluster"),
		Controllers: cluster.Controllers, Audit: true}
	switch kind := os.Getenv(databaseEnv); kind {
	case "", "sqlite":
	case cluster.Etcd:
		config.Database = cluster.Etcd
	default:
		if e.database, err = database.Start(ctx, dbserver.Kind(kind)); err != nil {
			return fmt.Errorf("start what %s=%s names: %w", databaseEnv, kind, err)
		}
		config.Database, config.Servers = e.database.URL, 2
	}
	e.Cluster, err = cluster.Start(ctx, config)
	return err
}

// rowkeeper is the program, as it is in the image.
func (e *environment) rowkeeper() string { return filepath.Join(e.dir, "image", "rowkeeper") }

func (e *environment) close() error {
	var errs []error
	if e.installation != nil {
		errs = append(errs, e.installation.close())
	}
	if e.balancer != nil {
		errs = append(errs, e.balancer.Close())
	}
	if e.node != nil {
		errs = append(errs, e.node.Errors())
		e.node.Close()
	}
	if e.Cluster != nil {
		errs = append(errs, e.Cluster.Close())
	}
	if e.database != nil {
		errs = append(errs, e.database.Close(e.context))
	}
	return errors.Join(errs...)
}
