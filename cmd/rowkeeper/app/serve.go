package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/pkg/example/admission/pipelinepolicy"
	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage/directory"
)

// serveCommand is the command "serve": the example API, definitions, or both. Nobody gets the
// example unasked, since the names of its resources hide those of definitions with the same ones.
// An aggregated server has no definitions, so it is there for the example.
type serveCommand struct {
	server  *server.Server
	config  *apiserver.Config
	example bool
	// directory says in which database the store is, if it is given. located tells that it was
	// asked.
	directory *directoryFlags
	located   bool
}

func newServeCommand() *cobra.Command {
	s, cmd := newServe()
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !s.directory.given() {
			return run(cmd, args)
		}
		return s.follow(cmd)
	}
	return cmd
}

// newServe makes the command without what follows a directory.
func newServe() (*serveCommand, *cobra.Command) {
	s := &serveCommand{directory: newDirectoryFlags()}
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
	return s, cmd
}

// follow serves the store from where the directory says that it is. When it has moved, the server
// ends and begins anew there, in this process.
func (s *serveCommand) follow(cmd *cobra.Command) (err error) {
	if s.server.Storage.NamesDatabase() {
		return server.UsageError{Err: errors.New("--database and --directory exclude each other")}
	}
	ctx, store := cmd.Context(), s.server.Storage.Store
	d, err := s.directory.openAlone(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	// Each server applies the same flags of logs.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	for {
		at, config, err := d.Locate(ctx, store)
		if errors.Is(err, directory.ErrInHand) {
			select {
			case <-time.After(locatePause):
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if err != nil {
			return err
		}
		here, moves := context.WithCancel(ctx)
		var leaving sync.WaitGroup
		leaving.Go(func() { leave(here, d, at, moves) })
		next, serve := newServe()
		next.located = true
		if err = copyFlags(serve.Flags(), cmd.Flags()); err == nil {
			next.server.Storage.URL = config.URL
			serve.SetContext(here)
			serve.SetOut(cmd.OutOrStdout())
			serve.SetErr(cmd.ErrOrStderr())
			err = serve.RunE(serve, nil)
		}
		moves()
		leaving.Wait()
		now, readErr := d.Get(ctx, store)
		if ctx.Err() != nil || readErr != nil || now.Generation == at.Generation && !now.InHand() {
			return err
		}
		if err != nil {
			klog.ErrorS(err, "The server did not end well in a database that the store leaves",
				"database", at.Database)
		}
		if now.Generation == at.Generation { // it is being moved, and is closed, perhaps
			select {
			case <-time.After(locatePause):
			case <-ctx.Done():
			}
			continue
		}
		fmt.Fprintf(cmd.OutOrStdout(), "the store %q has left the database %q\n", store, at.Database)
	}
}

// locatePause is how often the directory is asked where a store is, by a server that serves it, or
// is to serve it soon.
const locatePause = time.Second

// leave calls moves when the store has left the database of a row, and is open elsewhere.
func leave(ctx context.Context, d *directory.Directory, at directory.Row, moves func()) {
	ticker := time.NewTicker(locatePause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now, err := d.Get(ctx, at.Name)
		if err != nil || now.Generation == at.Generation {
			continue // the store can be served where it was
		}
		if _, _, err := d.Locate(ctx, at.Name); err == nil {
			moves()
			return
		}
	}
}

// copyFlags sets the flags that are set in from.
func copyFlags(to, from *pflag.FlagSet) (err error) {
	from.Visit(func(f *pflag.Flag) {
		set := func() error { return to.Set(f.Name, f.Value.String()) }
		if inner, ok := strings.CutPrefix(f.Value.String(), "["); ok {
			switch inner = strings.TrimSuffix(inner, "]"); f.Value.Type() {
			case "stringToString":
				set = func() error { return to.Set(f.Name, inner) }
			case "namedCertKey":
				set = func() (err error) {
					for pair := range strings.SplitSeq(inner, ";") {
						err = errors.Join(err, to.Set(f.Name, pair))
					}
					return err
				}
			}
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			set = func() error {
				same := to.Lookup(f.Name)
				same.Changed = true
				return same.Value.(pflag.SliceValue).Replace(list.GetSlice())
			}
		}
		err = errors.Join(err, set())
	})
	return err
}

func (s *serveCommand) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&s.example, "example", s.example,
		"Serve the example API: pipelines and their runs. In a new data directory, without "+
			"--database, it creates the Pipeline hello in the namespace default. An aggregated "+
			"server always serves that API, and creates nothing.")
	s.directory.add(fs)
}

func (s *serveCommand) validate(aggregated bool) []error {
	switch {
	case s.directory.given() && !s.located:
		return []error{errors.New("--directory has to be given on the command line, and not in the file of " +
			"--config")}
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
