package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	certutil "k8s.io/client-go/util/cert"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
)

// The forms of output.
const (
	formText = "text"
	formJSON = "json"
)

func checkForm(form string) error {
	if form != formText && form != formJSON {
		return server.UsageError{Err: fmt.Errorf("--output is %s or %s, not %q", formText, formJSON, form)}
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(v)
}

func newStatusCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	form, watch, interval := formText, false, 2*time.Second
	var backup string
	var certificates []string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what uses a database, how large it is, and how far its history has come",
		Long: "Status shows on one screen the servers that use the database, as far as the database " +
			"knows them, its version and schema, the head of the store, compaction and sweep, the " +
			"sizes, the resources with the most objects, replication and fences. It needs no server, " +
			"and writes nothing. It counts the keys of the store, and reads no value. The database " +
			"does not know when it was backed up, nor the certificates of servers: name files of " +
			"both.",
		Example: "  " + p.Name + " status --database-file url.txt --watch",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkForm(form); err != nil {
				return err
			}
			if interval <= 0 {
				return server.UsageError{Err: fmt.Errorf("--interval is longer than nothing, not %s", interval)}
			}
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			show := func(ctx context.Context) error {
				return showStatus(ctx, config, backup, certificates, form, cmd.OutOrStdout())
			}
			if !watch {
				return show(cmd.Context())
			}
			return refresh(cmd.Context(), cmd.OutOrStdout(), interval, show)
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringVarP(&form, "output", "o", form, "The form of the output: text or json.")
	cmd.Flags().BoolVar(&watch, "watch", watch, "Show it again and again, until interrupted.")
	cmd.Flags().DurationVar(&interval, "interval", interval, "How long --watch waits in between.")
	cmd.Flags().StringVar(&backup, "backup", backup, "The file of the last backup, for its time and revision.")
	cmd.Flags().StringArrayVar(&certificates, "certificate", certificates,
		"A file with certificates, for their dates. Can be repeated.")
	return cmd
}

func showStatus(ctx context.Context, c storage.Config, backup string, certificates []string,
	form string, w io.Writer) error {
	status, err := storage.Status(ctx, c)
	if err != nil {
		return err
	}
	if backup != "" {
		if status.LastBackup, err = backupIn(backup); err != nil {
			return err
		}
	}
	for _, file := range certificates {
		certs, err := certutil.CertsFromFile(file)
		if err != nil {
			return fmt.Errorf("cannot read the certificates in %s: %w", file, err)
		}
		for _, c := range certs {
			status.Certificates = append(status.Certificates, storage.Certificate{File: file,
				Subject: c.Subject.String(), NotBefore: c.NotBefore, NotAfter: c.NotAfter})
		}
	}
	if form == formJSON {
		return writeJSON(w, status)
	}
	return status.Print(w)
}

func backupIn(file string) (*storage.BackupFile, error) {
	b, err := describe(file)
	if err != nil {
		return nil, err
	}
	return &storage.BackupFile{File: file, Revision: b.Revision, Objects: b.Objects, Time: b.Time}, nil
}

// refresh shows something until it is interrupted. On a terminal it stays in place. A failure is
// shown, and may be over the next time.
func refresh(ctx context.Context, w io.Writer, interval time.Duration,
	show func(context.Context) error) error {
	clear := ""
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		clear = "\x1b[H\x1b[2J"
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if _, err := io.WriteString(w, clear); err != nil {
			return err
		}
		if err := show(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintf(w, "%s\n", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
