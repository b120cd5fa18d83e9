package commands

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
)

func newSQLCommand(p server.Program) *cobra.Command {
	o := p.StorageOptions()
	q := storage.Query{Timeout: 30 * time.Second}
	limit, format := 1000, "table"
	cmd := &cobra.Command{
		Use:   `sql "SELECT …"`,
		Short: "Ask the database about objects by SQL",
		Long: "Sql runs one statement that reads, and prints its rows. The views rowkeeper_objects and " +
			"rowkeeper_history have the objects, and what the history still has of them. The " +
			"statement runs with the role that the URL names, in a transaction that cannot write: " +
			"name a role that may only read. Whoever may read these views reads the Secrets of all " +
			"stores. Double quotes are those of names, as in \"group\", on every database. A " +
			"statement that takes long keeps the database from cleaning up.",
		Example: "  " + p.Name + ` sql 'SELECT namespace, count(*) FROM rowkeeper_objects GROUP BY namespace' ` +
			"--database-file url.txt",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return server.UsageError{Err: errors.New("give one statement, in quotes")}
			case format != "table" && format != "json":
				return server.UsageError{Err: fmt.Errorf("there is no format %q: give table or json", format)}
			case limit < 0 || q.Timeout < 0:
				return server.UsageError{Err: errors.New("--limit and --timeout are not negative")}
			}
			q.SQL = args[0]
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.Check(); err != nil {
				return server.UsageError{Err: err}
			}
			config, err := commandline.Existing(o)
			if err != nil {
				return err
			}
			var print rowPrinter = &tablePrinter{w: tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)}
			if format == "json" {
				print = &jsonPrinter{w: cmd.OutOrStdout()}
			}
			rows := 0
			err = storage.RunQuery(cmd.Context(), config, q, func(columns []string, values []any) error {
				if values != nil {
					if rows == limit && limit > 0 {
						return errEnoughRows
					}
					rows++
				}
				return print.row(columns, values)
			})
			if err != nil && !errors.Is(err, errEnoughRows) {
				return err
			}
			if err := print.end(); err != nil {
				return err
			}
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "only the first %d rows are shown: give --limit for more\n", limit)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", format, "How the rows are printed: table or json.")
	cmd.Flags().IntVar(&limit, "limit", limit, "How many rows are printed. 0 means all.")
	cmd.Flags().DurationVar(&q.Timeout, "timeout", q.Timeout,
		"How long the database may work on the statement. 0 means any time.")
	o.AddDatabaseFlags(cmd.Flags())
	return cmd
}

// errEnoughRows ends a query of which enough was printed.
var errEnoughRows = errors.New("there are more rows than are wanted")

// rowPrinter prints rows. Values are those of storage.RunQuery.
type rowPrinter interface {
	row(columns []string, values []any) error
	end() error
}

// tablePrinter prints a table with a line for each row. It keeps all of it until its end.
type tablePrinter struct {
	w     *tabwriter.Writer
	begun bool
}

func (t *tablePrinter) row(columns []string, values []any) error {
	if !t.begun {
		t.begun = true
		heads := make([]string, len(columns))
		for i, name := range columns {
			heads[i] = onOneLine(strings.ToUpper(name))
		}
		if _, err := fmt.Fprintln(t.w, strings.Join(heads, "\t")); err != nil {
			return err
		}
	}
	if values == nil {
		return nil
	}
	cells := make([]string, len(values))
	for i, v := range values {
		switch v := plain(v).(type) {
		case nil:
			cells[i] = "NULL"
		case string:
			cells[i] = onOneLine(strings.TrimRight(v, "\n"))
		default:
			cells[i] = fmt.Sprint(v)
		}
	}
	_, err := fmt.Fprintln(t.w, strings.Join(cells, "\t"))
	return err
}

func (t *tablePrinter) end() error { return t.w.Flush() }

// onOneLine writes characters that would leave the line, or do more to a terminal, as Go does.
func onOneLine(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(fmt.Sprintf("%+q", r), "'"))
		}
	}
	return b.String()
}

// jsonPrinter prints an array with an object for each row, on a line of its own.
type jsonPrinter struct {
	w    io.Writer
	rows int
}

func (j *jsonPrinter) row(columns []string, values []any) error {
	if values == nil {
		return nil
	}
	var b strings.Builder
	b.WriteString("[\n ")
	if j.rows > 0 {
		b.Reset()
		b.WriteString(",\n ")
	}
	j.rows++
	for i, v := range values {
		name, err := json.Marshal(columns[i])
		if err != nil {
			return err
		}
		v = plain(v)
		// Not all databases have a type for JSON, so the text tells.
		if s, ok := v.(string); ok && (strings.HasPrefix(s, "{") || strings.HasPrefix(s, "[")) &&
			json.Valid([]byte(s)) {
			v = json.RawMessage(s)
		}
		value, err := json.Marshal(v)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s%s: %s", []string{"{", ", "}[min(i, 1)], name, value)
	}
	b.WriteString("}")
	_, err := io.WriteString(j.w, b.String())
	return err
}

func (j *jsonPrinter) end() error {
	end := "\n]\n"
	if j.rows == 0 {
		end = "[]\n"
	}
	_, err := io.WriteString(j.w, end)
	return err
}

// plain makes a value the same whichever database it comes from. Bytes that are no text are
// hexadecimal.
func plain(v any) any {
	switch v := v.(type) {
	case time.Time:
		return v.UTC().Format("2006-01-02 15:04:05.999999")
	case []byte:
		if utf8.Valid(v) && !strings.ContainsRune(string(v), 0) {
			return string(v)
		}
		return `\x` + hex.EncodeToString(v)
	}
	return v
}
