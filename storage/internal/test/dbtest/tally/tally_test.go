package tally_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest/tally"
)

// The entries of two test binaries are counted together, and a kind that did not run stands out
// with its reason.
func TestReportsAddUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	for range 2 {
		var r tally.Tally
		r.Add(tally.Entry{Kind: "mysql", Reason: "no server\nno engine", Tests: 1})
		r.Add(tally.Entry{Kind: "postgres", Version: "17.5", Source: "image postgres:17",
			Tests: 2})
		r.Add(tally.Entry{Kind: "sqlite", Version: "3.50", Source: "file", Tests: 1})
		r.Add(tally.Entry{Kind: "sqlite", Version: "3.50", Source: "file", Tests: 1})
		if err := r.Append(path); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var sum tally.Tally
	if err := sum.Read(file); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := sum.Write(&b); err != nil {
		t.Fatal(err)
	}
	const want = `ran      sqlite   3.50          4 databases on file
ran      postgres 17.5          4 databases on image postgres:17
NOT RUN  mysql                  2 tests: no server; no engine
`
	if b.String() != want {
		t.Errorf("the report is\n%s\nwant\n%s", b.String(), want)
	}
}
