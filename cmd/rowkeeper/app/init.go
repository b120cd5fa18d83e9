package app

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/cmd/rowkeeper/app/scaffold"
	"github.com/rowkeeper/rowkeeper/pkg/server"
)

func newInitCommand() *cobra.Command {
	var p scaffold.Project
	var replace string
	cmd := &cobra.Command{
		Use:   "init DIRECTORY --group GROUP --kind KIND [--versions VERSION,…]",
		Short: "Write a project: an API server of your own",
		Long: "Init writes a Go project that serves an API group of yours: types, validation, " +
			"tests, an image, and manifests that register it in a cluster. The directory's name " +
			"is the project's. The kind begins with a title and an owner: put your fields in " +
			"their place. With several versions, the owner has another form in all but the one " +
			"that Kubernetes prefers, and functions convert it.\n\n" +
			"The variant kinds, which is the default, leaves all but the types, their conversion " +
			"and validation to package kinds. The variant registry has the strategies, the " +
			"registries and the server written out, as Kubernetes' own API servers have them, " +
			"and generated code for what is alike in all types. The variant controller is no " +
			"server: it has a CustomResourceDefinition, and a controller, as kubebuilder lays them " +
			"out.\n\n" +
			"The project requires the version of Rowkeeper that this program has. A program that " +
			"was built between releases makes the project use its clone; --replace names another " +
			"one.\n\n" +
			"Init never overwrites a file. It runs go mod tidy in the directory, which needs Go " +
			"and its module proxy.",
		Example: "  rowkeeper init my-api --group ci.example.com --kind Pipeline " +
			"--versions v1alpha1,v1\n" +
			"  rowkeeper init my-api --group ci.example.com --kind Pipeline --variant registry",
		Args: oneArgument("a directory, such as my-api"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if replace == "" {
				p.Rowkeeper, err = scaffold.Built()
			} else {
				p.Rowkeeper, err = scaffold.Clone(replace)
			}
			if err != nil {
				return server.UsageError{Err: err}
			}
			p.Name = filepath.Base(dir)
			files, err := p.Files()
			if err != nil {
				return server.UsageError{Err: err}
			}
			if err := files.Write(dir); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "wrote %d files into %s\n", len(files), args[0])
			if d := p.Rowkeeper.Dir; d != "" {
				fmt.Fprintf(out, "go.mod takes Rowkeeper from %s\n", d)
			}
			if err := scaffold.Tidy(cmd.Context(), dir); err != nil {
				return err
			}
			next(out, args[0], p)
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar((*string)(&p.Variant), "variant", string(scaffold.Kinds),
		"What the project is made of: kinds, registry or controller.")
	fs.StringVar(&p.Group, "group", "", "The API group: a domain, such as ci.example.com.")
	fs.StringVar(&p.Kind, "kind", "", "The group's first kind, such as Pipeline.")
	fs.StringSliceVar(&p.Versions, "versions", []string{"v1"},
		"The group's versions, such as v1alpha1,v1. Objects are stored in the one that "+
			"Kubernetes prefers.")
	fs.StringVar(&p.Module, "module", "", "The path of the Go module. Default: GROUP/DIRECTORY.")
	fs.StringVar(&replace, "replace", "", "A clone of Rowkeeper to build with, in place of the "+
		"version that this program is.")
	return cmd
}

// next tells what can be done with a project.
func next(out io.Writer, dir string, p scaffold.Project) {
	test, serve, try := "on SQLite and, where Docker is, on PostgreSQL",
		"run     # serves", "kubectl apply -f examples"
	if p.Variant == scaffold.Controller {
		test, serve, try = "with an API server in the process of the test",
			"serve   # serves an API, without a cluster,", "make install run"
	}
	fmt.Fprintf(out, `
Next:
  cd %s
  make test    # %s
  make %s on https://127.0.0.1:8443; PORT=8444 chooses another port

and in a second terminal:
  cd %s
  export KUBECONFIG=$PWD/.%s/kubeconfig
  %s

README.md tells the rest: another kind, the image, the way into a cluster.
`, dir, test, serve, dir, p.Name, try)
}

// oneArgument wants what a sentence calls this.
func oneArgument(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return server.UsageError{Err: fmt.Errorf("name %s", what)}
		case 1:
			return nil
		}
		return server.UsageError{Err: fmt.Errorf("unexpected argument %q", args[1])}
	}
}
