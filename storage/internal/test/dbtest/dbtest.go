// Package dbtest gives tests an empty database of every kind, on servers that
// pkg/support/test/dbserver starts, and the driver for it. Tests below the folder storage use it.
// Tests of API servers use the test kit's package databases.
//
//	func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }
//
//	func TestSomething(t *testing.T) {
//		dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
//			backend, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ...)
//		})
//	}
//
// Package dbserver describes where the servers come from. Each test has a database of its own on a
// server that all tests share, or with [NewServer] a server of its own, to stop, to kill and to
// start again.
//
// SQLite is always there. A kind of server that cannot be had is a failure if
// ROWKEEPER_TEST_REQUIRE (a list with commas) names it; otherwise its tests are skipped, with the
// reason, and [Main] prints it at the end. ROWKEEPER_TEST_ONLY (a list, too) restricts the tests to
// some kinds. SQLite's name stands for SQLite in memory (Memory), too.
package dbtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Kind is a kind of database.
type Kind = programs.Kind

// The kinds of databases.
const (
	// SQLite is a file in a temporary directory.
	SQLite = programs.SQLite
	// Memory is SQLite without a file: gone with the last connection, and not shared between
	// backends.
	Memory   Kind = "memory"
	Postgres      = programs.Postgres
	MariaDB       = programs.MariaDB
	MySQL         = programs.MySQL
)

// Kinds are the kinds that [Each] runs. Memory is not among them: it is SQLite.
func Kinds() []Kind { return programs.Kinds() }

// Servers are the kinds that have a server.
func Servers() []Kind { return programs.Servers() }

// DB is an empty database.
type DB struct {
	Kind Kind
	// Version is that of the server.
	Version string
	// URL is what Driver opens.
	URL    string
	Driver contract.Driver
}

// Runner is a test or a benchmark.
type Runner[T any] interface {
	testing.TB
	Run(name string, f func(T)) bool
}

// Each runs f as a subtest, named after the kind, with an empty database of each of the kinds, or
// of all [Kinds] if none is given.
func Each[T Runner[T]](t T, f func(t T, db DB), kinds ...Kind) {
	t.Helper()
	if len(kinds) == 0 {
		kinds = Kinds()
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t T) { f(t, Open(t, kind)) })
	}
}

// operationTimeout bounds what the package does at a server for one test.
const operationTimeout = time.Minute

// Open creates an empty database, and removes it when the test ends. A benchmark's is on a server
// that keeps its commits over a crash. Open skips the test, or fails it, if there is no server of
// this kind.
func Open(t testing.TB, kind Kind) DB {
	t.Helper()
	mainRan(t)
	wanted(t, kind)
	switch kind {
	case SQLite:
		ran(kind, sqliteVersion(), "file")
		// The name of a test may have characters in it that a URL must quote.
		u := url.URL{Scheme: "sqlite", Path: filepath.Join(t.TempDir(), "state.db")}
		return DB{Kind: kind, Version: sqliteVersion(), URL: u.String(), Driver: drivers[kind]}
	case Memory:
		ran(kind, sqliteVersion(), "memory")
		return DB{Kind: kind, Version: sqliteVersion(), URL: "memory:", Driver: drivers[kind]}
	}
	// Benchmarks measure durable commits.
	_, durable := t.(*testing.B)
	s, err := shared.get(kind, durable)
	if err != nil {
		missing(t, kind, err)
	}
	ran(kind, s.Version, s.Source)
	return create(t, s)
}

// create creates a database on a server, for the time of a test.
func create(t testing.TB, s *dbserver.Server) DB {
	t.Helper()
	name := randomName()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), operationTimeout)
	defer cancel()
	url, err := s.CreateDatabase(ctx, name)
	if err != nil {
		t.Fatalf("create a database on %s (%s): %v", s.Kind, s.Source, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), operationTimeout)
		defer cancel()
		if err := s.DropDatabase(ctx, name); err != nil {
			t.Errorf("drop a database of %s (%s): %v", s.Kind, s.Source, err)
		}
	})
	return DB{Kind: s.Kind, Version: s.Version, URL: url, Driver: drivers[s.Kind]}
}

func randomName() string {
	var b [8]byte
	rand.Read(b[:])
	return "rowkeeper_" + hex.EncodeToString(b[:])
}

// Server is a server of a test's own, which keeps what it has committed over a crash. Its methods
// fail the test if they fail.
type Server struct {
	*dbserver.Server
	t testing.TB
}

