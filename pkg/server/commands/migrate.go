package commands

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage"
)

func newMigrateCommand(p server.Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring a database's schema, or the objects in it, to the newest version",
		Long: "Migrate changes the schema of a database, so that a role with the right to do so " +
			"need not be the server's, which is then run with --database-migrate=false. It also " +
			"lets a server rewrite the objects that are stored in older versions of their API.",
		Args: server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newMigrationCommand(p, "up", "Run the migrations that are pending", migrateUp),
		newMigrationCommand(p, "status", "List the migrations", migrateStatus),
		newMigrateObjectsCommand(p),
	)
	return cmd
}

func newMigrationCommand(p server.Program, use, short string,
	run func(context.Context, storage.Config, io.Writer) error) *cobra.Command {
	o := p.StorageOptions()
	cmd := &cobra.Command{
		Use:     use,
		Short:   short,
		Example: "  " + p.Name + " migrate " + use + " --database-file url.txt",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := utilerrors.NewAggregate(o.ValidateDatabase()); err != nil {
				return server.UsageError{Err: err}
			}
			config, err := o.Database()
			if err != nil {
				return err
			}
			return run(cmd.Context(), config, cmd.OutOrStdout())
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	return cmd
}

func migrateUp(ctx context.Context, c storage.Config, out io.Writer) error {
	migrations, err := storage.Migrate(ctx, c)
	if err != nil {
		return err
	}
	for _, m := range migrations {
		fmt.Fprintf(out, "applied %05d %s\n", m.Version, m.Name)
	}
	if len(migrations) == 0 {
		fmt.Fprintln(out, "the schema is up to date")
	}
	return nil
}

func migrateStatus(ctx context.Context, c storage.Config, out io.Writer) error {
	migrations, err := storage.Migrations(ctx, c)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "VERSION\tNAME\tAPPLIED")
	for _, m := range migrations {
		applied := "pending"
		if !m.Applied.IsZero() {
			applied = m.Applied.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%05d\t%s\t%s\n", m.Version, m.Name, applied)
	}
	return w.Flush()
}
