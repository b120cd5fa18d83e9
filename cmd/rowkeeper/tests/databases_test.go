package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// eachDatabase runs a test on each kind of database. start starts a server in a directory with a
// database of that kind; servers that the test starts in one directory share one.
//
// Which kinds are tested is said as for the tests of the storage: ROWKEEPER_TEST_ONLY and
// ROWKEEPER_TEST_REQUIRE are lists of kinds.
func eachDatabase(t *testing.T,
	test func(t *testing.T, start func(dir string, args ...string) *server)) {
	for _, kind := range programs.Kinds() {
		kind := string(kind)
		t.Run(kind, func(t *testing.T) {
			if only := os.Getenv("ROWKEEPER_TEST_ONLY"); only != "" &&
				!slices.Contains(strings.Split(only, ","), kind) {
				t.Skipf("%s: ROWKEEPER_TEST_ONLY leaves it out", kind)
			}
			var flags []string
			if kind != "sqlite" {
				url, err := databaseServers[kind]()
				if err != nil && slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"),
					","), kind) {
					t.Fatal(err)
				}
				if err != nil {
					t.Skip(err)
				}
				// All tests share a database server. Each has keys of its own.
				flags = []string{"--database=" + url, fmt.Sprintf("--storage-prefix=/test-%d",
					prefixes.Add(1))}
			}
			test(t, func(dir string, args ...string) *server {
				return start(t, dir, append(slices.Clone(flags), args...)...)
			})
		})
	}
}

var prefixes atomic.Int64

// databaseServers start a server of each kind when it is needed first, and return the URL of a
// database on it.
var databaseServers = func() map[string]func() (string, error) {
	servers := map[string]func() (string, error){}
	for _, kind := range programs.Servers() {
		servers[string(kind)] = sync.OnceValues(func() (string, error) {
			server, url, err := serveDatabase(kind)
			if err != nil {
				return "", err
			}
			stopDatabases = append(stopDatabases, server)
			return url, nil
		})
	}
	return servers
}()

// stopDatabases are the servers that were started for several tests.
var stopDatabases []*dbserver.Server

// serveDatabase starts a database server, and makes a database on it.
func serveDatabase(kind programs.Kind) (server *dbserver.Server, url string, err error) {
	ctx := context.Background()
	if server, err = dbserver.Start(ctx, kind,
		dbserver.Options{Own: true, Durable: true}); err != nil {
		return nil, "", fmt.Errorf("%s: %w", kind, err)
	}
	if url, err = server.CreateDatabase(ctx, "rowkeeper"); err != nil {
		return nil, "", errors.Join(err, server.Close(ctx))
	}
	return server, url, nil
}

// sameDatabase returns the flags with which another server uses the database of this one.
func sameDatabase(s *server) []string {
	for _, arg := range s.cmd.Args {
		if strings.HasPrefix(arg, "--database=") {
			return nil // it has a server of its own, and is given to all
		}
	}
	return []string{"--database=sqlite://" + s.dir + "/.rowkeeper/state.db"}
}
