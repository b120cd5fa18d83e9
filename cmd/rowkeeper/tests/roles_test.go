package tests

import (
	"database/sql"
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

// roleTest is a database whose owner has just made a role without any right.
type roleTest struct {
	*testing.T
	// dir is the working directory of programs.
	dir string
	// owner and limited are the URLs of the owner and of the role.
	owner, limited string
	// documented is how the documentation calls the kind of database: MariaDB is mysql, too.
	documented string
	db         *sql.DB
}

// eachRole makes the role in a database of each kind that has roles.
func eachRole(t *testing.T, role string, test func(r roleTest)) {
	_, urls := databaseURLs(t, t.TempDir())
	for _, kind := range programs.Servers() {
		owner := urls[string(kind)]
		if owner == "" {
			continue // databaseURLs has said why
		}
		t.Run(string(kind), func(t *testing.T) {
			const password = "role-s3cret"
			u, err := url.Parse(owner)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword(role, password)
			r := roleTest{T: t, dir: t.TempDir(), owner: owner, limited: u.String(),
				documented: "mysql", db: openSQL(t, owner)}
			create := "CREATE USER '" + role + "'@'%' IDENTIFIED BY '" + password + "'"
			if kind == programs.Postgres {
				r.documented = "postgres"
				create = "CREATE ROLE " + role + " LOGIN PASSWORD '" + password + "'"
			}
			r.exec(create)
			if m := r.rowkeeper("migrate", "up", "--database="+owner); m.code != 0 {
				t.Fatal(m.stderr)
			}
			test(r)
		})
	}
}

func (r roleTest) rowkeeper(args ...string) result {
	return run(r.T, r.dir, "", nil, rowkeeperProgram, args...)
}

// exec runs statements of the owner.
func (r roleTest) exec(statements ...string) {
	r.Helper()
	for _, statement := range statements {
		if _, err := r.db.ExecContext(r.Context(), statement); err != nil {
			r.Fatalf("%s: %v", statement, err)
		}
	}
}

// mayNot runs statements of the role, which have to fail.
func (r roleTest) mayNot(statements ...string) {
	r.Helper()
	db := openSQL(r.T, r.limited)
	for _, statement := range statements {
		if _, err := db.ExecContext(r.Context(), statement); err == nil {
			r.Errorf("the role may %s", statement)
		}
	}
}

// A role that has the rights which the page on SQL gives it can ask the views, and do nothing else.
func TestDocumentedReader(t *testing.T) {
	eachRole(t, "reader", func(r roleTest) {
		r.exec(statementsOf(r.T, filepath.Join("docs", "reference", "sql.md"),
			r.documented+" reader")...)
		prefix := fmt.Sprintf("/test-%d", prefixes.Add(1))
		s := start(r.T, r.dir, "--database="+r.owner, "--storage-prefix="+prefix)
		s.ok(r.T, manifest("one", "make"), "create", "-f", "-")
		for _, view := range []string{"rowkeeper_objects", "rowkeeper_history"} {
			// The server records in the background where it has the pipelines.
			eventually(r.T, view+" has the pipeline", func() bool {
				asked := r.rowkeeper("sql", "SELECT v.resource, v.name, r.scope FROM "+view+" v "+
					"JOIN rowkeeper_resource r ON r.directory = v.directory "+
					"WHERE v.\"group\" = 'ci.rowkeeper.dev' AND v.directory LIKE '"+prefix+"/%'",
					"-o=json", "--database="+r.limited)
				if asked.code != 0 {
					r.Fatalf("%s: %d %s", view, asked.code, asked.stderr)
				}
				return asked.stdout == "[\n {\"resource\": \"pipelines\", \"name\": \"one\", "+
					"\"scope\": \"Namespaced\"}\n]\n"
			})
		}
		r.mayNot("DELETE FROM rowkeeper_live", "CREATE TABLE other (x int)",
			"UPDATE rowkeeper_store SET compacted = 0", "DELETE FROM rowkeeper_resource")
	})
}

// A server works with the rights that the documentation gives to its role, and with one less it
// says which one it lacks.
func TestDocumentedRole(t *testing.T) {
	eachRole(t, "server", func(r roleTest) {
		t := r.T
		if done := r.rowkeeper("fence", "--database="+r.limited); done.code != 1 ||
			strings.Contains(done.stderr, "role-s3cret") {
			t.Errorf("without any right: %d %s", done.code, done.stderr)
		}
		r.exec(statementsOf(t, filepath.Join("docs", "operate", "database.md"), r.documented)...)
		if done := r.rowkeeper("migrate", "status", "--database="+r.limited); done.code != 0 {
			t.Errorf("migrate status: %s", done.stderr)
		}
		prefix := fmt.Sprintf("--storage-prefix=/test-%d", prefixes.Add(1))
		s := start(t, r.dir, "--database="+r.limited, "--database-migrate=false", prefix,
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
		file := filepath.Join(r.dir, "backup")
		for _, args := range [][]string{{"fence"}, {"backup", file}, {"restore", file,
			"--replace", "--database-migrate=false"}, {"restore", file, "--replace"}} {
			if done := r.rowkeeper(append(args, "--database="+r.limited)...); done.code != 0 {
				t.Errorf("%v: %d %s", args, done.code, done.stderr)
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
		r.mayNot("CREATE TABLE other (x int)", "DROP TABLE rowkeeper_aborted",
			"ALTER TABLE rowkeeper_log ADD COLUMN x int", "DELETE FROM rowkeeper_schema")
		revoke := "REVOKE DELETE ON rowkeeper_log FROM server"
		if r.documented == "mysql" {
			revoke = "REVOKE DELETE ON rowkeeper.rowkeeper_log FROM 'server'@'%'"
		}
		r.exec(revoke)
		if done := r.rowkeeper("restore", file, "--replace", "--database-migrate=false",
			"--database="+r.limited); done.code != 1 || !strings.Contains(done.stderr, "DELETE") {
			t.Errorf("without the right to delete: %d %s", done.code, done.stderr)
		}
	})
}
