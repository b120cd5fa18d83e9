// Package containers starts database servers in containers: for the authors of API servers that
// package testkit runs, and of tests of other programs. It is a module of its own, so that nobody
// else has the container library among the modules of their project.
//
//	url := containers.Postgres(t, "postgres:17")
//	server := testkit.Start(t, api, testkit.Options{
//		Database: testkit.Database{URL: url, Driver: postgres.Driver},
//	})
//
// A container takes some seconds to start. Tests that share one are faster: each API server has a
// prefix of its own in it.
package containers

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	testmariadb "github.com/testcontainers/testcontainers-go/modules/mariadb"
	testmysql "github.com/testcontainers/testcontainers-go/modules/mysql"
	testpostgres "github.com/testcontainers/testcontainers-go/modules/postgres"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/rowkeeper/rowkeeper/pkg/testkit/containers/internal/dockerhost"
)

// startWait bounds the start of a container, with the time for its image to come.
const startWait = 5 * time.Minute

const name, user, password = "test", "test", "test"

// Postgres starts PostgreSQL from an image, such as postgres:17, until the test ends, and returns
// the URL of an empty database. Options are those of testcontainers.
func Postgres(t testing.TB, image string, o ...testcontainers.ContainerCustomizer) (url string) {
	t.Helper()
	o = append([]testcontainers.ContainerCustomizer{
		testpostgres.WithDatabase(name), testpostgres.WithUsername(user),
		testpostgres.WithPassword(password),
		// It starts once more after it has been prepared.
		ready(wait.ForLog("database system is ready to accept connections").WithOccurrence(2),
			listening("5432/tcp")),
	}, o...)
	address := start(t, image, "5432/tcp",
		func(ctx context.Context) (testcontainers.Container, error) {
			return running(testpostgres.Run(ctx, image, o...))
		})
	return databaseURL("postgres", address, "sslmode=disable")
}

// MySQL starts MySQL from an image, such as mysql:9.7.
func MySQL(t testing.TB, image string, o ...testcontainers.ContainerCustomizer) (url string) {
	t.Helper()
	o = append([]testcontainers.ContainerCustomizer{testmysql.WithDatabase(name),
		testmysql.WithUsername(user), testmysql.WithPassword(password),
		ready(listening("3306/tcp"))}, o...)
	address := start(t, image, "3306/tcp",
		func(ctx context.Context) (testcontainers.Container, error) {
			return running(testmysql.Run(ctx, image, o...))
		})
	return databaseURL("mysql", address, "tls=preferred")
}

// MariaDB starts MariaDB from an image, such as mariadb:11.8.
func MariaDB(t testing.TB, image string, o ...testcontainers.ContainerCustomizer) (url string) {
	t.Helper()
	o = append([]testcontainers.ContainerCustomizer{testmariadb.WithDatabase(name),
		testmariadb.WithUsername(user), testmariadb.WithPassword(password),
		ready(listening("3306/tcp"))}, o...)
	address := start(t, image, "3306/tcp",
		func(ctx context.Context) (testcontainers.Container, error) {
			return running(testmariadb.Run(ctx, image, o...))
		})
	return databaseURL("mysql", address, "tls=preferred")
}

// ready says when a server is.
func ready(when ...wait.Strategy) testcontainers.CustomizeRequestOption {
	return testcontainers.WithWaitStrategyAndDeadline(startWait, when...)
}

// listening is when MySQL and MariaDB are ready: while the entrypoint prepares them, they do not
// listen. Their logs differ between their builds. The container is asked, since testcontainers may
// be wrong about the address; see [dockerhost.Address].
func listening(port string) wait.Strategy { return wait.ForListeningPort(port).SkipExternalCheck() }

// running makes a container that could not be started nil, and not a nil pointer of its own type.
func running[C interface {
	comparable
	testcontainers.Container
}](c C, err error) (testcontainers.Container, error) {
	var none C
	if c == none {
		return nil, err
	}
	return c, err
}

// start runs a container and returns the address of its port.
func start(t testing.TB, image, port string,
	run func(context.Context) (testcontainers.Container, error)) (address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startWait)
	defer cancel()
	// A container that did not become ready is removed, too.
	container, err := run(ctx)
	if container != nil {
		t.Cleanup(func() {
			if err := testcontainers.TerminateContainer(container,
				testcontainers.StopTimeout(0)); err != nil {
				t.Errorf("cannot remove the container of %s: %v", image, err)
			}
		})
	}
	if err == nil {
		address, err = dockerhost.Address(ctx, container, port)
	}
	if err != nil {
		t.Fatal(fmt.Errorf("cannot start a container of %s: %w", image, err))
	}
	return address
}

func databaseURL(scheme, address, query string) string {
	return (&url.URL{Scheme: scheme, User: url.UserPassword(user, password), Host: address,
		Path: "/" + name, RawQuery: query}).String()
}
