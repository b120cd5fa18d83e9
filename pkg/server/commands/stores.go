package commands

import (
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
)

func newStoresCommand(p server.Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stores",
		Short: "List, create, measure, limit and drop the stores of a database, and move objects",
		Long: "A database holds any number of stores, each with objects, revisions and a history " +
			"of its own. Servers that use different stores know nothing of each other. Every " +
			"database has the store \"default\". The flag --store of the other commands names the " +
			"store that they use.",
		Args: server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newListStoresCommand(p), newCreateStoreCommand(p), newSizeStoresCommand(p),
		newLimitStoreCommand(p), newMoveCommand(p), newDropStoreCommand(p))
	return cmd
}

func newListStoresCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the names of the stores",
		Example: "  " + p.Name + " stores list --database-file url.txt",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := commandline.Existing(o)
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

func newCreateStoreCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an empty store",
		Long: "Create makes an empty store of the name, if there is none yet. It brings the schema " +
			"of the database to the newest version before, so it needs the role that migrates. " +
			"In the place of a store that was dropped, revisions begin beyond those of that one.",
		Example: "  " + p.Name + " stores create team-a --database-file url.txt",
		Args:    oneStore,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Store = args[0]
			config, err := commandline.Existing(o)
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

func oneStore(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return server.UsageError{Err: errors.New("name one store")}
	}
	return nil
}

func newSizeStoresCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	cmd := &cobra.Command{
		Use:   "size [NAME...]",
		Short: "Count and measure the objects of stores",
		Long: "Size says how many objects each of the stores has, all stores if none is named, and " +
			"how many bytes their keys and values have as they are stored, and how much of both is " +
			"allowed. What the database needs besides, such as the history and indexes, is not " +
			"counted. The database reads the keys of all these objects for it.",
		Example: "  " + p.Name + " stores size team-a team-b --database-file url.txt",
		RunE: func(cmd *cobra.Command, stores []string) error {
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			if len(stores) == 0 {
				if stores, err = storage.Stores(cmd.Context(), config); err != nil {
					return err
				}
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(table, "STORE\tOBJECTS\tMAX OBJECTS\tBYTES\tMAX BYTES")
			for _, name := range stores {
				config.Store = name
				usage, quota, err := storage.MeasureStore(cmd.Context(), config)
				if err != nil {
					return err
				}
				fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\n", name, usage.Objects,
					bound(quota.Objects, "unlimited"), usage.Bytes, bound(quota.Bytes, "unlimited"))
			}
			return table.Flush()
		},
	}
	o.AddURLFlags(cmd.Flags())
	return cmd
}

