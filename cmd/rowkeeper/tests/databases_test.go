package tests

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
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
		onDatabase(t, string(kind), test)
	}
}

// anyDatabase runs a test on one kind of database. It is for tests of what stands above the
// storage: storage/conformance shows that it finds the same on all kinds. The tests take turns, by
// their names, so that each kind has some of them.
func anyDatabase(t *testing.T,
	test func(t *testing.T, start func(dir string, args ...string) *server)) {
	kinds := slices.DeleteFunc(programs.Kinds(),
		func(kind programs.Kind) bool { return !isTested(string(kind)) })
	name := fnv.New32a()
	name.Write([]byte(t.Name()))
	for turn := range kinds {
		kind := string(kinds[(name.Sum32()+uint32(turn))%uint32(len(kinds))])
		if _, err := databaseFlags(kind); err == nil || isRequired(kind) {
			onDatabase(t, kind, test)
			return
		}
	}
	t.Skip("none of the databases that ROWKEEPER_TEST_ONLY names can be had")
}

func onDatabase(t *testing.T, kind string,
	test func(t *testing.T, start func(dir string, args ...string) *server)) {
	t.Run(kind, func(t *testing.T) {
		if !isTested(kind) {
			t.Skipf("%s: ROWKEEPER_TEST_ONLY leaves it out", kind)
		}
		flags, err := databaseFlags(kind)
		if err != nil && isRequired(kind) {
			t.Fatal(err)
		}
		if err != nil {
			t.Skip(err)
		}
		test(t, func(dir string, args ...string) *server {
			return start(t, dir, append(slices.Clone(flags), args...)...)
		})
	})
}

func isTested(kind string) bool {
	only := os.Getenv("ROWKEEPER_TEST_ONLY")
	return only == "" || slices.Contains(strings.Split(only, ","), kind)
}

func isRequired(kind string) bool {
	return slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"), ","), kind)
}

// databaseFlags are the flags of a server with a database of a kind. All tests share a database
// server. Each has keys of its own.
func databaseFlags(kind string) ([]string, error) {
	if kind == "sqlite" {
		return nil, nil
	}
	url, err := databaseServers[kind]()
	if err != nil {
		return nil, err
	}
	return []string{"--database=" + url,
		fmt.Sprintf("--storage-prefix=/test-%d", prefixes.Add(1))}, nil
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
