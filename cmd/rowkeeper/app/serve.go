package app

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/pkg/example/admission/pipelinepolicy"
	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/server"
)

// serveCommand is the command "serve": the example API, definitions, or both. Nobody gets the
// example unasked, since the names of its resources hide those of definitions with the same ones.
// An aggregated server has no definitions, so it is there for the example.
type serveCommand struct {
	server  *server.Server
	config  *apiserver.Config
	example bool
}

func newServeCommand() *cobra.Command {
	s := &serveCommand{}
	p := program
	p.AddFlags, p.Validate, p.NewConfig, p.New = s.addFlags, s.validate, s.newConfig, s.new
	p.First, p.Try = s.first, s.try
	s.server = server.New(p)
	admission := s.server.Aggregated.Admission
	pipelinepolicy.Register(admission.Plugins)
	admission.RecommendedPluginOrder = append([]string{pipelinepolicy.Name},
		admission.RecommendedPluginOrder...)
	cmd := s.server.Command()
	cmd.Short = "Serve CustomResourceDefinitions, or the example API"
	cmd.Example = "  rowkeeper serve --enable-crds\n" +
		"  rowkeeper serve --example\n" +
		"  rowkeeper serve --database \"postgres://user@db/objects?sslmode=verify-full\" --enable-crds"
	return cmd
}

func (s *serveCommand) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&s.example, "example", s.example,
		"Serve the example API: pipelines and their runs. In a new data directory, without "+
			"--database, it creates the Pipeline hello in the namespace default. An aggregated "+
			"server always serves that API, and creates nothing.")
}

func (s *serveCommand) validate(aggregated bool) []error {
	switch {
	case aggregated && s.example:
		return []error{errors.New("--example is only for servers that are not aggregated: those " +
			"always serve the example API")}
	case !aggregated && !s.example && !s.server.ServesDefinitions():
		return []error{errors.New("there is nothing to serve: give --enable-crds, for " +
			"CustomResourceDefinitions of your own, or --example, for the example API")}
	}
	return nil
}

// serves tells whether the example API is served.
func (s *serveCommand) serves() bool { return s.example || s.server.Aggregated.Enabled }

// try is what the announcement proposes.
func (s *serveCommand) try() string {
	if s.serves() {
		return "get pipelines -A"
	}
	return "api-resources"
}

func (s *serveCommand) newConfig() *genericapiserver.RecommendedConfig {
	s.config = apiserver.NewConfig()
	s.config.Empty = !s.serves()
	if s.server.Aggregated.Enabled {
		disabled := &s.server.Aggregated.Admission.DisablePlugins
		s.config.DisablePolicies = slices.Contains(*disabled, pipelinepolicy.Name)
		// The plugin for policies is the server's own: it comes before the plugins that the cluster
		// is asked for.
		*disabled = append(slices.Clip(*disabled), pipelinepolicy.Name)
	}
	return s.config.Generic
}

func (s *serveCommand) new(*genericapiserver.RecommendedConfig) (
	*genericapiserver.GenericAPIServer, error) {
	return s.config.New()
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
