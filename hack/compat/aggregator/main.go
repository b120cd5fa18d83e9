// Aggregator is upstream's k8s.io/kube-aggregator, which stores its APIServices by
// Rowkeeper: in SQLite, PostgreSQL or MySQL in place of etcd. The lines marked with a + are all
// that differs from the command of upstream's main program.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	"k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-aggregator/pkg/cmd/server"
	"k8s.io/kube-aggregator/pkg/generated/openapi"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

func main() {
	os.Exit(cli.Run(newCommand(genericapiserver.SetupSignalContext())))
}

func newCommand(ctx context.Context) *cobra.Command {
	o := server.NewDefaultOptions(os.Stdout, os.Stderr)
	o.RecommendedOptions.Etcd = nil                                                                                                                                              // +
	rows := options.NewStorageOptions("/registry/kube-aggregator.kubernetes.io", aggregatorscheme.Scheme, aggregatorscheme.Codecs, sqlite.Driver, postgres.Driver, mysql.Driver) // +
	cmd := server.NewCommandStartAggregator(ctx, o)
	rows.AddFlags(cmd.Flags()) // +
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Complete(); err != nil {
			return err
		}
		if err := errors.Join(append(rows.Validate(), o.Validate(args))...); err != nil { // + rows.Validate
			return err
		}
		if o.ProxyClientCertFile == "" || o.ProxyClientKeyFile == "" {
			return errors.New("give --proxy-client-cert-file and --proxy-client-key-file, by which the servers behind the aggregator know it")
		}
		store, err := rows.Open(cmd.Context()) // +
		if err != nil {                        // +
			return err // +
		} // +
		defer store.Close() // +
		if err := o.RecommendedOptions.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, nil); err != nil {
			return err
		}
		c := genericapiserver.NewRecommendedConfig(aggregatorscheme.Codecs)
		if err := o.ServerRunOptions.ApplyTo(&c.Config); err != nil {
			return err
		}
		if err := o.RecommendedOptions.ApplyTo(c); err != nil {
			return err
		}
		if err := o.APIEnablement.ApplyTo(&c.Config, apiserver.DefaultAPIResourceConfigSource(), aggregatorscheme.Scheme); err != nil {
			return err
		}
		if err := rows.ApplyTo(&c.Config, store); err != nil { // +
			return err // +
		} // +
		aggregator, err := newAggregator(c, o.ProxyClientCertFile, o.ProxyClientKeyFile)
		if err != nil {
			return err
		}
		prepared, err := aggregator.PrepareRun()
		if err != nil {
			return err
		}
		return prepared.Run(cmd.Context())
	}
	return cmd
}

// newAggregator makes the server. Its own definitions are in OpenAPIConfig and OpenAPIV3Config; it
// serves the documents of all servers behind it by itself.
func newAggregator(c *genericapiserver.RecommendedConfig, certFile, keyFile string) (*apiserver.APIAggregator, error) {
	namer := openapinamer.NewDefinitionNamer(aggregatorscheme.Scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	c.OpenAPIConfig.Info.Title, c.OpenAPIV3Config.Info.Title = "kube-aggregator", "kube-aggregator"
	c.SkipOpenAPIInstallation = true
	config := apiserver.Config{
		GenericConfig: c,
		ExtraConfig: apiserver.ExtraConfig{
			ServiceResolver:     apiserver.NewClusterIPServiceResolver(c.SharedInformerFactory.Core().V1().Services().Lister()),
			ProxyClientCertFile: certFile,
			ProxyClientKeyFile:  keyFile,
		},
	}
	return config.Complete().NewWithDelegate(genericapiserver.NewEmptyDelegate())
}
