package commands

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/pkg/support/version"
	"github.com/rowkeeper/rowkeeper/storage"
)

func newDoctorCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	form, redacted := formText, false
	examine := storage.ExamineOptions{LongTransaction: 5 * time.Minute}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what a database has to be, and say what mends it",
		Long: "Doctor checks what servers rely on: versions, the rights of the role, settings by which " +
			"a crash can lose writes, what others have set or locked, replication, vacuum, the disk, " +
			"the clock, indexes, statistics, and the consistency of the store's tables, which it reads " +
			"in pieces. Each finding says what it means, and the one command that mends it. Doctor " +
			"says what its role cannot see. It needs no server. It never writes or deletes a row, and " +
			"takes no lock that a writer needs, but with --repair it makes indexes and statistics. It " +
			"exits with 0 if nothing needs to be done, with 3 if there are warnings, and with 4 if " +
			"there are errors.",
		Example: "  " + p.Name + " doctor --database-file url.txt",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkForm(form); err != nil {
				return err
			}
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			return doctor(cmd.Context(), config, examine, form, redacted, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringVarP(&form, "output", "o", form, "The form of the output: text or json.")
	cmd.Flags().BoolVar(&redacted, "redacted", redacted, "Write a bundle for a bug report, as JSON: what "+
		"was found and the status, without names of machines, databases, roles and resources.")
	cmd.Flags().BoolVar(&examine.Quick, "quick", examine.Quick,
		"Leave out the consistency of the tables, for which all keys are read.")
	cmd.Flags().BoolVar(&examine.Repair, "repair", examine.Repair,
		"Make indexes and statistics that are missing or wrong, and check again. Needs the role that migrates.")
	cmd.Flags().DurationVar(&examine.LongTransaction, "long-transaction", examine.LongTransaction,
		"From when on a transaction is told that is still open.")
	return cmd
}

// bundle is what a bug report needs.
type bundle struct {
	Program string                  `json:"program"`
	System  string                  `json:"system"`
	Report  *storage.DatabaseReport `json:"report"`
	Status  *storage.DatabaseStatus `json:"status"`
}

func doctor(ctx context.Context, c storage.Config, o storage.ExamineOptions, form string,
	redacted bool, stdout, stderr io.Writer) error {
	line := newProgressLine(stderr)
	o.Progress = line.tell
	report, err := storage.Examine(ctx, c, o)
	line.end()
	if err != nil {
		return err
	}
	switch {
	case redacted:
		status, err := storage.Status(ctx, c)
		if err != nil {
			return err
		}
		err = writeJSON(stdout, bundle{Program: version.Get().String(),
			System: runtime.GOOS + "/" + runtime.GOARCH, Report: report.Redacted(), Status: status.Redacted()})
		if err != nil {
			return err
		}
	case form == formJSON:
		err = writeJSON(stdout, report)
	default:
		err = report.Print(stdout)
	}
	if err != nil {
		return err
	}
	switch worst, found := report.Worst(); {
	case found && worst == storage.SeverityError:
		return exitCode(ExitError)
	case found && worst == storage.SeverityWarning:
		return exitCode(ExitWarning)
	}
	return nil
}

// progressLine tells a person how far it is, on a terminal, and nowhere else.
type progressLine struct {
	out   io.Writer
	shown time.Time
}

func newProgressLine(w io.Writer) *progressLine {
	if f, ok := w.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return &progressLine{}
	}
	return &progressLine{out: w}
}

const clearLine = "\r\x1b[K"

func (l *progressLine) tell(doing string, rows int64) {
	if l.out != nil && time.Since(l.shown) > 100*time.Millisecond {
		l.shown = time.Now()
		fmt.Fprintf(l.out, "%schecking the %s: %d", clearLine, doing, rows)
	}
}

func (l *progressLine) end() {
	if l.out != nil {
		fmt.Fprint(l.out, clearLine)
	}
}
