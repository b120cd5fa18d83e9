// Sampleapiserver is upstream's k8s.io/sample-apiserver, which stores its flunders and
// fischers by Rowkeeper: in SQLite, PostgreSQL or MySQL in place of etcd. The lines marked with a +
// are all that differs from upstream's main program and the command that it runs.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	"k8s.io/sample-apiserver/pkg/apiserver"
	"k8s.io/sample-apiserver/pkg/cmd/server"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

func main() {
	os.Exit(cli.Run(newCommand(genericapiserver.SetupSignalContext())))
}

func newCommand(ctx context.Context) *cobra.Command {
	o := server.NewWardleServerOptions(os.Stdout, os.Stderr)
	o.RecommendedOptions.Etcd = nil                                                                                                                     // +
	rows := options.NewStorageOptions("/registry/wardle.example.com", apiserver.Scheme, apiserver.Codecs, sqlite.Driver, postgres.Driver, mysql.Driver) // +
	cmd := server.NewCommandStartWardleServer(ctx, o, false)
	rows.AddFlags(cmd.Flags()) // +
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Complete(); err != nil {
			return err
		}
		if err := errors.Join(append(rows.Validate(), o.Validate(args))...); err != nil { // + rows.Validate
			return err
		}
		store, err := rows.Open(cmd.Context()) // +
		if err != nil {                        // +
			return err // +
		} // +
		defer store.Close() // +
		config, err := o.Config()
		if err != nil {
			return err
		}
		if err := rows.ApplyTo(&config.GenericConfig.Config, store); err != nil { // +
			return err // +
		} // +
		sample, err := config.Complete().New()
		if err != nil {
			return err
		}
		sample.GenericAPIServer.AddPostStartHookOrDie("start-sample-server-informers", func(hook genericapiserver.PostStartHookContext) error {
			config.GenericConfig.SharedInformerFactory.Start(hook.Done())
			o.SharedInformerFactory.Start(hook.Done())
			return nil
		})
		return sample.GenericAPIServer.PrepareRun().RunWithContext(cmd.Context())
	}
	return cmd
}
