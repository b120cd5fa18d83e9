package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage"
)

// StandardStream is the name of a file that stands for standard input or output.
const StandardStream = "-"

func newBackupCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	cmd := &cobra.Command{
		Use:   "backup FILE|-",
		Short: "Write all objects of a database to a file",
		Long: "Backup writes the objects of a database, of all kinds and all prefixes, as they " +
			"were at one moment, while servers go on. Encrypted objects stay encrypted. The file " +
			"is compressed and has a checksum; it has its name when it is complete and was read " +
			"back. It can be restored into a database of any kind. With -, it is written to " +
			"standard output, and not read back.",
		Example: "  " + p.Name + " backup --database-file url.txt objects.backup",
		Args:    OneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := Existing(o)
			if err != nil {
				return err
			}
			return backup(cmd.Context(), config, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	return cmd
}

func newRestoreCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	replace := false
	cmd := &cobra.Command{
		Use:   "restore FILE|-",
		Short: "Make a backup the content of a database",
		Long: "Restore puts the objects of a backup into a database, which may be of another " +
			"kind than the one that the backup was made of: with their UIDs, the times at which " +
			"they expire, and their resourceVersions. Only if the backup is of another store, " +
			"and the database has ever been written, they get new resourceVersions, since " +
			"clients may know the old ones of other objects. The backup is checked first, and " +
			"what was written is read back and compared, in one transaction: if anything fails, " +
			"or if the program is killed, the database is what it was before. Servers may be " +
			"running: their writes wait or fail meanwhile, and their watches begin anew " +
			"afterwards. With -, the backup is read from standard input, and kept in a temporary file.",
		Example: "  " + p.Name + " restore --database postgres://user@db/objects objects.backup",
		Args:    OneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := Existing(o)
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

// OneFile is for commands that take the name of a file.
func OneFile(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return server.UsageError{Err: errors.New("a file has to be named, or - for a standard stream")}
	case len(args) > 1:
		return server.UsageError{Err: fmt.Errorf("unexpected argument %q", args[1])}
	}
	return nil
}

// Existing returns how to open a database of which only what it holds is wanted, not its
// maintenance.
func Existing(o interface {
	ValidateDatabase() []error
	Database() (storage.Config, error)
}) (storage.Config, error) {
	if err := utilerrors.NewAggregate(o.ValidateDatabase()); err != nil {
		return storage.Config{}, server.UsageError{Err: err}
	}
	config, err := o.Database()
	if err != nil {
		return config, err
	}
	if strings.HasPrefix(config.URL, "memory:") {
		return config, server.UsageError{Err: errors.New("memory: names no database of another " +
			"process")}
	}
	config.Migrate = false
	config.Compaction.Window = -1
	return config, nil
}

func backup(ctx context.Context, c storage.Config, name string, stdout,
	stderr io.Writer) (err error) {
	store, err := open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if name == StandardStream {
		b, err := writeBackup(ctx, store, stdout, stderr)
		if err != nil {
			return err
		}
		fmt.Fprintf(stderr, "backed up %s\n", Describe(b))
		return nil
	}
	var b storage.Backup
	err = CreateFile(name, func(f *os.File) (err error) {
		if b, err = writeBackup(ctx, store, f, stderr); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("cannot write the backup: %w", err)
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("cannot read the backup: %w", err)
		}
		bar := NewBar(stderr)
		defer bar.End()
		read, err := storage.ReadBackup(f, bar.Tell)
		if err == nil && !(read.Objects == b.Objects && read.Revision == b.Revision) {
			err = errors.New("what was read back is not what was written")
		}
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "backed up %s to %s\n", Describe(b), name)
	return nil
}

func writeBackup(ctx context.Context, store *storage.Store, w io.Writer,
	stderr io.Writer) (storage.Backup, error) {
	bar := NewBar(stderr)
	defer bar.End()
	b, err := store.WriteBackup(ctx, w, bar.Tell)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted: no backup was made")
	}
	return b, err
}

// CreateFile writes a file under another name, and gives it its own when it is on the disk. Others
// cannot read it, as it may hold secrets.
func CreateFile(name string, write func(*os.File) error) error {
	if err := replaceable(name); err != nil {
		return err
	}
	dir, base := filepath.Split(name)
	if dir == "" {
		dir = "."
	}
	f, err := os.CreateTemp(dir, "."+base+".*.partial")
	if err != nil {
		return fmt.Errorf("cannot write the file: %w", err)
	}
	err = write(f)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return syncDir(dir)
}

// syncDir makes the name of a file as durable as its content.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("cannot make the name of the backup durable: %w", err)
	}
	return nil
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
	bar := NewBar(stderr)
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
	bar = NewBar(stderr)
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
	fmt.Fprintf(stdout, "restored %s%s; the history goes on at revision %d\n", Describe(b),
		renumbered, revision)
	return nil
}

// openBackup opens a file, or makes one of what comes from standard input: it is read more than
// once, and a database must not wait for it.
func openBackup(name string, stdin io.Reader) (*os.File, error) {
	if name != StandardStream {
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

// Describe says what is in a backup.
func Describe(b storage.Backup) string {
	return fmt.Sprintf("%s at revision %d of %s", objects(b.Objects), b.Revision,
		b.Time.UTC().Format(time.RFC3339))
}

func objects(n int64) string {
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}

// Bar shows progress to a person: on a terminal, and nowhere else.
type Bar struct {
	out   io.Writer
	doing string
	shown *progressbar.ProgressBar
	done  int64
}

// NewBar returns a bar for w.
func NewBar(w io.Writer) *Bar {
	if f, ok := w.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return &Bar{}
	}
	return &Bar{out: w}
}

// Tell is a [storage.Progress].
func (b *Bar) Tell(doing string, done, total int64) {
	if b.out == nil {
		return
	}
	if doing != b.doing || done < b.done {
		b.End()
		b.doing = doing
		b.shown = progressbar.NewOptions64(total, progressbar.OptionSetWriter(b.out),
			progressbar.OptionSetDescription(doing), progressbar.OptionShowCount(),
			progressbar.OptionSetItsString("objects"), progressbar.OptionShowIts(),
			progressbar.OptionSetWidth(30),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	b.done = done
	// Drawing a thousand of a million is enough, and asking the clock for each would cost more than
	// reading it.
	if done%256 == 0 || done == total {
		_ = b.shown.Set64(done) // what a terminal does not take is not missed
	}
}

// End removes the bar.
func (b *Bar) End() {
	if b.shown != nil {
		_ = b.shown.Clear()
		b.shown = nil
	}
}

// replaceable refuses to put a backup in the place of anything but another backup: of the database
// itself, for one, or of a device.
func replaceable(name string) error {
	st, err := os.Stat(name)
	switch {
	case err != nil:
		return nil // it is not there, or what is wrong shows when it is written
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is no file that a backup could replace: name another one, or - for "+
			"the standard output", name)
	case st.Size() == 0:
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("cannot look into %s, which the backup would replace: %w", name, err)
	}
	defer f.Close()
	const first = "rowkeeper-backup "
	begin := make([]byte, len(first))
	if _, err := io.ReadFull(f, begin); err != nil || string(begin) != first {
		return fmt.Errorf("%s exists and is no backup: name another file, or remove it", name)
	}
	return nil
}