// bound describes a bound of a quota, which may be none.
func bound(n int64, none string) string {
	if n == 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

func newLimitStoreCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	var objects, bytes string
	cmd := &cobra.Command{
		Use:   "limit NAME",
		Short: "Set the quota of a store",
		Long: "Limit sets how many objects a store may have, and how many bytes, as \"stores " +
			"size\" counts them. Servers that use the store heed it within ten seconds. " +
			"When a quota is used up they answer 403 Forbidden to what creates an object, and to " +
			"what lets one grow if it is the bytes that are used up. They measure every few " +
			"seconds, so the store may come to hold a little more. To delete objects, and to make " +
			"them smaller, always works. History that needs more than these bytes is compacted " +
			"early.",
		Example: "  " + p.Name + " stores limit team-a --objects 10000 --bytes 500Mi --database-file url.txt",
		Args:    oneStore,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Store = args[0]
			if objects == "" && bytes == "" {
				return server.UsageError{Err: errors.New("give --objects or --bytes")}
			}
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			usage, quota, err := storage.MeasureStore(cmd.Context(), config)
			if err == nil {
				err = setBound(&quota.Objects, "--objects", objects)
			}
			if err == nil {
				err = setBound(&quota.Bytes, "--bytes", bytes)
			}
			if err == nil {
				err = storage.LimitStore(cmd.Context(), config, quota)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "the store %q has %d of %s objects and %d of %s bytes\n",
				o.Store, usage.Objects, bound(quota.Objects, "any"), usage.Bytes,
				bound(quota.Bytes, "any"))
			if quota.Objects > 0 && usage.Objects >= quota.Objects ||
				quota.Bytes > 0 && usage.Bytes >= quota.Bytes {
				fmt.Fprintf(cmd.OutOrStdout(), "nothing can be created in it until it has less\n")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&objects, "objects", "",
		"How many objects the store may have. 0 means any number.")
	cmd.Flags().StringVar(&bytes, "bytes", "",
		"How many bytes the store may have, such as 500Mi. 0 means any number.")
	o.AddURLFlags(cmd.Flags())
	return cmd
}

// setBound sets a bound of a quota to what a flag says, if it is given.
func setBound(bound *int64, flag, value string) error {
	if value == "" {
		return nil
	}
	q, err := resource.ParseQuantity(value)
	n, whole := q.AsInt64()
	if err != nil || !whole || n < 0 {
		return server.UsageError{Err: fmt.Errorf("%s %q is not a number such as 10000 or 500Mi", flag,
			value)}
	}
	*bound = n
	return nil
}

func newMoveCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	var to string
	prefix := storage.DefaultPrefix
	cmd := &cobra.Command{
		Use:   "move GROUP/RESOURCE --to NAME",
		Short: "Move the objects of a resource to another store",
		Long: "Move puts the objects of a resource into another store of the database, and records " +
			"that they are there, as the flag --store-for of servers has to say. No server should " +
			"run meanwhile: one that serves the resource closes the database. The histories of " +
			"both stores are fenced, so that clients begin their watches anew. A move that was " +
			"interrupted leaves the objects in one of the two stores, and no server serves them " +
			"until a move was repeated, in the same direction or back.",
		Example: "  " + p.Name + " stores move coordination.k8s.io/leases --to leases " +
			"--database-file url.txt",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return server.UsageError{Err: errors.New("name one resource, as group/resource")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			moves, err := storage.ParseResource(args[0])
			if err == nil && to == "" {
				err = errors.New("name the other store by --to")
			} else if err == nil {
				err = storage.CheckStoreName(to)
			}
			if err != nil {
				return server.UsageError{Err: err}
			}
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			moved, err := storage.MoveResource(cmd.Context(), config, prefix, moves, to)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "moved %s; the objects of %s are in the store %q\n",
				commandline.Objects(moved), args[0], to)
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "The store into which the objects are moved.")
	cmd.Flags().StringVar(&prefix, "storage-prefix", prefix,
		"What the keys of all objects begin with, as the flag of servers says.")
	o.AddDatabaseFlags(cmd.Flags())
	return cmd
}

func newDropStoreCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	var confirmed string
	cmd := &cobra.Command{
		Use:   "drop NAME --confirm NAME",
		Short: "Drop a store with all its objects",
		Long: "Drop removes a store with all its objects, and asks for the name twice. Servers that " +
			"use the store answer an error from then on, and their watches end. Other stores go " +
			"on. A drop that was interrupted goes on when it is repeated. A little is kept of the " +
			"store, so that one that is created under its name begins beyond its revisions.",
		Example: "  " + p.Name + " stores drop team-a --confirm team-a --database-file url.txt",
		Args:    oneStore,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Store = args[0]
			if confirmed != o.Store {
				return server.UsageError{Err: fmt.Errorf("all objects of the store %q would be "+
					"lost: name it again by --confirm %s", o.Store, o.Store)}
			}
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			dropped, err := storage.DropStore(cmd.Context(), config)
			switch {
			case err != nil:
				return err
			case dropped:
				fmt.Fprintf(cmd.OutOrStdout(), "dropped the store %q\n", o.Store)
			default:
				fmt.Fprintf(cmd.OutOrStdout(), "the store %q was dropped before\n", o.Store)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&confirmed, "confirm", "", "The name of the store, once more.")
	o.AddURLFlags(cmd.Flags())
	return cmd
}
