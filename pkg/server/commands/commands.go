// Package commands makes the commands of a server program. It calls package server for one of them,
// and packages storage, pki and standalone for the others:
//
//	serve       the server, which package server makes
//	backup, restore, drill, fence, migrate, stores, indexes, sql, status, doctor
//	            what works on the database directly, beside the servers
//	certs       makes the serving certificate of an aggregated server
//	kubeconfig  lets a user sign in to a server that stands alone
//	version     tells what the program is
//
//	root := commands.New(program, server.New(program).Command())
//	os.Exit(commands.Run(ctx, root, os.Args[1:], os.Stdout, os.Stderr))
//
// Package kinds does so for programs made of Go types. cmd/rowkeeper adds commands of its own.
package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/version"
)

// These are the exit codes of a program. The command doctor has the last two, for what it has
// found.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2
	ExitWarning = 3
	ExitError   = 4
)

// exitCode is an error that a command has said in its output.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// New returns the root command of a program whose command serve is given. The caller may add
// others. Without a command, the program tells which there are.
func New(p server.Program, serve *cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:           p.Name,
		Version:       version.Get().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          server.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			// As programs on Go's package flag take it.
			name, _, _ := strings.Cut(unknown.GetSpecifiedShortnames(), "=")
			if cmd.Flag(name) != nil {
				err = fmt.Errorf("-%s needs two dashes: --%[1]s", name)
			}
		}
		return server.UsageError{Err: err}
	})
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(serve, newCertsCommand(p), newKubeconfigCommand(p), newBackupCommand(p),
		newRestoreCommand(p), newDrillCommand(p), newFenceCommand(p), newMigrateCommand(p),
		newStoresCommand(p), newIndexesCommand(p), newSQLCommand(p), newStatusCommand(p), newDoctorCommand(p),
		newVersionCommand(p))
	return root
}

// Run executes a command line until it is done or ctx ends, and returns the program's exit code.
// Each thing that is wrong is one sentence on stderr.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	if said := exitCode(0); errors.As(err, &said) {
		return int(said)
	}
	code, hint := ExitFailure, ""
	if usage := (server.UsageError{}); errors.As(err, &usage) {
		code, hint = ExitUsage, fmt.Sprintf(" (see %s --help)", command.CommandPath())
	}
	errs := []error{err}
	if several := utilerrors.Aggregate(nil); errors.As(err, &several) {
		errs = several.Errors() // each says what is wrong with something else
	}
	for i, err := range errs {
		text := err.Error()
		if i == len(errs)-1 {
			text += hint
		}
		fmt.Fprintf(stderr, "%s: %s\n", cmp.Or(root.Name(), filepath.Base(os.Args[0])), text)
	}
	return code
}
