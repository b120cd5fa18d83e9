package commands

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// TestSQL asks a database that holds nothing, and asks wrongly.
func TestSQL(t *testing.T) {
	database := "--database=sqlite://" + filepath.Join(t.TempDir(), "state.db")
	const numbers = "VALUES (1, 'a'), (2, NULL), (3, '{\"b\":1}')"
	for _, test := range []struct {
		args       []string
		exit       int
		out, wrong string
	}{
		{[]string{"sql", "SELECT 1", database}, ExitFailure, "", "there is no database file"},
		{[]string{"migrate", "up", database}, ExitOK, "", ""},
		{[]string{"sql", "SELECT count(*) AS n FROM rowkeeper_objects", database}, ExitOK, "N\n0\n", ""},
		{[]string{"sql", "SELECT store, \"group\" FROM rowkeeper_history", database}, ExitOK,
			"STORE   GROUP\n", ""},
		{[]string{"sql", "SELECT store FROM rowkeeper_history", "-o", "json", database}, ExitOK, "[]\n", ""},
		{[]string{"sql", numbers, database}, ExitOK,
			"COLUMN1   COLUMN2\n1         a\n2         NULL\n3         {\"b\":1}\n", ""},
		{[]string{"sql", numbers, "-o=json", "--limit=0", database}, ExitOK,
			"[\n {\"column1\": 1, \"column2\": \"a\"},\n {\"column1\": 2, \"column2\": null},\n " +
				"{\"column1\": 3, \"column2\": {\"b\":1}}\n]\n", ""},
		{[]string{"sql", numbers, "--limit=3", database}, ExitOK,
			"COLUMN1   COLUMN2\n1         a\n2         NULL\n3         {\"b\":1}\n", ""},
		{[]string{"sql", numbers, "--limit=1", database}, ExitOK, "COLUMN1   COLUMN2\n1         a\n",
			"only the first 1 rows are shown: give --limit for more\n"},
		{[]string{"sql", "DELETE FROM rowkeeper_log", database}, ExitUsage, "",
			"the statement reads nothing: it has to begin with SELECT"},
		{[]string{"sql", "WITH x AS (SELECT 1) DELETE FROM rowkeeper_log", database}, ExitFailure, "",
			"the database refuses the statement: "},
		{[]string{"sql", "SELECT 1; SELECT 2", database}, ExitUsage, "", "more than one statement"},
		{[]string{"sql", database}, ExitUsage, "", "give one statement, in quotes"},
		{[]string{"sql", "SELECT 1", "-o=yaml", database}, ExitUsage, "", "there is no format \"yaml\""},
		{[]string{"sql", "SELECT 1", "--limit=-1", database}, ExitUsage, "", "are not negative"},
		{[]string{"sql", "SELECT 1", "--store=none", database}, ExitFailure, "",
			"the database has no store \"none\""},
		{[]string{"sql", "SELECT 1", "--database=memory:"}, ExitUsage, "", "names no database of another process"},
	} {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), bookmarks(), test.args, &stdout, &stderr)
		if code != test.exit || test.args[0] == "sql" && stdout.String() != test.out ||
			!strings.Contains(stderr.String(), test.wrong) || test.wrong == "" && stderr.Len() > 0 {
			t.Errorf("%v: %d\n%s%s", test.args, code, &stdout, &stderr)
		}
	}
}

// TestPrintedValues: values look the same, whichever database they come from, and stay on their
// line.
func TestPrintedValues(t *testing.T) {
	columns := []string{"a", "b", "c", "d", "e"}
	values := []any{[]byte("text\x1b[31m\tü\n"), []byte{0xff, 0}, int64(7), true,
		time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.FixedZone("", 3600))}
	var table, json bytes.Buffer
	for printer, want := range map[rowPrinter]string{
		&tablePrinter{w: tabwriter.NewWriter(&table, 0, 0, 1, ' ', 0)}: "A                  B      C D    E\n" +
			`text\x1b[31m\tü \xff00 7 true 2026-01-02 02:04:05.6` + "\n",
		&jsonPrinter{w: &json}: "[\n " + `{"a": "text\u001b[31m\tü\n", "b": "\\xff00", "c": 7, ` +
			`"d": true, "e": "2026-01-02 02:04:05.6"}` + "\n]\n",
	} {
		if err := printer.row(columns, values); err != nil {
			t.Fatal(err)
		}
		if err := printer.end(); err != nil {
			t.Fatal(err)
		}
		out := &table
		if _, ok := printer.(*jsonPrinter); ok {
			out = &json
		}
		if got := strings.Join(strings.Fields(out.String()), " "); got != strings.Join(strings.Fields(want), " ") {
			t.Errorf("%q is printed, want %q", got, want)
		}
	}
}
