package databases

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql" // the drivers of database/sql
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// Kinds are the kinds of databases that [New] makes.
var Kinds = []string{"sqlite", "postgres", "mariadb", "mysql"}

// Each runs a test on an empty database of every kind.
func Each(t *testing.T, test func(t *testing.T, db testkit.Database)) {
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) { test(t, New(t, kind)) })
	}
}

// New returns an empty database, which is dropped after the test. A SQLite database is a file in a
// directory of the test. For the other kinds, an environment variable such as
// ROWKEEPER_TEST_POSTGRES names a server that runs, by the URL of its administrator.
//
// If the variable is empty the test is skipped. It fails if ROWKEEPER_TEST_REQUIRE, a list of kinds
// with commas between them, has the kind.
func New(t *testing.T, kind string) testkit.Database {
	t.Helper()
	if kind == "sqlite" {
		file := url.URL{Scheme: "sqlite",
			Path: filepath.ToSlash(filepath.Join(t.TempDir(), "state.db"))}
		return testkit.Database{URL: file.String(), Driver: sqlite.Driver}
	}
	env := "ROWKEEPER_TEST_" + strings.ToUpper(kind)
	admin, err := url.Parse(os.Getenv(env))
	if err != nil {
		t.Fatalf("%s is not a URL", env)
	}
	if admin.Host == "" {
		if slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"), ","), kind) {
			t.Fatalf("%s is required, and %s names no server", kind, env)
		}
		t.Skipf("%s names no server", env)
	}
	db := testkit.Database{Driver: mysql.Driver}
	password, _ := admin.User.Password()
	driver, dsn := "mysql", fmt.Sprintf("%s:%s@tcp(%s)/", admin.User.Username(), password,
		admin.Host)
	if kind == "postgres" {
		db.Driver, driver, dsn = postgres.Driver, "pgx", admin.String()
	}
	server, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	name := "rowkeeper_" + strings.ToLower(rand.Text())
	if _, err := server.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := server.ExecContext(context.Background(), "DROP DATABASE "+name); err != nil {
			t.Errorf("cannot drop the test's database: %v", err)
		}
	})
	admin.Path = "/" + name
	db.URL = admin.String()
	return db
}
