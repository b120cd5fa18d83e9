package kinds

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/server/commands"
	"github.com/rowkeeper/rowkeeper/storage"
)

// Main is a whole program that serves the groups. It does not return.
//
// Its command serve serves on https://127.0.0.1:8443, stores in a SQLite file, and keeps that file,
// its certificates and the administrator's kubeconfig in the directory .name. With --database it
// stores elsewhere. With --kubeconfig or --aggregated it is a part of a cluster, behind the
// cluster's API server, with the users and rights of the cluster. The cluster may come later: until
// then the program runs and is not ready. Its other commands are those of package commands, such as
// backup and migrate; --help lists them.
//
// Each thing that is wrong with the groups or the flags is one sentence on stderr. The program ends
// with exit code 1 then, or 2 if it was not called as it should be. The first signal asks it to
// finish what it has begun; the second ends it at once.
func Main(name string, drivers []storage.Driver, groups ...Group) {
	api, err := New(groups...)
	root := &cobra.Command{Use: name, SilenceUsage: true, SilenceErrors: true,
		DisableFlagParsing: true, RunE: func(*cobra.Command, []string) error { return err }}
	if err == nil {
		root = api.Command(name, drivers...)
	}
	os.Exit(commands.Run(genericapiserver.SetupSignalContext(), root, os.Args[1:], os.Stdout,
		os.Stderr))
}

// Command returns the command that [Main] runs, for programs that have others besides.
func (a *API) Command(name string, drivers ...storage.Driver) *cobra.Command {
	p := server.Program{
		Name: name, Scheme: a.Scheme, Codecs: a.Codecs, Drivers: drivers, NewConfig: a.NewConfig,
		New: a.New, Definitions: a.Definitions,
	}
	root := commands.New(p, server.New(p).Command())
	root.Short = "The API server of " + a.groups[0].Name
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		return validate(name, drivers)
	}
	return root
}

// validate returns what is wrong with the program itself.
func validate(name string, drivers []storage.Driver) error {
	if name == "" || filepath.Base(name) != name || name[0] == '.' {
		return fmt.Errorf("the program cannot be named %q: give kinds.Main a name that a directory "+
			"can have, such as bookmarks", name)
	}
	if len(drivers) == 0 {
		return errors.New("the program has no database to store in: give kinds.Main drivers, such " +
			"as sqlite.Driver")
	}
	return nil
}
