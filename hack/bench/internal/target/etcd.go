package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// etcdServer is a cluster of one member.
type etcdServer struct {
	*programs.Program
	address string
}

// serveEtcd starts etcd with its defaults: every commit is synced to its log. The quota is raised
// from 2 GiB, which the lines with much history exceed; it does not change what a write costs.
func serveEtcd(ctx context.Context, dir string, p Programs) (Server, error) {
	client, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	peer, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	if dir, err = mkdir(dir, "etcd"); err != nil {
		return nil, err
	}
	s := &etcdServer{address: fmt.Sprintf("http://127.0.0.1:%d", client)}
	peers := fmt.Sprintf("http://127.0.0.1:%d", peer)
	s.Program = program(dir, syscall.SIGTERM, p.Etcd,
		"--data-dir="+filepath.Join(dir, "data"), "--log-level=warn",
		"--quota-backend-bytes=17179869184",
		"--listen-client-urls="+s.address, "--advertise-client-urls="+s.address,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers,
		"--initial-cluster=default="+peers)
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *etcdServer) begin(ctx context.Context) error {
	if err := s.Start(); err != nil {
		return err
	}
	return awaitEtcd(ctx, s.address, s.Program)
}

func (s *etcdServer) Address() string                  { return s.address }
func (s *etcdServer) source() string                   { return "etcd" + strings.TrimPrefix(s.address, "http") }
func (s *etcdServer) Processes() []int                 { return []int{s.PID()} }
func (s *etcdServer) DataDirs() []string               { return []string{s.Dir} }
func (s *etcdServer) Checkpoint(context.Context) error { return nil }
func (s *etcdServer) Settle(context.Context) error     { return nil }
func (s *etcdServer) Stop() error                      { return s.Program.Stop(context.Background()) }

func (s *etcdServer) Settings(ctx context.Context) ([]string, error) {
	var version string
	err := withEtcd(s.address, func(c *clientv3.Client) error {
		status, err := c.Status(ctx, s.address)
		if err == nil {
			version = status.Version
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, arg := range s.Command {
		if strings.HasPrefix(arg, "--unsafe") {
			return nil, fmt.Errorf("etcd runs with %s", arg)
		}
	}
	return []string{"etcd " + version + ": one member, every commit synced to its log (default)"},
		nil
}

func (s *etcdServer) Restart(ctx context.Context) error {
	if err := s.Program.Stop(ctx); err != nil {
		return err
	}
	return s.begin(ctx)
}

func (s *etcdServer) Committer(context.Context) (Committer, error) {
	c, err := EtcdClient(s.address)
	if err != nil {
		return nil, err
	}
	return etcdCommitter{c}, nil
}

type etcdCommitter struct{ *clientv3.Client }

func (c etcdCommitter) Commit(ctx context.Context, id int64, value []byte) error {
	_, err := c.Put(ctx, rawKey(id), string(value))
	return err
}

// Append is Commit: etcd stores nothing but a history.
func (c etcdCommitter) Append(ctx context.Context, id int64, value []byte) error {
	return c.Commit(ctx, id, value)
}

// EtcdClient connects to a server that speaks etcd's protocol.
func EtcdClient(address string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints:   []string{address},
		DialTimeout: startTimeout,
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
		Logger:      zap.NewNop(),
	})
}

// awaitEtcd waits until a server of etcd's protocol answers.
func awaitEtcd(ctx context.Context, address string, p *programs.Program) error {
	return withEtcd(address, func(c *clientv3.Client) error {
		return p.Await(ctx, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := c.Get(ctx, "/ready")
			return err
		})
	})
}

// withEtcd calls f with a client of its own.
func withEtcd(address string, f func(*clientv3.Client) error) error {
	c, err := EtcdClient(address)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close())
}

// etcdDialed is a client of etcd or kine.
type etcdDialed struct {
	address string
}

// dialEtcd makes stores as an API server does. They do not compact: the lines are shorter than the
// five minutes after which they would.
func dialEtcd(_ context.Context, address string, _ DialOptions) (Client, error) {
	return &etcdDialed{address: address}, nil
}

func (c *etcdDialed) Store(prefix string) (storage.Interface, func(), error) {
	config := storagebackend.NewDefaultConfig("/registry", object.Codec())
	config.Transport.ServerList = []string{c.address}
	config.CompactionInterval = 0
	config.Transformer = object.Transformer()
	s, destroy, err := factory.Create(*config.ForResource(object.Resource), object.Empty,
		object.EmptyList, prefix)
	return s, destroy, err
}

// Backup implements Archiver.
func (c *etcdDialed) Backup(ctx context.Context, file string) error {
	return withEtcd(c.address, func(client *clientv3.Client) error {
		snapshot, err := client.Snapshot(ctx)
		if err != nil {
			return err
		}
		defer snapshot.Close()
		f, err := os.Create(file)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, snapshot)
		return errors.Join(err, f.Sync(), f.Close())
	})
}

// Restore implements Archiver.
func (c *etcdDialed) Restore(context.Context, string) error { return errors.ErrUnsupported }

func (c *etcdDialed) Compact(ctx context.Context, revision int64) error {
	return withEtcd(c.address, func(client *clientv3.Client) error {
		_, err := client.Compact(ctx, revision, clientv3.WithCompactPhysical())
		return err
	})
}

func (c *etcdDialed) Beside(context.Context, string) (Client, error) {
	return nil, errors.ErrUnsupported
}

func (c *etcdDialed) Close() error { return nil }
