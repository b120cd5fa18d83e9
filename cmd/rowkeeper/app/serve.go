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

// serveCommand is the command "serve": the example API.
type serveCommand struct {
	server  *server.Server
	config  *apiserver.Config
	example bool
}

func newServeCommand() *cobra.Command {
	s := &serveCommand{}
	p := program
	p.AddFlags, p.Validate, p.NewConfig, p.New = s.addFlags, s.validate, s.newConfig, s.new
	p.First = s.first
	s.server = server.New(p)
	admission := s.server.Aggregated.Admission
	pipelinepolicy.Register(admission.Plugins)
	admission.RecommendedPluginOrder = append([]string{pipelinepolicy.Name},
		admission.RecommendedPluginOrder...)
	return s.server.Command()
}

func (s *serveCommand) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&s.example, "example", s.example,
		"Create the Pipeline hello in the namespace default, if the data directory is new and "+
			"the database has no pipelines. An aggregated server has none.")
}

func (s *serveCommand) validate(aggregated bool) []error {
	if aggregated && s.example {
		return []error{errors.New("--example is only for servers that are not aggregated")}
	}
	return nil
}

func (s *serveCommand) newConfig() *genericapiserver.RecommendedConfig {
	s.config = apiserver.NewConfig()
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
