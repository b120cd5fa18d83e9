package tests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// eachDatabase runs a test on each kind of database. start starts a server in a directory with a
// database of that kind; servers that the test starts in one directory share one.
//
// Which kinds are tested is said as for the tests of the storage: ROWKEEPER_TEST_ONLY and
// ROWKEEPER_TEST_REQUIRE are lists of kinds.
func eachDatabase(t *testing.T,
	test func(t *testing.T, start func(dir string, args ...string) *server)) {
	for _, kind := range []string{"sqlite", "postgres", "mariadb", "mysql"} {
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
var databaseServers = map[string]func() (string, error){
	"postgres": sync.OnceValues(func() (string, error) { return serveDatabase("postgres") }),
	"mariadb":  sync.OnceValues(func() (string, error) { return serveDatabase("mariadb") }),
	"mysql":    sync.OnceValues(func() (string, error) { return serveDatabase("mysql") }),
}

// stopDatabases ends the servers that were started.
var stopDatabases []func()

// serveDatabase starts a database server by the storage tests' program for that. It ends with its
// input, so also with this process.
func serveDatabase(kind string) (string, error) {
	if reason := os.Getenv("ROWKEEPER_TEST_" + strings.ToUpper(kind) + "_MISSING"); reason != "" {
		return "", fmt.Errorf("%s: %s", kind, reason)
	}
	cmd := exec.Command(dbserveProgram, kind)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	stop := func() {
		stdin.Close()
		cmd.Wait() // what it has to say was said
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		stop()
		return "", fmt.Errorf("%s: %s", kind, strings.TrimSpace(stderr.String()))
	}
	if err != nil {
		stop()
		return "", err
	}
	var answer struct{ URL, Version string }
	if err := json.Unmarshal(line, &answer); err != nil {
		stop()
		return "", fmt.Errorf("%s: %w", kind, err)
	}
	stopDatabases = append(stopDatabases, stop)
	return answer.URL, nil
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
