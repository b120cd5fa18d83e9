package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/login"
	"github.com/rowkeeper/rowkeeper/storage/move"
)

func newMoveCommand() *cobra.Command {
	m := &mover{from: program.StorageOptions(), to: program.StorageOptions()}
	cmd := &cobra.Command{
		Use:   "move --from URL --to URL",
		Short: "Move what an etcd, a kine or another store holds into a new store, while it serves",
		Long: "Move copies all that the source holds into a store that was never written, and follows " +
			"the source while that serves, until it is interrupted. Run again, it goes on. When the " +
			"writers of the source are stopped, the same command with --finish ends the move: it fences " +
			"the source (kine's table is renamed, a store of Rowkeeper is closed; an etcd's revision " +
			"has to stand still), compares everything, and opens the target. Until then no server can " +
			"use the target. Keys keep their names and revisions. The history is not moved, and the new " +
			"one begins beyond the source's, so that all clients list anew. Into an etcd, use " +
			"\"rowkeeper etcd export\".",
		Example: "  rowkeeper move --from etcd://127.0.0.1:2379 --cacert ca.crt --cert client.crt \\\n" +
			"    --key client.key --to-file url\n" +
			"  rowkeeper move --from kine:sqlite:///var/lib/rancher/k3s/server/db/state.db \\\n" +
			"    --to postgres://rowkeeper@db.example.com/rowkeeper?sslmode=verify-full\n" +
			"  rowkeeper move --from sqlite:///var/lib/rowkeeper/state.db --to-file url --finish",
		Args: server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.from.URL, "from", "", "The source: an etcd, as etcd://HOST:PORT, several with "+
		"commas; the database of a kine, as kine: before its URL; or a database of Rowkeeper, by its "+
		"URL.")
	f.StringVar(&m.from.URLFile, "from-file", "", "File that holds what --from names, so that a "+
		"password in it is not seen in the list of processes.")
	f.StringVar(&m.from.URLEnv, "from-env", "", "Environment variable that holds what --from names.")
	f.StringVar(&m.from.Login, "from-login", "", "Program that prints the user and the password of "+
		"a source that is a database of Rowkeeper, as --database-login of the servers.")
	f.StringVar(&m.from.Store, "from-store", m.from.Store, "The store in a database of Rowkeeper.")
	f.StringVar(&m.to.URL, "to", "", "The database of the target, by its URL.")
	f.StringVar(&m.to.URLFile, "to-file", "", "File that holds the URL of the target.")
	f.StringVar(&m.to.URLEnv, "to-env", "", "Environment variable that holds the URL of the target.")
	f.StringVar(&m.to.Login, "to-login", "", "Program that prints the user and the password of the "+
		"target, as --database-login of the servers.")
	f.StringVar(&m.to.Store, "to-store", m.to.Store, "The store of the target, which was never "+
		"written.")
	f.BoolVar(&m.to.Migrate, "database-migrate", m.to.Migrate, "Bring the schema of the target to the "+
		"newest version before. If false, a database with an older schema is refused.")
	f.DurationVar(&m.to.Timeout, "database-timeout", m.to.Timeout,
		"How long one operation on a database may take.")
	f.BoolVar(&m.finish, "finish", false, "End the move: fence the source, compare everything, and "+
		"open the target.")
	f.BoolVar(&m.undo, "undo", false, "Give up a move that has not ended: empty the target, and let "+
		"the source be used again.")
	f.DurationVar(&m.still, "still", 15*time.Second, "For how long the revision of an etcd has to "+
		"stand still before the move can end.")
	f.StringVar(&m.files.authority, "cacert", "",
		"The authorities that sign the certificates of etcd's servers, or of kine's database.")
	f.StringVar(&m.files.cert, "cert", "", "The client's certificate for etcd, or kine's database.")
	f.StringVar(&m.files.key, "key", "", "The private key of --cert.")
	return cmd
}

// mover is what a move is told on the command line.
type mover struct {
	from, to     *options.StorageOptions
	finish, undo bool
	still        time.Duration
	files        clientFiles
}

