package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage/directory"
)

// newDirectoryCommand has what is done to the stores of many databases.
func newDirectoryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "directory",
		Short: "Place stores in many databases, and list, measure, drain and rebuild them",
		Long: "A directory says in which of many databases each store is, so that \"rowkeeper etcd " +
			"--directory\" finds it there, also after it has moved. It is kept in a control database, " +
			"which may be of any kind. It names databases; their URLs are in a file of each machine " +
			"(--databases-file). A store moves by \"rowkeeper stores move-to\".",
		Args: server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDirectoryListCommand(), newPlaceCommand(), newDirectoryDropCommand(),
		newDirectorySizeCommand(), newDirectoryMigrateCommand(), newDrainCommand(), newRebuildCommand())
	return cmd
}

// withDirectory makes a command that uses a directory.
func withDirectory(cmd *cobra.Command, run func(ctx context.Context, d *directory.Directory,
	args []string, out io.Writer) error) *cobra.Command {
	flags := newDirectoryFlags()
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		d, err := flags.openAlone(cmd.Context())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.Close()) }()
		return run(cmd.Context(), d, args, cmd.OutOrStdout())
	}
	flags.add(cmd.Flags())
	return cmd
}

// named is what takes one name.
func named(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return server.UsageError{Err: errors.New("name one " + what)}
		}
		return nil
	}
}

const directoryExample = "--directory-file control.url --databases-file databases"

func newDirectoryListCommand() *cobra.Command {
	return withDirectory(&cobra.Command{
		Use:     "list",
		Short:   "List the stores, and where they are",
		Example: "  rowkeeper directory list " + directoryExample,
		Args:    server.NoArgs,
	}, func(ctx context.Context, d *directory.Directory, _ []string, out io.Writer) error {
		table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "STORE\tDATABASE\tSTATE\tGENERATION")
		err := d.List(ctx, func(r directory.Row) error {
			where := r.Database
			if r.To != "" {
				where += " → " + r.To
			} else if r.From != "" {
				where = r.From + " → " + where
			}
			_, err := fmt.Fprintf(table, "%s\t%s\t%s\t%d\n", r.Name, where, r.State, r.Generation)
			return err
		})
		return errors.Join(err, table.Flush())
	})
}

func newPlaceCommand() *cobra.Command {
	var in string
	cmd := withDirectory(&cobra.Command{
		Use:   "place NAME",
		Short: "Create an empty store in one of the databases",
		Long: "Place makes an empty store of the name, in the database that has the fewest, or in the " +
			"one of --in. It brings the schema of the database to the newest version before. In the " +
			"place of a store that was dropped, revisions begin beyond those of that one.",
		Example: "  rowkeeper directory place team-a " + directoryExample,
		Args:    named("store"),
	}, func(ctx context.Context, d *directory.Directory, args []string, out io.Writer) (err error) {
		to := in
		if to == "" {
			if to, err = d.Emptiest(ctx, ""); err != nil {
				return err
			}
		}
		r, err := d.Create(ctx, args[0], to)
		if err == nil {
			fmt.Fprintf(out, "created the store %q in the database %q\n", r.Name, r.Database)
		}
		return err
	})
	cmd.Flags().StringVar(&in, "in", "", "The database, by its name.")
	return cmd
}

func newDirectoryDropCommand() *cobra.Command {
	var confirmed string
	cmd := withDirectory(&cobra.Command{
		Use:   "drop NAME --confirm NAME",
		Short: "Drop a store with all its objects",
		Long: "Drop removes a store with all its objects, and asks for the name twice. The directory " +
			"keeps a row, so that a later store of the name begins beyond its revisions, in whatever " +
			"database.",
		Example: "  rowkeeper directory drop team-a --confirm team-a " + directoryExample,
		Args:    named("store"),
	}, func(ctx context.Context, d *directory.Directory, args []string, out io.Writer) error {
		if confirmed != args[0] {
			return server.UsageError{Err: fmt.Errorf("all objects of the store %q would be lost: name it "+
				"again by --confirm %s", args[0], args[0])}
		}
		dropped, err := d.Drop(ctx, args[0])
		switch {
		case err != nil:
			return err
		case dropped:
			fmt.Fprintf(out, "dropped the store %q\n", args[0])
		default:
			fmt.Fprintf(out, "the store %q was dropped before\n", args[0])
		}
		return nil
	})
	cmd.Flags().StringVar(&confirmed, "confirm", "", "The name of the store, once more.")
	return cmd
}

func newDirectorySizeCommand() *cobra.Command {
	return withDirectory(&cobra.Command{
		Use:   "size",
		Short: "Count the stores of each database, and measure the databases",
		Long: "Size says how many stores each database has, how many bytes it occupies, and how many of " +
			"these are in use, as far as it can tell cheaply. In SQLite, where each store is a file, the " +
			"bytes are those of the default store. \"rowkeeper stores size\" measures the stores of one " +
			"database.",
		Example: "  rowkeeper directory size " + directoryExample,
		Args:    server.NoArgs,
	}, func(ctx context.Context, d *directory.Directory, _ []string, out io.Writer) error {
		loads, err := d.Loads(ctx)
		table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "DATABASE\tSTORES\tBYTES\tIN USE")
		for _, l := range loads {
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\n", l.Database, l.Stores, l.Bytes, l.LiveBytes)
		}
		return errors.Join(err, table.Flush())
	})
}

