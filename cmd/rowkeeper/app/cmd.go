// Package app is the program rowkeeper: its commands, their flags, and what they print.
package app

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/cmd/rowkeeper/history"
	"github.com/rowkeeper/rowkeeper/cmd/rowkeeper/ui"
	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/server/commands"
	"github.com/rowkeeper/rowkeeper/pkg/support/version"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

// program is what all commands have in common.
var program = server.Program{
	Name:   "rowkeeper",
	Title:  "Rowkeeper " + version.Get().Version,
	Scheme: apiserver.Scheme, Codecs: apiserver.Codecs, Drivers: drivers.All(),
	Definitions: crds.Prepare,
}

// Run executes a command line until it is done or ctx ends, and returns the program's exit code, as
// [commands.Run] does.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := NewCommand()
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") { // kubectl runs it as a plugin
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl rowkeeper"}
	}
	return commands.Run(ctx, root, args, stdout, stderr)
}

// NewCommand returns the program's root command.
func NewCommand() *cobra.Command {
	root := commands.New(program, newServeCommand())
	root.Short = "A Kubernetes-style API server that keeps its objects in a SQL database"
	root.AddCommand(newInitCommand(), newAddCommand(), newEtcdCommand(), newMoveCommand(),
		newDirectoryCommand(), ui.Command())
	for _, cmd := range root.Commands() {
		if cmd.Name() == "stores" {
			cmd.AddCommand(newMoveToCommand())
		}
	}
	root.AddCommand(history.Commands()...)
	return root
}
