package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
)

func newBackupCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	force, keep := false, 0
	cmd := &cobra.Command{
		Use:   "backup FILE|DIRECTORY|-",
		Short: "Write all objects of a database to a file",
		Long: "Backup writes the objects of a database, of all kinds and all prefixes, as they " +
			"were at one moment, while servers go on. Encrypted objects stay encrypted. The file " +
			"is compressed and has a checksum; it has its name when it is complete and was read " +
			"back. An older backup of that name is replaced only with --force. It can be " +
			"restored into a database of any kind. In a directory, the file gets a name that has " +
			"the store, the time and the revision, and --keep says how many of them stay there. " +
			"With -, it is written to standard output, and not read back.",
		Example: "  " + p.Name + " backup --database-file url.txt objects.backup\n" +
			"  " + p.Name + " backup --database-file url.txt --keep 14 /var/backups/" + p.Name,
		Args: commandline.OneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			config.RefuseLost = true
			target := args[0]
			switch info, err := os.Stat(target); {
			case keep < 0 || cmd.Flags().Changed("keep") && keep == 0:
				return server.UsageError{Err: errors.New("--keep has to be greater than 0: " +
					"without it, all backups stay")}
			case err == nil && info.IsDir():
				return backupInto(cmd.Context(), config, target, keep, cmd.OutOrStdout(),
					cmd.ErrOrStderr())
			case keep > 0:
				return server.UsageError{Err: fmt.Errorf("--keep needs a directory, and %s is none: "+
					"create it, or mount it", target)}
			}
			return backup(cmd.Context(), config, target, force, cmd.OutOrStdout(),
				cmd.ErrOrStderr())
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", force,
		"Replace an older backup that has the name of the file.")
	cmd.Flags().IntVar(&keep, "keep", keep, "How many backups of this store stay in the directory: "+
		"when the new one is complete, the oldest ones beyond that are removed. Default: all.")
	return cmd
}

func newRestoreCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	replace := false
	cmd := &cobra.Command{
		Use:   "restore FILE|-",
		Short: "Replace the content of a database by a backup",
		Long: "Restore puts the objects of a backup into a database, which may be of another " +
			"kind than the one that the backup was made of: with their UIDs, the times at which " +
			"they expire, and their resourceVersions. Only if the backup is of another store, " +
			"and the database has ever been written, they get new resourceVersions, since " +
			"clients may know the old ones of other objects. The backup is checked first, and " +
			"what was written is read back and compared, in one transaction: if anything fails, " +
			"or if the program is killed, the database is what it was before. Servers may be " +
			"running: their writes wait or fail meanwhile, and their watches begin anew " +
			"afterwards. With -, the backup is read from standard input, and kept in a temporary file.",
		Example: "  " + p.Name + " restore --database \"postgres://user@db/objects?sslmode=verify-full\" objects.backup",
		Args:    commandline.OneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			config.Migrate = o.Migrate
			return restore(cmd.Context(), config, args[0], replace, cmd.InOrStdin(),
				cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.Migrate, "database-migrate", o.Migrate,
		"Bring the schema of the database to the newest version before. If false, a database "+
			"with an older schema is refused.")
	cmd.Flags().BoolVar(&replace, "replace", replace,
		"Remove all objects that the database holds. Otherwise a database that holds objects is "+
			"refused.")
	return cmd
}

func backup(ctx context.Context, c storage.Config, name string, force bool, stdout,
	stderr io.Writer) error {
	return with(ctx, c, func(store *storage.Store) (err error) {
		var b storage.Backup
		if name == commandline.StandardStream {
			if b, err = writeBackup(ctx, store, stdout, stderr); err == nil {
				fmt.Fprintf(stderr, "backed up %s\n", commandline.Describe(b))
			}
			return err
		}
		err = commandline.CreateFile(name, force, func(f *os.File) (err error) {
			b, err = writeAndRead(ctx, store, f, stderr)
			return err
		})
		if err == nil {
			fmt.Fprintf(stdout, "backed up %s to %s\n", commandline.Describe(b), name)
		}
		return err
	})
}

