// Package app is the program rowkeeper: its commands, their flags, and what they print.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/server/version"
)

// What the program exits with.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// Run executes a command line until it is done or ctx ends, and returns the program's exit code: 0,
// 1 if the command failed, 2 if it was not called as it should be. The reason is written to stderr,
// in one sentence.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := NewCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	var usage server.UsageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "rowkeeper: %v (see %s --help)\n", err, command.CommandPath())
		return exitUsage
	default:
		fmt.Fprintf(stderr, "rowkeeper: %v\n", err)
		return exitFailure
	}
}

// NewCommand returns the program's root command.
func NewCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "rowkeeper",
		Short:         "A Kubernetes-style API server that keeps its objects in a SQL database",
		Version:       version.Get().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          server.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return server.UsageError{Err: err}
	})
	root.AddCommand(newInitCommand(), newAddCommand(), newServeCommand(), newEtcdCommand(),
		newCertsCommand(), newBackupCommand(), newRestoreCommand(), newFenceCommand(),
		newMigrateCommand(), newStoresCommand(), newVersionCommand())
	return root
}
