package app

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage"
)

func newStoresCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stores",
		Short: "List and create the stores of a database",
		Long: "A database holds any number of stores, each with objects, revisions and a history " +
			"of its own. Servers that use different stores know nothing of each other. Every " +
			"database has the store \"default\". The flag --store of the other commands names the " +
			"store that they use.",
		Args: server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newListStoresCommand(), newCreateStoreCommand())
	return cmd
}

func newListStoresCommand() *cobra.Command {
	o := newStorageOptions()
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the names of the stores",
		Example: "  rowkeeper stores list --database-file url.txt",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := openExisting(o)
			if err != nil {
				return err
			}
			stores, err := storage.Stores(cmd.Context(), config)
			if err != nil {
				return err
			}
			for _, name := range stores {
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return nil
		},
	}
	o.AddURLFlags(cmd.Flags())
	return cmd
}

func newCreateStoreCommand() *cobra.Command {
	o := newStorageOptions()
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an empty store",
		Long: "Create makes an empty store of the name, if there is none yet. It brings the schema " +
			"of the database to the newest version before, so it needs the role that migrates.",
		Example: "  rowkeeper stores create team-a --database-file url.txt",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return server.UsageError{Err: errors.New("name one store")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Store = args[0]
			config, err := openExisting(o)
			if err != nil {
				return err
			}
			created, err := storage.CreateStore(cmd.Context(), config)
			if err != nil {
				return err
			}
			if created {
				fmt.Fprintf(cmd.OutOrStdout(), "created the store %q\n", args[0])
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "the database has a store %q already\n", args[0])
			}
			return nil
		},
	}
	o.AddURLFlags(cmd.Flags())
	return cmd
}