func (m *mover) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if err := cmp.Or(m.from.ValidateURL("from", "source"), m.to.ValidateURL("to", "target")); err != nil {
		return server.UsageError{Err: err}
	}
	switch {
	case m.finish && m.undo:
		return server.UsageError{Err: errors.New("--finish and --undo exclude each other")}
	case (m.files.cert == "") != (m.files.key == ""):
		return server.UsageError{Err: errors.New("--cert and --key go together")}
	}
	to, err := commandline.Existing(m.to)
	if err != nil {
		return err
	}
	from, err := m.source(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	target := to.Database()
	if m.undo {
		emptied, opened, err := move.Undo(ctx, from, target)
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, undone(emptied, opened))
		return nil
	}
	if m.to.Migrate {
		if _, err := storage.Migrate(ctx, to); err != nil {
			return err
		}
	}
	return m.move(ctx, from, target, stdout, stderr)
}

func undone(emptied, opened bool) string {
	text := "undone:"
	if emptied {
		text += " the target is new again"
	}
	if opened {
		text += ", and the source is used again"
	}
	return text
}

func (m *mover) move(ctx context.Context, from *move.Source, target etcd.Config, stdout,
	stderr io.Writer) error {
	bar := commandline.NewBar(stderr)
	defer bar.End()
	var told, at int64
	o := move.Options{From: from, To: target, Finish: m.finish, Progress: bar.Tell,
		Copied: func(written, removed int64) {
			bar.End()
			told = 0
			fmt.Fprintf(stderr, "compared all keys: wrote %d, removed %d\n", written, removed)
		},
		Following: func(upto, newest int64) {
			if at = upto; upto >= newest && told == 0 {
				told = upto
				fmt.Fprintf(stderr, "the target has everything up to revision %d, and follows. To end "+
					"the move, stop all that writes to the source, and run this command with --finish\n",
					upto)
			}
		}}
	moved, err := move.Run(ctx, o)
	bar.End()
	switch {
	case errors.Is(err, move.ErrFollowed):
		fmt.Fprintf(stdout, "stopped: the target has everything up to revision %d, and the move goes "+
			"on when the command is run again\n", at)
		return nil
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: the move has not ended, and goes on when the command is run " +
			"again")
	case err != nil:
		return err
	}
	fmt.Fprintf(stdout, "moved %s at revision %d in %s, of which %d had changed since they were "+
		"copied\nsource and target have the same keys: SHA-256 %s\nthe target can be used: its history "+
		"goes on at revision %d\n", commandline.Objects(moved.Keys), moved.Revision,
		moved.Stopped.Round(time.Millisecond), moved.Written+moved.Removed, moved.Hash, moved.Head)
	return nil
}

// source opens what --from names.
func (m *mover) source(ctx context.Context) (*move.Source, error) {
	address := m.from.URL
	if m.from.URLFile != "" {
		named, err := login.File(m.from.URLFile)(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot read --from-file: %w", err)
		}
		address = named.URL
	} else if m.from.URLEnv != "" {
		named, err := login.Env(m.from.URLEnv)(ctx)
		if err != nil {
			return nil, err
		}
		address = named.URL
	}
	config, err := m.files.load()
	if err != nil {
		return nil, err
	}
	scheme := "http://"
	if config != nil {
		scheme = "https://"
	}
	if m.from.Login != "" && (strings.HasPrefix(address, "etcd:") || strings.HasPrefix(address, "kine:")) {
		return nil, server.UsageError{Err: errors.New("--from-login is for a database of Rowkeeper")}
	}
	if hosts, ok := strings.CutPrefix(address, "etcd://"); ok {
		var endpoints []string
		for host := range strings.SplitSeq(hosts, ",") {
			endpoints = append(endpoints, scheme+strings.TrimSuffix(host, "/"))
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: config,
			Logger: zap.NewNop()})
		if err != nil {
			return nil, fmt.Errorf("cannot use the etcd: %w", err)
		}
		first, cancel := context.WithTimeout(ctx, etcdPatience)
		defer cancel()
		if _, err := client.Get(first, "\x00", clientv3.WithCountOnly()); err != nil {
			return nil, errors.Join(fmt.Errorf("the etcd does not answer, or not with these "+
				"certificates: %w", err), client.Close())
		}
		return move.Etcd(client, m.still), nil
	}
	if database, ok := strings.CutPrefix(address, "kine:"); ok {
		return move.Kine(ctx, database, config)
	}
	m.from.URL, m.from.URLFile, m.from.URLEnv, m.from.Timeout = address, "", "", m.to.Timeout
	c, err := commandline.Existing(m.from)
	if err != nil {
		return nil, err
	}
	return move.Store(ctx, c.Database())
}