// NewServer starts a server, and removes it when the test ends. It skips the test, or fails it, if
// it cannot be had. The options' Own and Durable are set.
func NewServer(t testing.TB, kind Kind, opts dbserver.Options) *Server {
	t.Helper()
	mainRan(t)
	wanted(t, kind)
	NotOnTiDB(t, kind, "the test starts a server of its own, which would be one of MySQL")
	opts.Own, opts.Durable = true, true
	s, err := dbserver.Start(context.WithoutCancel(t.Context()), kind, opts)
	if err != nil {
		missing(t, kind, err)
	}
	ran(kind, s.Version, s.Source)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of %s ends:\n%s", kind, s.Logs(context.WithoutCancel(t.Context())))
		}
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("remove the server %s: %v", kind, err)
		}
	})
	return &Server{Server: s, t: t}
}

// Open creates an empty database on the server. It lives as long as the server.
func (s *Server) Open() DB {
	s.t.Helper()
	url, err := s.CreateDatabase(s.t.Context(), randomName())
	s.must("create a database", err)
	return DB{Kind: s.Kind, Version: s.Version, URL: url, Driver: drivers[s.Kind]}
}

// Start starts the server again, on the same port, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.must("start", s.Server.Start(s.t.Context()))
}

// Stop ends the server in order, as an administrator would.
func (s *Server) Stop() {
	s.t.Helper()
	s.must("stop", s.Server.Stop(s.t.Context()))
}

// Kill ends the server as a power failure would.
func (s *Server) Kill() {
	s.t.Helper()
	s.must("kill", s.Server.Kill(s.t.Context()))
}

// Pause freezes the server: connections stay open, and nothing answers until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	s.must("pause", s.Server.Pause(s.t.Context()))
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.t.Helper()
	s.must("resume", s.Server.Resume(s.t.Context()))
}

// Exec runs an administrator's statements.
func (s *Server) Exec(statements ...string) {
	s.t.Helper()
	s.must("administer", s.Server.Exec(s.t.Context(), statements...))
}

func (s *Server) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s %s (%s): %v; its log ends:\n%s", what, s.Kind, s.Source, err,
			s.Logs(context.WithoutCancel(s.t.Context())))
	}
}

// list reads a list of kinds from the environment.
func list(env string) []string {
	return strings.FieldsFunc(os.Getenv(env), func(r rune) bool { return r == ',' || r == ' ' })
}

// wanted skips the test if the kind is left out.
func wanted(t testing.TB, kind Kind) {
	t.Helper()
	only := list("ROWKEEPER_TEST_ONLY")
	if len(only) == 0 || slices.Contains(only, string(kind)) ||
		kind == Memory && slices.Contains(only, string(SQLite)) {
		return
	}
	missed(kind, "ROWKEEPER_TEST_ONLY leaves it out")
	t.Skipf("%s: ROWKEEPER_TEST_ONLY leaves it out", kind)
}

// missing fails the test if the kind is required, and skips it otherwise.
func missing(t testing.TB, kind Kind, err error) {
	t.Helper()
	missed(kind, err.Error())
	if slices.Contains(list("ROWKEEPER_TEST_REQUIRE"), string(kind)) {
		t.Fatalf("%s is required and cannot be had: %v", kind, err)
	}
	t.Skipf("%s cannot be had: %v", kind, err)
}

// pool holds the servers that the tests of this process share.
type pool struct {
	mu      sync.Mutex
	servers map[role]*attempt
}

// role is what a shared server is for.
type role struct {
	kind    Kind
	durable bool
}

// attempt is the one attempt to have a server.
type attempt struct {
	once   sync.Once
	server *dbserver.Server
	err    error
}

var shared = pool{servers: map[role]*attempt{}}

// get returns the server of a kind, and starts it for the first test that asks.
func (p *pool) get(kind Kind, durable bool) (*dbserver.Server, error) {
	p.mu.Lock()
	a := p.servers[role{kind, durable}]
	if a == nil {
		a = &attempt{}
		p.servers[role{kind, durable}] = a
	}
	p.mu.Unlock()
	a.once.Do(func() {
		a.server, a.err = dbserver.Start(context.Background(), kind,
			dbserver.Options{Durable: durable})
	})
	return a.server, a.err
}

// close removes the servers.
func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for role, a := range p.servers {
		if a.server == nil {
			continue
		}
		if err := a.server.Close(context.Background()); err != nil {
			errs = append(errs, fmt.Errorf("remove the server %s: %w", role.kind, err))
		}
	}
	clear(p.servers)
	return errors.Join(errs...)
}
