// Package database has the databases of the runs: how they are started, reached by each server, and
// hurt.
package database

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Database is a database that several servers share.
type Database interface {
	// Version tells people what it is.
	Version() string
	// URL is where a server finds it, and Direct where nothing lies between.
	URL(server int) string
	Direct() string
	// Network is what lies between the servers and the database, nil if nothing does.
	Network() *Network
	Close() error
}

// Process is a database that is a process of its own.
type Process interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Kill(ctx context.Context) error
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// sqlite is a file.
type sqlite struct{ path string }

// NewSQLite makes a database of a file in a directory.
func NewSQLite(dir string) Database { return &sqlite{filepath.Join(dir, "state.db")} }

func (s *sqlite) Version() string   { return "SQLite" }
func (s *sqlite) URL(int) string    { return s.Direct() }
func (s *sqlite) Direct() string    { return (&url.URL{Scheme: "sqlite", Path: s.path}).String() }
func (s *sqlite) Network() *Network { return nil }
func (s *sqlite) Close() error      { return nil }

// given is a database that somebody else runs.
type given struct {
	url     string
	network *Network
}

// NewGiven takes the database of a URL.
func NewGiven(rawURL string, servers int) (Database, error) {
	g := &given{url: rawURL}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("the URL of the database cannot be parsed")
	}
	if u.Host != "" {
		g.network, err = NewNetwork(slices.Repeat([]string{u.Host}, servers)...)
	}
	return g, err
}

func (g *given) Version() string       { return "given" }
func (g *given) Direct() string        { return g.url }
func (g *given) Network() *Network     { return g.network }
func (g *given) URL(server int) string { return g.network.Through(g.url, server) }
func (g *given) Close() error          { return g.network.Close() }

// Missing is an error that says why a kind of database cannot be had here.
type Missing struct{ Reason string }

func (e *Missing) Error() string { return e.Reason }

// Served is a database server of the kit for tests.
type Served struct {
	url     string
	network *Network

	mu     sync.Mutex // held while the server is used
	server *dbserver.Server
}

// NewServed starts a server of a kind that keeps its commits.
func NewServed(ctx context.Context, kind programs.Kind, servers int,
	opts dbserver.Options) (*Served, error) {
	opts.Own, opts.Durable = true, true
	if kind == programs.MariaDB {
		// Without a binary log, it shows commits before they are on the disk: if it is killed then,
		// what was seen is gone, and the servers fence, as they should.
		opts.Settings = maps.Clone(opts.Settings)
		if opts.Settings == nil {
			opts.Settings = map[string]string{}
		}
		opts.Settings["log-bin"], opts.Settings["sync-binlog"] = "binlog", "1"
	}
	server, err := dbserver.Start(ctx, kind, opts)
	if err != nil {
		return nil, &Missing{fmt.Sprintf("%s: %s", kind,
			strings.Join(strings.Fields(err.Error()), " "))}
	}
	s := &Served{server: server}
	if s.url, err = server.CreateDatabase(ctx, "rowkeeper"); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	u, err := url.Parse(s.url)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.network, err = NewNetwork(slices.Repeat([]string{u.Host}, servers)...); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Version implements Database.
func (s *Served) Version() string { return string(s.server.Kind) + " " + s.server.Version }

// Direct implements Database.
func (s *Served) Direct() string { return s.url }

// Network implements Database.
func (s *Served) Network() *Network { return s.network }

// URL implements Database.
func (s *Served) URL(server int) string { return s.network.Through(s.url, server) }

func (s *Served) do(ctx context.Context, what string,
	command func(*dbserver.Server, context.Context) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := command(s.server, ctx); err != nil {
		return fmt.Errorf("%s the database: %w", what, err)
	}
	return nil
}

// Start implements Process.
func (s *Served) Start(ctx context.Context) error {
	return s.do(ctx, "start", (*dbserver.Server).Start)
}

// Stop implements Process.
func (s *Served) Stop(ctx context.Context) error {
	return s.do(ctx, "stop", (*dbserver.Server).Stop)
}

// Kill implements Process.
func (s *Served) Kill(ctx context.Context) error {
	return s.do(ctx, "kill", (*dbserver.Server).Kill)
}

// Pause implements Process.
func (s *Served) Pause(ctx context.Context) error {
	return s.do(ctx, "pause", (*dbserver.Server).Pause)
}

// Resume implements Process.
func (s *Served) Resume(ctx context.Context) error {
	return s.do(ctx, "resume", (*dbserver.Server).Resume)
}

// Close removes the server.
func (s *Served) Close() error {
	return errors.Join(s.network.Close(), s.server.Close(context.Background()))
}
