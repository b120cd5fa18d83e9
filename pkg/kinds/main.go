package kinds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage"
)

// Main is a whole program that serves the groups. It does not return.
//
// Without flags it serves on https://127.0.0.1:8443, stores in a SQLite file, and keeps that file,
// its certificates and the administrator's kubeconfig in the directory .name. With --database it
// stores elsewhere. With --kubeconfig or --aggregated it is a part of a cluster, behind the
// cluster's API server, with the users and rights of the cluster. The cluster may come later: until
// then the program runs and is not ready. --help lists all flags, which are those of package
// server.
//
// Each thing that is wrong with the groups or the flags is one sentence on stderr. The program ends
// with exit code 1 then.
func Main(name string, drivers []storage.Driver, groups ...Group) {
	api, err := New(groups...)
	if err == nil {
		err = cli.RunNoErrOutput(api.Command(name, drivers...))
	}
	if err != nil {
		errs := []error{err}
		if several := utilerrors.Aggregate(nil); errors.As(err, &several) {
			errs = several.Errors() // each says what is wrong with something else
		}
		for _, err := range errs {
			fmt.Fprintf(os.Stderr, "%s: %v\n", cmp.Or(name, filepath.Base(os.Args[0])), err)
		}
		os.Exit(1)
	}
	os.Exit(0)
}

// Command returns the command that [Main] runs, for programs that have others besides.
func (a *API) Command(name string, drivers ...storage.Driver) *cobra.Command {
	cmd := server.New(server.Program{
		Name: name, Scheme: a.Scheme, Codecs: a.Codecs, Drivers: drivers, NewConfig: a.NewConfig,
		Validate: func(bool) []error { return validate(name, drivers) },
		New: func(c *genericapiserver.RecommendedConfig,
			_ *storage.Database) (*genericapiserver.GenericAPIServer, error) {
			return a.New(c)
		},
	}).Command()
	cmd.Short = "Serve the API of " + a.groups[0].Name
	serve := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // a second signal ends the program at once
		cmd.SetContext(ctx)
		return serve(cmd, args)
	}
	return cmd
}

// validate returns what is wrong with the program itself.
func validate(name string, drivers []storage.Driver) []error {
	var errs []error
	if name == "" || filepath.Base(name) != name || name[0] == '.' {
		errs = append(errs, fmt.Errorf("the program cannot be named %q: give kinds.Main a name "+
			"that a directory can have, such as bookmarks", name))
	}
	if len(drivers) == 0 {
		errs = append(errs, errors.New("the program has no database to store in: give kinds.Main "+
			"drivers, such as sqlite.Driver"))
	}
	return errs
}
