package containers

import (
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// TestContainers runs wherever a Docker engine has the images.
func TestContainers(t *testing.T) {
	// The tests remove their containers by themselves, and the reaper's image need not be there.
	t.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	docker := engine(t)
	for name, kind := range map[string]struct {
		image string
		start func(testing.TB, string, ...testcontainers.ContainerCustomizer) string
		open  func(*testing.T, string) *sql.DB
	}{
		"postgres": {"postgres:17", Postgres, openPostgres},
		"mariadb":  {"mariadb:11.8", MariaDB, openMySQL},
		"mysql":    {"mysql:9.7", MySQL, openMySQL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := kind.open(t, kind.start(t, present(t, docker, name, kind.image)))
			defer db.Close()
			for _, statement := range []string{"CREATE TABLE t (a int)",
				"INSERT INTO t VALUES (1)"} {
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func openPostgres(t *testing.T, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func openMySQL(t *testing.T, address string) *sql.DB {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	c := mysql.NewConfig()
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Net, c.Addr, c.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	connector, err := mysql.NewConnector(c)
	if err != nil {
		t.Fatal(err)
	}
	return sql.OpenDB(connector)
}

// engine returns a client of the Docker engine, and skips the test if there is none.
func engine(t *testing.T) client.APIClient {
	t.Helper()
	if os.Getenv("ROWKEEPER_TEST_SOURCE") == "local" {
		t.Skip("ROWKEEPER_TEST_SOURCE wants no containers")
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		t.Skipf("no Docker engine answers: %v", err)
	}
	t.Cleanup(func() {
		if err := provider.Close(); err != nil {
			t.Error(err)
		}
	})
	return provider.Client()
}

// present returns the image that the variable of all tests of databases names, or else the one that
// hack/testbed builds, or the official one. It skips the test if none of them is there.
func present(t *testing.T, docker client.APIClient, kind, image string) string {
	t.Helper()
	env := "ROWKEEPER_TEST_" + strings.ToUpper(kind) + "_IMAGE"
	if named := os.Getenv(env); named != "" {
		return named
	}
	for _, name := range []string{"localhost/rowkeeper/" + image, image} {
		if _, err := docker.ImageInspect(t.Context(), name); err == nil {
			return name
		}
	}
	t.Skipf("the Docker engine has no image %s, and %s names none", image, env)
	return ""
}
