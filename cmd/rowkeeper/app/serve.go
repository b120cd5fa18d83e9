package app

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/example/admission/pipelinepolicy"
	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/server/version"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

func newStorageOptions() *options.StorageOptions {
	o := options.NewStorageOptions(storage.DefaultPrefix, apiserver.Scheme, apiserver.Codecs,
		drivers.All()...)
	o.StoredAs = apiserver.StoredAs
	return o
}

// serveCommand is the command "serve": the example API, with CustomResourceDefinitions if they are
// asked for.
type serveCommand struct {
	server     *server.Server
	config     *apiserver.Config
	enableCRDs bool
	example    bool
}

func newServeCommand() *cobra.Command {
	s := &serveCommand{}
	s.server = server.New(server.Program{
		Name:  "rowkeeper",
		Title: "Rowkeeper " + version.Get().Version,
		Try:   "get pipelines -A",
		Certs: "rowkeeper certs",

		Scheme: apiserver.Scheme, Codecs: apiserver.Codecs, StoredAs: apiserver.StoredAs,
		Drivers:  drivers.All(),
		AddFlags: s.addFlags, Validate: s.validate, NewConfig: s.newConfig, New: s.new,
		First: s.first,
	})
	admission := s.server.Aggregated.Admission
	pipelinepolicy.Register(admission.Plugins)
	admission.RecommendedPluginOrder = append([]string{pipelinepolicy.Name},
		admission.RecommendedPluginOrder...)

	cmd := s.server.Command()
	cmd.Use, cmd.Short = "serve", "Serve the API"
	cmd.Example = "  rowkeeper serve\n" +
		"  rowkeeper serve --database postgres://rowkeeper@db/rowkeeper --enable-crds"
	cmd.Long = "Serve runs the API server until it is told to stop by SIGTERM or an interrupt.\n\n" +
		"Without any flag it serves on https://127.0.0.1:8443 from a SQLite database in the directory .rowkeeper, where it also keeps an authority of its own and " +
		"a kubeconfig for the administrator. No cluster is needed. Namespaces need not exist: an object's namespace is a part of its name.\n\n" +
		"With --aggregated or --kubeconfig it is a part of a cluster, behind the cluster's API server.\n\n" +
		"Warnings and errors are logged, and with -v=1 or more what the server does, too. A log " +
		"in JSON has everything."
	return cmd
}

func (s *serveCommand) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&s.enableCRDs, "enable-crds", s.enableCRDs,
		"Serve CustomResourceDefinitions and their objects, Namespaces, which objects can then "+
			"only be created in, and a few other resources of the core API. An aggregated server "+
			"leaves them to its cluster.")
	fs.BoolVar(&s.example, "example", s.example,
		"Create the Pipeline hello in the namespace default, if the data directory is new and "+
			"the database has no pipelines. An aggregated server has none.")
}

func (s *serveCommand) validate(aggregated bool) []error {
	var errs []error
	if aggregated && s.enableCRDs {
		errs = append(errs, errors.New("--enable-crds is only for servers that are not "+
			"aggregated: a cluster serves its own CustomResourceDefinitions"))
	}
	if aggregated && s.example {
		errs = append(errs, errors.New("--example is only for servers that are not aggregated"))
	}
	return errs
}

func (s *serveCommand) newConfig() *genericapiserver.RecommendedConfig {
	s.config = apiserver.NewConfig()
	if s.server.Aggregated.Enabled {
		disabled := &s.server.Aggregated.Admission.DisablePlugins
		s.config.DisablePolicies = slices.Contains(*disabled, pipelinepolicy.Name)
		// The plugin for policies is the server's own: it comes before those that the cluster is
		// asked for.
		*disabled = append(slices.Clip(*disabled), pipelinepolicy.Name)
	}
	return s.config.Generic
}

func (s *serveCommand) new(config *genericapiserver.RecommendedConfig,
	db *storage.Database) (*genericapiserver.GenericAPIServer, error) {
	if !s.enableCRDs {
		return s.config.New()
	}
	database, err := s.server.Storage.Database()
	if err != nil {
		return nil, err
	}
	scheme, _, _ := strings.Cut(database.URL, ":")
	extension, err := crds.Prepare(config, crds.Options{
		Storage: s.server.Storage, Database: db, Schemes: []*runtime.Scheme{apiserver.Scheme},
		// SQLite is for one machine, where others learn of a definition at once.
		SingleServer: slices.Contains(sqlite.Driver.Schemes(), scheme),
	})
	if err != nil {
		return nil, err
	}
	server, err := s.config.New()
	if err != nil {
		return nil, err
	}
	return extension.Extend(server)
}

func (s *serveCommand) first(ctx context.Context, config *rest.Config) {
	if !s.example {
		return
	}
	if err := createExample(ctx, config); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "The example cannot be created; kubectl apply -f "+
			"deploy/examples/hello.yaml does it")
	}
}
