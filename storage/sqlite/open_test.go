package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// sqlExec changes a database behind the backend's back.
func sqlExec(t testing.TB, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func sqlQuery(t testing.TB, path, query string) (value string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow(query).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// oneSentence checks an error that a person reads.
func oneSentence(t *testing.T, err error, class contract.Class, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", words)
	}
	if contract.ClassOf(err) != class {
		t.Errorf("the error is of class %v, want %v: %v", contract.ClassOf(err), class, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has several lines: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	for _, test := range []struct {
		name string
		// prepare makes what is wrong at the path.
		prepare func(t *testing.T, path string)
		class   contract.Class
		words   []string
		// migrates: Migrate mends it.
		migrates bool
	}{
		{"no directory", func(t *testing.T, path string) {
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
		}, contract.Invalid, []string{"the directory", "does not exist", "create it"}, false},
		{"no file", func(*testing.T, string) {}, contract.Invalid,
			[]string{"there is no database file", "migrate up"}, true},
		{"a directory", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}, contract.Invalid, []string{"is a directory"}, false},
		{"a device", func(t *testing.T, path string) {
			if err := os.Symlink(os.DevNull, path); err != nil {
				t.Fatal(err)
			}
		}, contract.Invalid, []string{"is not a regular file"}, false},
		{"another name", func(t *testing.T, path string) {
			migrate(t, "sqlite://"+path)
			if err := os.Link(path, path+".link"); err != nil {
				t.Skip(err)
			}
		}, contract.Invalid, []string{"has 2 names (hard links)", "remove the other names"}, false},
		{"an empty file", func(t *testing.T, path string) {
			writeFile(t, path, "")
		}, contract.Invalid, []string{"holds no rowkeeper store", "migrate up"}, true},
		{"a text", func(t *testing.T, path string) {
			writeFile(t, path, strings.Repeat("apiVersion: v1\n", 100))
		},
			contract.Invalid, []string{"is not a SQLite database"}, false},
		{"a short text", func(t *testing.T, path string) {
			writeFile(t, path, "hello")
		}, contract.Invalid, []string{"is not a SQLite database"}, false},
		{"somebody else's database", func(t *testing.T, path string) {
			sqlExec(t, path, "CREATE TABLE kine (id INTEGER)")
		},
			contract.Invalid, []string{"is a SQLite database of another program"}, false},
		{"somebody else's marked database", func(t *testing.T, path string) {
			sqlExec(t, path, "PRAGMA application_id = 17", "CREATE TABLE notes (id INTEGER)")
		}, contract.Invalid, []string{"is a SQLite database of another program"}, false},
		{"a newer schema", func(t *testing.T, path string) {
			migrate(t, "sqlite://"+path)
			sqlExec(t, path, "INSERT INTO rowkeeper_schema (version_id, is_applied) VALUES (99, 1)",
				"UPDATE rowkeeper_store SET oldest_writer = 98")
		}, contract.Invalid, []string{"schema is version 99", "newer than version",
			"use a newer rowkeeper"}, false},
		{"an older schema", func(t *testing.T, path string) {
			migrate(t, "sqlite://"+path)
			sqlExec(t, path, "DELETE FROM rowkeeper_schema WHERE version_id > 0",
				"DROP TABLE rowkeeper_log", "DROP TABLE rowkeeper_live",
				"DROP TABLE rowkeeper_store", "DROP TABLE rowkeeper_aborted",
				"DROP TABLE rowkeeper_lease")
		}, contract.Invalid, []string{"holds no rowkeeper store yet", "migrate up"}, false},
		{"no store row", func(t *testing.T, path string) {
			migrate(t, "sqlite://"+path)
			sqlExec(t, path, "DELETE FROM rowkeeper_store")
		}, contract.Invalid, []string{"rowkeeper_store has lost its row", "into a new database"}, false},
		{"no WAL", func(t *testing.T, path string) {
			migrate(t, "sqlite://"+path)
			sqlExec(t, path, "PRAGMA journal_mode = DELETE")
		}, contract.Invalid, []string{"journal mode \"delete\"", "migrate up"}, true},
		{"a damaged page", func(t *testing.T, path string) {
			filled(t, path, 200)
			damage(t, path, 3*pageSize)
		}, contract.Invalid, []string{"damaged: restore a backup into a new file"}, false},
		{"a damaged page of values", func(t *testing.T, path string) {
			filled(t, path, 2000)
			damage(t, path, 100*pageSize)
		}, contract.Invalid, []string{"damaged: restore a backup into a new file"}, false},
		{"a shortened file", func(t *testing.T, path string) {
			filled(t, path, 200)
			if err := os.Truncate(path, 4*pageSize); err != nil {
				t.Fatal(err)
			}
		}, contract.Invalid, []string{"damaged", "restore a backup into a new file"}, false},
		{"a lost value", func(t *testing.T, path string) {
			filled(t, path, 200)
			sqlExec(t, path, "DELETE FROM rowkeeper_log WHERE revision = 100")
		}, contract.Invalid, []string{"a key has lost its value", "restore a backup into a new"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "state.db")
			test.prepare(t, path)
			url := "sqlite://" + path
			b, err := contract.OpenBackend(context.Background(), Driver, url, options(t))
			if err == nil {
				b.Close()
			}
			oneSentence(t, err, test.class, append(test.words, dir)...)
			_, err = Driver.Migrate(context.Background(), url, options(t))
			if !test.migrates {
				if err == nil {
					t.Error("migrate did not mind")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			open(t, url).Close()
		})
	}
}

// filled makes a database with some keys and closes it.
func filled(t testing.TB, path string, keys int) {
	t.Helper()
	migrate(t, "sqlite://"+path)
	b := open(t, "sqlite://"+path)
	f := filler{store: b, value: bytes.Repeat([]byte("v"), 1024)}
	f.grow(t, keys)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// damage overwrites a piece of a file from another process: closing the file in this one would take
// SQLite's locks away.
func damage(t testing.TB, path string, offset int) {
	t.Helper()
	cmd := exec.Command("dd", "if=/dev/zero", "of="+path, "bs=1", fmt.Sprintf("seek=%d", offset),
		"count=2000", "conv=notrunc")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestMemoryStoresAreIndependent(t *testing.T) {
	ctx := context.Background()
	one, two := open(t, "memory:"), open(t, "memory:")
	f := filler{store: one, value: []byte("v")}
	f.grow(t, 3)
	for _, test := range []struct {
		b    contract.Backend
		want int64
	}{{one, 3}, {two, 0}} {
		if n, _, err := test.b.Count(ctx, "\x00", "\xff", 0, 0); err != nil || n != test.want {
			t.Errorf("a store has %d keys, %v, want %d", n, err, test.want)
		}
	}
	first, err := one.Identity(ctx)
	if err != nil {
		t.Fatal(err)
	}
	second, err := two.Identity(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if first.Store == second.Store || first.Actual == second.Actual {
		t.Errorf("two stores have the identities %+v and %+v", first, second)
	}
	for _, b := range []contract.Backend{one, two} {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	third := open(t, "memory:")
	defer third.Close()
	if n, _, err := third.Count(ctx, "\x00", "\xff", 0, 0); err != nil || n != 0 {
		t.Errorf("a new store has %d keys, %v", n, err)
	}
}
