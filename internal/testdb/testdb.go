// Package testdb gives an empty database of every kind to tests of programs that use the storage from outside.
package testdb

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

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// Kinds are the kinds of databases.
var Kinds = []string{"sqlite", "postgres", "mariadb", "mysql"}

// Database is one that was made for a test. It can be converted to a testkit.Database.
type Database struct {
	URL    string
	Driver storage.Driver
}

// Each runs a test on an empty database of every kind.
func Each(t *testing.T, test func(t *testing.T, db Database)) {
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) { test(t, New(t, kind)) })
	}
}

// New returns an empty database, which is dropped after the test. Servers are named by their administrator's URL, as hack/testbed/README.md says; "make test" does so. If none is
// named the test is skipped, or fails if the kind is required.
func New(t *testing.T, kind string) Database {
	t.Helper()
	if kind == "sqlite" {
		file := url.URL{Scheme: "sqlite", Path: filepath.ToSlash(filepath.Join(t.TempDir(), "state.db"))}
		return Database{URL: file.String(), Driver: sqlite.Driver}
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
	db := Database{Driver: mysql.Driver}
	password, _ := admin.User.Password()
	driver, dsn := "mysql", fmt.Sprintf("%s:%s@tcp(%s)/", admin.User.Username(), password, admin.Host)
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
