// Package jumpingclock is a replica whose clock can be moved. Package replica serves it, on a
// storage with the option for another clock, which the program rowkeeper has no flag for. Only on
// SQLite the replica's clock decides anything that is stored: the other databases use their own
// clocks.
package jumpingclock

import (
	"context"
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
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/replica"
	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/options"
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
	rows.EnableGarbageCollection = false
	var port int
	var requestTimeout time.Duration
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	rows.AddFlags(flags)
	flags.IntVar(&port, "secure-port", 0, "")
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

	return replica.Run(ctx, port, requestTimeout, func(c *genericapiserver.Config) error {
		return rows.ApplyTo(c, db)
	})
}
