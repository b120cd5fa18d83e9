package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAdd replaces a row, and leaves the others and what people have written.
func TestAdd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "RESULTS.md")
	add := func(row Row) string {
		t.Helper()
		if err := Add(path, row); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	first := add(Row{Scenario: "random", Database: "postgres 15", Operations: 1,
		Notes: []string{"old"}})
	before, table, _ := strings.Cut(first, columns)
	written := before + "Unexplained:\n\n- a watch that stalled\n\n"
	if err := os.WriteFile(path, []byte(written+columns+table), 0o600); err != nil {
		t.Fatal(err)
	}
	add(Row{Scenario: "random", Database: "SQLite", Operations: 2})
	got := add(Row{Scenario: "random", Database: "postgres 17", Operations: 3,
		Notes: []string{"new"}})
	want := written + columns + "\n" + alignment + "\n" +
		"| random | SQLite | 2 | 0 | 0 | 0 | 0 | - | 0 | `` |\n" +
		"| random | postgres 17 | 3 | 0 | 0 | 0 | 0 | - | 0 | `` |\n\n" +
		"- random, postgres 17: new.\n"
	if got != want {
		t.Errorf("the file is\n%s\nwant\n%s", got, want)
	}
}
