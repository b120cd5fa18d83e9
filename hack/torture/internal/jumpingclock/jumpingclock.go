// Package jumpingclock is a replica whose clock can be moved. It is the product's server, put
// together with the storage's option for another clock, which the program rowkeeper has no flag
// for. Only SQLite asks a replica's clock: the other databases' own clocks decide, and no replica's
// clock is asked for anything that is stored.
package jumpingclock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/utils/clock"
	netutils "k8s.io/utils/net"

	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/server/standalone"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// OffsetFile is the file, in the working directory, that holds by how many seconds the clock is
// wrong. It is read after a SIGUSR1.
const OffsetFile = "clock"

// SetOffset writes the file.
func SetOffset(dir string, offset time.Duration) error {
	return os.WriteFile(filepath.Join(dir, OffsetFile), []byte(strconv.Itoa(int(offset.Seconds()))),
		0o644)
}

// Serve serves as "rowkeeper serve" does, with those of its flags that torture runs need. The
// others are passed over.
func Serve(ctx context.Context, args []string) error {
	rows := options.NewStorageOptions(storage.DefaultPrefix, apiserver.Scheme, apiserver.Codecs,
		sqlite.Driver)
	rows.StoredAs = apiserver.StoredAs
	rows.EnableGarbageCollection = false
	serving := genericoptions.NewSecureServingOptions()
	var requestTimeout time.Duration
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	rows.AddFlags(flags)
	flags.IntVar(&serving.BindPort, "secure-port", 0, "")
	flags.DurationVar(&requestTimeout, "request-timeout", time.Minute, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := utilerrors.NewAggregate(rows.Validate()); err != nil {
		return err
	}

	var offset atomic.Int64
	moved := make(chan os.Signal, 1)
	signal.Notify(moved, syscall.SIGUSR1)
	go func() {
		for range moved {
			if content, err := os.ReadFile(OffsetFile); err == nil {
				if seconds, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10,
					64); err == nil {
					offset.Store(seconds)
				}
			}
		}
	}()
	config, err := rows.Database()
	if err != nil {
		return err
	}
	config.Clock = func() time.Time {
		return time.Now().Add(time.Duration(offset.Load()) * time.Second)
	}
	db, err := storage.Open(ctx, config)
	if err != nil {
		return err
	}
	defer db.Close()

	dir, err := standalone.OpenDir(".rowkeeper")
	if err != nil {
		return err
	}
	defer dir.Close()
	pki := standalone.NewPKI(dir, standalone.Names{DNS: []string{"localhost"},
		IPs: []net.IP{netutils.ParseIPSloppy("127.0.0.1")}}, clock.RealClock{})
	if _, err := pki.Ensure(); err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(serving.BindPort))
	if serving.Listener, err = net.Listen("tcp", address); err != nil {
		return err
	}
	serving.BindAddress = netutils.ParseIPSloppy("127.0.0.1")
	serving.ServerCert.CertKey = genericoptions.CertKey{CertFile: pki.ServingCert(),
		KeyFile: pki.ServingKey()}

	api := apiserver.NewConfig()
	api.Generic.PublicAddress = serving.BindAddress
	api.Generic.RequestTimeout = requestTimeout
	features := genericoptions.NewFeatureOptions()
	features.EnablePriorityAndFairness = false
	if err := errors.Join(rows.ApplyTo(&api.Generic.Config, db),
		options.ApplySecureServing(serving, &api.Generic.Config),
		features.ApplyTo(&api.Generic.Config, nil, nil),
		pki.ApplyTo(&api.Generic.Config)); err != nil {
		return err
	}
	server, err := api.New()
	if err != nil {
		return err
	}
	if err := pki.WriteKubeconfig("https://"+address, ""); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return server.PrepareRun().RunWithContext(ctx)
}
