package commands

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
)

func newIndexesCommand(p server.Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "indexes",
		Short: "List, add, drop and rebuild the indexes of resources",
		Long: "A list with a label selector, or a field selector, reads all objects of the resource, " +
			"unless there is an index of a label or a field that it selects by. Then it reads the " +
			"objects that match. Servers build an index while they go on, and lists use it when it " +
			"is ready. Each write of an object costs a little more for each index that it changes.",
		Args: server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newListIndexesCommand(p),
		newChangeIndexCommand(p, "add", "Declare an index, which the servers build",
			"Add declares an index of a resource. Its name is label: and the key of a label, such as "+
				"label:app, field: and a field by which clients can select objects of a Go "+
				"type, such as field:spec.color, or created, the time of creation, for sorted lists. "+
				"Servers that serve the resource learn of it within ten seconds, "+
				"and build it. A resource has eight indexes at most. A server drops an index of "+
				"objects that it encrypts, since an index shows values, and of objects that a webhook "+
				"converts, and an index of a field of what a definition defines. It logs that.", "declared", storage.AddIndex),
		newChangeIndexCommand(p, "drop", "Remove an index",
			"Drop removes an index. Lists go on without it from then on.", "dropped",
			storage.DropIndex),
		newChangeIndexCommand(p, "rebuild", "Build an index anew",
			"Rebuild has the servers build an index anew. Lists go on without it until it is ready.",
			"declared anew", storage.RebuildIndex))
	return cmd
}

func newListIndexesCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the indexes, and how far they are built",
		Long: "List shows the indexes of a store. One that is being built shows the key of the last " +
			"object that is in it. Objects are put into it in the order of their keys.",
		Example: "  " + p.Name + " indexes list --database-file url.txt",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			indexes, err := storage.Indexes(cmd.Context(), config)
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(table, "RESOURCE\tINDEX\tSTATE\tBUILT UP TO")
			for _, x := range indexes {
				state := "building"
				switch {
				case x.Ready:
					state = "ready"
				case x.Dropped:
					state = "being removed"
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", slashed(x.Resource), x.Name, state, x.Built)
			}
			return table.Flush()
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	return cmd
}

// slashed names a resource as the commands take it.
func slashed(r schema.GroupResource) string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Group + "/" + r.Resource
}

// newChangeIndexCommand makes a command that changes one index, and says then that it is done.
func newChangeIndexCommand(p server.Program, name, short, long, done string,
	change func(context.Context, storage.Config, string, schema.GroupResource, string) error) *cobra.Command {
	o := p.StorageOptions()
	prefix := storage.DefaultPrefix
	cmd := &cobra.Command{
		Use:     name + " GROUP/RESOURCE INDEX",
		Short:   short,
		Long:    long,
		Example: "  " + p.Name + " indexes " + name + " ci.example.com/pipelines label:app --database-file url.txt",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return server.UsageError{Err: errors.New("name a resource, as group/resource, and an " +
					"index, such as label:app")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			resource, err := storage.ParseResource(args[0])
			if err != nil {
				return server.UsageError{Err: err}
			}
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			if err := change(cmd.Context(), config, prefix, resource, args[1]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s the index %s of %s\n", done, args[1], args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&prefix, "storage-prefix", prefix,
		"What the keys of all objects begin with, as the flag of servers says.")
	o.AddDatabaseFlags(cmd.Flags())
	return cmd
}
