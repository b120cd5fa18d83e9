// Package front is a replica that stores as kube-apiserver does: by upstream's etcd3 storage, in a
// "rowkeeper etcd" of its own, which is a process beside it and can be killed alone.
package front

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/replica"
	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/options"
)

// ProgramEnv names the program rowkeeper. Without it, a replica is not of this package.
const ProgramEnv = "TORTURE_FRONT"

// pidFile is the file, in the working directory of the replica, that has the front's process.
const pidFile = "front.pid"

// Kill kills the front of the replica in a directory. It is started again at once.
func Kill(dir string) error {
	content, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// Serve serves as "rowkeeper serve" does, with those of its flags that torture runs need. The
// others are passed over.
func Serve(ctx context.Context, args []string) error {
	var (
		port                                   int
		database, store, prefix, databaseLimit string
		requestTimeout, window                 time.Duration
	)
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.IntVar(&port, "secure-port", 0, "")
	flags.StringVar(&database, "database", "", "")
	flags.StringVar(&store, "store", "default", "")
	flags.StringVar(&prefix, "storage-prefix", "", "")
	flags.StringVar(&databaseLimit, "database-timeout", "", "")
	flags.DurationVar(&requestTimeout, "request-timeout", time.Minute, "")
	flags.DurationVar(&window, "compaction-window", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	url := "unix://" + filepath.Join(dir, "etcd.sock")
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		keep(ctx, os.Getenv(ProgramEnv), "etcd", "--database="+database,
			"--store="+store, "--database-timeout="+databaseLimit, "--listen-client-urls="+url)
	}()
	defer func() {
		cancel()
		<-done
	}()
	return replica.Run(ctx, port, requestTimeout, func(c *genericapiserver.Config) error {
		config := storagebackend.NewDefaultConfig(prefix, nil)
		config.Transport.ServerList = []string{url}
		// kube-apiserver's own compaction, at full speed.
		config.CompactionInterval = window
		o := genericoptions.NewEtcdOptions(config)
		o.EnableGarbageCollection = false
		options.LeaveOutProtobuf(c, apiserver.Scheme)
		c.ShutdownWatchTerminationGracePeriod = time.Second
		return o.ApplyWithStorageFactoryTo(factory{serverstorage.NewDefaultStorageFactory(
			o.StorageConfig, o.DefaultStorageMediaType, apiserver.Codecs,
			serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(apiserver.Scheme,
				c.EffectiveVersion), serverstorage.NewResourceConfig(), nil)}, c)
	})
}

// keep runs the program until ctx ends, and starts it again whenever it has ended.
func keep(ctx context.Context, program string, args ...string) {
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 10 * time.Second
		if err := cmd.Start(); err == nil {
			// Without the file, the front is not killed alone, and the fault says so.
			_ = os.WriteFile(pidFile, []byte(strconv.Itoa(cmd.Process.Pid)), 0o644)
			_ = cmd.Wait() // it is started again, however it ends
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// factory puts the resources of a group below the group's name, as the product does.
type factory struct {
	*serverstorage.DefaultStorageFactory
}

func (factory) ResourcePrefix(resource schema.GroupResource) string {
	return resource.Group + "/" + resource.Resource
}
