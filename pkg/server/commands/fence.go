package commands

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage"
)

func newFenceCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Begin a new history, after a restore that servers cannot notice by themselves",
		Long: "Fence moves the revision of a store far beyond any that a client or a server " +
			"can have seen, and gives up all older ones: every watch ends, every cache is filled " +
			"again, and no revision stands for two different states. Servers do this by " +
			"themselves when they notice that a store has lost or replaced its past. Do it by " +
			"hand after a restore that leaves no trace, such as a copy written into an existing " +
			"SQLite file. Servers may be running. Objects are not changed.",
		Example: "  " + p.Name + " fence --database sqlite:///var/lib/rowkeeper/state.db",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := utilerrors.NewAggregate(o.ValidateDatabase()); err != nil {
				return server.UsageError{Err: err}
			}
			config, err := o.Database()
			if err != nil {
				return err
			}
			config.Migrate = false
			return fence(cmd.Context(), config, cmd.OutOrStdout())
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	return cmd
}

func fence(ctx context.Context, c storage.Config, out io.Writer) error {
	// Only the fence is wanted of this process, not compaction.
	c.Compaction.Window = -1
	store, err := open(ctx, c)
	if err != nil {
		return err
	}
	revision, err := store.Fence(ctx)
	if closeErr := store.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the history goes on at revision %d; all older ones are given up\n", revision)
	return nil
}
