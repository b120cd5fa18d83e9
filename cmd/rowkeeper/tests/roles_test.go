package tests

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/verify/markdown"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// documentedGrants are the statements of deploy/OPERATIONS.md for a kind of database.
func documentedGrants(t *testing.T, kind string) []string {
	t.Helper()
	return statementsOf(t, filepath.Join("deploy", "OPERATIONS.md"), kind)
}

// statementsOf are those of the block of a page that begins with a comment.
func statementsOf(t *testing.T, name, kind string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range markdown.Items(page) {
		block, found := strings.CutPrefix(item.Code, "-- "+kind+"\n")
		if !found || item.Language != "sql" {
			continue
		}
		var statements []string
		for statement := range strings.SplitSeq(block, ";") {
			if statement = strings.TrimSpace(statement); statement != "" {
				statements = append(statements, statement)
			}
		}
		return statements
	}
	t.Fatalf("the page has no statements for %s", kind)
	return nil
}

// A role that has the rights which the page on SQL gives it can ask the views, and do nothing else.
func TestDocumentedReader(t *testing.T) {
	_, urls := databaseURLs(t, t.TempDir())
	for _, kind := range programs.Servers() {
		kind := string(kind)
		if urls[kind] == "" {
			continue // databaseURLs has said why
		}
		t.Run(kind, func(t *testing.T) {
			dir, owner := t.TempDir(), urls[kind]
			rowkeeper := func(args ...string) result {
				return run(t, dir, "", nil, rowkeeperProgram, args...)
			}
			db := openSQL(t, owner)
			u, err := url.Parse(owner)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword("reader", "reader-s3cret")
			limited, documented := u.String(), "mysql"
			statements := []string{`CREATE USER 'reader'@'%' IDENTIFIED BY 'reader-s3cret'`}
			if kind == "postgres" {
				documented = kind
				statements = []string{`CREATE ROLE reader LOGIN PASSWORD 'reader-s3cret'`}
			}
			if r := rowkeeper("migrate", "up", "--database="+owner); r.code != 0 {
				t.Fatal(r.stderr)
			}
			for _, statement := range append(statements, statementsOf(t,
				filepath.Join("docs", "reference", "sql.md"), documented+" reader")...) {
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
			}
			prefix := fmt.Sprintf("/test-%d", prefixes.Add(1))
			s := start(t, dir, "--database="+owner, "--storage-prefix="+prefix)
			s.ok(t, manifest("one", "make"), "create", "-f", "-")
			for _, view := range []string{"rowkeeper_objects", "rowkeeper_history"} {
				// The server records in the background where it has the pipelines.
				eventually(t, view+" has the pipeline", func() bool {
					r := rowkeeper("sql", "SELECT v.resource, v.name, r.scope FROM "+view+" v "+
						"JOIN rowkeeper_resource r ON r.directory = v.directory "+
						"WHERE v.\"group\" = 'ci.rowkeeper.dev' AND v.directory LIKE '"+prefix+"/%'",
						"-o=json", "--database="+limited)
					if r.code != 0 {
						t.Fatalf("%s: %d %s", view, r.code, r.stderr)
					}
					return r.stdout == "[\n {\"resource\": \"pipelines\", \"name\": \"one\", "+
						"\"scope\": \"Namespaced\"}\n]\n"
				})
			}
			limitedDB := openSQL(t, limited)
			for _, statement := range []string{"DELETE FROM rowkeeper_live", "CREATE TABLE other (x int)",
				"UPDATE rowkeeper_store SET compacted = 0", "DELETE FROM rowkeeper_resource"} {
				if _, err := limitedDB.ExecContext(t.Context(), statement); err == nil {
					t.Errorf("the role may %s", statement)
				}
			}
		})
	}
}

