package app

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/cmd/rowkeeper/app/scaffold"
	"github.com/rowkeeper/rowkeeper/pkg/server"
)

func newAddCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Add to a project that init has written",
		Args:  server.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAddKindCommand())
	return cmd
}

func newAddKindCommand() *cobra.Command {
	dir := "."
	cmd := &cobra.Command{
		Use:   "kind KIND",
		Short: "Add a kind to a project",
		Long: "Kind writes the types, the validation, the tests and an example of another kind, " +
			"which is served in all versions of the project's group, with the same fields in each; " +
			"in a project of the variant controller, the types, a reconciler, its tests and an " +
			"example. It adds the kind to the lists of kinds and to the roles for users, and " +
			"writes again what is generated, except clients: make generate does that. No other " +
			"file is changed, and none is overwritten.",
		Example: "  rowkeeper add kind Task",
		Args:    oneArgument("a kind, such as Task"),
		RunE: func(cmd *cobra.Command, args []string) error {
			added, err := scaffold.AddKind(dir, args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			for _, name := range added.Written {
				fmt.Fprintln(out, "wrote", name)
			}
			for _, name := range added.Changed {
				fmt.Fprintln(out, "changed", name)
			}
			if added.Generates {
				if err := scaffold.Generate(cmd.Context(), dir); err != nil {
					return err
				}
				fmt.Fprintln(out, "wrote again what is generated")
			}
			fmt.Fprintf(out, "%s are served in %s; make test tries them\n", added.Resource,
				strings.Join(added.Versions, ", "))
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", dir, "The project's directory.")
	return cmd
}