// backupInto writes a backup into a directory, and removes what keep says. 0 keeps all.
func backupInto(ctx context.Context, c storage.Config, dir string, keep int, stdout,
	stderr io.Writer) error {
	return with(ctx, c, func(store *storage.Store) error {
		var b storage.Backup
		path, err := commandline.CreateFileIn(dir, c.Store+nameEnd,
			func(f *os.File) (_ string, err error) {
				b, err = writeAndRead(ctx, store, f, stderr)
				return nameOf(c.Store, b), err
			})
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "backed up %s to %s\n", commandline.Describe(b), path)
		if keep == 0 {
			return nil
		}
		removed, err := removeSurplus(dir, c.Store, filepath.Base(path), b, keep)
		if removed > 0 {
			fmt.Fprintf(stdout, "removed %d older, to keep %d\n", removed, keep)
		}
		return err
	})
}

// writeAndRead writes a backup to a file, makes it durable, and reads it back.
func writeAndRead(ctx context.Context, store *storage.Store, f *os.File,
	stderr io.Writer) (b storage.Backup, err error) {
	if b, err = writeBackup(ctx, store, f, stderr); err != nil {
		return b, err
	}
	if err := f.Sync(); err != nil {
		return b, fmt.Errorf("cannot write the backup: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return b, fmt.Errorf("cannot read the backup: %w", err)
	}
	bar := commandline.NewBar(stderr)
	defer bar.End()
	read, err := storage.ReadBackup(f, bar.Tell)
	if err == nil && !(read.Objects == b.Objects && read.Revision == b.Revision) {
		err = errors.New("what was read back is not what was written")
	}
	return b, err
}

// describe reads what a backup says of itself.
func describe(file string) (storage.Backup, error) {
	f, err := os.Open(file)
	if err != nil {
		return storage.Backup{}, fmt.Errorf("cannot read the backup: %w", err)
	}
	defer f.Close()
	return storage.DescribeBackup(f)
}

func writeBackup(ctx context.Context, store *storage.Store, w io.Writer,
	stderr io.Writer) (storage.Backup, error) {
	bar := commandline.NewBar(stderr)
	defer bar.End()
	b, err := store.WriteBackup(ctx, w, bar.Tell)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted: no backup was made")
	}
	return b, err
}

func restore(ctx context.Context, c storage.Config, name string, replace bool, stdin io.Reader,
	stdout, stderr io.Writer) (err error) {
	f, err := openBackup(name, stdin)
	if err != nil {
		return err
	}
	defer f.Close()
	// Before the database is touched, which a file that is none would otherwise have created or
	// migrated.
	bar := commandline.NewBar(stderr)
	_, err = storage.ReadBackup(f, bar.Tell)
	bar.End()
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("cannot read the backup: %w", err)
	}
	store, err := open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	bar = commandline.NewBar(stderr)
	b, revision, err := store.RestoreBackup(ctx, f, storage.RestoreOptions{Replace: replace,
		Progress: bar.Tell})
	bar.End()
	switch {
	case errors.Is(err, storage.ErrNotEmpty):
		return errors.New("nothing was restored: the database holds objects; give --replace to " +
			"remove them")
	case err != nil && ctx.Err() != nil && !errors.Is(err, storage.ErrNotConfirmed):
		return errors.New("interrupted: nothing was restored, and the database is what it was before")
	case err != nil:
		return err
	}
	renumbered := ""
	if b.Renumbered {
		renumbered = ", with new resourceVersions, as the database has a history of its own"
	}
	fmt.Fprintf(stdout, "restored %s%s; the history goes on at revision %d\n", commandline.Describe(b),
		renumbered, revision)
	return nil
}

// openBackup opens a file, or makes one of what comes from standard input: it is read more than
// once, and a database must not wait for it.
func openBackup(name string, stdin io.Reader) (*os.File, error) {
	if name != commandline.StandardStream {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read the backup: %w", err)
		}
		return f, nil
	}
	f, err := os.CreateTemp("", "rowkeeper-restore-*")
	if err != nil {
		return nil, fmt.Errorf("cannot keep the backup in a temporary file: %w", err)
	}
	// it goes with its last user, which is this process; where that is not possible it stays
	os.Remove(f.Name())
	if _, err := io.Copy(f, stdin); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot keep the backup in a temporary file: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot read the backup: %w", err)
	}
	return f, nil
}