func newDirectoryMigrateCommand() *cobra.Command {
	return withDirectory(&cobra.Command{
		Use:     "migrate",
		Short:   "Bring the schema of all databases to the newest version",
		Example: "  rowkeeper directory migrate " + directoryExample,
		Args:    server.NoArgs,
	}, func(ctx context.Context, d *directory.Directory, _ []string, out io.Writer) error {
		return d.Migrate(ctx, func(database string, ran int) {
			fmt.Fprintf(out, "%s: %d migrations\n", database, ran)
		})
	})
}

func newDrainCommand() *cobra.Command {
	return withDirectory(&cobra.Command{
		Use:   "drain DATABASE",
		Short: "Move all stores of a database to the others",
		Long: "Drain moves the stores of a database away while they are served, one after the other, " +
			"each to the database with the fewest. It ends moves that were interrupted. If it is " +
			"interrupted itself, it goes on when it is run again.",
		Example: "  rowkeeper directory drain db-1 " + directoryExample,
		Args:    named("database"),
	}, func(ctx context.Context, d *directory.Directory, args []string, out io.Writer) error {
		return d.Drain(ctx, args[0], directory.MoveOptions{}, func(name, to string, m directory.Moved) {
			fmt.Fprintln(out, described(name, to, m))
		})
	})
}

func newRebuildCommand() *cobra.Command {
	return withDirectory(&cobra.Command{
		Use:   "rebuild",
		Short: "Make the directory agree with what the databases have",
		Long: "Rebuild reads which stores the databases have, and writes the directory's rows that are " +
			"missing or do not agree: of all stores of a name, the one that has moved last wins. It adds " +
			"stores that were created without a directory. It closes stores that are open and must not " +
			"be, as after a restore of a database that a store had left. It says what only a person can " +
			"decide. Run no moves meanwhile.",
		Example: "  rowkeeper directory rebuild " + directoryExample,
		Args:    server.NoArgs,
	}, func(ctx context.Context, d *directory.Directory, _ []string, out io.Writer) error {
		changed := 0
		err := d.Rebuild(ctx, func(what string) {
			changed++
			fmt.Fprintln(out, what)
		})
		if err == nil && changed == 0 {
			fmt.Fprintln(out, "the directory agrees with the databases")
		}
		return err
	})
}

// newMoveToCommand moves a store to another database.
func newMoveToCommand() *cobra.Command {
	var to string
	var undo bool
	cmd := withDirectory(&cobra.Command{
		Use:   "move-to NAME --to DATABASE",
		Short: "Move a store of a directory to another database, while it is served",
		Long: "Move-to copies a store to another database of the directory, and follows it while it is " +
			"served. Then it closes the store for a short time, writes what is missing, compares " +
			"everything, changes the directory, and opens the store where it is now. Servers with " +
			"--directory go on there without a restart. Objects keep their resourceVersions, all watches " +
			"begin anew, and the quota and the leases move along. A move that was interrupted goes on " +
			"when the command is run again. Until the directory is changed, --undo gives the move up.",
		Example: "  rowkeeper stores move-to team-a --to db-2 " + directoryExample,
		Args:    named("store"),
	}, func(ctx context.Context, d *directory.Directory, args []string, out io.Writer) error {
		switch {
		case undo && to != "":
			return server.UsageError{Err: errors.New("--to and --undo exclude each other")}
		case undo:
			opened, err := d.Undo(ctx, args[0])
			if err != nil {
				return err
			}
			text := fmt.Sprintf("undone: the store %q stays where it is", args[0])
			if opened {
				text += ", and is used again"
			}
			fmt.Fprintln(out, text)
			return nil
		case to == "":
			return server.UsageError{Err: errors.New("name the other database by --to")}
		}
		m, err := d.MoveTo(ctx, args[0], to, directory.MoveOptions{})
		if err == nil {
			fmt.Fprintln(out, described(args[0], to, m))
		}
		return err
	})
	cmd.Flags().StringVar(&to, "to", "", "The database to which the store moves, by its name.")
	cmd.Flags().BoolVar(&undo, "undo", false,
		"Give up a move that has not changed the directory yet: the store stays where it is.")
	return cmd
}

// described says what a move has done. What was done by an earlier run of the command is not known.
func described(name, to string, m directory.Moved) string {
	switch {
	case m.Head == 0:
		return fmt.Sprintf("the store %q is in the database %q already", name, to)
	case m.Hash == "":
		return fmt.Sprintf("ended the move of the store %q to the database %q", name, to)
	}
	return fmt.Sprintf("moved the store %q to the database %q: %s at revision %d, of which %d had changed "+
		"since they were copied; it could not be used for %s, and its history goes on at revision %d", name,
		to, commandline.Objects(m.Keys), m.Revision, m.Written+m.Removed,
		m.Stopped.Round(time.Millisecond), m.Head)
}
