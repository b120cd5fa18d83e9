package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
)

func newDrillCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	var maxAge time.Duration
	cmd := &cobra.Command{
		Use:   "drill FILE|DIRECTORY|-",
		Short: "Restore a backup into a scratch database, and compare",
		Long: "Drill restores a backup into a new SQLite database in the directory of temporary files " +
			"($TMPDIR), compares each object with the backup, and removes the database. Of a " +
			"directory it takes the newest backup of the store. If a database is named, its " +
			"objects are compared, too, while servers go on: each that was not written since the " +
			"backup has to be in it, byte for byte. It changes neither the backup nor that database.",
		Example: "  " + p.Name + " drill --database-file url.txt --max-age 26h /var/backups/" + p.Name,
		Args:    commandline.OneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			d := drill{program: p.Name, drivers: o.Drivers, maxAge: maxAge,
				stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr()}
			if maxAge < 0 {
				return server.UsageError{Err: errors.New("--max-age must not be negative")}
			}
			if err := storage.CheckStoreName(o.Store); err != nil {
				return server.UsageError{Err: fmt.Errorf("--store: %w", err)}
			}
			if o.NamesDatabase() {
				config, err := commandline.Existing(o)
				if err != nil {
					return err
				}
				config.RefuseLost = true
				d.database = &config
			}
			return d.run(cmd.Context(), args[0], o.Store, cmd.InOrStdin())
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().DurationVar(&maxAge, "max-age", maxAge,
		"Fail if the backup is older. 0 allows any age.")
	return cmd
}

type drill struct {
	program string
	drivers []storage.Driver
	// database is what the backup was made of, nil if it is not compared with that.
	database       *storage.Config
	maxAge         time.Duration
	stdout, stderr io.Writer
}

func (d *drill) run(ctx context.Context, name, store string, stdin io.Reader) (err error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		all, err := keptIn(name, store)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return fmt.Errorf("%s has no backup of the store %q: make one by `%s backup --store %[2]s %[1]s`",
				name, store, d.program)
		}
		name = filepath.Join(name, all[len(all)-1].name)
	}
	f, err := openBackup(name, stdin)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := storage.DescribeBackup(f)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.stdout, "%s has %s\n", name, commandline.Describe(b))
	if age := time.Since(b.Time); d.maxAge > 0 && age > d.maxAge {
		return fmt.Errorf("the backup is %s old, and --max-age is %s: see why no newer one was made",
			age.Round(time.Second), d.maxAge)
	}
	if err := d.restore(ctx, f); err != nil {
		return d.interrupted(ctx, err)
	}
	if d.database == nil {
		return nil
	}
	if err := d.compareWith(ctx, f, *d.database); err != nil {
		return d.interrupted(ctx, err)
	}
	return nil
}

func (d *drill) interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted: the backup was not tried to its end")
	}
	return err
}

// restore restores the backup into a database of its own, and compares what that holds when it is
// opened again. It keeps nothing of it.
func (d *drill) restore(ctx context.Context, f *os.File) (err error) {
	dir, err := os.MkdirTemp("", "rowkeeper-drill-*")
	if err != nil {
		return fmt.Errorf("cannot make a directory for the scratch database: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// Only this process reads it, and nothing of it is needed after a crash.
	file := url.URL{Scheme: "sqlite", Path: filepath.ToSlash(filepath.Join(dir, "scratch.db")),
		RawQuery: "synchronous=OFF"}
	scratch := storage.Config{URL: file.String(), Drivers: d.drivers, Migrate: true,
		Compaction: storage.CompactionPolicy{Window: -1}}
	began := time.Now()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("cannot read the backup: %w", err)
	}
	if err := with(ctx, scratch, func(s *storage.Store) error {
		bar := commandline.NewBar(d.stderr)
		defer bar.End()
		_, _, err := s.RestoreBackup(ctx, f, storage.RestoreOptions{Scratch: true,
			Progress: bar.Tell})
		return err
	}); err != nil {
		return fmt.Errorf("the backup cannot be restored: %w", err)
	}
	took := time.Since(began).Round(10 * time.Millisecond)
	c, err := d.compare(ctx, f, scratch)
	if err == nil && c.Gone > c.Mortal {
		err = fmt.Errorf("%s of the backup are not in the database into which it was restored",
			commandline.Objects(c.Gone-c.Mortal))
	}
	if err != nil {
		return err
	}
	expired := ""
	if c.Gone > 0 {
		expired = fmt.Sprintf("; %d more have expired", c.Gone)
	}
	fmt.Fprintf(d.stdout, "restored into a scratch database in %s: %s, as in the backup%s\n", took,
		commandline.Objects(c.Same), expired)
	return nil
}

func (d *drill) compareWith(ctx context.Context, f *os.File, database storage.Config) error {
	c, err := d.compare(ctx, f, database)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.stdout, "compared with the database: %s, as in the backup; changed, deleted or expired "+
		"since: %d; written since: %d\n", commandline.Objects(c.Same), c.Gone, c.Newer)
	return nil
}

func (d *drill) compare(ctx context.Context, f *os.File, config storage.Config) (c storage.Comparison,
	err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return c, fmt.Errorf("cannot read the backup: %w", err)
	}
	err = with(ctx, config, func(s *storage.Store) (err error) {
		bar := commandline.NewBar(d.stderr)
		defer bar.End()
		c, err = s.CompareBackup(ctx, f, bar.Tell)
		return err
	})
	return c, err
}