// A server works with the rights that the documentation gives to its role, and with one less it
// says which one it lacks.
func TestDocumentedRole(t *testing.T) {
	_, urls := databaseURLs(t, t.TempDir())
	for _, kind := range programs.Servers() {
		kind := string(kind)
		if urls[kind] == "" {
			continue // databaseURLs has said why
		}
		t.Run(kind, func(t *testing.T) {
			dir, owner := t.TempDir(), urls[kind]
			rowkeeper := func(args ...string) result {
				return run(t, dir, "", nil, rowkeeperProgram, args...)
			}
			db := openSQL(t, owner)
			exec := func(statement string) {
				t.Helper()
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
			}
			u, err := url.Parse(owner)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword("server", "role-s3cret")
			limited := u.String()
			documented := "mysql"
			if kind == "postgres" {
				documented = kind
				exec(`CREATE ROLE server LOGIN PASSWORD 'role-s3cret'`)
			} else {
				exec(`CREATE USER 'server'@'%' IDENTIFIED BY 'role-s3cret'`)
			}
			if r := rowkeeper("migrate", "up", "--database="+owner); r.code != 0 {
				t.Fatal(r.stderr)
			}
			if r := rowkeeper("fence", "--database="+limited); r.code != 1 ||
				strings.Contains(r.stderr, "role-s3cret") {
				t.Errorf("without any right: %d %s", r.code, r.stderr)
			}
			for _, statement := range documentedGrants(t, documented) {
				exec(statement)
			}
			if r := rowkeeper("migrate", "status", "--database="+limited); r.code != 0 {
				t.Errorf("migrate status: %s", r.stderr)
			}
			prefix := fmt.Sprintf("--storage-prefix=/test-%d", prefixes.Add(1))
			s := start(t, dir, "--database="+limited, "--database-migrate=false", prefix,
				"--compaction-interval=100ms", "--compaction-window=100ms", "--compaction-keep=1")
			s.ok(t, manifest("one", "make"), "create", "-f", "-")
			s.ok(t, manifest("two", "make"), "create", "-f", "-")
			s.ok(t, "", "label", "pl", "one", "a=b")
			s.ok(t, "", "delete", "pl", "two")
			eventually(t, "compaction removes rows", func() bool {
				for line := range strings.Lines(s.ok(t, "", "get", "--raw", "/metrics")) {
					if count, ok := strings.CutPrefix(line, "rowkeeper_swept_rows_total "); ok {
						return strings.TrimSpace(count) != "0"
					}
				}
				return false
			})
			file := filepath.Join(dir, "backup")
			for _, args := range [][]string{{"fence"}, {"backup", file}, {"restore", file,
				"--replace", "--database-migrate=false"}, {"restore", file, "--replace"}} {
				if r := rowkeeper(append(args, "--database="+limited)...); r.code != 0 {
					t.Errorf("%v: %d %s", args, r.code, r.stderr)
				}
			}
			s.ok(t, "", "label", "pl", "one", "c=d")
			has(t, s.ok(t, "", "get", "pl", "one", "--show-labels"), "a=b,c=d")
			if code := s.signal(t, syscall.SIGTERM); code != 0 {
				t.Errorf("the server exited with %d", code)
			}
			if strings.Contains(s.stderr.String(), "lacks a privilege") ||
				strings.Contains(s.stderr.String(), "denied") {
				t.Errorf("the server lacked a privilege:\n%s", s.stderr.String())
			}

			// It can neither create nor drop anything.
			limitedDB := openSQL(t, limited)
			for _, statement := range []string{"CREATE TABLE other (x int)",
				"DROP TABLE rowkeeper_aborted", "ALTER TABLE rowkeeper_log ADD COLUMN x int",
				"DELETE FROM rowkeeper_schema"} {
				if _, err := limitedDB.ExecContext(t.Context(), statement); err == nil {
					t.Errorf("the role may %s", statement)
				}
			}
			revoke := "REVOKE DELETE ON rowkeeper_log FROM server"
			if documented == "mysql" {
				revoke = "REVOKE DELETE ON rowkeeper.rowkeeper_log FROM 'server'@'%'"
			}
			exec(revoke)
			if r := rowkeeper("restore", file, "--replace", "--database-migrate=false",
				"--database="+limited); r.code != 1 || !strings.Contains(r.stderr, "DELETE") {
				t.Errorf("without the right to delete: %d %s", r.code, r.stderr)
			}
		})
	}
}
