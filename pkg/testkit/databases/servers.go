// Package databases gives empty databases to tests of API servers that package testkit runs. The
// environment names the database servers, which run already. Package containers, a module of its
// own that starts some in containers, is not imported.
package databases

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// Kind is a kind of database: "sqlite", "postgres", "mariadb" or "mysql".
type Kind = programs.Kind

// Kinds are the kinds of databases that [New] makes.
func Kinds() []Kind { return programs.Kinds() }

var drivers = map[Kind]storage.Driver{
	programs.SQLite:   sqlite.Driver,
	programs.Postgres: postgres.Driver,
	programs.MariaDB:  mysql.Driver,
	programs.MySQL:    mysql.Driver,
}

// Each runs a test on an empty database of every kind.
func Each(t *testing.T, test func(t *testing.T, db testkit.Database)) {
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) { test(t, New(t, kind)) })
	}
}

// New returns an empty database, which is dropped after the test. A SQLite database is a file in a
// directory of the test. For the other kinds, an environment variable such as
// ROWKEEPER_TEST_POSTGRES names a server that runs, by the URL of its administrator.
//
// If the variable is empty the test is skipped. It fails if ROWKEEPER_TEST_REQUIRE, a list of kinds
// with commas between them, has the kind.
func New(t *testing.T, kind Kind) testkit.Database {
	t.Helper()
	if kind == programs.SQLite {
		file := url.URL{Scheme: "sqlite",
			Path: filepath.ToSlash(filepath.Join(t.TempDir(), "state.db"))}
		return testkit.Database{URL: file.String(), Driver: sqlite.Driver}
	}
	if os.Getenv(kind.Env()) == "" {
		if slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"), ","), string(kind)) {
			t.Fatalf("%s is required, and %s names no server", kind, kind.Env())
		}
		t.Skipf("%s names no server", kind.Env())
	}
	server, err := dbserver.Start(t.Context(), kind, dbserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	name := "rowkeeper_" + strings.ToLower(rand.Text())
	address, err := server.CreateDatabase(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.DropDatabase(context.WithoutCancel(t.Context()), name); err != nil {
			t.Errorf("cannot drop the test's database: %v", err)
		}
	})
	return testkit.Database{URL: address, Driver: drivers[kind]}
}
