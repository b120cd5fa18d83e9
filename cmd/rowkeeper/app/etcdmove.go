package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/etcdmove"
)

func newEtcdImportCommand() *cobra.Command {
	o := program.StorageOptions()
	var files clientFiles
	cmd := &cobra.Command{
		Use:   "import URL...",
		Short: "Copy what an etcd holds into an empty database",
		Long: "Import copies all keys of a running etcd, as they are at one revision, into a " +
			"database that holds nothing. Stop kube-apiserver before, and let etcd run: what is " +
			"written later is not copied. Keys keep their revisions, and leases the time that " +
			"they have left. The history is not copied, and the new one begins far beyond " +
			"etcd's, so that all clients list anew. If the command fails or is " +
			"killed, the database holds nothing, and the command can be run again. The etcd " +
			"is not changed.",
		Example: "  rowkeeper etcd import https://127.0.0.1:2379 --cacert ca.crt --cert client.crt \\\n" +
			"    --key client.key --database sqlite:///var/lib/rowkeeper/state.db",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return server.UsageError{Err: errors.New("name the client URLs of an etcd, such as " +
					"https://127.0.0.1:2379")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			config.Migrate = o.Migrate
			if (files.cert == "") != (files.key == "") {
				return server.UsageError{Err: errors.New("--cert and --key go together")}
			}
			return etcdImport(cmd.Context(), config, args, files, cmd.OutOrStdout(),
				cmd.ErrOrStderr())
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.Migrate, "database-migrate", o.Migrate,
		"Bring the schema of the database to the newest version before. If false, a database "+
			"with an older schema is refused.")
	cmd.Flags().StringVar(&files.authority, "cacert", "",
		"The authorities that sign the certificates of etcd's servers.")
	cmd.Flags().StringVar(&files.cert, "cert", "", "The client's certificate for etcd.")
	cmd.Flags().StringVar(&files.key, "key", "", "The private key of --cert.")
	return cmd
}

// clientFiles are the files with which a client of etcd proves who it is, and knows who etcd is.
type clientFiles struct{ authority, cert, key string }

// load returns nil if there are none.
func (f *clientFiles) load() (*tls.Config, error) {
	if *f == (clientFiles{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.authority != "" {
		content, err := os.ReadFile(f.authority)
		if err != nil {
			return nil, fmt.Errorf("cannot read --cacert: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(content) {
			return nil, fmt.Errorf("--cacert %s has no certificate", f.authority)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("cannot use --cert and --key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// etcdPatience is how long an etcd may take to answer at first.
const etcdPatience = 10 * time.Second

func etcdImport(ctx context.Context, c storage.Config, urls []string, files clientFiles,
	stdout, stderr io.Writer) (err error) {
	config, err := files.load()
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, TLS: config, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("cannot use the etcd: %w", err)
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	// Before the database is touched, which an import that cannot be would otherwise have created.
	first, cancel := context.WithTimeout(ctx, etcdPatience)
	defer cancel()
	if _, err := client.Get(first, "\x00", clientv3.WithCountOnly()); err != nil {
		return fmt.Errorf("the etcd does not answer, or not with these certificates: %w", err)
	}
	store, err := etcd.Open(ctx, c.Database())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	bar := commandline.NewBar(stderr)
	i, err := etcdmove.Import(ctx, client, store, bar.Tell)
	bar.End()
	switch {
	case errors.Is(err, etcdmove.ErrNotEmpty):
		return errors.New("nothing was imported: the database holds objects already")
	case err != nil && ctx.Err() != nil && i.Head == 0 && !errors.Is(err, etcdmove.ErrNotConfirmed):
		return errors.New("interrupted: nothing was imported, and the database is what it was before")
	case err != nil:
		return err
	}
	renumbered := ""
	if i.Renumbered {
		renumbered = " with new revisions, as the database has a history of its own"
	}
	fmt.Fprintf(stdout, "imported %s%s; the history goes on at revision %d\n", commandline.Describe(i.Backup),
		renumbered, i.Head)
	if i.Now != i.From {
		fmt.Fprintf(stderr, "the etcd was written meanwhile, and is at revision %d: what it has "+
			"beyond revision %d is not in the database\n", i.Now, i.From)
	}
	return nil
}

func newEtcdExportCommand() *cobra.Command {
	o := program.StorageOptions()
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Write what a database holds as a snapshot of etcd",
		Long: "Export writes all keys of a database, as they are at one revision, into a file of " +
			"which \"etcdutl snapshot restore\" makes the data of a new etcd. Stop kube-apiserver " +
			"before: what is written later is not in the file. Keys keep their revisions, and " +
			"leases the time that they have left, from the start of the etcd on. The history " +
			"is not in the file, and that of the new etcd begins far beyond the database's, so " +
			"that all clients list anew. The file has its name when it is complete.",
		Example: "  rowkeeper etcd export --database sqlite:///var/lib/rowkeeper/state.db snapshot.db",
		Args:    commandline.OneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == commandline.StandardStream {
				return server.UsageError{Err: errors.New("a snapshot of etcd is written to a file")}
			}
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			config.RefuseLost = true
			return etcdExport(cmd.Context(), config, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	return cmd
}

func etcdExport(ctx context.Context, c storage.Config, name string, stdout,
	stderr io.Writer) (err error) {
	store, err := etcd.Open(ctx, c.Database())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	var e etcdmove.Exported
	err = commandline.CreateFile(name, false, func(f *os.File) (err error) {
		bar := commandline.NewBar(stderr)
		defer bar.End()
		e, err = etcdmove.Export(ctx, store, f, bar.Tell)
		return err
	})
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted: nothing was exported")
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "exported %d keys at revision %d to %s; the history goes on at revision %d\n"+
		"Make an etcd of it by: etcdutl snapshot restore %[3]s --data-dir DIRECTORY\n", e.Keys,
		e.Revision, name, e.Next)
	return nil
}
